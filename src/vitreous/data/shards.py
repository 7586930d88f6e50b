"""Tar shards: images with label files next to them, as in WebDataset, or in folders named after classes."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from torch import Tensor

from vitreous.data.class_level import choose_class_level
from vitreous.data.columns import LABEL_COLUMNS, normalize_column
from vitreous.data.encoded import EncodedSource, PackedStrings
from vitreous.data.file_pool import FilePool
from vitreous.data.labels import encode_labels
from vitreous.data.raw_dataset import SPLITS, RawDataset, group_by_split, single_file_notes
from vitreous.data.tar_index import LABEL_SUFFIXES, TarIndex, index_tar
from vitreous.errors import VitreousError, format_count
from vitreous.utils.images import check_file_size

ImagePlace = tuple[int, int]  # number of the shard, number of the image in its index


class TarSource(EncodedSource):
    """Images in tar files, read by offset. The splits of a data set share the open files."""

    def __init__(self, files: FilePool, indices: Sequence[TarIndex], images: Sequence[ImagePlace], labels: Tensor):
        self.files, self.labels = files, labels
        self.names = PackedStrings(indices[shard].names[i] for shard, i in images)
        self.shards = np.array([shard for shard, _ in images], dtype=np.int32)
        self.offsets = np.array([indices[shard].offsets[i] for shard, i in images], dtype=np.int64)
        self.sizes = np.array([indices[shard].sizes[i] for shard, i in images], dtype=np.int64)
        maps = (indices[shard].sparse.get(str(i)) for shard, i in images)
        self.sparse = {number: spans for number, spans in enumerate(maps) if spans is not None}

    @property
    def paths(self) -> tuple[str, ...]:
        return self.files.paths

    def name(self, index: int) -> str:
        return f"{self.paths[self.shards[index]]}:{self.names[index]}"

    def read_bytes(self, index: int) -> bytes:
        index = range(len(self))[index]
        shard, offset, size = (int(array[index]) for array in (self.shards, self.offsets, self.sizes))
        check_file_size(size, self.max_pixels)
        if index not in self.sparse:
            return self.files.read(shard, offset, size)
        content = bytearray(size)  # parts that a sparse file does not store are zeros
        for position, length in self.sparse[index]:
            content[position : position + length] = self.files.read(shard, offset, length)
            offset += length
        return bytes(content)


def open_shards(paths: Sequence[Path], name: str, class_level: int | None = None) -> RawDataset:
    """Open tar shards, with labels from files next to the images or from folder names (at `class_level`)."""
    by_split = group_by_split(paths)
    indices = {split: [index_tar(path) for path in files] for split, files in by_split.items()}
    notes = single_file_notes(paths)
    if others := sum(index.others for split_indices in indices.values() for index in split_indices):
        notes.append(f"{format_count(others, 'file')} in the tars without an image suffix: ignored")
    has_label_files = any(_has_label_files(index) for split_indices in indices.values() for index in split_indices)
    if has_label_files:
        parts = {split: _labels_from_files(by_split[split], indices[split]) for split in indices}
    else:
        parts = _labels_from_folders(indices, class_level, notes)
    parts = {split: part for split, part in parts.items() if part}
    if not parts.get("train"):
        raise VitreousError("no images in train" if parts else "the tars contain no images")

    def where(split: str, number: int) -> str:
        shard_split = split if split in by_split else "train"
        shard, image = parts[split][number][0]
        return f"{by_split[shard_split][shard]}:{indices[shard_split][shard].names[image]}"

    split_labels = {split: [label for _, label in part] for split, part in parts.items()}
    classes, labels = encode_labels(split_labels, where=where)
    files = {split: FilePool([str(path) for path in split_paths]) for split, split_paths in by_split.items()}
    sources = {}
    for split, part in parts.items():
        shard_split = split if split in by_split else "train"
        images = [image for image, _ in part]
        sources[split] = TarSource(files[shard_split], indices[shard_split], images, labels[split])
    val_origin = "val shards" if "val" in by_split else "val/ in the tars"
    return RawDataset(name, classes, sources, notes, val_origin, has_class_folders=not has_label_files)


def _sample_key(name: str) -> str:
    """The common part of the files of a sample: the path up to the first dot of the file name."""
    path = PurePosixPath(name)
    return str(path.parent / path.name.partition(".")[0])


def _has_label_files(index: TarIndex) -> bool:
    if not index.texts:
        return False
    keys = {_sample_key(name) for name in index.texts}
    return any(_sample_key(name) in keys for name in index.names)


def _labels_from_files(paths: Sequence[Path], indices: Sequence[TarIndex]) -> list[tuple[ImagePlace, Any]]:
    """Every image with the label from the file next to it."""
    images: list[tuple[ImagePlace, Any]] = []
    for shard, index in enumerate(indices):
        labels: dict[str, Any] = {}
        for suffix in reversed(LABEL_SUFFIXES):  # .cls takes precedence over .json, and .json over .txt
            for name, text in index.texts.items():
                if name.lower().endswith(suffix) and (label := _parse_label_file(text, suffix)) is not None:
                    labels[_sample_key(name)] = label
        for i, name in enumerate(index.names):
            if (key := _sample_key(name)) not in labels:
                raise VitreousError(f"{paths[shard]}: {name} has no label: no {key}.cls, .json or .txt contains one")
            images.append(((shard, i), labels[key]))
    if any(isinstance(label, list) for _, label in images):
        return [(image, label if isinstance(label, list) else [label]) for image, label in images]
    return images


def _parse_label_file(text: str, suffix: str) -> Any:
    if suffix != ".json":
        return text.strip() or None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        return next((value[key] for name in LABEL_COLUMNS for key in value if normalize_column(key) == name), None)
    return value


def _labels_from_folders(
    indices: dict[str, list[TarIndex]], class_level: int | None, notes: list[str]
) -> dict[str, list[tuple[ImagePlace, Any]]]:
    """Every image with its folder as label. A folder that contains all images is skipped; splits are detected."""
    images = [
        (split, (shard, i), PurePosixPath(name).parts[:-1])
        for split, split_indices in indices.items()
        for shard, index in enumerate(split_indices)
        for i, name in enumerate(index.names)
    ]
    skipped = 0
    while all(len(folders) > skipped + 1 for *_, folders in images) and images:
        tops = {folders[skipped] for *_, folders in images}
        if len(tops) > 1 or next(iter(tops)).lower() in SPLITS:
            break
        skipped += 1
    tops = {folders[skipped].lower() for *_, folders in images if len(folders) > skipped}
    has_splits = (
        bool(tops) and tops <= set(SPLITS) and set(indices) == {"train"} and "train" in {SPLITS[top] for top in tops}
    )
    depth = skipped + has_splits
    below = (
        folders[depth:]
        for split, _, folders in images
        if (SPLITS[folders[skipped].lower()] if has_splits else split) == "train"
    )
    chosen = choose_class_level(Counter(folders for folders in below if folders), class_level)
    notes += [chosen.note] if chosen.note else []
    depth += chosen.level - 1
    parts: dict[str, list[tuple[ImagePlace, Any]]] = {}
    for split, image, folders in images:
        if len(folders) <= depth:
            raise VitreousError(
                "images without a class folder and without a label file; expected class/1.jpg, or 1.jpg with 1.cls"
            )
        image_split = SPLITS[folders[skipped].lower()] if has_splits else split
        parts.setdefault(image_split, []).append((image, folders[depth]))
    return parts
