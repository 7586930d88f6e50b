"""Output of a long command: a progress bar on a terminal, or a line every ten seconds in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from vitreous.utils.console import STDERR, STDOUT, console, format_message, printable

Advance = Callable[..., None]
"""`advance(count, position, numbers)`: `count` more is done; the texts are shown next to the bar."""
LOG_INTERVAL = 10.0  # seconds between lines when the output is not a terminal


class ProgressReporter:
    """Tables and text on stdout; notes and progress bars on stderr. `quiet`: print nothing.

    If both are one terminal, one console writes everything, so that the bar stays below the text. Text is escaped, and
    output to a closed stream is dropped: see `vitreous.utils.console`.
    """

    def __init__(self, quiet: bool = False):
        self.live = STDERR.isatty() and not quiet
        self.out = console(STDOUT, quiet=quiet, width=None if STDOUT.isatty() else 120)
        self.notes = self.out if STDOUT.isatty() and self.live else console(STDERR, quiet=quiet)
        self.printed_notes: set[str] = set()

    def without_tables(self) -> ProgressReporter:
        """A reporter for one part of a larger run: it prints bars and notes, but nothing on stdout."""
        part = copy(self)
        part.out = console(quiet=True)
        return part

    def print(self, text: str, style: str | None = None) -> None:
        self.out.print(text, style=style, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a message on stderr, above the progress bar."""
        self.notes.print(format_message(text), soft_wrap=True)

    def note_once(self, texts: Iterable[str]) -> None:
        """Print each message that was not printed by this method before, in this or another part of the run."""
        for text in texts:
            if text not in self.printed_notes:
                self.printed_notes.add(text)
                self.note(text)

    def table(self, rows: Iterable[tuple[str, ...]], heads: tuple[str, ...] = ()) -> None:
        grid = Table(box=None, pad_edge=False, show_header=bool(heads), header_style="bold")
        rows = list(rows)
        for number in range(max(map(len, rows), default=0)):
            grid.add_column(heads[number] if heads else "", overflow="fold", style=None if number else "bold")
        for row in rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        with self.out.capture() as rendered:
            self.out.print(grid)
        for line in rendered.get().splitlines():  # rich pads its tables with spaces, which do not belong in a log
            self.out.print(Text.from_ansi(line.rstrip()), soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Advance]:
        """Show the progress of `total` units of work, of which `done` are done. Yields a function to advance it."""
        title, started = printable(title), time.monotonic()
        state = {"done": done, "last_line": started}

        def time_left(now: float) -> str:
            new = state["done"] - done
            if new <= 0:
                return ""
            seconds = (now - started) / new * max(0, total - state["done"])
            return f"{timedelta(seconds=round(seconds))} left"

        if not self.live:

            def log(count: int, position: str = "", numbers: str = "") -> None:
                state["done"] += count
                now = time.monotonic()
                if now - state["last_line"] >= LOG_INTERVAL:
                    state["last_line"] = now
                    percent = f"{state['done'] / max(total, 1):.1%}"
                    parts = (title, percent, position, numbers, time_left(now))
                    self.notes.print("  ".join(part for part in parts if part), soft_wrap=True)

            yield log
            return
        texts = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[left]"))
        columns = (next(texts), BarColumn(bar_width=24), next(texts))
        with _BarWithNumbers(*columns, console=self.notes, transient=True) as progress:
            task = progress.add_task(title, total=total, completed=done, left="")

            def update(count: int, position: str = "", numbers: str = "") -> None:
                state["done"] = min(total, state["done"] + count)
                percent = f"{state['done'] / max(total, 1):4.0%}"
                progress.numbers = numbers
                text = "  ".join(part for part in (percent, position, time_left(time.monotonic())) if part)
                progress.update(task, completed=state["done"], left=text, refresh=False)

            yield update


class NoteCollector:
    """Prints notes as they come, and keeps them for the result."""

    def __init__(self, reporter: ProgressReporter):
        self.reporter, self.texts = reporter, list[str]()

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.reporter.note(printable(text))

    def extend(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.add(text)


class _BarWithNumbers(Progress):
    """A progress bar with a line of text below it."""

    numbers = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.numbers:
            yield Text(self.numbers, overflow="ellipsis", no_wrap=True)


def format_duration(seconds: float) -> str:
    """90 -> "90 s", 600 -> "10 min", 9000 -> "2.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
