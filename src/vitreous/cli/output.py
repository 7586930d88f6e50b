"""What commands print: tables, JSON, progress bars and warnings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.errors import format_count
from vitreous.utils.console import STDERR, STDOUT, console, json_text, print_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vitreous.utils.progress import ProgressReporter

MAX_NAMED = 10  # unreadable images whose names are printed


def make_reporter(json: bool) -> "ProgressReporter":
    """Return a reporter for a command. With --json, notes and bars go to stderr even if stdout is a terminal."""
    from vitreous.utils.progress import ProgressReporter

    reporter = ProgressReporter()
    if json:
        reporter.notes = console(STDERR)
    return reporter


@contextmanager
def transient_progress_bar(console: "Console", total: int, shown: bool) -> "Iterator[Callable[[], None]]":
    """Show a bar with images per second and time left, which disappears at the end. Yields a function to call for each
    image."""
    from datetime import timedelta

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class MeanRate(ProgressColumn):  # images come in batches, and rich's own rate would jump
        def render(self, task: Task) -> Text:
            if not task.completed or not task.elapsed:
                return Text("")
            rate = task.completed / task.elapsed
            return Text(f"{rate:,.0f} images/s  {timedelta(seconds=round((task.remaining or 0) / rate))} left")

    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        MeanRate(),
        console=console,
        transient=True,
        disable=not shown,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


@contextmanager
def interrupt_message(resumable: bool) -> Iterator[None]:
    """Give Ctrl-C a message. `resumable`: finished features are cached, and the command can be repeated."""
    try:
        yield
    except KeyboardInterrupt:
        text = "stopped; finished features are kept, and the same command continues from there"
        raise KeyboardInterrupt(text if resumable else "stopped") from None


def print_notes(reporter: "ProgressReporter", notes: Iterable[str]) -> None:
    """Print notes about the model and the data in grey."""
    for note in notes:
        reporter.notes.print(printable(note), style="dim", soft_wrap=True)


def print_warnings(reporter: "ProgressReporter", warnings: Iterable[str]) -> None:
    """Print warnings about the validity of the results in bold red."""
    for text in warnings:
        reporter.notes.print(f"WARNING: {printable(text)}", style="bold red", soft_wrap=True)


def exit_if_unreadable(reporter: "ProgressReporter", reasons: "Sequence[str]") -> None:
    """If images could not be read, print their names and exit with code 1."""
    for reason in reasons[:MAX_NAMED]:
        reporter.note(printable(reason))
    if reasons:
        rest = f" (the first {MAX_NAMED} are listed above)" if len(reasons) > MAX_NAMED else ""
        reporter.note(f"left out: {format_count(len(reasons), 'image')} that cannot be read{rest}")
        raise SystemExit(1)


def print_json(value: object) -> None:
    """Print one JSON document, in ASCII. With --json a command prints nothing else on stdout."""
    print_line(json_text(value))


def print_figure_paths(paths: Iterable[Path], json: bool) -> None:
    """Print where figures were written: to stderr if stdout is JSON."""
    print_line(f"figures: {', '.join(map(str, paths))}", STDERR if json else STDOUT)


def print_table(table: "Table", fold: bool = True) -> None:
    """Print a table. In a pipe, lines are at most 120 columns wide if `fold`, and have no trailing spaces."""
    if STDOUT.isatty():
        console(STDOUT).print(table)
        STDOUT.check()
        return
    pipe = console(STDOUT, width=10_000, color_system=None)
    pipe.width = 120 if fold else max(120, pipe.measure(table).maximum)
    with pipe.capture() as captured:
        pipe.print(table)
    print_line("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_columns(columns: "list[tuple[str, list[str]]]", text_columns: int = 1) -> None:
    """Print an empty line and a table. The first `text_columns` are aligned to the left, the others to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, (name, _) in enumerate(columns):
        justify = "left" if number < text_columns else "right"
        table.add_column(Text(printable(name)), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_line()
    print_table(table, fold=False)


def print_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of names and values. Values may come from files: markup in them is not interpreted."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(printable(value, keep="\n")))
    print_table(table)
