"""Suites: groups of data sets on which models are compared, described in a TOML file."""

from __future__ import annotations

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
from vitreous.evaluation.evaluation_images import TrainTestImages, train_and_test_images
from vitreous.evaluation.measures import MeasureSettings
from vitreous.utils.toml_files import read_toml

VTAB = "vtab-1k"  # 1,000 training images; 200 of them select hyperparameters, then all are trained on


@dataclass(frozen=True)
class Task:
    """One data set of a suite."""

    source: str
    name: str = ""
    split: str | None = None
    images: int | None = None  # number of training images, drawn at random; None: all
    development: int | None = None  # number of them that select k and the probe's settings; None: a share
    seed: int = 0  # of the random training images
    reading: Reading = field(default_factory=Reading)

    def open(self) -> TrainTestImages:
        opened = train_and_test_images(open_data(self.source, self.reading), self.split)
        if self.name:
            opened = replace(opened, name=self.name)
        if self.images is None:
            return opened
        if self.images > len(opened.train):
            raise VitreousError(
                f"{opened.name}: images = {self.images:,}, but it has only {len(opened.train):,} training images"
            )
        if self.images == len(opened.train):
            return opened
        drawn = np.random.default_rng(self.seed).permutation(len(opened.train))[: self.images]
        return replace(opened, train=Subset(opened.train, torch.from_numpy(drawn).sort().values))

    def measure_settings(self, default: MeasureSettings) -> MeasureSettings:
        return default if self.development is None else replace(default, development=self.development)


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


def suite_from_sources(sources: Sequence[str], reading: Reading = Reading()) -> Suite:  # noqa: B008 (it is frozen)
    """Return a suite of one group with these data sets, as given on a command line."""
    return Suite("", (Group("", tuple(Task(source, reading=reading) for source in sources)),))


def read_suite(path: Path) -> Suite:
    """Read `[[group]]` tables with a `name` and `[[group.data]]` tables.

    Each data table has a `source`: a path relative to the file, or the name of a data set. It may have `name`, `split`,
    `images`, `development`, `seed`, `data_dir`, `image_column`, `label_column`, and `protocol = "vtab-1k"`: 1,000
    training images, 200 of which select hyperparameters.
    """
    tables, _ = read_toml(path)
    try:
        _check_keys(tables, ("name", "group"), "the suite")
        groups = tuple(_read_group(group, path.parent) for group in _subtables(tables, "group", "[[group]]"))
    except VitreousError as error:
        raise VitreousError(f"{path}: {error}") from error
    return Suite(str(tables.get("name", path.stem)), groups)


def _read_group(table: dict[str, Any], folder: Path) -> Group:
    _check_keys(table, ("name", "data"), "a group")
    tasks = tuple(_read_task(data, folder) for data in _subtables(table, "data", "[[group.data]]"))
    return Group(_typed_value(table, "name", str) or "", tasks)


def _read_task(table: dict[str, Any], folder: Path) -> Task:
    reading = ("data_dir", "image_column", "label_column")
    numbers, texts = ("images", "development", "seed"), ("source", "name", "split", "protocol", *reading)
    _check_keys(table, (*numbers, *texts), "a data set")
    values = {name: _typed_value(table, name, int) for name in numbers}
    values |= {name: _typed_value(table, name, str) for name in texts}
    for name, least in (("images", 1), ("development", 1), ("seed", 0)):
        if values[name] is not None and values[name] < least:
            raise VitreousError(f"{name} = {values[name]}: must be {least} or more")
    if not values["source"]:
        raise VitreousError("a data set without a source: give its folder, its file, or a name such as cifar10")
    protocol = values.pop("protocol")
    if protocol is not None:
        if protocol != VTAB:
            raise VitreousError(f"protocol = {brief(protocol)}: expected {VTAB!r}")
        values = {**values, "images": values["images"] or 1000, "development": values["development"] or 200}
    relative = folder / values["source"]
    source = str(relative) if relative.exists() else values["source"]
    if (data_dir := values["data_dir"]) is not None and (folder / data_dir).exists():
        values["data_dir"] = str(folder / data_dir)
    options = Reading(**{name: value for name in reading if (value := values.pop(name)) is not None})
    seed = values.pop("seed") or 0
    return Task(**{**values, "source": source, "name": values["name"] or "", "seed": seed, "reading": options})


def _subtables(table: dict[str, Any], name: str, header: str) -> list[dict[str, Any]]:
    tables = table.get(name)
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise VitreousError(f"there is no {header}")
    return tables


def _check_keys(table: dict[str, Any], names: Sequence[str], what: str) -> None:
    if unknown := [name for name in table if name not in names]:
        raise VitreousError(f"unknown keys in {what}: {summarize_names(unknown)}; expected {', '.join(names)}")


def _typed_value(table: dict[str, Any], name: str, kind: type) -> Any:
    value = table.get(name)
    if value is not None and type(value) is not kind:
        raise VitreousError(f"{name} = {brief(value)}: expected {'an integer' if kind is int else 'a string'}")
    return value
