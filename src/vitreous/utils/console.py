"""Terminal output: the one module that writes to stdout and stderr.

Labels, file names, tensor names and config values come from files that anybody may have written. Characters in them
that control a terminal are replaced before they are printed. A stream that can no longer be written to (a closed pipe,
a terminal that is gone, a full disk) is dropped, so that no print ends a run.
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
JOINERS = "\u200c\u200d"  # invisible, harmless, and needed to spell Persian and Hindi words and to build emoji
COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")  # sequences that only change the colour or weight of letters


def printable(text: object, keep: str = "") -> str:
    """The text with U+FFFD in place of each character that controls a terminal or that no encoding has.

    Those are control characters (ESC, newlines, DEL, C1), bidirectional overrides and other invisible characters, lone
    surrogates and unassigned code points. `keep`: control characters that stay, such as "\\n".
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in keep or c in JOINERS or _is_space(c) else REPLACEMENT for c in shown)


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"


def json_text(value: object) -> str:
    """JSON in ASCII, for any pipe and any terminal."""
    return dumps(value).replace("\x7f", "\\u007f")  # DEL is the one control character that `dumps` leaves as it is


class OutputClosed(Exception):  # noqa: N818 (a condition of the stream, handled by the command line)
    """stdout cannot be written to, and the command has nothing else to do."""


class Stream:
    """sys.stdout or sys.stderr, whichever object that is at the time of a call. Writing never raises.

    After a write has failed, everything else for the same object is dropped, and `failure` holds the reason.
    """

    def __init__(self, name: Literal["stdout", "stderr"]):
        self.name = name
        self.required = False  # whether `check` stops a command whose output nobody can read
        self.failure: Exception | None = None
        self._lost: object = None  # the object that could not be written to

    @property
    def _target(self) -> TextIO | None:
        """None if there is nothing to write to."""
        target = getattr(sys, self.name)
        target = getattr(target, "rich_proxied_file", target)  # a live bar stands in for the stream meanwhile
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
                target.write(text.encode(encoding, "replace").decode(encoding))  # what this terminal cannot show: ?
            except BlockingIOError:  # a slow reader of a non-blocking pipe misses a line, and gets the next ones
                pass
            except (OSError, ValueError) as error:
                self._lost, self.failure = target, error
        return len(text)

    def flush(self) -> None:
        if (target := self._target) is not None:
            try:
                target.flush()
            except BlockingIOError:
                pass
            except (OSError, ValueError) as error:
                self._lost, self.failure = target, error

    def check(self) -> None:
        """Stop a command whose only purpose is its output, once that cannot be written."""
        if self.required and self.failure is not None:
            raise OutputClosed(str(self.failure)) from self.failure

    def abandon(self) -> None:
        """Let Python flush what is left in the buffer of a lost stream at exit, without an error, to nowhere."""
        if self._lost is not None:
            with suppress(OSError, ValueError, AttributeError):  # a stream that is closed by now has no descriptor
                lost = cast("TextIO", self._lost).fileno()
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, lost)
                os.close(null)


STDOUT, STDERR = Stream("stdout"), Stream("stderr")


@contextmanager
def standard_streams(required: bool) -> Iterator[None]:
    """For a whole program: standard streams that can be used, also where the shell has closed them (`>&-`).

    `required`: stop with OutputClosed once stdout is lost.
    """
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # else a file of ours would be opened as stdin or stdout
        os.set_inheritable(null, True)
    os.close(null)
    before = sys.stdout, sys.stderr
    nowhere = open(os.devnull, "w", encoding="utf-8") if None in before else None  # noqa: PTH123, SIM115
    sys.stdout, sys.stderr = (nowhere if one is None else one for one in before)  # libraries call their methods
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


def say(text: object = "", to: Stream = STDOUT) -> None:
    """Print one line or several."""
    to.write(printable(text, keep="\n") + "\n")
    to.flush()  # so that stdout and stderr come in the order in which they were written
    to.check()


def message(text: object, kind: str = "") -> str:
    """A message of the program. Lines after the first are indented, so that a newline in a name cannot forge one."""
    first, *rest = printable(text, keep="\n").split("\n")
    return "\n".join([f"vitreous: {kind}{first}", *(line if line[:1] in ("", " ") else f"  {line}" for line in rest)])


def complain(text: object, kind: str = "") -> None:
    """Print an error, or another `kind` of message such as "warning: ", to stderr."""
    say(message(text, kind), STDERR)


# ---------------------------------------------------------------- rich


def console(to: Stream = STDOUT, **options: Any) -> Console:
    """A rich console on one of the streams. Whatever is printed there is text and not markup, and is escaped."""
    return _escaping()(file=cast(IO[str], to), highlight=False, markup=False, emoji=False, **options)


@cache
def _escaping() -> type[Console]:
    """rich is imported when something is printed with it: `vitreous --help` does without."""
    from rich.console import Console
    from rich.segment import Segment

    class EscapingConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or segment.text.isprintable():  # `control`: sequences of rich itself
                    yield segment
                else:
                    yield Segment(printable(segment.text, keep="\n"), segment.style)

    return EscapingConsole


# ---------------------------------------------------------------- what other libraries print


class _Captured(io.StringIO):
    """Looks like the stream that it stands in for."""

    def __init__(self, stream: Stream):
        super().__init__()
        self.stream, self.terminal, self._encoding = stream, stream.isatty(), stream.encoding

    def isatty(self) -> bool:
        return self.terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def emit(self, colours: bool) -> None:
        """Print it escaped. On a terminal, `colours` may stay."""
        parts = COLOURS.split(self.getvalue()) if colours and self.terminal else [self.getvalue()]
        escaped = (part if number % 2 else printable(part, keep="\n\t") for number, part in enumerate(parts))
        self.stream.write("".join(escaped))
        self.stream.flush()


@contextmanager
def escaped_output(colours: bool = True) -> Iterator[None]:
    """What any library prints meanwhile is printed escaped in the end, on a terminal with its `colours`."""
    out, err = _Captured(STDOUT), _Captured(STDERR)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        out.emit(colours)
        err.emit(colours)
