"""Measurements of a machine: time of a step, peak matmul throughput, copy bandwidth, memory and energy."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from vitreous.utils.device import peak_memory

MIN_REPEATS, MAX_REPEATS = 3, 2000  # if a duration is given
MATMUL_SIDES = {"cuda": 8192, "cpu": 2048}  # of the square matrices that measure the peak
COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}  # size of the copy that measures the bandwidth


@dataclass(frozen=True)
class StepTimes:
    """The duration of each repeat in seconds."""

    seconds: tuple[float, ...]

    def quantile(self, q: float) -> float:
        """Return a quantile with linear interpolation; 0.5 is the median."""
        ordered = sorted(self.seconds)
        position = q * (len(ordered) - 1)
        low = math.floor(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (position - low) * (ordered[high] - ordered[low])

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    def to_json(self) -> dict[str, float]:
        """Return median and quantiles in milliseconds."""
        return {"median": 1e3 * self.median, "10%": 1e3 * self.quantile(0.1), "90%": 1e3 * self.quantile(0.9)}

    def __str__(self) -> str:
        median, low, high = (_duration_text(self.quantile(q)) for q in (0.5, 0.1, 0.9))
        return f"{median} per batch (median of {len(self.seconds):,}; 10% to 90% quantile: {low} to {high})"


def throughput_text(images_per_second: float) -> str:
    """Format a throughput."""
    digits = 0 if images_per_second >= 100 else 1
    return f"{images_per_second:,.{digits}f} images/s"


def _duration_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(
    step: Callable[[], object],
    device: torch.device,
    *,
    repeats: int | None = None,
    seconds: float = 1.0,
    warm_up: int = 3,
    back_to_back: bool = True,
) -> StepTimes:
    """Time a step for a number of repeats, or for as many as fit into `seconds`.

    On a GPU the steps run back to back as in a loop, with CUDA events between them, and the host may run ahead. With
    `back_to_back=False` the host synchronises after each step: the time is the latency from the call to the result.
    """
    for _ in range(warm_up):
        step()
    synchronise(device)
    if repeats is None:
        start = time.perf_counter()
        step()
        synchronise(device)
        repeats = max(MIN_REPEATS, min(MAX_REPEATS, round(seconds / (time.perf_counter() - start))))
    if device.type == "cuda" and back_to_back:
        return _time_with_events(step, repeats, device)
    durations = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        synchronise(device)
        durations.append(time.perf_counter() - start)
    return StepTimes(tuple(durations))


def _time_with_events(step: Callable[[], object], repeats: int, device: torch.device) -> StepTimes:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    with torch.cuda.device(device):  # events are recorded on the current device
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        torch.cuda.synchronize()
    return StepTimes(tuple(a.elapsed_time(b) / 1e3 for a, b in pairwise(events)))


# ---------------------------------------------------------------- peak throughput


def matmul_peak(device: torch.device, precision: str, side: int | None = None, repeats: int = 10) -> float:
    """Return the FLOP/s of a large square matmul in the precision: the practical limit for a model on this machine. fp8
    uses one scale per row and per column."""
    side = side or MATMUL_SIDES[device.type]
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    step = {"fp32": _matmul, "bf16": _matmul_bf16, "fp8": _matmul_fp8}[precision](a, b)
    return 2 * side**3 / time_steps(step, device, repeats=repeats).median


def _matmul(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    out = torch.empty(len(a), b.shape[1], device=a.device, dtype=a.dtype)
    return lambda: torch.mm(a, b.T, out=out)


def _matmul_bf16(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    return _matmul(a.bfloat16(), b.bfloat16())


def _matmul_fp8(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    rows, columns = torch.ones(len(a), 1, device=a.device), torch.ones(1, len(b), device=b.device)
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)

    def step() -> Tensor:
        product: Tensor = torch._scaled_mm(
            a, b.T, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return product

    return step


def copy_bandwidth(device: torch.device, count: int | None = None, repeats: int = 10) -> float:
    """Return the bytes per second that a large copy within the memory of the device reads and writes."""
    count = count or COPY_BYTES[device.type]
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / time_steps(lambda: target.copy_(source), device, repeats=repeats).median


# ---------------------------------------------------------------- memory


class PeakMemory:
    """Peak memory in bytes since `reset`: of tensors on a GPU, of the process on a CPU."""

    def __init__(self, device: torch.device):
        self.device = device
        torch.empty(1, device=device)  # torch has no statistics of a GPU before its first use
        self.reset()

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with suppress(OSError):  # on other systems than Linux: the peak since the process started
            Path("/proc/self/clear_refs").write_text("5")

    def read(self) -> int:
        if self.device.type == "cuda":
            return peak_memory(self.device)
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        except (OSError, StopIteration):
            return peak_memory(self.device)


# ---------------------------------------------------------------- energy


class Energy:
    """The energy counter of a device in joules; None if it cannot be read."""

    def __init__(self, device: torch.device):
        self._read = _nvml(device) if device.type == "cuda" else _rapl()

    def read(self) -> float | None:
        return None if self._read is None else self._read()


def _nvml(device: torch.device) -> Callable[[], float | None] | None:
    """Return a function that reads the counter of a GPU through NVIDIA's management library."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
            return None
    except (OSError, AttributeError):
        return None

    def read() -> float | None:
        millijoules = ctypes.c_ulonglong()
        failed = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        return None if failed else millijoules.value / 1e3

    return read if read() is not None else None


def _rapl(root: Path = Path("/sys/class/powercap")) -> Callable[[], float | None] | None:
    """Return a function that reads the counters of all CPU packages (RAPL, for Intel and AMD)."""
    counters = sorted(root.glob("intel-rapl:[0-9]*/energy_uj"))
    counters = [path for path in counters if path.parent.name.count(":") == 1]  # packages, not their parts
    try:
        ranges = [int((path.parent / "max_energy_range_uj").read_text()) for path in counters]
        last = [int(path.read_text()) for path in counters]
    except (OSError, ValueError):
        return None
    if not counters:
        return None
    wraps = [0] * len(counters)

    def read() -> float:
        for i, path in enumerate(counters):
            now = int(path.read_text())
            wraps[i] += now < last[i]  # the counter has wrapped around
            last[i] = now
        return sum(now + count * limit for now, count, limit in zip(last, wraps, ranges, strict=True)) / 1e6

    return read
