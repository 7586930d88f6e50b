"""A suite: groups of data sets that models are compared on, as a small TOML file says."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.data.dataset import Subset
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError, brief, summarize_names
from vitreous.evaluation.measures import Settings
from vitreous.evaluation.subject import Parts, learn_and_measure
from vitreous.utils.regular_files import read_text

VTAB = "vtab-1k"  # 1,000 training images; 200 of them to choose by, then all to learn from


@dataclass(frozen=True)
class Task:
    """One data set of a suite, and how much of it is learnt from."""

    source: str
    name: str = ""
    split: str | None = None
    images: int | None = None  # training images, drawn; None: all
    development: int | None = None  # of those, how many k and the probe are chosen by; None: a share
    seed: int = 0  # draws them
    reading: Reading = field(default_factory=Reading)

    def opened(self) -> Parts:
        parts = learn_and_measure(open_data(self.source, self.reading), self.split)
        if self.name:
            parts = replace(parts, name=self.name)
        if self.images is None:
            return parts
        if self.images > len(parts.train):
            raise VitreousError(
                f"{parts.name}: images = {self.images:,}, and it has {len(parts.train):,} to learn from"
            )
        if self.images == len(parts.train):
            return parts
        drawn = np.random.default_rng(self.seed).permutation(len(parts.train))[: self.images]
        return replace(parts, train=Subset(parts.train, torch.from_numpy(drawn).sort().values))

    def settings(self, usual: Settings) -> Settings:
        return usual if self.development is None else replace(usual, development=self.development)


@dataclass(frozen=True)
class Group:
    name: str
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Suite:
    name: str
    groups: tuple[Group, ...]

    @property
    def tasks(self) -> list[tuple[str, Task]]:
        return [(group.name, task) for group in self.groups for task in group.tasks]


def of_data(sources: Sequence[str], reading: Reading = Reading()) -> Suite:  # noqa: B008 (it is frozen)
    """The data sets of a command line: one group."""
    return Suite("", (Group("", tuple(Task(source, reading=reading) for source in sources)),))


def read_suite(path: Path) -> Suite:
    """`[[group]]` with a `name` and `[[group.data]]` tables, each with a `source`: a path from where the file lies, or
    a name. A table may have `name`, `split`, `images`, `development`, `seed`, `data_dir`, `image_column`,
    `label_column`, and `protocol = "vtab-1k"`: 1,000 images to learn from, of which 200 are chosen by."""
    try:
        held = tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise VitreousError(f"{path}: this suite cannot be read ({error})") from error
    try:
        _known(held, ("name", "group"), "the suite")
        groups = tuple(_group(group, path.parent) for group in _tables(held, "group", "[[group]]"))
    except VitreousError as error:
        raise VitreousError(f"{path}: {error}") from error
    return Suite(str(held.get("name", path.stem)), groups)


def _group(held: dict[str, Any], folder: Path) -> Group:
    _known(held, ("name", "data"), "a group")
    tasks = tuple(_task(table, folder) for table in _tables(held, "data", "[[group.data]]"))
    return Group(_typed(held, "name", str) or "", tasks)


def _task(held: dict[str, Any], folder: Path) -> Task:
    reading = ("data_dir", "image_column", "label_column")
    whole, words = ("images", "development", "seed"), ("source", "name", "split", "protocol", *reading)
    _known(held, (*whole, *words), "a data set")
    values = {name: _typed(held, name, int) for name in whole} | {name: _typed(held, name, str) for name in words}
    for name, least in (("images", 1), ("development", 1), ("seed", 0)):
        if values[name] is not None and values[name] < least:
            raise VitreousError(f"{name} = {values[name]}: must be {least} or more")
    if not values["source"]:
        raise VitreousError("a data set without a source: name its folder, its file, or one like cifar10")
    protocol = values.pop("protocol")
    if protocol is not None:
        if protocol != VTAB:
            raise VitreousError(f"protocol = {brief(protocol)}: expected {VTAB!r}")
        values = {**values, "images": values["images"] or 1000, "development": values["development"] or 200}
    near = folder / values["source"]
    source = str(near) if near.exists() else values["source"]
    if (place := values["data_dir"]) is not None and (folder / place).exists():
        values["data_dir"] = str(folder / place)
    options = Reading(**{name: value for name in reading if (value := values.pop(name)) is not None})
    seed = values.pop("seed") or 0
    return Task(**{**values, "source": source, "name": values["name"] or "", "seed": seed, "reading": options})


def _tables(held: dict[str, Any], name: str, words: str) -> list[dict[str, Any]]:
    tables = held.get(name)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise VitreousError(f"no {words} in it")
    return tables


def _known(held: dict[str, Any], names: Sequence[str], what: str) -> None:
    if strange := [name for name in held if name not in names]:
        raise VitreousError(f"{summarize_names(strange)} of {what} not known; there are {', '.join(names)}")


def _typed(held: dict[str, Any], name: str, kind: type) -> Any:
    value = held.get(name)
    if value is not None and type(value) is not kind:
        raise VitreousError(f"{name} = {brief(value)}: expected {'a whole number' if kind is int else 'a text'}")
    return value
