"""The progress bar of a download: bytes, rate and time left, and a way to stop the thread that downloads."""

import inspect
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from vitreous.utils.progress import Advance, ProgressReporter

CHUNK_BYTES = 2**17


class CancelledError(Exception):
    """The download was stopped: by Ctrl-C, or because it is too slow."""


class DownloadProgress:
    """Show the progress of a download of several files, unless HF_HUB_DISABLE_PROGRESS_BARS is set. Use it in a `with`.

    Nothing is shown before the first bytes arrive: files in the cache are not downloaded. huggingface_hub reports bytes
    through the class that `options` returns.
    """

    def __init__(self, title: str, total: int):
        self.title, self.total, self.done = title, total, 0
        self.started = 0.0
        self.advance: Advance | None = None
        self.cancelled = threading.Event()
        self._bar = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancelled.set()
        self._bar.close()

    def add(self, count: int) -> None:
        """Count bytes. In the thread that downloads, raise CancelledError if the download was cancelled."""
        if self.cancelled.is_set():
            raise CancelledError
        if self.advance is None:
            self.advance = self._show()
        self.done += count
        rate = self.done / max(time.monotonic() - self.started, 1e-3)
        self.advance(count, f"{_megabytes(self.done)} of {_megabytes(self.total)} MB, {_megabytes(rate)} MB/s")

    def skip(self, count: int) -> None:
        """Leave out a file that was in the cache."""
        self.total -= count

    def _show(self) -> Advance:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled

        reporter = ProgressReporter(quiet=are_progress_bars_disabled())
        reporter.note(f"downloading {self.title}, {_megabytes(self.total)} MB")
        self.started = time.monotonic()
        return self._bar.enter_context(reporter.bar("downloading", self.total))

    def options(self, download: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments that make `hf_hub_download` report here. Old versions have none, and show own bars."""
        if "tqdm_class" not in inspect.signature(download).parameters:
            return {}
        from huggingface_hub.utils.tqdm import tqdm

        add = self.add

        class ByteCounter(tqdm):
            """A tqdm that displays nothing."""

            def __init__(self, *args: Any, **settings: Any):
                quiet = {"disable": False, "file": io.StringIO()}  # a disabled tqdm counts nothing
                super().__init__(*args, **{**settings, **quiet})  # type: ignore[no-untyped-call]

            def update(self, n: float | None = 1) -> bool | None:
                add(int(n or 0))
                displayed: bool | None = super().update(n)
                return displayed

            def update_transfer(self, n: float | None = 1) -> None:
                """Ignore the compressed bytes that some servers report in addition."""

            def set_transfer_postfix_str(self, *args: Any, **settings: Any) -> None:
                """Ignore the rate of the compressed bytes."""

        return {"tqdm_class": ByteCounter}


@contextmanager
def small_chunks() -> Iterator[None]:
    """huggingface_hub reports progress once per chunk of 10 MB, which takes minutes over a slow connection."""
    from huggingface_hub import constants

    usual = getattr(constants, "DOWNLOAD_CHUNK_SIZE", None)
    if usual is None:
        yield
        return
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
    try:
        yield
    finally:
        constants.DOWNLOAD_CHUNK_SIZE = usual


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"
