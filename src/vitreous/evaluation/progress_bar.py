"""The type of the progress bars that evaluations report to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitreous.utils.progress import ProgressReporter

Tick = Callable[[int], None]  # called with the number of images processed since the last call
ProgressBar = Callable[[str, int], AbstractContextManager[Tick]]  # called with a title and the number of images


def no_progress_bar(title: str, images: int) -> AbstractContextManager[Tick]:
    """Return a progress bar that shows nothing."""
    return nullcontext(lambda images: None)


def image_progress_bar(reporter: ProgressReporter) -> ProgressBar:
    """Return a function that opens progress bars, which count images and show images per second."""

    @contextmanager
    def bar(title: str, images: int) -> Iterator[Tick]:
        started, done = time.perf_counter(), 0
        with reporter.bar(title, images) as advance:

            def tick(count: int) -> None:
                nonlocal done
                done += count
                advance(count, f"{done / max(1e-9, time.perf_counter() - started):,.0f} images/s")

            yield tick

    return bar
