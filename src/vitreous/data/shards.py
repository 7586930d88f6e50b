"""Tar shards: images with their labels beside them, as WebDataset keeps them, or in folders named after classes."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from torch import Tensor

from vitreous.data.columns import LABEL, plain
from vitreous.data.encoded import Encoded, Strings
from vitreous.data.found import SPLITS, Found, counted, grouped, number_classes, remarks_on
from vitreous.data.tar_index import NOTES, TarIndex, index_tar
from vitreous.errors import VitreousError

Image = tuple[int, int]  # the number of a shard, and that of an image in its index


class Shards(Encoded):
    """Images in tars, read by where they lie. Each process opens the tars that it needs, and shares no position."""

    def __init__(self, paths: Sequence[str], indices: Sequence[TarIndex], images: Sequence[Image], labels: Tensor):
        self.paths, self.labels = tuple(paths), labels
        self.names = Strings(indices[shard].names[i] for shard, i in images)
        self.shards = np.array([shard for shard, _ in images], dtype=np.int32)
        self.offsets = np.array([indices[shard].offsets[i] for shard, i in images], dtype=np.int64)
        self.sizes = np.array([indices[shard].sizes[i] for shard, i in images], dtype=np.int64)
        self._open: dict[int, int] = {}

    def name(self, index: int) -> str:
        return f"{self.paths[self.shards[index]]}:{self.names[index]}"

    def stored(self, index: int) -> bytes:
        size = int(self.sizes[index])
        data = os.pread(self._descriptor(int(self.shards[index])), size, int(self.offsets[index]))
        if len(data) < size:
            raise VitreousError("the tar is shorter than it was when it was opened")
        return data

    def _descriptor(self, shard: int) -> int:
        if (held := self._open.get(shard)) is not None:
            return held
        opened = os.open(self.paths[shard], os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        if (held := self._open.setdefault(shard, opened)) != opened:  # another thread was faster
            os.close(opened)
        return held

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_open", {}).values():
            with suppress(OSError):
                os.close(descriptor)


def open_shards(paths: Sequence[Path], name: str) -> Found:
    by_split = grouped(paths)
    indices = {split: [index_tar(path) for path in held] for split, held in by_split.items()}
    notes = remarks_on(paths)
    if others := sum(index.others for held in indices.values() for index in held):
        notes.append(f"{counted(others, 'file')} in the tars not images by their names: left out")
    if any(_beside(index) for held in indices.values() for index in held):
        parts = {split: _labelled(by_split[split], held) for split, held in indices.items()}
    else:
        parts = _by_folders(indices)
    parts = {split: part for split, part in parts.items() if part}
    if not parts.get("train"):
        raise VitreousError("no images in train" if parts else "no images in it")
    classes, labels = number_classes({split: [label for _, label in part] for split, part in parts.items()})
    sources = {}
    for split, part in parts.items():
        home = split if split in by_split else "train"
        held = [str(path) for path in by_split[home]]
        sources[split] = Shards(held, indices[home], [image for image, _ in part], labels[split])
    origin = "val shards" if "val" in by_split else "val/ in the tars"
    return Found(name, classes, sources, notes, origin)


def _key(name: str) -> str:
    """What the members of one sample share: the path up to the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.parent / path.name.partition(".")[0])


def _beside(index: TarIndex) -> bool:
    if not index.texts:
        return False
    keys = {_key(name) for name in index.texts}
    return any(_key(name) in keys for name in index.names)


def _labelled(paths: Sequence[Path], indices: Sequence[TarIndex]) -> list[tuple[Image, Any]]:
    """Every image with the label that stands beside it."""
    found: list[tuple[Image, Any]] = []
    for shard, index in enumerate(indices):
        labels: dict[str, Any] = {}
        for suffix in reversed(NOTES):  # a .cls counts for more than a .json, and that for more than a .txt
            for name, text in index.texts.items():
                if name.lower().endswith(suffix) and (label := _label(text, suffix)) is not None:
                    labels[_key(name)] = label
        for i, name in enumerate(index.names):
            if (key := _key(name)) not in labels:
                raise VitreousError(f"{paths[shard]}: {name} has no label: no {key}.cls, .json or .txt that tells one")
            found.append(((shard, i), labels[key]))
    if any(isinstance(label, list) for _, label in found):
        return [(image, label if isinstance(label, list) else [label]) for image, label in found]
    return found


def _label(text: str, suffix: str) -> Any:
    if suffix != ".json":
        return text.strip() or None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        return next((value[key] for wanted in LABEL for key in value if plain(key) == wanted), None)
    return value


def _by_folders(indices: dict[str, list[TarIndex]]) -> dict[str, list[tuple[Image, Any]]]:
    """Every image with its folder as the label. A folder that holds all others is looked through; splits are known."""
    listed = [
        (split, (shard, i), PurePosixPath(name).parts[:-1])
        for split, held in indices.items()
        for shard, index in enumerate(held)
        for i, name in enumerate(index.names)
    ]
    skipped = 0
    while all(len(folders) > skipped + 1 for *_, folders in listed) and listed:
        tops = {folders[skipped] for *_, folders in listed}
        if len(tops) > 1 or next(iter(tops)).lower() in SPLITS:
            break
        skipped += 1
    tops = {folders[skipped].lower() for *_, folders in listed if len(folders) > skipped}
    within = bool(tops) and tops <= set(SPLITS) and set(indices) == {"train"} and "train" in {SPLITS[t] for t in tops}
    parts: dict[str, list[tuple[Image, Any]]] = {}
    for split, image, folders in listed:
        place = skipped + within
        if len(folders) <= place:
            raise VitreousError("images that are in no folder and have no label beside them; expected class/1.jpg, or "
                                "1.jpg with 1.cls")  # fmt: skip
        home = SPLITS[folders[skipped].lower()] if within else split
        parts.setdefault(home, []).append((image, folders[place]))
    return parts
