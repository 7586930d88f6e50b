"""`vitreous data --check`: check a data set, and write the page, suspects.csv and check.json."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError
from vitreous.evaluation.cache import FeatureCache, default_cache_folder
from vitreous.evaluation.data_check import DataCheck, find_data_problems
from vitreous.evaluation.evaluated_model import open_model
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar
from vitreous.reports.data_check_page import render_data_check_page
from vitreous.reports.data_check_text import COLUMNS, check_to_json, finding_rows
from vitreous.utils.atomic import atomic_folder, check_output
from vitreous.utils.csv_files import csv_file
from vitreous.utils.device import pick_device
from vitreous.utils.json_files import dump_json

PAGE, TABLE, SUMMARY = "index.html", "suspects.csv", "check.json"


def check_data(  # noqa: PLR0913 (each is an option of the command)
    source: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] = "vitreous-mini",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    reading: Reading = Reading(),  # noqa: B008 (it is frozen)
    device: str | torch.device = "auto",
    batch_size: int = 64,
    workers: int | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> DataCheck:
    """Check a data set for label errors, copies, outliers and damaged images. No image is changed, moved or deleted.

    - `source`: a path or name, as in `vitreous.open_data`
    - `model`: a checkpoint, as in `vitreous.load`. It computes the features, and should not have been trained on these
      images
    - `out`: folder for the page (index.html), suspects.csv and check.json; None: nothing is written
    - `overwrite`: replace an earlier check in `out`
    - `reading`: columns, splits, classes to use, as in `vitreous.open_data`
    - `device`: where the model runs: cpu, cuda ...; auto: a GPU if there is one
    - `batch_size`, `workers`: images per forward pass; processes that decode images (default: chosen from the data)
    - `cache`: folder for computed features; default: the user's cache folder

    Returns a `DataCheck`. Data or a model that cannot be read, and an existing `out`, raise a `VitreousError`.

    >>> import numpy
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits()
    >>> images, labels = (15 * digits.images[:40]).astype("uint8"), digits.target[:40]
    >>> images[7] = images[3]  # a copy with another label
    >>> numpy.savez("digits.npz", images=images, labels=labels)
    >>> check = vitreous.check_data("digits.npz")
    >>> [[check.images.name(i) for i in group.images] for group in check.copies if group.labels_differ]
    [['digits.npz[3]', 'digits.npz[7]']]
    """
    options = InferenceOptions(pick_device(device) if isinstance(device, str) else device, batch_size, workers)
    folder = None if out is None else Path(out)
    return write_data_check(source, os.fsdecode(model), folder, overwrite, reading, options, cache=cache)


def write_data_check(  # noqa: PLR0913 (the arguments of `check_data`, and how progress is shown)
    source: str | os.PathLike[str],
    model: str,
    out: Path | None,
    overwrite: bool,
    reading: Reading,
    options: InferenceOptions,
    *,
    cache: str | os.PathLike[str] | None = None,
    bar: ProgressBar = no_progress_bar,
    note: Callable[[Sequence[str]], None] = lambda texts: None,
) -> DataCheck:
    """Check a data set as `check_data` does. `note` is called with notes about the model before the work starts."""
    if cache is not None:
        _refuse_inside(Path(cache), source, "--cache")
    if out is not None:
        _refuse_inside(out, source, "--out")
        check_output(out, overwrite, _own_files)
    data = open_data(source, reading)
    evaluated = open_model(model, options.device)
    note(evaluated.notes)
    folder = default_cache_folder() if cache is None else Path(cache)
    check = find_data_problems(data, evaluated, options, FeatureCache(folder), bar)
    if out is not None:
        _write(check, source, out, overwrite)
    return check


def _refuse_inside(out: Path, source: str | os.PathLike[str], option: str) -> None:
    """Raise an error if a folder of results would be in the data folder: the next command would take it for a class."""
    folder = Path(source).expanduser()
    if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
        raise VitreousError(
            f"{out} is in the data folder, where it would count as a class: give another folder ({option})"
        )


def _own_files(folder: Path) -> list[str]:
    return [PAGE, TABLE, SUMMARY]


def _write(check: DataCheck, source: str | os.PathLike[str], out: Path, overwrite: bool) -> None:
    class_folders = Path(source).expanduser().is_dir()
    with atomic_folder(out, overwrite, _own_files) as folder:
        page = render_data_check_page(check, class_folders)
        (folder / PAGE).write_text(page, encoding="utf-8")
        with csv_file(folder / TABLE, COLUMNS) as write:
            for row in finding_rows(check):
                write(list(row.values()))
        dump_json(folder / SUMMARY, check_to_json(check))
