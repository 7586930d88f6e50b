"""A manifest: a table in .csv, .tsv or .jsonl, one line for each image, with its path and its label or labels."""

import ast
import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vitreous.data.columns import IMAGE, LABEL, MANY, SPLIT, find_column, plain
from vitreous.data.encoded import Files
from vitreous.data.found import SPLITS, Found, number_classes
from vitreous.data.options import Reading
from vitreous.errors import VitreousError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")


@dataclass
class Row:
    line: int
    path: str
    label: Any  # as it stands there; a list once it is known that there are several
    split: str


def open_manifest(path: Path, reading: Reading) -> Found:
    try:
        table = list(_json_lines(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _separated(path))
    except UnicodeDecodeError as error:
        raise VitreousError(f"not text in UTF-8 ({error.reason} at byte {error.start})") from error
    except (OSError, csv.Error) as error:
        raise VitreousError(f"cannot be read ({error})") from error
    if not table:
        raise VitreousError("no lines with images in it")
    columns = list(dict.fromkeys(column for _, cells in table for column in cells))
    image = find_column(columns, IMAGE, reading.image_column, "image")
    others = [column for column in columns if column != image]
    label = find_column(others, LABEL, reading.label_column, "label")
    splits = [column for column in others if plain(column) in SPLIT and column != label]
    rows = [_row(line, cells, image, label, splits) for line, cells in table]
    _settle_labels(rows, several_by_name=plain(label) in MANY)
    by_split: dict[str, list[Row]] = {}
    for row in rows:
        by_split.setdefault(row.split, []).append(row)
    if "train" not in by_split:
        raise VitreousError(f"no line of it is in train; the splits are {', '.join(sorted(by_split))}")
    classes, labels = number_classes({split: [row.label for row in held] for split, held in by_split.items()})
    sources = {split: Files(path.parent, (row.path for row in held), labels[split]) for split, held in by_split.items()}
    chosen = reading.image_column and reading.label_column
    notes = [] if chosen else [f"images from column {image!r}, labels from {label!r}"]
    origin = f"column {splits[0]!r} of the manifest" if splits else ""
    return Found(path.stem, classes, sources, notes, origin, columns=True)


def _separated(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
        reader = csv.reader(file, delimiter=delimiter)
        header = [name.strip() for name in next(reader, [])]
        if twice := [name for name in header if header.count(name) > 1]:
            raise VitreousError(f"several columns are called {twice[0]!r}")
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) > len(header):
                raise VitreousError(f"line {reader.line_num}: {len(cells)} cells for {len(header)} columns")
            yield reader.line_num, dict(zip_longest(header, cells, fillvalue=""))


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise VitreousError(f"line {number}: not JSON ({error})") from error
            if not isinstance(cells, dict):
                raise VitreousError(f"line {number}: expected an object with keys, got {line.strip()[:40]}")
            yield number, cells


def _row(line: int, cells: dict[str, Any], image: str, label: str, splits: Sequence[str]) -> Row:
    path = cells.get(image)
    if not isinstance(path, str) or not path.strip():
        raise VitreousError(f"line {line}: no path in column {image!r}")
    if "://" in path:
        raise VitreousError(f"line {line}: {path} is an address; download the images, and give paths")
    split = "train"
    if splits:
        word = str(cells.get(splits[0]) or "").strip()
        if word.lower() not in SPLITS:
            raise VitreousError(f"line {line}: {word!r} in column {splits[0]!r} is not one of train, val and test")
        split = SPLITS[word.lower()]
    value = cells.get(label)
    return Row(line, path.strip(), value.strip() if isinstance(value, str) else value, split)


def _settle_labels(rows: list[Row], several_by_name: bool) -> None:
    """Make every label one number or name, or every one a list. A list in JSON always means several."""
    lists = any(isinstance(row.label, list) for row in rows)
    separator = _separator([row.label for row in rows if isinstance(row.label, str)], several_by_name)
    parts = [_parts(row, separator) for row in rows]
    several = lists or any(len(part) > 1 for part in parts)
    for row, part in zip(rows, parts, strict=True):
        if not part and not several:
            raise VitreousError(f"line {row.line}: no label")
        row.label = part if several else part[0]


def _separator(texts: Sequence[str], several_by_name: bool) -> str | None:
    """What parts labels in this column. One character for all lines, so that names may hold the weaker ones."""
    plain_texts = [text for text in texts if not _is_list(text)]
    for character in "|;," if several_by_name else "|;":
        if any(character in text for text in plain_texts):
            return character
    return " " if several_by_name else None


def _is_list(text: str) -> bool:
    return text.startswith("[") and text.endswith("]")


def _parts(row: Row, separator: str | None) -> list[Any]:
    label = row.label
    if isinstance(label, str):
        if _is_list(label):
            label = _parsed_list(label, row.line)
        elif separator is None:
            label = [label]
        else:
            label = label.split() if separator == " " else label.split(separator)
    elif not isinstance(label, list):
        label = [label]
    parts = [part.strip() if isinstance(part, str) else part for part in label]
    for part in parts:
        if not isinstance(part, str | int | float | None):
            raise VitreousError(f"line {row.line}: the label {part!r} is neither a number nor a name")
    return [part for part in parts if part not in ("", None)]


def _parsed_list(text: str, line: int) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = ast.literal_eval(text)  # as Python prints a list; it reads values, and runs nothing
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise VitreousError(f"line {line}: {text[:60]} is not a list in JSON") from None
    return value if isinstance(value, list) else [value]
