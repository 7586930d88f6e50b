"""Ctrl-C, SIGTERM and SIGHUP end a run at the end of a step, when its state has been saved."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopped(KeyboardInterrupt):
    """A run was stopped from outside, and can go on."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number, self.code = number, 128 + number


class Signals:
    """While it is entered, the first signal is only noted in `received`; a second Ctrl-C stops at once."""

    received: int | None = None

    def __enter__(self) -> "Signals":
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if number == signal.SIGHUP and handler == signal.SIG_IGN:
                    continue  # nohup asks for it
                if handler is not None:  # None: not set by Python, which could not put it back
                    self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
