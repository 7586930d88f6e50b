"""Lock a file for one process, and find out whether another process has locked it."""

import os
import struct
import sys
from typing import IO, Any


def lock_file(file: IO[Any]) -> None:
    """Lock an open file for this process until it is closed. Raise an OSError if another process has locked it.

    Child processes do not inherit the lock, so workers that outlive the process do not keep it.
    """
    try:
        import fcntl
    except ImportError:
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_file_locked(file: IO[bytes]) -> bool:
    """Whether another process has locked this open file with `lock_file`. The lock is not taken.

    On Linux and macOS closing the file releases all locks of this process on it: do not call it for your own lock.
    """
    try:
        import fcntl
    except ImportError:
        return _is_locked_on_windows(file)
    if sys.platform == "darwin":  # the fields of `struct flock` have another order there
        layout, request, place = struct.Struct("qqihh"), (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET), 3
    else:
        layout, request, place = struct.Struct("hhqqi4x"), (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0), 0
    answer = fcntl.fcntl(file.fileno(), fcntl.F_GETLK, layout.pack(*request))
    return bool(layout.unpack(answer)[place] != fcntl.F_UNLCK)


def _is_locked_on_windows(file: IO[bytes]) -> bool:
    """Windows has no question for this: lock one byte, and release it at once."""
    import msvcrt

    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return True
    file.seek(0)
    msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    return False
