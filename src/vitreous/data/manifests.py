"""Manifests: .csv, .tsv or .jsonl files with one line for each image, its path and its label or labels."""

import ast
import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from vitreous.data.columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    MULTI_LABEL_COLUMNS,
    SPLIT_COLUMNS,
    find_column,
    normalize_column,
)
from vitreous.data.encoded import FileSource
from vitreous.data.file_references import AllowedFiles
from vitreous.data.labels import encode_labels
from vitreous.data.options import Reading
from vitreous.data.raw_dataset import SPLITS, RawDataset
from vitreous.errors import VitreousError, brief, one_line
from vitreous.utils.regular_files import is_system_fault, open_regular, system_fault

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
# A list of strings and numbers as Python prints it. Nested lists could overflow the stack of Python's parser.
_ITEM = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[-+]?[\w.]+)"""
PYTHON_LIST = rf"\[\s*(?:{_ITEM}\s*(?:,\s*{_ITEM}\s*)*,?\s*)?\]"
KNOWN_COLUMNS = frozenset((*IMAGE_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS))
MAX_LINE = 1 << 23  # characters
MAX_PATH = 4096


@dataclass
class ManifestRow:
    """One image of a manifest."""

    line: int
    path: str
    label: Any  # the cell's value; a list after `_parse_row_labels` if the data is multi-label
    split: str


def open_manifest(path: Path, reading: Reading) -> RawDataset:
    """Open a manifest. Paths of images are relative to its folder."""
    table = _read_table(path, reading)
    image = find_column(table.columns, IMAGE_COLUMNS, reading.image_column, "image")
    others = [column for column in table.columns if column != image]
    label = find_column(others, LABEL_COLUMNS, reading.label_column, "label")
    splits = [column for column in others if normalize_column(column) in SPLIT_COLUMNS and column != label]
    rows = [_parse_row(line, cells, image, label, splits) for line, cells in table.rows]
    _check_files(rows, path, reading)
    _parse_row_labels(rows, multi_label_column=normalize_column(label) in MULTI_LABEL_COLUMNS)
    by_split: dict[str, list[ManifestRow]] = {}
    for row in rows:
        by_split.setdefault(row.split, []).append(row)
    if "train" not in by_split:
        raise VitreousError(f"no line has the split train; the splits are {', '.join(sorted(by_split))}")
    classes, labels = encode_labels(
        {split: [row.label for row in rows] for split, rows in by_split.items()},
        where=lambda split, number: f"line {by_split[split][number].line}",
    )
    sources = {
        split: FileSource(path.parent, (row.path for row in rows), labels[split]) for split, rows in by_split.items()
    }
    requested = reading.image_column and reading.label_column
    notes = [] if requested else [f"images from column {image!r}, labels from {label!r}"]
    val_origin = f"column {splits[0]!r} of the manifest" if splits else ""
    return RawDataset(path.stem, classes, sources, notes, val_origin, has_columns=True)


def _read_table(path: Path, reading: Reading) -> "_ManifestTable":
    json_lines = path.suffix.lower() in (".jsonl", ".ndjson")
    try:
        table = _JsonLinesTable(path, reading) if json_lines else _DelimitedTable(path, reading)
    except UnicodeDecodeError as error:
        raise VitreousError(f"not UTF-8 text ({error.reason} at byte {error.start})") from error
    except VitreousError as error:
        raise error.at(path) from error
    except OSError as error:
        raise _read_error(error, path) from error
    except csv.Error as error:
        raise VitreousError(f"cannot be read ({one_line(error)})") from error
    if not table.rows:
        raise VitreousError("the manifest contains no images")
    return table


def _read_error(error: OSError, path: Path) -> VitreousError:
    if is_system_fault(error):
        return system_fault(error, path)
    return VitreousError(f"cannot be read ({error.strerror or error})")


def _check_files(rows: Sequence[ManifestRow], path: Path, reading: Reading) -> None:
    """Raise an error if an image is outside of the manifest's folder, unless the user allows it."""
    allowed = AllowedFiles([path.parent], reading.allow_outside_files)
    for row in rows:
        try:
            allowed.check(os.path.join(path.parent, row.path))  # noqa: PTH118 (a million paths)
        except VitreousError as error:
            raise error.at(f"line {row.line}") from error


class _ManifestTable:
    """The cells of a manifest in columns that may be relevant, since a line can have 100,000 other columns."""

    def __init__(self, path: Path, reading: Reading):
        self.path, self.reading = path, reading
        self.columns: list[str] = []
        self.rows: list[tuple[int, dict[str, Any]]] = []  # line number, cells by column

    def is_relevant(self, column: str) -> bool:
        requested = column in (self.reading.image_column, self.reading.label_column)
        return requested or normalize_column(column) in KNOWN_COLUMNS

    def lines(self, file: TextIO) -> Iterator[str]:
        """The lines of a file; one that is too long is an error."""
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if len(line) == MAX_LINE:
                raise VitreousError(f"line {number}: more than {MAX_LINE:,} characters")
            yield line


class _DelimitedTable(_ManifestTable):
    def __init__(self, path: Path, reading: Reading):
        super().__init__(path, reading)
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            first = file.readline(MAX_LINE)
            file.seek(0)
            delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
            reader = csv.reader(self.lines(file), delimiter=delimiter)
            self.columns = [name.strip() for name in next(reader, [])]
            if len(set(self.columns)) < len(self.columns):
                repeated = next(name for name, count in Counter(self.columns).items() if count > 1)
                raise VitreousError(f"several columns are called {brief(repeated)}")
            relevant = [index for index, column in enumerate(self.columns) if self.is_relevant(column)]
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) > len(self.columns):
                    raise VitreousError(f"line {reader.line_num}: {len(cells)} cells for {len(self.columns)} columns")
                kept = {self.columns[at]: cells[at] if at < len(cells) else "" for at in relevant}
                self.rows.append((reader.line_num, kept))


class _JsonLinesTable(_ManifestTable):
    def __init__(self, path: Path, reading: Reading):
        super().__init__(path, reading)
        relevant: dict[str, bool] = {}  # every column, and whether it is relevant
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig") as file:
            for number, line in enumerate(self.lines(file), 1):
                if not line.strip():
                    continue
                try:
                    cells = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise VitreousError(f"line {number}: not JSON ({one_line(error)})") from error
                if not isinstance(cells, dict):
                    raise VitreousError(f"line {number}: expected a JSON object, got {line.strip()[:40]}")
                for column in cells:
                    if column not in relevant:
                        relevant[column] = self.is_relevant(column)
                self.rows.append((number, {column: cell for column, cell in cells.items() if relevant[column]}))
        self.columns = list(relevant)


def _parse_row(line: int, cells: dict[str, Any], image: str, label: str, splits: Sequence[str]) -> ManifestRow:
    path = cells.get(image)
    if not isinstance(path, str) or not path.strip():
        raise VitreousError(f"line {line}: no path in column {image!r}")
    if "://" in path:
        raise VitreousError(f"line {line}: {path[:100]} is a URL; download the images, and use paths")
    if len(path) > MAX_PATH:
        raise VitreousError(f"line {line}: the path has {len(path):,} characters")
    if not _is_file_name(path):
        raise VitreousError(f"line {line}: the path {brief(path)} is not valid Unicode")
    split = "train"
    if splits:
        word = str(cells.get(splits[0]) or "").strip()
        if word.lower() not in SPLITS:
            raise VitreousError(
                f"line {line}: {brief(word)} in column {brief(splits[0])} is not one of train, val and test"
            )
        split = SPLITS[word.lower()]
    value = cells.get(label)
    return ManifestRow(line, path.strip(), value.strip() if isinstance(value, str) else value, split)


def _is_file_name(path: str) -> bool:
    """Whether a string can be encoded as a file name; on Linux, names that are not UTF-8 use surrogate escapes."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _parse_row_labels(rows: list[ManifestRow], multi_label_column: bool) -> None:
    """Replace every label by one number or name, or every label by a list (multi-label).

    The data is multi-label if a label is a JSON list, or if a label has several parts.
    """
    lists = any(isinstance(row.label, list) for row in rows)
    separator = _find_separator([row.label for row in rows if isinstance(row.label, str)], multi_label_column)
    parts = [_label_parts(row, separator) for row in rows]
    multi_label = lists or any(len(part) > 1 for part in parts)
    for row, part in zip(rows, parts, strict=True):
        if not part and not multi_label:
            raise VitreousError(f"line {row.line}: no label")
        row.label = part if multi_label else part[0]


def _find_separator(texts: Sequence[str], multi_label_column: bool) -> str | None:
    """The character that separates labels in a cell. All lines use the same one, so names may contain the others."""
    plain_texts = [text for text in texts if not _is_list(text)]
    for character in "|;," if multi_label_column else "|;":
        if any(character in text for text in plain_texts):
            return character
    return " " if multi_label_column else None


def _is_list(text: str) -> bool:
    return text.startswith("[") and text.endswith("]")


def _label_parts(row: ManifestRow, separator: str | None) -> list[Any]:
    label = row.label
    if isinstance(label, str):
        if _is_list(label):
            label = _parse_list(label, row.line)
        elif separator is None:
            label = [label]
        else:
            label = label.split() if separator == " " else label.split(separator)
    elif not isinstance(label, list):
        label = [label]
    parts = [part.strip() if isinstance(part, str) else part for part in label]
    for part in parts:
        if not isinstance(part, str | int | float | None):
            raise VitreousError(f"line {row.line}: the label {brief(part)} is neither a number nor a name")
    return [part for part in parts if part not in ("", None)]


def _parse_list(text: str, line: int) -> list[Any]:
    """The labels of a list in a cell, as strings: a number in the list is a class name, as without a list."""
    try:
        value = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        if not re.fullmatch(PYTHON_LIST, text):
            raise VitreousError(f"line {line}: {text[:60]} is not a JSON list") from None
        try:
            value = [_to_text(part) for part in ast.literal_eval(text)]  # only parses literals, runs no code
        except (ValueError, SyntaxError, MemoryError):
            raise VitreousError(f"line {line}: {text[:60]} is not a JSON list") from None
    return [_to_text(part) for part in (value if isinstance(value, list) else [value])]


def _to_text(part: Any) -> Any:
    if isinstance(part, bool):
        return str(part).lower()
    return str(part) if isinstance(part, int | float) else part
