"""The largest batch is extrapolated from two small ones, and one pass checks it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vitreous import VitreousError
from vitreous.benchmark.batch_limit import MAX_CHECK_IMAGES, GpuMemory, batch_limit


class PretendedGpu(GpuMemory):
    """A GPU of 1000 bytes. A pass takes `fixed` bytes and 3 bytes per image."""

    def __init__(self, fixed: int = 100, size: int = 1000, seconds: float = 0.001, per_image: int = 3) -> None:
        self.fixed, self.size, self.seconds, self.per_image = fixed, size, seconds, per_image
        self.runs: list[int] = []

    def available(self) -> int:
        return self.size

    def measure(self, run: Callable[[], object]) -> tuple[int, float]:
        run()
        return self.fixed + self.per_image * self.runs[-1], self.seconds

    def run(self, count: int) -> None:
        self.runs.append(count)


def test_the_largest_batch_is_extrapolated_and_run() -> None:
    gpu = PretendedGpu()
    limit = batch_limit(gpu.run, (2, 4), gpu)
    assert (limit.images, limit.bytes_per_image, limit.available) == (300, 3, 1000)
    assert (limit.checked, limit.verified, limit.failure) == (270, True, "")
    assert gpu.runs == [2, 2, 4, 270]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (RuntimeError("invalid configuration\nmore"), "invalid configuration"),
    ],
)
def test_a_batch_that_does_not_run_is_not_verified(error: Exception, reason: str) -> None:
    gpu = PretendedGpu()

    def run(count: int) -> None:
        gpu.run(count)
        if count > 4:
            raise error

    limit = batch_limit(run, (2, 4), gpu)
    assert (limit.images, limit.checked, limit.verified) == (300, 270, False)
    assert reason in limit.failure


@pytest.mark.parametrize(
    ("gpu", "check", "reason"),
    [
        (PretendedGpu(), False, "not run"),
        (PretendedGpu(seconds=60), True, "not run: it would take"),
        (PretendedGpu(size=10**6), True, f"not run: more than {MAX_CHECK_IMAGES:,} images"),
        (PretendedGpu(size=103), True, "not run"),
    ],
)
def test_a_check_can_be_left_out(gpu: PretendedGpu, check: bool, reason: str) -> None:
    limit = batch_limit(gpu.run, (2, 4), gpu, check=check)
    assert limit.images == (gpu.size - 100) // 3
    assert not limit.verified
    assert limit.failure.startswith(reason)
    assert gpu.runs == [2, 2, 4]


def test_constant_memory_is_an_error() -> None:
    gpu: Any = PretendedGpu(per_image=0)
    with pytest.raises(VitreousError, match="does not grow between 2 and 4 images"):
        batch_limit(gpu.run, (2, 4), gpu)
