"""The table of an experiment as Markdown, CSV, JSON and text."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from vitreous.experiments.grid.statistics import SeedSummary
from vitreous.utils.console import printable

Entry = str | int | float | SeedSummary | None
MISSING = "–"


@dataclass(frozen=True)
class ResultTable:
    """Rows of texts, numbers, and means with standard deviations over seeds. None: no result."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()  # sentences below the table

    def texts(self) -> list[list[str]]:
        """Return all entries as they are shown."""
        return [[format_entry(entry) for entry in row] for row in self.rows]

    @property
    def text_columns(self) -> int:
        """The number of columns on the left that hold texts."""
        numeric = (i for i in range(len(self.columns)) if not any(isinstance(row[i], str) for row in self.rows))
        return next(numeric, len(self.columns))

    def markdown(self) -> str:
        numeric = [not any(isinstance(row[i], str) for row in self.rows) for i in range(len(self.columns))]
        lines = [
            f"| {' | '.join(map(escape_cell, self.columns))} |",
            f"|{'|'.join('---:' if number else '---' for number in numeric)}|",
            *(f"| {' | '.join(map(escape_cell, row))} |" for row in self.texts()),
        ]
        if self.notes:
            lines += ["", *(f"- {escape_cell(note)}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Columns with several seeds have two more columns: their standard deviation and number of seeds."""
        with_seeds = [any(isinstance(row[i], SeedSummary) for row in self.rows) for i in range(len(self.columns))]
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        heads: list[str] = []
        for name, several in zip(self.columns, with_seeds, strict=True):
            heads += [name, f"{name}: standard deviation", f"{name}: seeds"] if several else [name]
        writer.writerow(heads)
        for row in self.rows:
            values: list[object] = []
            for entry, several in zip(row, with_seeds, strict=True):
                values += _csv_values(entry) if several else ["" if entry is None else entry]
            writer.writerow(values)
        return buffer.getvalue()

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": list(self.columns),
            "rows": [[vars(entry) if isinstance(entry, SeedSummary) else entry for entry in row] for row in self.rows],
            "notes": list(self.notes),
        }


def format_entry(entry: Entry) -> str:
    if entry is None:
        return MISSING
    if isinstance(entry, float):
        return f"{entry:.1f}" if abs(entry) < 1000 else f"{entry:,.0f}"
    return f"{entry:,}" if isinstance(entry, int) else str(entry)


def escape_cell(text: str) -> str:
    return printable(text).replace("|", "\\|")


def _csv_values(entry: Entry) -> list[object]:
    if isinstance(entry, SeedSummary):
        return [entry.mean, "" if entry.std is None else entry.std, entry.seeds]
    return ["" if entry is None else entry, "", ""]
