"""What a long command prints while it runs: a progress bar on a terminal, lines in a log."""

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

from vitreous.utils.console import STDERR, STDOUT, console, message, printable

Tell = Callable[..., None]
PAUSE = 10.0  # seconds between lines where there is no terminal


class Teller:
    """`quiet` prints nothing at all. On one terminal, one console writes everything, so that the bar stays below it.

    Text is escaped, and output that nobody can read any more is dropped: see `vitreous.utils.console`.
    """

    def __init__(self, quiet: bool = False):
        self.live = STDERR.isatty() and not quiet
        self.out = console(STDOUT, quiet=quiet, width=None if STDOUT.isatty() else 120)
        self.notes = self.out if STDOUT.isatty() and self.live else console(STDERR, quiet=quiet)
        self.told: set[str] = set()

    def aside(self) -> Teller:
        """For a part of a larger run: bars, notes that are new, and no tables."""
        part = copy(self)
        part.out = console(quiet=True)
        return part

    def say(self, text: str, style: str | None = None) -> None:
        self.out.print(text, style=style, soft_wrap=True)

    def note(self, text: str) -> None:
        """What one should know, beside the bar."""
        self.notes.print(message(text), soft_wrap=True)

    def introduce(self, notes: Iterable[str]) -> None:
        """What one should know before it begins, once for all parts of a run."""
        for text in notes:
            if text not in self.told:
                self.told.add(text)
                self.note(text)

    def table(self, rows: Iterable[tuple[str, ...]], heads: tuple[str, ...] = ()) -> None:
        grid = Table(box=None, pad_edge=False, show_header=bool(heads), header_style="bold")
        rows = list(rows)
        for number in range(max(map(len, rows), default=0)):
            grid.add_column(heads[number] if heads else "", overflow="fold", style=None if number else "bold")
        for row in rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        with self.out.capture() as shown:
            self.out.print(grid)
        for line in shown.get().splitlines():  # a table is padded with spaces, which a log has no use for
            self.out.print(Text.from_ansi(line.rstrip()), soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Tell]:
        """Call what it yields with how much more is done, where that is, and the numbers of it."""
        title, started = printable(title), time.monotonic()
        state = {"done": done, "spoken": started}

        def left(now: float) -> str:
            fresh = state["done"] - done
            if fresh <= 0:
                return ""
            seconds = (now - started) / fresh * max(0, total - state["done"])
            return f"{timedelta(seconds=round(seconds))} left"

        if not self.live:

            def tell(more: int, where: str = "", numbers: str = "") -> None:
                state["done"] += more
                now = time.monotonic()
                if now - state["spoken"] >= PAUSE:
                    state["spoken"] = now
                    share = f"{state['done'] / max(total, 1):.1%}"
                    words = (title, share, where, numbers, left(now))
                    self.notes.print("  ".join(word for word in words if word), soft_wrap=True)

            yield tell
            return
        texts = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[left]"))
        columns = (next(texts), BarColumn(bar_width=24), next(texts))
        with _Bar(*columns, console=self.notes, transient=True) as progress:
            task = progress.add_task(title, total=total, completed=done, left="")

            def show(more: int, where: str = "", numbers: str = "") -> None:
                state["done"] = min(total, state["done"] + more)
                share = f"{state['done'] / max(total, 1):4.0%}"
                progress.numbers = numbers
                words = "  ".join(word for word in (share, where, left(time.monotonic())) if word)
                progress.update(task, completed=state["done"], left=words, refresh=False)

            yield show


class _Bar(Progress):
    """A bar, and a line of numbers below it."""

    numbers = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.numbers:
            yield Text(self.numbers, overflow="ellipsis", no_wrap=True)


def times(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def sizes(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
