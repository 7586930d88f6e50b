"""Versions, hardware and command line of this process, for records of a run."""

import os
import platform
import shlex
import shutil
import sys
from pathlib import Path

import torch

from vitreous import __version__


def environment(device: torch.device) -> dict[str, str]:
    """Versions and hardware, for whoever wants the same numbers."""
    found = {
        "vitreous": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
    }
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def program() -> str:
    """What to type for `vitreous`: from an environment that is not on the path, where it lies."""
    called = Path(sys.argv[0])
    if called.name != "vitreous" or shutil.which("vitreous"):
        return "vitreous"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


def command() -> str:
    """What was typed."""
    called, *arguments = sys.argv
    name = Path(called).name
    return shlex.join(["vitreous" if name == "__main__.py" else name, *arguments])
