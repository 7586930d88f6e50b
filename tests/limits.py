"""Run functions that may hang, exhaust memory or crash: in a child process with limits."""

import ctypes
import multiprocessing
import os
import resource
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

T = TypeVar("T")


def limited(
    function: Callable[..., T],
    *arguments: Any,
    seconds: float = 20,
    memory: int | None = None,
    files: int | None = None,
) -> T:
    """Return the result of a function in a forked child with limits on time, additional memory and open files (not
    counting inherited ones). An exception or a crash of the child fails the test."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        receiver.close()
        torch.set_num_threads(1)  # threads do not survive a fork
        if memory is not None:
            limit = virtual_memory() + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if files is not None:
            close_inherited(keep=sender.fileno())
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        try:
            sender.send((function(*arguments), ""))
        except BaseException:
            sender.send((None, traceback.format_exc()))

    process = context.Process(target=child)
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            pytest.fail(f"no answer within {seconds} s")
        try:
            answer, error = receiver.recv()
        except EOFError:
            process.join(5)
            pytest.fail(f"the process died with {process.exitcode}")
    finally:
        process.kill()
        process.join()
        receiver.close()
    assert not error, error
    return answer


def close_inherited(keep: int) -> None:
    """Close all inherited files except the standard streams and one more."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if descriptor > 2 and descriptor != keep:
            with suppress(OSError):  # the descriptor of the listing is closed already
                os.close(descriptor)


def virtual_memory() -> int:
    """Return the size of this process's address space in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def mount_shared_memory(size: str, read_only: bool = False) -> bool:
    """Mount another /dev/shm for this process and its children. Return False without the permission."""
    system = ctypes.CDLL(None, use_errno=True)
    private, remount = 1 << 18 | 1 << 14, 32
    if system.unshare(0x20000) or system.mount(b"none", b"/", None, private, None):
        return False
    options = f"size={size}".encode()
    if system.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, options):
        return False
    return not read_only or not system.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 1 | remount, options)
