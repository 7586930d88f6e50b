# ruff: noqa: PTH110, PTH112, PTH123, PTH208  (it replaces functions of os, which pathlib calls)
"""Makes a Linux process look like one on Windows to vitreous. Python imports this module at its start, also in workers.

Modules of vitreous, and only those, get `os` and `signal` without the calls of POSIX, and cannot import fcntl.
Files follow the rules of Windows: an open file, and a folder that contains one, cannot be renamed or removed; a rename
does not replace anything; a folder cannot be opened; only a writable file can be flushed. New processes are spawned.
"""

import builtins
import errno
import fcntl
import multiprocessing
import os
import sys
import types
import warnings

MISSING = {
    "os": {
        *("fork", "pread", "preadv", "sysconf", "statvfs", "posix_fallocate", "getuid", "geteuid", "killpg", "getpgid"),
        *("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_DIRECTORY", "uname", "mkfifo", "sched_getaffinity", "getloadavg"),
        *("nice", "setsid", "chown", "wait", "WNOHANG", "getpgrp"),
    },
    "signal": {
        *("SIGHUP", "SIGCHLD", "SIGKILL", "SIGPIPE", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGQUIT"),
        *("pthread_sigmask", "setitimer", "alarm", "sigwait", "pause", "pthread_kill", "SIG_BLOCK", "SIG_SETMASK"),
    },
    "time": {"clock_gettime", "CLOCK_BOOTTIME"},
    "socket": {"AF_UNIX"},
    "ctypes": set(),
}
BLOCKED = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "triton"}


class Without(types.ModuleType):
    """A module without some of its attributes."""

    def __init__(self, module: types.ModuleType, missing: set[str], **changed: object):
        super().__init__(module.__name__)
        self.__dict__.update({name: value for name, value in vars(module).items() if name not in missing})
        self.__dict__.update(changed)


def kill(pid: int, number: int) -> None:
    raise AssertionError("os.kill(pid, 0) sends Ctrl-C on Windows")


def open_descriptor(path: object, flags: int, *arguments: object, **options: object) -> int:
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return os.open(path, flags, *arguments, **options)


def fsync(descriptor: int) -> None:
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    os.fsync(descriptor)


def locking(descriptor: int, mode: int, count: int) -> None:
    fcntl.lockf(descriptor, (fcntl.LOCK_EX if mode else fcntl.LOCK_UN) | fcntl.LOCK_NB, count)


msvcrt = types.ModuleType("msvcrt")
vars(msvcrt).update(locking=locking, LK_NBLCK=2, LK_UNLCK=0)


def is_open(path: object) -> str | None:
    """The file at or below a path that this process has open or mapped."""
    place = os.path.realpath(path)
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    opened = [os.path.realpath(link) for link in links if os.path.exists(link)]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        opened += [line.split(None, 5)[5].strip() for line in file if "/" in line]
    return next((name for name in opened if name == place or name.startswith(f"{place}/")), None)


def forbid_if_open(function, arguments):
    def checked(path, *rest, **options):
        for name in (path, *rest)[:arguments]:
            if "dir_fd" not in options and not isinstance(name, int) and (user := is_open(name)) is not None:
                raise PermissionError(errno.EACCES, f"{function.__name__}: {user} is open", str(name))
        return function(path, *rest, **options)

    return checked


def rename(source, target, **options):
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "File exists", str(target))
    return real_rename(source, target, **options)


def replace(source, target, **options):
    if os.path.isdir(target):
        raise PermissionError(errno.EACCES, "Permission denied", str(target))
    return real_replace(source, target, **options)


real_rename, real_replace = os.rename, os.replace
os.rename, os.replace = forbid_if_open(rename, 1), forbid_if_open(replace, 2)
os.unlink = os.remove = forbid_if_open(os.unlink, 1)


def load_library(name, **options):
    raise TypeError("argument of type 'NoneType' is not iterable")  # as of CDLL(None) on Windows


CHANGED = {
    "os": {"kill": kill, "open": open_descriptor, "fsync": fsync, "O_BINARY": 0},
    "ctypes": {"CDLL": load_library},
}
proxies: dict[str, types.ModuleType] = {}
real_import = builtins.__import__


def import_for_vitreous(name, globals=None, locals=None, fromlist=(), level=0):
    if not str((globals or {}).get("__name__", "")).startswith("vitreous"):
        return real_import(name, globals, locals, fromlist, level)
    if name.partition(".")[0] in BLOCKED:
        raise ImportError(f"no module named {name!r} on this system")
    if name == "msvcrt":
        return msvcrt
    module = real_import(name, globals, locals, fromlist, level)
    if name in MISSING:
        proxies.setdefault(name, Without(module, MISSING[name], **CHANGED.get(name, {})))
        return proxies[name]
    return module


builtins.__import__ = import_for_vitreous
multiprocessing.set_start_method("spawn", force=True)
if sys.flags.warn_default_encoding:
    warnings.filterwarnings("error", category=EncodingWarning, module=r"vitreous\.")
