"""Download `hf://owner/name[@revision]` from the Hugging Face hub, with huggingface_hub's cache and offline mode.

Some requests of huggingface_hub have no timeout, and it does not verify hashes. Therefore the list of files and their
hashes are requested first, with a timeout, and every file is verified before it is used. The timeouts are those of the
library: HF_HUB_ETAG_TIMEOUT for an answer, HF_HUB_DOWNLOAD_TIMEOUT for the next bytes of a file. A download that is
slower than MIN_BYTES_PER_SECOND is abandoned. If the weights cannot be downloaded, the error says how to fetch them on
another machine.
"""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vitreous.errors import VitreousError
from vitreous.weights.download_progress import CancelledError, DownloadProgress, small_chunks
from vitreous.weights.known_weights import KNOWN_WEIGHTS, KnownWeights

SCHEME = "hf://"
# A repository may hold the same weights in several formats: the first one that it has is downloaded.
FORMATS = (["*.safetensors", "*.safetensors.index.json"], ["*.npz"], ["*.bin", "*.bin.index.json", "*.pth", "*.pt"])
MIN_BYTES_PER_SECOND = 10_000  # on average over a file
CANCEL_SECONDS = 2.0  # time for a thread to stop, and to remove the part of a file that it has written
T = TypeVar("T")


class TooSlowError(TimeoutError):
    """A download is slower than MIN_BYTES_PER_SECOND."""


class WrongContentError(VitreousError):
    """A file does not have the hash that the hub reports."""


def fetch(source: str) -> Path:
    """Return the local folder of a repository; download it if it is not cached. Subfolders are not downloaded.

    `source`: `hf://owner/name`, `hf://owner/name@revision`, or a name of `vitreous models --weights`.
    """
    known = KNOWN_WEIGHTS.get(source)
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", known.address if known else source)
    if match is None:
        raise VitreousError("expected hf://owner/name or hf://owner/name@revision")
    try:
        from huggingface_hub import constants
    except ImportError:
        reason = "downloads need huggingface_hub, which is not installed (pip install huggingface_hub)"
        raise VitreousError(_with_instructions(reason, match[1], match[2], known)) from None

    repository, revision = match[1], match[2] or constants.DEFAULT_REVISION
    if constants.HF_HUB_OFFLINE:
        return _from_cache(repository, revision, known)
    try:
        files = _with_timeout(lambda: _list_files(repository, revision))
    except Exception as error:  # of huggingface_hub, its HTTP library or the system
        if _status(error) in (401, 403, 404):
            raise VitreousError(_reason(error)) from error
        try:
            return _from_cache(repository, revision, known)
        except WrongContentError:
            raise
        except VitreousError:
            reason = _reason(error)
            if _status(error) is None:
                reason = _with_instructions(f"{reason}, and it is not in the cache", repository, match[2], known)
            raise VitreousError(reason) from error
    if not files:
        raise VitreousError("the repository has no weights in a supported format")
    return _download(repository, revision, files, known)


def _with_instructions(reason: str, repository: str, revision: str | None, known: KnownWeights | None) -> str:
    """Return a reason why weights cannot be downloaded, followed by how to fetch them on another machine."""
    folder = known.name if known else repository.partition("/")[2]
    files = f" {' '.join(known.files)}" if known else ""
    at = f" --revision {revision}" if revision and revision != "main" else ""
    command = f"hf download {repository}{files}{at} --local-dir {folder}"
    use = "to the current folder on this machine" if known else "to this machine and give its path instead"
    return (
        f"{reason}. On a machine with internet access run `{command}`, then copy the folder {folder} {use}"
        f"{_cache_hint(repository)}"
    )


def _cache_hint(repository: str) -> str:
    try:
        from huggingface_hub import constants
    except ImportError:
        return ""
    folder = f"models--{repository.replace('/', '--')}"
    return f"; or, without --local-dir, copy the folder {folder} of its cache to {constants.HF_HUB_CACHE}"


def _list_files(repository: str, revision: str) -> dict[str, tuple[str, int]]:
    """Return the files to download, with the hash ("" if unknown) and size of each. Empty if the repository has no
    weights."""
    from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url

    timeout = constants.HF_HUB_ETAG_TIMEOUT
    info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=timeout)
    files = {file.rfilename: file for file in info.siblings or [] if "/" not in file.rfilename}
    for patterns in FORMATS:
        weights = [name for name in files if any(fnmatchcase(name, pattern) for pattern in patterns)]
        if weights:
            break
    else:
        return {}
    selected = sorted({*weights, *(name for name in files if name.endswith(".json"))})
    for name in selected:  # without an answer, hf_hub_download would retry for minutes
        get_hf_file_metadata(hf_hub_url(repository, name, revision=revision), timeout=timeout)
    return {name: (_reported_hash(files[name]), int(files[name].size or 0)) for name in selected}


def _reported_hash(file: Any) -> str:
    """Return the SHA-256 of a large file, the git hash of a small one."""
    sha256 = file.lfs.sha256 if file.lfs is not None else None
    return str(sha256 or file.blob_id or "")


def _with_timeout(request: Callable[[], T], size: int = 0, cancel: Callable[[], None] | None = None) -> T:
    """Return the result of `request`, which downloads `size` bytes, or raise TimeoutError. The timeouts of HTTP
    libraries apply to each packet, and a slow server can send many packets. A thread that hangs is abandoned, after
    `cancel` told it to stop."""
    from huggingface_hub import constants

    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(request())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        thread.join(min(3 * constants.HF_HUB_ETAG_TIMEOUT + size / MIN_BYTES_PER_SECOND, threading.TIMEOUT_MAX))
    finally:
        if thread.is_alive() and cancel is not None:  # Ctrl-C, or too slow
            cancel()
            thread.join(CANCEL_SECONDS)
    if errors and not isinstance(errors[0], CancelledError):
        raise errors[0]
    if not results:
        raise TooSlowError if size else TimeoutError
    return results[0]


def _download(repository: str, revision: str, files: dict[str, tuple[str, int]], known: KnownWeights | None) -> Path:
    """Download the files that are not cached, with a progress bar, and verify all of them. Returns their folder."""
    from huggingface_hub import constants, hf_hub_download

    timeout = constants.HF_HUB_ETAG_TIMEOUT
    folders = set()
    licence = f" (licence {known.licence})" if known else ""
    title = f"{SCHEME}{repository}{licence} to {constants.HF_HUB_CACHE}"
    with small_chunks(), DownloadProgress(title, sum(size for _, size in files.values())) as progress:
        options = progress.options(hf_hub_download)
        for name, (expected, size) in sorted(files.items(), key=lambda file: file[1][1]):  # the weights last
            request = partial(hf_hub_download, repository, name, revision=revision, etag_timeout=timeout, **options)
            before = progress.done
            try:
                with _removed_after_failure(repository, expected):
                    path = Path(_with_timeout(request, size, progress.cancelled.set))
            except Exception as error:
                again = "run the same command again to repeat the download"
                raise VitreousError(f"{name}: {_reason(error)}; {again}") from error
            if progress.done == before:
                progress.skip(size)
            _check_hash(path, expected)
            folders.add(path.parent)
    if len(folders) > 1:
        raise VitreousError("the repository was changed during the download: try again")
    return folders.pop()


@contextmanager
def _removed_after_failure(repository: str, expected: str) -> Iterator[None]:
    """After a failure or Ctrl-C, remove what was written of a file. huggingface_hub cannot continue it, and a thread
    that waits for the server does not remove it."""
    from huggingface_hub import constants

    blobs = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "blobs"
    pattern = f"{expected}.*.incomplete"
    earlier = set(blobs.glob(pattern))
    try:
        yield
    except BaseException:
        for path in set(blobs.glob(pattern)) - earlier if expected else ():
            with suppress(OSError):  # Windows does not remove a file that is open
                path.unlink()
        raise


def _from_cache(repository: str, revision: str, known: KnownWeights | None) -> Path:
    from huggingface_hub import constants, snapshot_download

    offline = ", and HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else ""
    try:
        for patterns in FORMATS:
            folder = Path(
                snapshot_download(
                    repository,
                    revision=revision,
                    allow_patterns=["*.json", *patterns],
                    ignore_patterns=["*/*"],
                    local_files_only=True,
                )
            )
            if weights := [path for pattern in patterns for path in folder.glob(pattern)]:
                for path in (*weights, *folder.glob("*.json")):
                    _check_hash(path, "")
                return folder
    except VitreousError:
        raise
    except Exception as error:
        raise VitreousError(_with_instructions(_reason(error), repository, revision, known)) from error
    reason = f"no weights in a supported format in the cache{offline}"
    raise VitreousError(_with_instructions(reason, repository, revision, known))


def _check_hash(path: Path, expected: str) -> None:
    """Verify a cached file; remove it and raise an error if its hash is wrong. Without `expected`, the hash is the name
    of the blob that the file links to."""
    blob = Path(os.path.realpath(path))
    expected = expected or (blob.name if blob != path else "")
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", expected):
        return
    if _hash(blob, len(expected)) != expected:
        path.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
        raise WrongContentError(
            f"{path.name} has the wrong hash (the hub reports {expected[:12]}...): it was damaged during the download"
            " or in the cache. It was removed; load it again to download it again"
        )


def _hash(path: Path, digits: int) -> str:
    """Return the SHA-256 (64 digits), or the SHA-1 as git computes it (40 digits)."""
    with path.open("rb") as file:
        if digits == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        start = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        while part := file.read(2**20):
            start.update(part)
        return start.hexdigest()


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status of an error answer of the hub, else None."""
    from huggingface_hub.errors import HfHubHTTPError

    answered = isinstance(error, HfHubHTTPError) and error.response is not None
    return error.response.status_code if answered else None  # type: ignore[union-attr]


def _reason(error: Exception) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError, RevisionNotFoundError

    uncached = isinstance(error, LocalEntryNotFoundError)
    if uncached and constants.HF_HUB_OFFLINE:
        return "not in the cache, or not all of it, and HF_HUB_OFFLINE is set"
    cause = error.__cause__ if uncached else error  # the reason why the library fell back to the cache
    if isinstance(cause, RevisionNotFoundError):
        return "the repository has no such revision"
    status = _status(cause)
    if status in (401, 403, 404):
        return f"the hub answers {status}: there is no such repository, or it needs permission (`hf auth login`)"
    if status is not None:
        return f"the hub answers {status}: try again later"
    return _no_answer(cause) or f"cannot be downloaded ({' '.join(str(error).split())[:200] or type(error).__name__})"


def _no_answer(error: BaseException | None) -> str | None:
    """Return a message for a failed connection, for any HTTP library; None for other errors."""
    from huggingface_hub import constants

    if isinstance(error, TooSlowError):
        return f"the hub sends it too slowly (less than {MIN_BYTES_PER_SECOND // 1000} kB/s)"
    kind = type(error).__name__
    if isinstance(error, TimeoutError) or "Timeout" in kind:
        return (
            f"the hub did not answer within {constants.HF_HUB_ETAG_TIMEOUT} s (HF_HUB_ETAG_TIMEOUT and"
            " HF_HUB_DOWNLOAD_TIMEOUT, in seconds, change that)"
        )
    if isinstance(error, ConnectionError) or "Connect" in kind or "Protocol" in kind:
        return "the hub cannot be reached, or closed the connection"
    return None
