"""Find out whether another process has locked a file, without taking the lock."""

import os
import struct
import sys
from typing import IO


def is_file_locked(file: IO[bytes]) -> bool:
    """Whether another process has locked this open file with `fcntl.lockf`, or on Windows with `msvcrt.locking`.

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
