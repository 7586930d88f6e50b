"""How much memory there is to take."""

import os
from pathlib import Path

import torch


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


def _group_limit() -> int:
    """What a container may still take."""
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
        return int(limit) - int(used)
    except (OSError, ValueError):
        return 1 << 62
