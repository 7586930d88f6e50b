"""Terminal output: the only module that writes to stdout and stderr.

Labels, file names, tensor names and config values come from untrusted files. Characters in them that control a terminal
are replaced before they are printed. After a write to a stream has failed (closed pipe, closed terminal, full disk),
further output to it is dropped, so that a training run does not end because of its output.
"""

from __future__ import annotations

import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from json import dumps
from typing import IO, TYPE_CHECKING, Any, Literal, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

REPLACEMENT = "\ufffd"
JOINERS = "\u200c\u200d"  # invisible and harmless; Persian and Hindi words and emoji need them
COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")  # sequences that only change the colour or weight of letters


def printable(text: object, keep: str = "") -> str:
    """Return the text with U+FFFD in place of each character that controls a terminal or that cannot be encoded.

    These are control characters (ESC, newlines, DEL, C1), bidirectional overrides and other invisible characters, lone
    surrogates and unassigned code points. `keep`: control characters that stay, such as "\\n".
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in keep or c in JOINERS or _is_space(c) else REPLACEMENT for c in shown)


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"


def json_text(value: object) -> str:
    """Return a value as JSON in ASCII, which every pipe and every terminal can show."""
    return dumps(value).replace("\x7f", "\\u007f")  # DEL is the only control character that `dumps` does not escape


class OutputClosed(Exception):  # noqa: N818 (a condition of the stream, handled by the command line)
    """stdout cannot be written to, and the command has no other purpose than its output."""


class Stream:
    """The object that sys.stdout or sys.stderr is at the time of a call. Writing never raises an error.

    After a write has failed, further output to the same object is dropped, and `failure` is the error.
    """

    def __init__(self, name: Literal["stdout", "stderr"]):
        self.name = name
        self.required = False  # whether `check` raises OutputClosed after a failure
        self.failure: Exception | None = None
        self._lost: object = None  # the object that could not be written to

    @property
    def _target(self) -> TextIO | None:
        """The object to write to; None if there is none or a write to it has failed."""
        target = getattr(sys, self.name)
        target = getattr(target, "rich_proxied_file", target)  # a live progress bar replaces the stream
        return None if target is self._lost else cast("TextIO | None", target)

    @property
    def encoding(self) -> str:
        return getattr(self._target, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        with suppress(OSError, ValueError):  # ValueError: the file object is closed
            return self._target is not None and self._target.isatty()
        return False

    def fileno(self) -> int:
        if self._target is None:
            raise OSError(f"{self.name} is closed")
        return self._target.fileno()

    def write(self, text: str) -> int:
        if (target := self._target) is not None:
            encoding = self.encoding
            try:
                target.write(text.encode(encoding, "replace").decode(encoding))  # "?" if it cannot be encoded
            except BlockingIOError:  # a non-blocking pipe is full: this line is lost, later ones are not
                pass
            except (OSError, ValueError) as error:
                self._lost, self.failure = target, error.with_traceback(None)  # its frames would stay alive
        return len(text)

    def flush(self) -> None:
        if (target := self._target) is not None:
            try:
                target.flush()
            except BlockingIOError:
                pass
            except (OSError, ValueError) as error:
                self._lost, self.failure = target, error.with_traceback(None)  # its frames would stay alive

    def check(self) -> None:
        """Raise OutputClosed if the output is the only purpose of the command and cannot be written."""
        if self.required and self.failure is not None:
            raise OutputClosed(str(self.failure)) from self.failure

    def abandon(self) -> None:
        """Redirect a failed stream to /dev/null, so that Python can flush its buffer at exit without an error."""
        if self._lost is not None:
            with suppress(OSError, ValueError, AttributeError):  # a closed stream has no descriptor
                lost = cast("TextIO", self._lost).fileno()
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, lost)
                os.close(null)


STDOUT, STDERR = Stream("stdout"), Stream("stderr")


@contextmanager
def standard_streams(required: bool) -> Iterator[None]:
    """Provide usable standard streams for a whole program, even if the shell has closed them (`>&-`).

    `required`: raise OutputClosed once stdout cannot be written to.
    """
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # otherwise the next opened file would become stdin or stdout
        os.set_inheritable(null, True)
    os.close(null)
    before = sys.stdout, sys.stderr
    nowhere = open(os.devnull, "w", encoding="utf-8") if None in before else None  # noqa: PTH123, SIM115
    sys.stdout, sys.stderr = (stream or nowhere for stream in before)  # libraries call their methods
    STDOUT.failure, STDOUT.required = None, required
    try:
        yield
    finally:
        STDOUT.flush()
        STDERR.flush()
        STDOUT.abandon()
        STDERR.abandon()
        STDOUT.required = False
        sys.stdout, sys.stderr = before
        if nowhere is not None:
            nowhere.close()


# ---------------------------------------------------------------- lines


def print_line(text: object = "", to: Stream = STDOUT) -> None:
    """Print one line or several, escaped."""
    to.write(printable(text, keep="\n") + "\n")
    to.flush()  # keeps the order of stdout and stderr
    to.check()


def format_message(text: object, kind: str = "") -> str:
    """Return "vitreous: text". Later lines are indented, so that a newline in a name cannot forge a message."""
    first, *rest = printable(text, keep="\n").split("\n")
    return "\n".join([f"vitreous: {kind}{first}", *(line if line[:1] in ("", " ") else f"  {line}" for line in rest)])


def print_message(text: object, kind: str = "") -> None:
    """Print an error, or another `kind` of message such as "warning: ", to stderr."""
    print_line(format_message(text, kind), STDERR)


# ---------------------------------------------------------------- rich


def console(to: Stream = STDOUT, **options: Any) -> Console:
    """Return a rich console on one of the streams. Markup in printed text is not interpreted, and text is escaped."""
    return _escaping_console()(file=cast(IO[str], to), highlight=False, markup=False, emoji=False, **options)


@cache
def _escaping_console() -> type[Console]:
    """Import rich only when it is used: `vitreous --help` does not need it."""
    from rich.console import Console
    from rich.segment import Segment

    class EscapingConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or segment.text.isprintable():  # `control`: rich's own sequences
                    yield segment
                else:
                    yield Segment(printable(segment.text, keep="\n"), segment.style)

    return EscapingConsole


# ---------------------------------------------------------------- output of other libraries


class _Captured(io.StringIO):
    """A buffer with the properties of the stream that it replaces."""

    def __init__(self, stream: Stream):
        super().__init__()
        self.stream, self.terminal, self._encoding = stream, stream.isatty(), stream.encoding

    def isatty(self) -> bool:
        return self.terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def emit(self, colours: bool) -> None:
        """Print the buffer, escaped. `colours`: keep colour sequences on a terminal."""
        parts = COLOURS.split(self.getvalue()) if colours and self.terminal else [self.getvalue()]
        escaped = (part if number % 2 else printable(part, keep="\n\t") for number, part in enumerate(parts))
        self.stream.write("".join(escaped))
        self.stream.flush()


@contextmanager
def escaped_output(colours: bool = True) -> Iterator[None]:
    """Collect what libraries print and print it escaped at the end; `colours`: keep its colours on a terminal."""
    out, err = _Captured(STDOUT), _Captured(STDERR)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        out.emit(colours)
        err.emit(colours)
