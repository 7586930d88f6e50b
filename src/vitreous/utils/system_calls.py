"""Calls that differ between Linux, macOS and Windows, each with what the other systems offer instead.

Nothing here tests for the name of a system where the call itself can be looked for.
"""

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

STOP_SIGNALS: tuple[int, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
"""Signals that ask a process to stop. Terminals send SIGINT and SIGHUP to the whole process group (Windows: SIGINT and
SIGBREAK); systemd and SLURM send SIGTERM."""

RENAME_EXCHANGE, AT_FDCWD = 2, -100  # constants of renameat2 on Linux
STILL_ACTIVE, QUERY_INFORMATION, ACCESS_DENIED = 259, 0x1000, 5  # constants of Windows
_seek_lock = Lock()


@contextmanager
def blocked_signals(numbers: tuple[int, ...]) -> Iterator[None]:
    """Block signals for this thread inside the block. Systems without signal masks block nothing."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals(numbers: tuple[int, ...]) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Read up to `size` bytes at `offset`. On systems without pread, threads take turns."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    with _seek_lock:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


def sync_to_disk(path: Path) -> None:
    """Flush a file or a folder to disk, so that it survives a power failure. Windows cannot flush folders."""
    is_folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if is_folder or not hasattr(os, "O_BINARY") else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if not is_folder:
            raise


def open_file_limit() -> int | None:
    """The number of files that this process may have open; None if there is no limit, or it is unknown."""
    try:
        import resource
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def is_process_alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    if sys.platform == "win32":  # os.kill(pid, 0) would send Ctrl-C to the process
        return _is_windows_process_alive(pid)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: the number is too large for a process id
        return False
    except OSError:  # a process of another user
        return True
    return True


def _is_windows_process_alive(pid: int) -> bool:
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(QUERY_INFORMATION, False, pid)
    if not handle:
        return bool(ctypes.get_last_error() == ACCESS_DENIED)  # type: ignore[attr-defined]
    try:
        code = ctypes.c_ulong()
        known = kernel.GetExitCodeProcess(ctypes.c_void_p(handle), ctypes.byref(code))
        return not known or code.value == STILL_ACTIVE
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


def peak_process_memory() -> int:
    """The most bytes of memory that this process has used so far; 0 if the system does not say."""
    try:
        import resource
    except ImportError:
        return _windows_peak_memory()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class _ProcessMemory(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_ulong),
        ("page_faults", ctypes.c_ulong),
        ("peak_working_set", ctypes.c_size_t),
        *((f"other_{number}", ctypes.c_size_t) for number in range(7)),
    ]


def _windows_peak_memory() -> int:
    with suppress(AttributeError, OSError):  # AttributeError: not Windows
        counters = _ProcessMemory(ctypes.sizeof(_ProcessMemory))
        get_memory = ctypes.WinDLL("psapi").GetProcessMemoryInfo  # type: ignore[attr-defined]
        if get_memory(ctypes.c_void_p(-1), ctypes.byref(counters), counters.size):  # -1: this process
            return int(counters.peak_working_set)
    return 0


class _MemoryStatus(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_ulong),
        ("load", ctypes.c_ulong),
        *((name, ctypes.c_ulonglong) for name in ("total", "free", *(f"other_{number}" for number in range(5)))),
    ]


def free_system_memory() -> int:
    """The bytes of memory that can be allocated: from Linux or Windows; on other systems half of all memory."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with suppress(AttributeError, OSError):
        status = _MemoryStatus(ctypes.sizeof(_MemoryStatus))
        if ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined]
            return int(status.free)
    return 1 << 32


def exchange_paths(one: Path, other: Path) -> None:
    """Exchange two files or folders in one step. Raise an OSError if the system cannot (only Linux can)."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, TypeError, OSError) as error:  # TypeError: Windows
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno() or errno.EINVAL))
