"""Write tables as CSV files that programs and spreadsheets read correctly."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitreous.utils.atomic import atomic_file

# A spreadsheet runs a cell that starts with one of the first characters as a formula. The apostrophe itself is escaped
# too, so that removing one leading apostrophe always restores the text.
ESCAPED_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "'")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], overwrite: bool = False) -> None:
    """Write a CSV file atomically: UTF-8, with a header, quoted where necessary.

    Text that starts with = + - @ ' or a control character gets a leading apostrophe. None is an empty cell, True and
    False are `true` and `false`. A file name that is not valid UTF-8 is written with backslash escapes.
    """
    with (
        atomic_file(path, overwrite) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(ESCAPED_STARTS) else text
