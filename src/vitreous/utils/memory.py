"""Free memory of a device, and errors before an allocation that exceeds it."""

from pathlib import Path

import torch

from vitreous.errors import VitreousError
from vitreous.utils.system_calls import free_system_memory


def free_memory(device: torch.device) -> int:
    """Return the number of bytes that can be allocated."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return min(free_system_memory(), _container_limit())


def require_memory(needed: int, what: str, device: torch.device | str = "cpu") -> None:
    """Raise an error if `needed` bytes are not free. Linux may grant an allocation and then kill the process."""
    device = torch.device(device)
    if device.type == "meta" or needed < NOT_CHECKED:
        return
    if needed > (free := free_memory(device)):
        where = "GPU memory" if device.type == "cuda" else "memory"
        raise VitreousError(f"{what} takes {size_text(needed)} of {where}, and {size_text(free)} are free")


NOT_CHECKED = 64 * 2**20  # bytes; smaller allocations are not checked


def size_text(count: float) -> str:
    """Return a number of bytes as text: 1536 -> "1.5 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _container_limit() -> int:
    """Return the bytes that a container can still allocate. Cached files do not count: the system can drop them."""
    try:
        folder = Path("/sys/fs/cgroup")
        limit, used = (int((folder / f"memory.{name}").read_text("ascii")) for name in ("max", "current"))
        lines = (line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
        cached = sum(int(count) for name, count in lines if name in ("active_file", "inactive_file"))
        return limit - max(0, used - cached)
    except (OSError, ValueError):
        return 1 << 62
