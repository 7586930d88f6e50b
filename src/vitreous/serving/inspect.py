"""`vitreous.inspect`: figures and an interactive page of the internals of a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.data.builtin import photographs
from vitreous.data.open_data import open_data
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluated_model import RANDOM_PREFIX
from vitreous.evaluation.model_argument import ModelSource, model_argument
from vitreous.models.base import restored_modes
from vitreous.preprocessing import Images, Preprocessing
from vitreous.reports.inspect_model import (
    MAX_FIGURES,
    MAX_IMAGES,
    InputImage,
    InspectionOutput,
    ModelDescription,
    inspect_model,
    inspection_files,
)
from vitreous.serving.prediction_input import image_inputs
from vitreous.training.config import TrainConfig
from vitreous.training.run_directory import RunDirectory
from vitreous.utils.arguments import checked_arguments
from vitreous.utils.console import printable
from vitreous.utils.output_paths import check_output_paths, optional_path
from vitreous.utils.progress import ProgressReporter
from vitreous.utils.warn import warn_caller

FOLDER = "inspection"


@checked_arguments()
def inspect(  # noqa: PLR0913 (keyword arguments, the same as the flags of the command)
    model: ModelSource = "vitreous-mini",
    images: Images | Sequence[Any] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    size: int | tuple[int, int] | None = None,
    device: str | torch.device = "auto",
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    quiet: bool = False,
) -> InspectionOutput:
    """Visualise a model: attention, rollout, relevance, attention distance, filters, positions, prediction by layer.

    - `model`: a model in memory, which runs as it is and on its own device, or what `vitreous.load` accepts
    - `images`: as in `vitreous.predict`; default: images of the run, or two photographs
    - `out`: folder for the page, figures and numbers.json; default: `inspection`, or RUN/inspection, which is replaced
    - `overwrite`: replace an earlier inspection; `size`: image size; `device`: where a model that is loaded runs
    - `heads`, `preprocessing`: as in `vitreous.load`; `quiet`: print no notes and no progress

    Returns the paths of the page and the files. A modified model is refused if the result would be wrong.

    >>> import tempfile, vitreous
    >>> from sklearn.datasets import load_sample_image
    >>> model = vitreous.create("Ti/16", image_size=32, depth=1, width=48, heads=1, num_classes=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = vitreous.inspect(model, load_sample_image("flower.jpg"), out=f"{folder}/pages", quiet=True)
    >>> found.page.name, len(found.skipped)
    ('index.html', 0)
    """
    reporter = ProgressReporter(quiet)
    inputs = inspected_images(model, images)
    found = inspect_and_write(
        model,
        inputs,
        optional_path(out),
        reporter,
        overwrite=overwrite,
        size=size,
        device=device,
        heads=heads,
        preprocessing=preprocessing,
    )
    for note in found.notes:
        reporter.note(printable(note))
    warn_caller((), found.skipped)
    return found


def inspect_and_write(  # noqa: PLR0913 (the arguments of `inspect`)
    model: ModelSource,
    images: Sequence[InputImage],
    out: Path | None,
    reporter: ProgressReporter,
    *,
    overwrite: bool,
    size: int | tuple[int, int] | None,
    device: str | torch.device,
    heads: int | None,
    preprocessing: Preprocessing | str | None,
    command: str = "",
) -> InspectionOutput:
    """Inspect as `inspect` does. `command`: the command line, for the page."""
    run = _run_of(model)
    folder = out or (run / FOLDER if run else Path(FOLDER))
    overwrite = overwrite or (out is None and run is not None)  # it can be made again from the run
    check_output_paths(folder, inspection_files, overwrite=overwrite)
    evaluated = model_argument(model, "inspect", device=device, heads=heads, preprocessing=preprocessing)
    random = evaluated.name.startswith(RANDOM_PREFIX)
    about = ModelDescription(evaluated.name, tuple(evaluated.notes), random, command)
    steps = (1 + MAX_FIGURES) * min(len(images), MAX_IMAGES) + 4  # 4: figures of the model itself
    with restored_modes(evaluated.model), reporter.bar("inspecting", steps) as advance:
        return inspect_model(
            evaluated.model, images, folder, about, size, lambda text: advance(1, printable(text)), overwrite
        )


def inspected_images(model: ModelSource, images: object = ()) -> list[InputImage]:
    """Return the given images, or if there are none those of the model's run, or the two photographs."""
    if not isinstance(images, list | tuple) or images:
        return [InputImage(Path(one.name).name, one.content) for one in image_inputs(images)]
    if run := _run_of(model):
        return images_of_run(run)
    return [InputImage(name, image) for name, image in photographs()]


def _run_of(model: ModelSource) -> Path | None:
    """Return the model if it is a run directory."""
    if isinstance(model, nn.Module):
        return None
    return Path(model) if all((Path(model) / name).is_file() for name in ("config.json", "metrics.jsonl")) else None


def images_of_run(run: Path) -> list[InputImage]:
    """Return images that a run was evaluated on: the first of each class, at most as many as the page shows."""
    description = RunDirectory.open(run).description()
    try:
        data = open_data(description["data"], TrainConfig.from_flat(description["config"]).data_reading)
    except (VitreousError, KeyError) as error:
        raise VitreousError(f"the images of {run} cannot be opened ({error}); give others after the model") from error
    source = data.test or data.val or data.train
    labels, chosen = source.labels, list(range(min(MAX_IMAGES, len(source))))
    if labels.ndim == 1 and data.classes:
        first_of_class = [int((labels == label).nonzero()[0, 0]) for label in labels.unique().tolist()]
        chosen = sorted(first_of_class)[:MAX_IMAGES]
    return [InputImage(Path(source.name(i)).name, source.image(i)) for i in chosen]
