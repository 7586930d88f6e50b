"""Parquet files with a column of images, read a row group at a time."""

import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from torch import Tensor

from vitreous.data.columns import IMAGE, LABEL, find_column, plain
from vitreous.data.encoded import Encoded
from vitreous.data.found import SPLITS, Found, grouped, listed, number_classes, remarks_on
from vitreous.data.options import Reading
from vitreous.errors import VitreousError

CACHED = 256 << 20  # bytes of row groups that a process keeps
LARGE_GROUP = 64 << 20


def need(module: str) -> None:
    """Say how to get a library of the extra `data`, if it is not there."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise VitreousError(f'this needs {module}: pip install "vitreous[data]"')


class Table(Encoded):
    """The images in a column of Parquet files. Copies of it start with an empty cache."""

    def __init__(self, paths: Sequence[str], groups: Sequence[tuple[int, int, int]], column: str, labels: Tensor):
        self.paths, self.column, self.labels = tuple(paths), column, labels
        self.groups = np.array([group[:2] for group in groups], dtype=np.int64)  # the file, and the group in it
        self.ends = np.cumsum([rows for *_, rows in groups], dtype=np.int64)
        self._cache: dict[int, Any] = {}
        self._lock = Lock()

    def name(self, index: int) -> str:
        group, row = self._place(index)
        first = np.flatnonzero(self.groups[:, 0] == self.groups[group, 0])[0]
        return f"{self.paths[self.groups[group, 0]]}[{self._start(group) - self._start(int(first)) + row}]"

    def stored(self, index: int) -> bytes:
        group, row = self._place(index)
        with self._lock:
            cells = self._cache.pop(group, None)
            if cells is None:
                cells = self._read(group)
            self._cache[group] = cells  # the one used last is last
            while len(self._cache) > 1 and sum(held.nbytes for held in self._cache.values()) > CACHED:
                del self._cache[next(iter(self._cache))]
        return cell_bytes(cells[row].as_py(), Path(self.paths[self.groups[group, 0]]).parent)

    def _place(self, index: int) -> tuple[int, int]:
        index = range(len(self))[index]
        group = int(np.searchsorted(self.ends, index, side="right"))
        return group, index - self._start(group)

    def _start(self, group: int) -> int:
        return int(self.ends[group - 1]) if group else 0

    def _read(self, group: int) -> Any:
        from pyarrow import ArrowException  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

        file, number = self.groups[group]
        try:
            with ParquetFile(self.paths[file], memory_map=True) as table:
                return table.read_row_group(int(number), columns=[self.column], use_threads=False)[self.column]
        except ArrowException as error:
            raise VitreousError(f"cannot be read ({' '.join(str(error).split())})") from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_cache", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cache={}, _lock=Lock())


def cell_bytes(cell: Any, folder: Path) -> bytes:
    """The image that a cell holds: its bytes, or a path to them."""
    if isinstance(cell, dict):
        cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
    if isinstance(cell, str) and cell:
        return Path(folder, cell).read_bytes()
    if not isinstance(cell, bytes):
        raise VitreousError("there is no image in this row")
    return cell


def open_tables(paths: Sequence[Path], name: str, reading: Reading) -> Found:
    need("pyarrow")
    from pyarrow.parquet import read_schema

    by_split = grouped(paths)
    schemas = {path: _try(path, read_schema) for held in by_split.values() for path in held}
    schema = schemas[by_split["train"][0]]
    features = hugging_face_features(schema.metadata)
    image = image_column(schema, features, reading.image_column)
    label = find_column([n for n in schema.names if n != image], LABEL, reading.label_column, "label")
    for path, other in schemas.items():
        if missing := {image, label} - set(other.names):
            raise VitreousError(f"{path}: has no column {listed(sorted(missing))}, as others do")
    notes = [*remarks_on(paths), f"images from column {image!r}, labels from {label!r}"]
    columns = {split: _column(held, label) for split, held in by_split.items()}
    drop_unlabelled(columns, notes)
    classes, labels = number_classes(columns, class_names(features.get(label)))
    sources = {}
    for split in columns:
        held = [str(path) for path in by_split[split]]
        sources[split] = Table(held, _groups(held, notes), image, labels[split])
    return Found(name, classes, sources, notes, "Parquet files of its own", columns=True)


def _try(path: Path, read: Any, **options: Any) -> Any:
    from pyarrow import ArrowException

    try:
        return read(path, **options)
    except (ArrowException, OSError) as error:
        raise VitreousError(f"{path}: not a Parquet file that can be read ({' '.join(str(error).split())})") from error


def _column(paths: Sequence[Path], label: str) -> list[Any]:
    from pyarrow.parquet import read_table

    values: list[Any] = []
    for path in paths:
        # Of the file alone: from a path such as split=train/0.parquet it would add columns.
        values += _try(path, read_table, columns=[label], partitioning=None)[label].to_pylist()
    if any(isinstance(value, list) for value in values):
        return [value or [] for value in values]
    for row, value in enumerate(values):
        if value is None or value == "":
            raise VitreousError(f"row {row} has no label in column {label!r}")
    return values


def _groups(paths: Sequence[str], notes: list[str]) -> list[tuple[int, int, int]]:
    from pyarrow.parquet import read_metadata

    groups, largest = [], 0
    for file, path in enumerate(paths):
        metadata = _try(Path(path), read_metadata)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            groups.append((file, number, group.num_rows))
            largest = max(largest, group.total_byte_size)
    if largest > LARGE_GROUP and len(groups) > 1:
        notes.append(
            f"row groups of up to {largest >> 20:,} MiB: one image takes reading a whole one; write them with"
            " row_group_size=100 to be faster"
        )
    return groups


def hugging_face_features(metadata: Any) -> dict[str, Any]:
    """What the `datasets` library wrote about the columns, if it was the one that wrote the file."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return features if isinstance(features, dict) else {}
    except (KeyError, ValueError, TypeError):
        return {}


def class_names(feature: Any) -> list[str] | None:
    """The names of a ClassLabel, also of one in a list."""
    while isinstance(feature, list | dict):
        if isinstance(feature, dict) and isinstance(feature.get("names"), list):
            return [str(name) for name in feature["names"]]
        feature = (feature or [None])[0] if isinstance(feature, list) else feature.get("feature")
    return None


def image_column(schema: Any, features: dict[str, Any], wanted: str | None) -> str:
    if wanted is None:
        told = [n for n, feature in features.items() if isinstance(feature, dict) and feature.get("_type") == "Image"]
        able = [field.name for field in schema if _holds_images(field.type)]
        for names in (told, [n for n in able if plain(n) in IMAGE], able):
            if len(names) == 1:
                return str(names[0])
    return find_column(schema.names, IMAGE, wanted, "image")


def _holds_images(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def drop_unlabelled(columns: dict[str, list[Any]], notes: list[str]) -> None:
    """A published test set may keep its labels back, and write -1 for all of them."""
    for split in [split for split, column in columns.items() if split != "train" and set(map(str, column)) == {"-1"}]:
        notes.append(f"{split} has no labels (all are -1): left out")
        del columns[split]


def parquet_files(folder: Path) -> list[Path]:
    """Those in a folder, in its `data` folder, or in the folders of splits."""
    folders = [folder, folder / "data", *(f for f in sorted(folder.iterdir()) if f.name.lower() in SPLITS)]
    return [path for place in folders for path in sorted(place.glob("*.parquet")) if not path.name.startswith(".")]
