"""Transfer of decoded pixels from worker processes: in shared memory, or through a pipe if that is full.

Shared memory is in /dev/shm. Docker gives it 64 MiB by default, less than a few workers need; it may also be read-only
or missing. A worker reserves memory before it writes: otherwise writing to a full /dev/shm kills it (SIGBUS).
"""

import multiprocessing
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from vitreous.errors import VitreousWarning
from vitreous.utils.system_calls import open_file_limit

SHARED = "/dev/shm"
ADVICE = "enlarge it (docker run --shm-size=2g)"
_warned: set[str] = set()
FEW_FILES = 256  # a shared tensor takes open files in both processes; with a lower limit, pipes are used instead


def available_workers(requested: int, method: str) -> int:
    """The requested number of worker processes; 0, with a warning, if the system has no semaphores for their queues."""
    if requested:
        try:
            multiprocessing.get_context(method).Semaphore()
        except OSError as error:
            _warn_once(
                f"images are decoded without worker processes, which is slower: {SHARED} cannot be used"
                f" ({error.strerror}); {ADVICE}, or pass --workers 0"
            )
            return 0
    return requested


def _warn_once(text: str) -> None:
    """Warn once per process: Python's own filter forgets warnings whenever a library changes the filters."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, VitreousWarning, stacklevel=4)


def pack_arrays(arrays: Sequence[NDArray[Any]]) -> Tensor | NDArray[Any]:
    """Arrays concatenated into one flat buffer. In a worker: a tensor in shared memory, or an array to send by pipe."""
    rows = [array.reshape(-1) for array in arrays]
    dtype = rows[0].dtype if rows else np.dtype(np.uint8)
    count = sum(map(len, rows))
    if not count:
        return np.empty(0, dtype)
    flat = np.empty(count, dtype) if get_worker_info() is None else _allocate_shared(count, dtype)
    np.concatenate(rows, out=flat.numpy() if isinstance(flat, Tensor) else flat)
    return flat


def unpack_tensor(flat: Tensor | NDArray[Any], from_worker: bool) -> Tensor:
    """The result of `pack_arrays` as a tensor, in the main process. Warns if a worker had to use a pipe."""
    if isinstance(flat, Tensor):
        return flat
    if from_worker and len(flat) and not _few_files_allowed():
        status = os.statvfs(SHARED) if os.path.isdir(SHARED) and hasattr(os, "statvfs") else None  # noqa: PTH112
        size = f" ({status.f_blocks * status.f_frsize >> 20:,} MiB)" if status else ""
        _warn_once(
            f"{SHARED}{size} is too small for all decoded images: some go through pipes, which is slower; {ADVICE}"
        )
    return torch.from_numpy(flat if flat.flags.writeable else flat.copy())


def _allocate_shared(count: int, dtype: np.dtype[Any]) -> Tensor | NDArray[Any]:
    """A tensor in shared memory; if there is none, an ordinary array."""
    empty = np.empty(0, dtype)
    if _few_files_allowed():
        return np.empty(count, dtype)
    try:
        storage = torch.UntypedStorage._new_shared(count * dtype.itemsize)
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor" and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(storage._share_fd_cpu_()[0], 0, count * dtype.itemsize)
        return torch.from_numpy(empty).new_empty(0).set_(storage)
    except (OSError, RuntimeError):  # full, read-only or missing; or the limit of open files is reached
        return np.empty(count, dtype)


def _few_files_allowed() -> bool:
    limit = open_file_limit()
    return limit is not None and limit < FEW_FILES
