"""`vitreous.compare`: the features of several models on several data sets, as by the command `vitreous compare`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from torch import nn

from vitreous.data.options import Reading
from vitreous.errors import VitreousError, brief
from vitreous.evaluation.cache import FeatureCache, default_cache_folder
from vitreous.evaluation.data_arguments import DataArguments, reading_of
from vitreous.evaluation.inference_options import choose_inference_options
from vitreous.evaluation.measures import MeasureSettings, Method
from vitreous.evaluation.model_argument import ModelSource, model_device
from vitreous.evaluation.progress_bar import image_progress_bar
from vitreous.experiments.compare import Comparison, compare_models
from vitreous.experiments.compare_figure import comparison_files, write_comparison
from vitreous.experiments.suite import Suite, read_suite, suite_from_sources
from vitreous.fast.accelerate import Precision
from vitreous.utils.arguments import checked_arguments
from vitreous.utils.output_paths import check_output_paths, optional_path
from vitreous.utils.progress import NoteCollector, ProgressReporter
from vitreous.utils.warn import warn_caller


@checked_arguments(DataArguments)
def compare(  # noqa: PLR0913 (keyword arguments, the same as the flags of the command)
    models: ModelSource | Sequence[ModelSource] | Mapping[str, ModelSource],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    suite: str | os.PathLike[str] | None = None,
    methods: Sequence[Method] = ("fewshot", "knn", "probe"),
    shots: Sequence[int] = (1, 5, 10, 25),
    markdown: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    cache: str | os.PathLike[str] | None = None,
    device: str | torch.device = "auto",
    precision: Precision = "fp32",
    batch_size: int = 64,
    workers: int | None = None,
    quiet: bool = False,
    **reading: Unpack[DataArguments],
) -> Comparison:
    """Compare the features of models on data sets by few-shot classification, k-NN and linear probes.

    - `models`: models in memory, or what `vitreous.load` accepts: one, a list, or a dict by the names to show
    - `data`: one or several paths or names of data sets; or `suite`: a TOML file with groups of them
    - `methods`: "fewshot" (with `shots` images per class), "knn" and "probe"
    - `markdown`, `out`: file and folder for the results; `overwrite`: replace them; `cache`: folder for features
    - `device`, `precision`, `batch_size`, `workers`: as the flags of the command
    - `quiet`: print no notes and no progress; `reading`: options of the data, such as `val_fraction`

    Returns a `Comparison`. Warnings, such as training images of a model among the test images, are Python warnings too.

    >>> import vitreous
    >>> models = {f"{size} px": vitreous.load("vitreous-mini", image_size=size) for size in (8, 16)}
    >>> found = vitreous.compare(models, "digits", methods=["knn"], quiet=True)
    >>> found.rows[0].measure, [round(value.mean, 1) for value in found.rows[0].values]
    ('k-NN', [0.9, 0.9])
    """
    table, folder, reporter = optional_path(markdown), optional_path(out), ProgressReporter(quiet)
    check_output_paths(folder, comparison_files, table, overwrite=overwrite)
    several, names = _list_models(models)
    notes = NoteCollector(reporter)
    first = next((one for one in several if isinstance(one, nn.Module)), None)  # the others must be on its device
    options = choose_inference_options(model_device(first, device), batch_size, workers, precision, notes.add)
    found = compare_models(
        several,
        chosen_suite(suite, data, reading_of(reading)),
        tuple(methods),
        FeatureCache(default_cache_folder() if cache is None else Path(cache)),
        options,
        MeasureSettings(tuple(shots)),
        image_progress_bar(reporter),
        names,
    )
    notes.extend(found.notes)
    found = replace(found, notes=tuple(notes.texts))
    write_comparison(found, table, folder, overwrite)
    warn_caller(found.warnings, found.unreadable)
    return found


def chosen_suite(
    suite: str | os.PathLike[str] | None,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    reading: Reading,
) -> Suite:
    """Return the suite of a file, or of data sets."""
    sources = [data] if isinstance(data, str | os.PathLike) else list(data)
    if (suite is None) == (not sources):
        raise VitreousError("give either data sets (--data) or a suite of data sets (--suite)")
    if suite is not None:
        return read_suite(Path(suite))
    if wrong := [source for source in sources if not isinstance(source, str | os.PathLike)]:
        raise VitreousError(f"compare: data = {brief(wrong[0])}: expected a path or the name of a data set")
    return suite_from_sources([os.fsdecode(source) for source in sources], reading)


def _list_models(models: object) -> tuple[list[ModelSource], list[str] | None]:
    """Return the models, and their names if they are given in a dict."""
    if isinstance(models, Mapping):
        return list(models.values()), [str(name) for name in models]
    if isinstance(models, nn.Module | str | os.PathLike):
        return [models], None
    if not isinstance(models, Sequence):
        raise VitreousError(f"compare: expected models, got {brief(models)}")
    return list(models), None
