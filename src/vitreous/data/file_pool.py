"""Random access to many files with a limited number of open file descriptors."""

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

from vitreous.errors import VitreousError
from vitreous.utils.regular_files import open_descriptor
from vitreous.utils.system_calls import read_at

MAX_OPEN = 16


class FilePool:
    """Reads from any number of files with at most `max_open` idle descriptors, plus one for each reading thread.

    It is thread-safe. A forked process shares the descriptors, since reads are positional (pread) and do not seek.
    A pickled copy reopens the files.
    """

    def __init__(self, paths: Sequence[str], max_open: int = MAX_OPEN):
        self.paths, self.max_open = tuple(paths), max_open
        self._reset({})

    def _reset(self, descriptors: dict[int, int]) -> None:
        # By file number, the most recently used last. A descriptor is removed while a thread reads from it.
        self._idle: OrderedDict[int, int] = OrderedDict(descriptors)
        self._lock, self._process = Lock(), os.getpid()

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Read `size` bytes at `offset` of a file. Fewer bytes are an error."""
        with self._descriptor(number) as descriptor:
            parts = []
            while size and (part := read_at(descriptor, size, offset)):
                parts.append(part)
                offset, size = offset + len(part), size - len(part)
        if size:
            raise VitreousError("the file is shorter than it was when it was opened")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @contextmanager
    def _descriptor(self, number: int) -> Iterator[int]:
        if os.getpid() != self._process:  # after a fork, the copied lock may be locked forever
            self._reset(dict(self._idle))
        with self._lock:
            descriptor = self._idle.pop(number, None)
        if descriptor is None:
            descriptor = open_descriptor(self.paths[number])
        try:
            yield descriptor
        finally:
            with self._lock:
                surplus = [descriptor] if number in self._idle else []  # another thread opened it as well
                self._idle.setdefault(number, descriptor)
                while len(self._idle) > self.max_open:
                    surplus.append(self._idle.popitem(last=False)[1])
            for unused in surplus:
                os.close(unused)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "max_open": self.max_open}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_idle", {}).values():
            with suppress(OSError, TypeError):  # at exit, Python may have cleared `os` already
                os.close(descriptor)
