"""Parquet files with a column of images, read one row group at a time."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from vitreous.data.columns import IMAGE_COLUMNS, LABEL_COLUMNS, check_label_column, find_column, normalize_column
from vitreous.data.encoded import EncodedSource
from vitreous.data.file_references import AllowedFiles
from vitreous.data.labels import encode_labels
from vitreous.data.options import Reading
from vitreous.data.raw_dataset import SPLITS, RawDataset, group_by_split, single_file_notes
from vitreous.errors import VitreousError, summarize_names
from vitreous.utils.images import check_file_size, read_image_file
from vitreous.utils.regular_files import is_system_fault, open_regular, system_fault

T = TypeVar("T")
CACHE_BYTES = 256 << 20  # maximum size of the row groups that a process caches
LARGE_GROUP = 64 << 20  # bytes
SLACK_BYTES, SLACK_ROWS = 512 << 20, 1 << 20  # a file may declare this much more than its size


def require_library(module: str) -> None:
    """Raise an error with the install command if a library of the extra `data` is missing."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise VitreousError(f'this needs {module}: pip install "vitreous[data]"')


class ParquetSource(EncodedSource):
    """The images in a column of Parquet files. Pickled copies start with an empty cache."""

    def __init__(
        self,
        paths: Sequence[str],
        groups: Sequence[tuple[int, int, int]],
        column: str,
        labels: Tensor,
        allowed: AllowedFiles,
    ):
        self.paths, self.column, self.labels, self.allowed = tuple(paths), column, labels, allowed
        places = [group[:2] for group in groups]  # number of the file, number of the group in it
        self.groups = np.array(places, dtype=np.int64).reshape(-1, 2)  # reshape: there may be no groups
        self.ends = np.cumsum([rows for *_, rows in groups], dtype=np.int64)
        firsts = np.searchsorted(self.groups[:, 0], np.arange(len(self.paths)))  # first group of each file
        self.starts = [self._start(int(first)) for first in firsts]
        self._cache: dict[int, Any] = {}
        self._cached = 0  # bytes
        self._lock = Lock()

    def name(self, index: int) -> str:
        group, row = self._place(index)
        file = self.groups[group, 0]
        return f"{self.paths[file]}[{self._start(group) - self.starts[file] + row}]"

    def read_bytes(self, index: int) -> bytes:
        group, row = self._place(index)
        with self._lock:
            cells = self._cache.pop(group, None)
            if cells is None:
                cells = self._read(group)
                self._cached += cells.nbytes
            self._cache[group] = cells  # most recently used last
            while len(self._cache) > 1 and self._cached > CACHE_BYTES:
                self._cached -= self._cache.pop(next(iter(self._cache))).nbytes
        folder = Path(self.paths[self.groups[group, 0]]).parent
        return cell_bytes(cells[row].as_py(), folder, self.allowed, self.max_pixels)

    def _place(self, index: int) -> tuple[int, int]:
        index = range(len(self))[index]
        group = int(np.searchsorted(self.ends, index, side="right"))
        return group, index - self._start(group)

    def _start(self, group: int) -> int:
        return int(self.ends[group - 1]) if group else 0

    def _read(self, group: int) -> Any:
        file, number = self.groups[group]
        with _open_parquet_file(self.paths[file], as_dictionary=True) as table:
            cells = table.read_row_group(int(number), columns=[self.column], use_threads=False)[self.column]
            cells.validate(full=True)  # a damaged file may have indices beyond its dictionary
        if len(cells) != (rows := int(self.ends[group]) - self._start(group)):
            raise VitreousError(f"a row group with {rows:,} rows has {len(cells):,} images")
        return cells

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_cache", "_cached", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cache={}, _cached=0, _lock=Lock())


@contextmanager
def _open_parquet_file(path: str | Path, as_dictionary: bool = False) -> Iterator[Any]:
    """Open a Parquet file; its errors are raised as VitreousError.

    `as_dictionary`: read strings and bytes as dictionary arrays, as they are stored. Otherwise a value that is stored
    once and used in thousands of rows takes its memory thousands of times.
    """
    from pyarrow import ArrowException, PythonFile  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    try:
        with open_regular(path) as stream, PythonFile(stream, "r") as file, ParquetFile(file) as table:
            _check_sizes(table.metadata, os.fstat(stream.fileno()).st_size)
            if not as_dictionary:
                yield table
                return
            names = _dictionary_columns(table.metadata)
            with ParquetFile(file, metadata=table.metadata, read_dictionary=names) as dictionary_table:
                yield dictionary_table
    except VitreousError:
        raise
    except (ArrowException, OSError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, OSError) and is_system_fault(error):
            raise system_fault(error) from error
        reason = " ".join(str(error).split())[:300]
        raise VitreousError(f"not a readable Parquet file ({reason})") from error


def _check_sizes(metadata: Any, size: int) -> None:
    """Raise an error if a file declares far more data than its size allows."""
    if metadata.num_rows > size + SLACK_ROWS:
        raise VitreousError(f"refused: {metadata.num_rows:,} rows in a file of {size:,} bytes")
    for number in range(metadata.num_row_groups):
        if (declared := metadata.row_group(number).total_byte_size) > size + SLACK_BYTES:
            raise VitreousError(f"refused: a row group of {declared:,} bytes in a file of {size:,}")


def _dictionary_columns(metadata: Any) -> list[str]:
    """The columns of strings and bytes, which can be read as dictionary arrays."""
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    texts = [column for column in columns if column.physical_type == "BYTE_ARRAY"]
    return [column.path for column in texts if not column.max_repetition_level]  # pyarrow cannot do it inside lists


def _to_list(column: Any) -> list[Any]:
    """The values of a column; rows that share a stored value share the Python object."""
    values: list[Any] = []
    column.validate(full=True)  # a damaged file may have indices beyond its dictionary
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            stored = chunk.dictionary.to_pylist()
            values += [None if index is None else stored[index] for index in chunk.indices.to_pylist()]
        else:
            values += chunk.to_pylist()
    return values


def cell_bytes(cell: Any, folder: Path, allowed: AllowedFiles, max_pixels: int) -> bytes:
    """The encoded image of a cell, which holds its bytes or the path of its file."""
    if isinstance(cell, dict):
        cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
    if isinstance(cell, str) and cell:
        path = Path(folder, cell)
        allowed.check(str(path))
        return read_image_file(path, max_pixels)
    if not isinstance(cell, bytes):
        raise VitreousError("this row contains no image")
    check_file_size(len(cell), max_pixels)
    return cell


def open_parquet(paths: Sequence[Path], name: str, folder: Path, reading: Reading) -> RawDataset:
    """Open Parquet files. Image files that cells refer to must be in `folder`."""
    require_library("pyarrow")
    by_split = group_by_split(paths)
    schemas = {
        path: _read_file(path, lambda table: table.schema_arrow) for files in by_split.values() for path in files
    }
    schema = schemas[by_split["train"][0]]
    features = _hugging_face_features(schema.metadata)
    image = _find_image_column(schema, features, reading.image_column)
    label = find_column([n for n in schema.names if n != image], LABEL_COLUMNS, reading.label_column, "label")
    for path, other in schemas.items():
        if missing := {image, label} - set(other.names):
            raise VitreousError(f"{path}: has no column {summarize_names(sorted(missing))}, but other files do")
    notes = [*single_file_notes(paths), f"images from column {image!r}, labels from {label!r}"]
    columns = {split: _read_labels(files, label) for split, files in by_split.items()}
    drop_unlabelled_splits(columns, notes)
    names = common_class_names(
        {str(path): _class_names(_hugging_face_features(other.metadata).get(label)) for path, other in schemas.items()}
    )
    classes, labels = encode_labels(columns, names, lambda split, row: f"row {row} of {split}")
    allowed = AllowedFiles([folder], reading.allow_outside_files)
    sources = {}
    for split in columns:
        files = [str(path) for path in by_split[split]]
        sources[split] = ParquetSource(files, _row_groups(files, notes), image, labels[split], allowed)
    return RawDataset(name, classes, sources, notes, "val Parquet files", has_columns=True)


def _read_file(path: Path, read: Callable[[Any], T], as_dictionary: bool = False) -> T:
    try:
        with _open_parquet_file(path, as_dictionary) as table:
            return read(table)
    except VitreousError as error:
        raise error.at(path) from error


def _read_labels(paths: Sequence[Path], label: str) -> list[Any]:
    values: list[Any] = []
    for path in paths:
        values += _read_file(path, lambda table: _to_list(table.read(columns=[label])[label]), as_dictionary=True)
    return check_label_column(values, label)


def _row_groups(paths: Sequence[str], notes: list[str]) -> list[tuple[int, int, int]]:
    groups, largest = [], 0
    for file, path in enumerate(paths):
        metadata = _read_file(Path(path), lambda table: table.metadata)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            groups.append((file, number, group.num_rows))
            largest = max(largest, group.total_byte_size)
    if largest > LARGE_GROUP and len(groups) > 1:
        notes.append(
            f"row groups of up to {largest >> 20:,} MiB, which are read as a whole to get one image: write the files"
            " with row_group_size=100 for faster access"
        )
    return groups


def _hugging_face_features(metadata: Any) -> dict[str, Any]:
    """The column types in the metadata of the `datasets` library; empty if it did not write the file."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return features if isinstance(features, dict) else {}
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}


def _class_names(feature: Any) -> list[str] | None:
    """The names of a ClassLabel, which may be inside a list."""
    while isinstance(feature, list | dict):
        if isinstance(feature, dict) and isinstance(feature.get("names"), list):
            return [str(name) for name in feature["names"]]
        feature = (feature or [None])[0] if isinstance(feature, list) else feature.get("feature")
    return None


def common_class_names(lists: Mapping[str, Sequence[str] | None]) -> list[str] | None:
    """The class names. All files or splits must have the same list, since labels are indices into it."""
    known = {part: list(names) for part, names in lists.items() if names is not None}
    for part, names in known.items():
        first = next(iter(known))
        if names != known[first]:
            raise VitreousError(
                f"{first} and {part} have different lists of class names ({summarize_names(known[first], 3)}; and"
                f" {summarize_names(names, 3)}): the same label means different classes"
            )
    return next(iter(known.values()), None)


def _find_image_column(schema: Any, features: dict[str, Any], requested: str | None) -> str:
    if requested is None:
        declared = [
            n for n, feature in features.items() if isinstance(feature, dict) and feature.get("_type") == "Image"
        ]
        candidates = [field.name for field in schema if _holds_images(field.type)]
        for names in (declared, [n for n in candidates if normalize_column(n) in IMAGE_COLUMNS], candidates):
            if len(names) == 1:
                return str(names[0])
    return find_column(schema.names, IMAGE_COLUMNS, requested, "image")


def _holds_images(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def drop_unlabelled_splits(columns: dict[str, list[Any]], notes: list[str]) -> None:
    """Remove splits whose labels are all -1: published test sets may have secret labels."""
    for split in [split for split, column in columns.items() if split != "train" and set(map(str, column)) == {"-1"}]:
        notes.append(f"{split} has no labels (all are -1): ignored")
        del columns[split]


def find_parquet_files(folder: Path) -> list[Path]:
    """Parquet files in a folder, in its `data` folder, or in the folders of splits."""
    folders = [folder, folder / "data", *(f for f in sorted(folder.iterdir()) if f.name.lower() in SPLITS)]
    return [path for place in folders for path in sorted(place.glob("*.parquet")) if not path.name.startswith(".")]
