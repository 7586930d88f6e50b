"""What several commands share."""

import io
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from rich.table import Table

Number = Annotated[int | None, tyro.conf.arg(metavar="N")]
Size = Annotated[int | tuple[int, int] | None, tyro.conf.arg(metavar="PX [PX]")]  # one number is a square
Preset = Annotated[Literal["google", "augreg", "deit", "torchvision", "dino"] | None, tyro.conf.arg(metavar="NAME")]


def show_table(table: "Table") -> None:
    """A table on stdout. In a pipe there is no width to keep to, and no use for spaces at the end of a line."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that this terminal cannot show must not end the program
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(highlight=False, width=120, file=io.StringIO(), color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    for line in console.file.getvalue().splitlines():
        print(line.rstrip())


def show_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Names and what there is to say of each. What comes from a file is text, whatever it looks like."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value.encode("utf-8", "replace").decode()))
    show_table(table)
