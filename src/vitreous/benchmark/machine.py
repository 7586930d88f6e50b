"""What a machine is measured by: how long a step takes, its peak of arithmetic and of copying, memory, energy."""

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

LEAST, MOST = 3, 2000  # repeats, when seconds are given
SIDES = {"cuda": 8192, "cpu": 2048}  # of the square matrices that find the peak
COPIED = {"cuda": 2**31, "cpu": 2**28}  # bytes that find the bandwidth


@dataclass(frozen=True)
class Times:
    """Seconds of each repeat."""

    seconds: tuple[float, ...]

    def at(self, share: float) -> float:
        """The quantile: 0.5 is the median."""
        ordered = sorted(self.seconds)
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    @property
    def median(self) -> float:
        return self.at(0.5)

    def to_json(self) -> dict[str, float]:
        """In milliseconds."""
        return {"median": 1e3 * self.median, "10%": 1e3 * self.at(0.1), "90%": 1e3 * self.at(0.9)}

    def __str__(self) -> str:
        middle, low, high = (_shown(self.at(share)) for share in (0.5, 0.1, 0.9))
        return f"{middle} a batch (median of {len(self.seconds):,}; {low} to {high} for 10% to 90%)"


def speed(images: float) -> str:
    """Images a second, for people."""
    return f"{images:,.0f} images/s" if images >= 100 else f"{images:,.1f} images/s"


def _shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def wait(device: torch.device) -> None:
    """Until everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(
    step: Callable[[], object],
    device: torch.device,
    *,
    repeats: int | None = None,
    seconds: float = 1.0,
    warm_up: int = 3,
    together: bool = True,
) -> Times:
    """So many repeats, or as many as fit into the seconds.

    On a GPU the steps follow each other as they do in a loop, and events stand between them: the host may run ahead.
    With `together=False` each is waited for, so that its time is that from the call to the answer.
    """
    for _ in range(warm_up):
        step()
    wait(device)
    if repeats is None:
        began = time.perf_counter()
        step()
        wait(device)
        repeats = max(LEAST, min(MOST, round(seconds / (time.perf_counter() - began))))
    if device.type == "cuda" and together:
        return _by_events(step, repeats, device)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        wait(device)
        found.append(time.perf_counter() - began)
    return Times(tuple(found))


def _by_events(step: Callable[[], object], repeats: int, device: torch.device) -> Times:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    with torch.cuda.device(device):  # events are recorded on the current device
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        torch.cuda.synchronize()
    return Times(tuple(a.elapsed_time(b) / 1e3 for a, b in pairwise(events)))


# ---------------------------------------------------------------- peaks


def matmul_peak(device: torch.device, precision: str, side: int | None = None, repeats: int = 10) -> float:
    """FLOP/s of a large square product in the precision, the machine's own ceiling for a model. fp8 has a scale for
    each row and column."""
    side = side or SIDES[device.type]
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    step = {"fp32": _product, "bf16": _product_bf16, "fp8": _product_fp8}[precision](a, b)
    return 2 * side**3 / timed(step, device, repeats=repeats).median


def _product(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    out = torch.empty(len(a), b.shape[1], device=a.device, dtype=a.dtype)
    return lambda: torch.mm(a, b.T, out=out)


def _product_bf16(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    return _product(a.bfloat16(), b.bfloat16())


def _product_fp8(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    rows, columns = torch.ones(len(a), 1, device=a.device), torch.ones(1, len(b), device=b.device)
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)

    def step() -> Tensor:
        product: Tensor = torch._scaled_mm(
            a, b.T, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return product

    return step


def copy_bandwidth(device: torch.device, count: int | None = None, repeats: int = 10) -> float:
    """Bytes read and written in a second by a large copy within the device's memory."""
    count = count or COPIED[device.type]
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / timed(lambda: target.copy_(source), device, repeats=repeats).median


# ---------------------------------------------------------------- memory


class PeakMemory:
    """The most bytes taken since `reset`: what tensors take on a GPU, what the process takes on a CPU."""

    def __init__(self, device: torch.device):
        self.device = device
        torch.empty(1, device=device)  # there are no statistics of a GPU that nobody has used
        self.reset()

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with suppress(OSError):  # elsewhere than on Linux it is the most since the process began
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
    """Joules that the device has taken since some moment in the past; None where nobody can read them."""

    def __init__(self, device: torch.device):
        self._read = _nvml(device) if device.type == "cuda" else _rapl()

    def read(self) -> float | None:
        return None if self._read is None else self._read()


def _nvml(device: torch.device) -> Callable[[], float | None] | None:
    """A GPU's own counter, through the driver's library."""
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
    """The counters of all processor packages (Intel's interface, which AMD's processors have too)."""
    counters = sorted(root.glob("intel-rapl:[0-9]*/energy_uj"))
    counters = [path for path in counters if path.parent.name.count(":") == 1]  # parts of a package are in it already
    try:
        ranges = [int((path.parent / "max_energy_range_uj").read_text()) for path in counters]
        last = [int(path.read_text()) for path in counters]
    except (OSError, ValueError):
        return None
    if not counters:
        return None
    turns = [0] * len(counters)

    def read() -> float:
        for place, path in enumerate(counters):
            now = int(path.read_text())
            turns[place] += now < last[place]  # the counter began again from zero
            last[place] = now
        return sum(now + turn * top for now, turn, top in zip(last, turns, ranges, strict=True)) / 1e6

    return read
