"""Ctrl-C, SIGTERM and SIGHUP stop a run at the end of a step, after its state is saved."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from vitreous.utils.system_calls import STOP_SIGNALS


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal and can be resumed. `code`: the exit status of the command."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number, self.code = number, 128 + number


class StopSignals:
    """Inside this context, the first signal is only stored in `received`. A second Ctrl-C stops at once."""

    received: int | None = None

    def __enter__(self) -> "StopSignals":
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                handler = signal.getsignal(number)
                if handler == signal.SIG_IGN and number not in (signal.SIGINT, signal.SIGTERM):
                    continue  # SIGHUP, if the command runs under nohup
                if handler is not None:  # None: not installed by Python, which could not restore it
                    self.before[number] = signal.signal(number, self._store)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _store(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
