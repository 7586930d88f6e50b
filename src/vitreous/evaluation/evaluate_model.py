"""`vitreous.evaluate`: everything that `vitreous evaluate` measures of a model on a data set."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch

from vitreous.data.options import Reading
from vitreous.errors import VitreousError
from vitreous.evaluation.cache import FeatureCache, default_cache_folder
from vitreous.evaluation.data_arguments import DataArguments, data_title, open_data_argument, reading_for
from vitreous.evaluation.evaluation_files import evaluation_files, write_evaluation
from vitreous.evaluation.inference_options import InferenceOptions, choose_inference_options
from vitreous.evaluation.measures import MeasureSettings, Method
from vitreous.evaluation.model_argument import ModelSource, file_of, model_argument, model_device
from vitreous.evaluation.progress_bar import ProgressBar, image_progress_bar, no_progress_bar
from vitreous.evaluation.report import EvaluationReport, EvaluationRequest, run_evaluation
from vitreous.fast.accelerate import Precision
from vitreous.models.base import restored_modes
from vitreous.preprocessing import Preprocessing
from vitreous.utils.arguments import checked_arguments
from vitreous.utils.output_paths import check_output_paths, optional_path
from vitreous.utils.progress import NoteCollector, ProgressReporter
from vitreous.utils.warn import warn_caller


@checked_arguments(DataArguments)
def evaluate(  # noqa: PLR0913 (keyword arguments, the same as the flags of the command)
    model: ModelSource,
    data: object,
    *,
    split: str | None = None,
    size: int | Sequence[int] = (),
    methods: Sequence[Method] = (),
    shots: Sequence[int] = (1, 5, 10, 25),
    real: str | os.PathLike[str] | None = None,
    classes: str | os.PathLike[str] | None = None,
    csv: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    cache: str | os.PathLike[str] | None = None,
    device: str | torch.device = "auto",
    precision: Precision = "fp32",
    batch_size: int = 64,
    workers: int | None = None,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    trust_code: bool = False,
    quiet: bool = False,
    **reading: Unpack[DataArguments],
) -> EvaluationReport:
    """Evaluate a model on a data set, as `vitreous evaluate` does: accuracy, loss and calibration, also per class.

    - `model`: a model in memory, which runs as it is and on its own device, or what `vitreous.load` accepts
    - `data`: what `vitreous.open_data` accepts, or a `DataSet`
    - `split`: train, val, test or all; `size`: one or several image sizes; defaults: those of the command
    - `methods`: measure the features: "fewshot" (with `shots` images per class), "knn" or "probe"
    - `real`: ImageNet ReaL labels; `classes`: a file that maps the classes of the data to those of the model
    - `csv`, `out`: file and folder for the results; `overwrite`: replace them; `cache`: folder for features
    - `device`, `precision`, `batch_size`, `workers`: as the flags of the command
    - `heads`, `preprocessing`: as in `vitreous.load`; `trust_code`: run the code of a run of a model of your own
    - `quiet`: print no notes and no progress; `reading`: options of the data, such as `val_fraction`

    Returns an `EvaluationReport`. Its warnings, such as training images that were evaluated, are Python warnings too.

    >>> import numpy as np, vitreous
    >>> from sklearn.datasets import load_sample_images
    >>> photos = np.stack(load_sample_images().images), np.array(["church", "parachute"])
    >>> vitreous.evaluate("vitreous-mini", photos, val_fraction=0, quiet=True).result.top1
    0.5
    """
    sizes, settings = (size,) if isinstance(size, int) else tuple(size), MeasureSettings(tuple(shots))
    csv_path, folder, notes = optional_path(csv), optional_path(out), NoteCollector(ProgressReporter(quiet))
    check_evaluation_output(folder, csv_path, sizes, overwrite)
    maps = optional_path(real), optional_path(classes)
    request = EvaluationRequest(split, sizes, tuple(methods), settings, *maps, curves=True)
    options = choose_inference_options(model_device(model, device), batch_size, workers, precision, notes.add)
    shared: Any = {"heads": heads, "preprocessing": preprocessing, "trust_code": trust_code, "cache": cache}
    shared |= {"reading": reading_for(data, reading, file_of(model)), "bar": image_progress_bar(notes.reporter)}
    report = evaluate_and_report(model, data, request, options, **shared, note=notes.extend)
    report.notes = tuple(notes.texts)
    _write(report, csv_path, folder, overwrite)
    warn_caller(report.warnings, report.all_unreadable)
    return report


def _write(report: EvaluationReport, csv: Path | None, out: Path | None, overwrite: bool) -> None:
    if csv is not None:
        report.to_csv(csv, overwrite)
    if out is not None:
        write_evaluation(report, out, overwrite)


def check_evaluation_output(out: Path | None, csv: Path | None, sizes: Sequence[int], overwrite: bool) -> None:
    """Raise an error if the results cannot be written, before anything is computed."""
    if csv is not None and len(sizes) > 1:
        raise VitreousError(f"--csv: results of images are written for one image size, and --size has {len(sizes)}")
    check_output_paths(out, evaluation_files, csv, overwrite=overwrite, figures=len(sizes) > 1)


def evaluate_and_report(  # noqa: PLR0913 (the arguments of `evaluate`, and how progress is shown)
    model: ModelSource,
    data: object,
    request: EvaluationRequest,
    options: InferenceOptions,
    *,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    trust_code: bool = False,
    reading: Reading | None = None,
    cache: str | os.PathLike[str] | None = None,
    bar: ProgressBar = no_progress_bar,
    note: Callable[[Sequence[str]], object] = lambda texts: None,
) -> EvaluationReport:
    """Evaluate as `evaluate` does. `note` is called with notes about model and data before the work starts."""
    opened = open_data_argument(data, reading or Reading())
    evaluated = model_argument(
        model,
        "evaluate",
        device=options.device,
        heads=heads,
        preprocessing=preprocessing,
        training_images=True,
        trust_code=trust_code,
    )
    note((*evaluated.notes, *opened.notes))
    folder = default_cache_folder() if cache is None else Path(cache)
    with restored_modes(evaluated.model):
        report = run_evaluation(evaluated, opened, request, options, FeatureCache(folder), bar)
    report.data = data_title(data, opened)
    return report
