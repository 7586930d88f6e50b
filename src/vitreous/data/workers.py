"""Signals and failures of worker processes: workers ignore stop signals, and a dead worker becomes an error."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from torch.utils.data import DataLoader

from vitreous.errors import VitreousError

T = TypeVar("T")
# Terminals send SIGINT and SIGHUP to the whole process group; systemd and SLURM send SIGTERM.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start_worker(worker: int) -> None:
    """Initialise a worker process: ignore stop signals, and end silently when the main process is gone.

    torch's workers check every few seconds whether the main process is alive. If it was killed during a transfer, the
    worker gets a connection error, which is not printed.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    default_hook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ConnectionError | EOFError):
            default_hook(kind, error, trace)

    sys.excepthook = hook


def iterate_loader(loader: "DataLoader[T]") -> Iterator[T]:
    """Iterate over a loader. A dead worker raises a VitreousError here, between two batches, and nowhere else."""
    try:
        yield from _start_iterator(loader)
    except (RuntimeError, ConnectionError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else "no answer"
        raise VitreousError(
            f"a worker process that decodes images has died ({reason}): it was killed, or there is too little memory;"
            " try fewer --workers"
        ) from error


def _start_iterator(loader: "DataLoader[T]") -> Iterator[T]:
    try:
        with _block_signals():
            return iter(loader)
    except OSError as error:  # /dev/shm has no room for queues, or the limit of processes is reached
        reason = error.strerror or str(error)
        raise VitreousError(
            f"worker processes that decode images cannot be started ({reason}): try --workers 0"
        ) from error


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block stop signals while workers start, so that none of them dies before it ignores signals.

    This also restores the SIGCHLD handler: torch's handler raises an error wherever the main process is when a worker
    dies, even in the middle of an optimizer step. Waiting for the next batch detects dead workers, too.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD) if main else None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGCHLD, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
