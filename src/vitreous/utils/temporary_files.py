"""Temporary names for output files and folders. They contain the process id, so that the next process that writes to
the same place can remove what a killed process left."""

import os
import re
import shutil
import time
from contextlib import suppress
from glob import escape
from pathlib import Path

from vitreous.utils.system_calls import is_process_alive

CLOCK_ERROR = 0.05  # seconds: start times are counted in hundredths, file times in ticks of the system clock
MAX_NAME = 200  # characters of the original name that are kept: a file name may have 255 bytes


def temporary_name(path: Path, ending: str = "tmp") -> Path:
    """Return the name in the same folder under which this process writes a file or folder before renaming it."""
    return path.with_name(f".{path.name[:MAX_NAME]}.{os.getpid()}.{ending}")


def remove_leftovers(path: Path) -> None:
    """Remove temporary files and folders that dead processes left when they wrote to this path.

    If a process died between moving the old folder away (.old) and renaming the new one, the old one is restored.
    """
    start = f".{escape(path.name[:MAX_NAME])}.*"
    for leftover in _leftovers(path.parent, f"{start}.old"):
        with suppress(OSError):
            if not os.path.lexists(path):
                leftover.rename(path)
            else:
                _remove(leftover)
    remove_matching(path.parent, f"{start}.tmp")


def remove_matching(folder: Path, pattern: str) -> None:
    """Remove files and folders that match `pattern` and whose names end in PID.tmp, if that process is dead."""
    for leftover in _leftovers(folder, pattern):
        with suppress(OSError):
            _remove(leftover)


def _leftovers(folder: Path, pattern: str) -> list[Path]:
    """Return the paths that match `pattern` and belong to dead processes."""
    with suppress(OSError):
        matches = [(path, re.search(r"\.([0-9]{1,10})\.(tmp|old)$", path.name)) for path in folder.glob(pattern)]
        return [path for path, pid in matches if pid and not _in_use(path, int(pid[1]))]
    return []


def _in_use(path: Path, pid: int) -> bool:
    """Whether the process with this id may be writing this file or folder.

    In a container, a program often has the same process id at each start. Therefore a process does not count if it
    started after the last change of the file.
    """
    if not is_process_alive(pid):
        return False
    started = _start_time(pid)
    return started is None or path.lstat().st_mtime >= started


def _start_time(pid: int) -> float | None:
    """Return the start time of a process in seconds since 1970; None if unknown, as on systems other than Linux."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(values[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.time() - age - CLOCK_ERROR


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
