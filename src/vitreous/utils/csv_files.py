"""Write tables as CSV files that programs and spreadsheets read correctly."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vitreous.utils.atomic import atomic_file

# A spreadsheet runs a cell that starts with one of the first characters as a formula. The apostrophe itself is escaped
# too, so that removing one leading apostrophe always restores the text.
ESCAPED_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "'")


@contextmanager
def csv_file(
    path: Path, columns: Sequence[str], overwrite: bool = False
) -> Iterator[Callable[[Sequence[object]], None]]:
    """Write a CSV file atomically: UTF-8, with a header, quoted where necessary. Yields a function that writes a row.

    Text that starts with = + - @ ' or a control character gets a leading apostrophe. None is an empty cell, True and
    False are `true` and `false`. A file name that is not valid UTF-8 is written with backslash escapes.
    """
    with (
        atomic_file(path, overwrite) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file)  # lines end in CR LF, as in RFC 4180: Python quotes a CR in a name only then
        writer.writerow(columns)
        yield lambda row: writer.writerow([_cell(value) for value in row])


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(ESCAPED_STARTS) else text
