"""Open regular files only. For paths that come from a user, a data set or a checkpoint.

Opening a named pipe blocks until there is a writer, and reading a device may never end. Therefore files are opened
without blocking, and the type is checked on the open descriptor, so that the file cannot be replaced in between.
"""

import errno
import os
import stat
from typing import BinaryIO

from vitreous.errors import SystemFaultError, VitreousError

FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
)  # not every system has all of them
KINDS = {
    stat.S_IFDIR: "is a folder, not a file",
    stat.S_IFIFO: "is a named pipe (FIFO), not a regular file",
    stat.S_IFSOCK: "is a socket, not a regular file",
    stat.S_IFCHR: "is a device, not a regular file",
    stat.S_IFBLK: "is a device, not a regular file",
}
NOT_REGULAR = "is not a regular file"
# Errors of a single file: missing, forbidden, bad name, not a file. Any other errno is a failure of the system that may
# affect the next file as well: too many open files, or a disk or network that does not respond.
FILE_ERRNOS = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EILSEQ,
        errno.EINVAL,
        errno.EOVERFLOW,
        errno.ENXIO,
        errno.ENODEV,
    }
)


def open_regular(path: str | os.PathLike[str], max_bytes: int | None = None, advice: str = "") -> BinaryIO:
    """Open a file for reading; raise VitreousError if it is not a regular file or has more than `max_bytes` bytes.

    The message does not contain the path: callers add it. Errors of the system (no such file, no permission) are
    OSErrors, as from `open`. `advice`: appended to the message about a file that is too large.
    """
    return os.fdopen(open_descriptor(path, max_bytes, advice), "rb")


def open_descriptor(path: str | os.PathLike[str], max_bytes: int | None = None, advice: str = "") -> int:
    """Like `open_regular`, but return a file descriptor, for `os.pread`."""
    try:
        descriptor = os.open(path, FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise VitreousError(_kind(os.stat(path).st_mode)) from error  # noqa: PTH116
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise VitreousError(_kind(status.st_mode))
        if max_bytes is not None and status.st_size > max_bytes:
            raise VitreousError(f"has {status.st_size:,} bytes, and the limit is {max_bytes:,}{advice}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str], max_bytes: int | None = None, advice: str = "") -> bytes:
    """Return the content of a regular file, up to the size that it had when it was opened."""
    with open_regular(path, max_bytes, advice) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: str | os.PathLike[str], max_bytes: int = 1 << 28) -> str:
    """Return the content of a UTF-8 text file, with or without a byte order mark."""
    return read_regular(path, max_bytes).decode("utf-8-sig")


def is_system_fault(error: BaseException) -> bool:
    """Whether the system failed, and not the file: no file descriptors or memory left, a disk or network error."""
    if isinstance(error, OSError):
        return error.errno is not None and error.errno not in FILE_ERRNOS
    return isinstance(error, MemoryError | SystemFaultError)


def system_fault(error: BaseException, path: str | os.PathLike[str] = "") -> SystemFaultError:
    """Return the SystemFaultError for an error for which `is_system_fault` is True. It stops a command."""
    if isinstance(error, SystemFaultError):
        return error.at(os.fspath(path)) if path else error
    where = f"{os.fspath(path)}: " if path else ""
    number = error.errno if isinstance(error, OSError) else errno.ENOMEM
    if number == errno.EMFILE:
        return SystemFaultError(f"{where}cannot be read: too many open files; raise the limit (`ulimit -n`)")
    if number == errno.ENFILE:
        return SystemFaultError(f"{where}cannot be read: this machine has too many open files")
    if number == errno.ENOMEM:
        return SystemFaultError(f"{where}cannot be read: out of memory")
    reason = error.strerror if isinstance(error, OSError) else None
    reason = reason or str(error)
    return SystemFaultError(f"{where}cannot be read: the system reports an error ({reason}); the file is not damaged")


def _kind(mode: int) -> str:
    return KINDS.get(stat.S_IFMT(mode), NOT_REGULAR)
