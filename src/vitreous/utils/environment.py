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
    """Return versions and hardware, to reproduce the numbers of a run."""
    versions = {
        "vitreous": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
    }
    if device.type == "cuda":
        versions |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    if device.type == "mps":
        versions |= {"gpu": "Apple GPU", "mps": platform.mac_ver()[0]}
    return versions


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def program() -> str:
    """Return the name of the program for commands that are shown: `vitreous`, or its path if it is not on PATH."""
    called = Path(sys.argv[0])
    if called.name != "vitreous" or shutil.which("vitreous"):
        return "vitreous"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


def command() -> str:
    """Return the command line of this process."""
    called, *arguments = sys.argv
    name = Path(called).name
    return shlex.join(["vitreous" if name == "__main__.py" else name, *arguments])
