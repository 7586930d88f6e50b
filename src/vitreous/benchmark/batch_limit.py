"""The largest batch that fits into the memory of a GPU, extrapolated from the peak memory of two small batches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from vitreous.benchmark.machine import PeakMemory, synchronise
from vitreous.errors import VitreousError, one_line

CHECKED_SHARE = 0.9  # of the extrapolated batch: the rest is for fragmented memory
MAX_CHECK_SECONDS = 10.0  # expected; a longer check is left out
MAX_CHECK_IMAGES = 65_535  # dimension of a CUDA grid: with larger batches, some kernels cannot be launched


@dataclass(frozen=True)
class BatchLimit:
    """The largest batch, and whether it was run."""

    images: int
    bytes_per_image: float
    available: int  # bytes for parameters, images and activations
    checked: int  # images of the batch that was run; 0: none
    failure: str = ""  # why that batch did not run, or why none was tried

    @property
    def verified(self) -> bool:
        return self.checked > 0 and not self.failure


class GpuMemory:
    """Peak and available memory of a GPU, and the time of a pass."""

    def __init__(self, device: torch.device):
        self.device = device

    def available(self) -> int:
        """Return the bytes that tensors can take in all: what they take now, and what is free."""
        gc.collect()  # CUDA graphs of earlier models
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)

    def measure(self, run: Callable[[], object]) -> tuple[int, float]:
        """Return the peak memory in bytes and the seconds of a pass."""
        synchronise(self.device)
        peak, start = PeakMemory(self.device), time.perf_counter()
        run()
        synchronise(self.device)
        return peak.read(), time.perf_counter() - start


def batch_limit(
    run: Callable[[int], object], batches: tuple[int, int], memory: GpuMemory, *, check: bool = True
) -> BatchLimit:
    """Extrapolate the largest batch linearly from the peak memory of `run` with two batches.

    `run` takes the number of images. With `check`, a batch a little smaller than the result is run once.
    """
    small, large = batches
    run(small)  # allocates what stays, such as gradients and workspaces
    (low, _), (high, seconds) = (memory.measure(lambda count=count: run(count)) for count in (small, large))  # type: ignore[misc]
    slope = (high - low) / (large - small)
    if slope <= 0:
        raise VitreousError(f"the peak memory does not grow between {small} and {large} images: nothing to extrapolate")
    available = memory.available()
    images = int((available - (low - slope * small)) / slope)
    count = int(CHECKED_SHARE * images)
    failure = ""
    if not check or count < 1:
        count, failure = 0, "not run"
    elif count > MAX_CHECK_IMAGES:
        count, failure = 0, f"not run: more than {MAX_CHECK_IMAGES:,} images"
    elif (expected := seconds * count / large) > MAX_CHECK_SECONDS:
        count, failure = 0, f"not run: it would take {expected:.0f} s"
    else:
        failure = _failure_of(lambda: run(count), memory)
    return BatchLimit(images, slope, available, count, failure)


def _failure_of(run: Callable[[], object], memory: GpuMemory) -> str:
    """Run a pass, and return why it failed; "" if it did not."""
    failure = ""
    try:
        memory.measure(run)
    except torch.OutOfMemoryError:
        failure = "out of memory"
    except RuntimeError as error:  # a kernel that does not support a batch of this size
        failure = one_line(error)
    with suppress(RuntimeError):
        memory.available()  # returns the memory of the failed pass
    return failure
