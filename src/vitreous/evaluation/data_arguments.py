"""Location of images and labels, and splits, as keyword arguments: the same names as the flags of the commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from vitreous.data.dataset import DataSet
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading, RunReading
from vitreous.errors import VitreousError
from vitreous.evaluation.training_images import run_split_options


class DataArguments(TypedDict, total=False):
    """The options of `vitreous data` that other commands accept too. None: the default."""

    data_dir: str | os.PathLike[str] | None
    image_column: str | None
    label_column: str | None
    only_classes: Sequence[str] | None
    class_level: int | None
    val_fraction: float | None
    test_fraction: float | None
    split_seed: int | None
    allow_outside_files: bool
    max_pixels: int | None


def reading_of(given: Mapping[str, Any], model: object = None) -> Reading:
    """Return the options for opening data. If `model` is a run directory, its own split and classes are the default."""
    values = {name: _plain(value) for name, value in given.items() if value not in (None, (), [])}
    defaults = run_split_options(model) if isinstance(model, str | os.PathLike) else {}
    return (Reading if "only_classes" in values else RunReading)(**(defaults | values))


def reading_for(data: object, given: Mapping[str, Any], model: object = None) -> Reading:
    """Return the options as `reading_of` does. For a data set that is already open, none may be given."""
    if isinstance(data, DataSet) and given:
        raise VitreousError(f"{', '.join(given)}: the data set is already open; give these to open_data in a Reading")
    return reading_of(given, model)


def open_data_argument(data: object, reading: Reading) -> DataSet:
    """Open anything that `open_data` accepts. A data set that is already open is used as it is."""
    return data if isinstance(data, DataSet) else open_data(data, reading)


def data_title(data: object, opened: DataSet) -> str:
    """Return the path or name that the data was given by, otherwise the name of the opened data set."""
    return os.fsdecode(data) if isinstance(data, str | os.PathLike) else opened.name


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else os.fspath(value) if isinstance(value, os.PathLike) else value
