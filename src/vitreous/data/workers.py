"""Signals and failures of worker processes: workers ignore stop signals, and a dead worker becomes an error."""

import atexit
import multiprocessing
import multiprocessing.util  # registers its own function with atexit, which has to run after ours
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from vitreous.errors import VitreousError
from vitreous.utils.system_calls import STOP_SIGNALS, blocked_signals, unblock_signals
from vitreous.utils.temporary_files import remove_matching, temporary_name

T = TypeVar("T")
PARENT_CHECK_SECONDS = 1.0
MAX_SOCKET_FOLDER = 85  # characters: the path of a socket has at most 107, and its name here has 18

_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()  # all worker processes of this process


def start_worker(worker: int) -> None:
    """Initialise a worker process: ignore stop signals, and end silently when the main process is gone.

    torch's workers check every few seconds whether the main process is alive. If it was killed during a transfer, the
    worker gets a connection error, which is not printed.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    unblock_signals(STOP_SIGNALS)
    end_with_parent()
    default_hook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ConnectionError | EOFError):
            default_hook(kind, error, trace)

    sys.excepthook = hook


def end_with_parent() -> None:
    """End this process soon after the main process has ended, also if it was killed. torch checks that only while a
    worker waits for work, and not while it hands over a batch."""
    parent, pid = multiprocessing.parent_process(), os.getppid()
    # On Windows, the number of a dead parent stays the same. A fork server is not the main process.
    if parent is None or parent.pid != pid or not hasattr(os, "fork"):
        return

    def watch() -> None:
        while os.getppid() == pid:
            time.sleep(PARENT_CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def iterate_loader(loader: "DataLoader[T]") -> Iterator[T]:
    """Iterate over a loader. A dead worker raises a VitreousError here, between two batches, and nowhere else."""
    iterator = _start_iterator(loader)
    workers: list[BaseProcess] = getattr(iterator, "_workers", [])
    _workers.update(workers)
    try:
        while True:
            with _raise_if_worker_dies(workers):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
    except (RuntimeError, ConnectionError, EOFError) as error:
        if any(worker.exitcode for worker in workers):
            _kill(workers)  # the others may wait forever for a reader of their results
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else "no answer"
        raise VitreousError(
            f"a worker process that decodes images has died ({reason}): it was killed, or there is too little memory;"
            " try fewer --workers"
        ) from error


def _start_iterator(loader: "DataLoader[T]") -> Iterator[T]:
    before = set(multiprocessing.active_children())
    _use_temporary_folder()
    try:
        with _block_signals():
            return iter(loader)
    except OSError as error:  # /dev/shm has no room for queues, or the limit of processes is reached
        _kill(set(multiprocessing.active_children()) - before)
        _discard_iterator(error)
        reason = error.strerror or str(error)
        raise VitreousError(
            f"worker processes that decode images cannot be started ({reason}): try --workers 0"
        ) from error


def _use_temporary_folder() -> None:
    """Give worker processes a folder for their sockets that is named after this process, and remove the folders of dead
    processes. Those that multiprocessing makes have random names, and stay behind if the processes are killed; and
    with a long TMPDIR their sockets cannot be created, so that the main process would wait forever."""
    settings = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    if settings.get("tempdir") is not None or not hasattr(socket, "AF_UNIX"):
        return
    for folder in (Path(tempfile.gettempdir()), Path("/tmp")):
        path = temporary_name(folder / "vitreous-workers")
        if len(str(path)) <= MAX_SOCKET_FOLDER:
            break
    remove_matching(folder, ".vitreous-workers.*.tmp")
    with suppress(OSError):  # it cannot be created: multiprocessing tries another one
        path.mkdir(mode=0o700)
        settings["tempdir"] = str(path)
        multiprocessing.util.Finalize(None, shutil.rmtree, args=(path, True), exitpriority=-100)


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block stop signals while workers start, so that none of them dies before it ignores signals.

    This also restores the SIGCHLD handler: torch's handler raises an error wherever the main process is when a worker
    dies, even in the middle of an optimizer step. Waiting for the next batch detects dead workers, too.
    """
    main = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGCHLD")
    before = signal.getsignal(signal.SIGCHLD) if main else None
    with blocked_signals(STOP_SIGNALS):
        try:
            yield
        finally:
            if before is not None:
                signal.signal(signal.SIGCHLD, before)


@contextmanager
def _raise_if_worker_dies(workers: "Iterable[BaseProcess]") -> Iterator[None]:
    """Raise an error if a worker is dead or dies, also while the main process waits for the rest of its message: the
    other workers keep the pipe open, so the message would never end. Only the main thread can be interrupted."""
    if not workers or threading.current_thread() is not threading.main_thread():
        yield
        return

    def check() -> None:
        dead = [str(worker.pid) for worker in workers if worker.exitcode]  # None: alive, 0: all images are done
        if dead:
            raise RuntimeError(f"DataLoader worker (pid(s) {', '.join(dead)}) exited unexpectedly")

    def handle(number: int, frame: FrameType | None) -> None:
        if callable(before):  # the calling program may wait for processes of its own
            before(number, frame)
        check()

    before = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None  # Windows has no such signal
    if before is None:  # a handler that was not installed from Python cannot be restored; torch checks every 5 seconds
        check()
        yield
        return
    signal.signal(signal.SIGCHLD, handle)
    try:
        check()
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _discard_iterator(error: BaseException) -> None:
    """Mark a half-built iterator of torch as shut down. Otherwise its destructor prints a traceback."""
    trace = error.__traceback__
    while trace is not None:
        owner: Any = trace.tb_frame.f_locals.get("self")
        if type(owner).__name__ == "_MultiProcessingDataLoaderIter":
            owner._shutdown = True
        trace = trace.tb_next


def _kill(processes: Iterable[BaseProcess]) -> None:
    for process in processes:
        process.kill()
        process.join()


@atexit.register
def _kill_workers() -> None:
    """Kill remaining workers when the main process exits. multiprocessing would send them SIGTERM, which they ignore,
    and wait for them forever."""
    _kill(worker for worker in list(_workers) if worker.is_alive())
