"""How much memory there is to take."""

import os
from pathlib import Path

import torch

from vitreous.errors import VitreousError


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(free, _group_limit())


def require_memory(needed: int, what: str, device: torch.device | str = "cpu") -> None:
    """An error before memory is taken that is not there: an allocation may be granted and its use end the process."""
    device = torch.device(device)
    if device.type == "meta" or needed < CERTAIN:
        return
    if needed > (free := free_memory(device)):
        where = "GPU memory" if device.type == "cuda" else "memory"
        raise VitreousError(f"{what} takes {size_text(needed)} of {where}, and {size_text(free)} are free")


CERTAIN = 64 * 2**20  # bytes for which it does not pay to ask


def size_text(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _group_limit() -> int:
    """What a container may still take. Files that the system keeps in memory do not count: it gives that back."""
    try:
        folder = Path("/sys/fs/cgroup")
        limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = sum(int(count) for name, count in lines if name in ("active_file", "inactive_file"))
        return limit - max(0, used - cached)
    except (OSError, ValueError):
        return 1 << 62
