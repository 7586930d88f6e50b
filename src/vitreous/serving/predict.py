"""`vitreous.predict`: classify images, with everything that `vitreous predict` takes and writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.evaluation.inference_options import choose_inference_options
from vitreous.evaluation.model_argument import ModelSource, model_argument, model_device
from vitreous.fast.accelerate import Precision
from vitreous.models.base import Model, restored_modes
from vitreous.preprocessing import Images, Preprocessing
from vitreous.serving.prediction import Prediction, predict_images
from vitreous.serving.prediction_files import (
    check_prediction_files,
    csv_layout,
    prediction_json,
    write_predictions,
)
from vitreous.serving.prediction_input import PredictionInput, image_inputs
from vitreous.utils.arguments import checked_arguments
from vitreous.utils.csv_files import csv_file
from vitreous.utils.images import MAX_PIXELS
from vitreous.utils.limits import check_count
from vitreous.utils.output_paths import optional_path
from vitreous.utils.progress import NoteCollector, ProgressReporter
from vitreous.utils.warn import warn_caller
from vitreous.weights.model_info import labels_of
from vitreous.weights.shipped import NAMES

(MINI,) = NAMES
SHOWN = 10  # predictions in the repr


@dataclass(frozen=True, repr=False)
class Predictions(Sequence[Prediction]):
    """The predictions of `vitreous.predict`, one per image and in their order: a sequence."""

    predictions: tuple[Prediction, ...]  # one per image
    classes: tuple[str, ...]  # names of the model's classes
    top: int  # number of classes per image
    model: str  # name of the model
    notes: tuple[str, ...] = ()  # about the model, such as guessed settings

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> Predictions: ...
    def __getitem__(self, index: int | slice) -> Prediction | Predictions:
        found = self.predictions[index]
        return found if isinstance(found, Prediction) else replace(self, predictions=found)

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def unreadable(self) -> list[str]:
        """The errors of the images that could not be read."""
        return [f"{one.image!s}: {one.error}" for one in self.predictions if one.error is not None]

    def to_json(self) -> list[dict[str, Any]]:
        """Return one object per image, as `vitreous predict --json` prints them."""
        return [prediction_json(one) for one in self.predictions]

    def to_csv(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write one row per image, as `vitreous predict --csv` does."""
        columns, row = csv_layout(self.classes, self.top)
        with csv_file(Path(path), columns, overwrite) as write:
            for one in self.predictions:
                write(row(one))

    def __repr__(self) -> str:
        lines = [f"{len(self):,} predictions of {self.model}"]
        lines += [f"  {one!r}" for one in self.predictions[:SHOWN]]
        return "\n".join(lines + ([f"  and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []))


@checked_arguments()
def predict(  # noqa: PLR0913 (keyword arguments, the same as the flags of the command)
    model: ModelSource,
    images: Images | Sequence[Any] = (),
    *,
    paths_from: str | os.PathLike[str] | None = None,
    top: int = 5,
    csv: str | os.PathLike[str] | None = None,
    sort_into: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    device: str | torch.device = "auto",
    precision: Precision = "fp32",
    batch_size: int = 32,
    max_pixels: int = MAX_PIXELS,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> Predictions:
    """Classify images. Returns `Predictions`: a sequence with a `Prediction` for each image.

    - `model`: a model in memory, which runs as it is and on its own device, or what `vitreous.load` accepts
    - `images`: one or several: files, folders, patterns, PIL images, and arrays or tensors of uint8; `paths_from`: a
      file with a list of paths. A damaged file gives a prediction with an `error`, and a warning
    - `top`: number of classes per image; `heads`, `preprocessing`: as in `vitreous.load`
    - `trust_code`: run the code of a run of a model of your own
    - `csv`, `sort_into`: a table, and a folder for copies by class; `overwrite`: replace the table
    - `device`, `precision`, `batch_size`, `max_pixels`: as the flags of the command; `quiet`: print no notes

    >>> import vitreous
    >>> from sklearn.datasets import load_sample_images
    >>> found = vitreous.predict("vitreous-mini", load_sample_images().images, top=1, quiet=True)
    >>> found[0].label, round(found[0].probability, 2)
    ('church', 0.61)
    """
    csv_path, folder = optional_path(csv), optional_path(sort_into)
    check_prediction_files(csv_path, folder, overwrite)
    inputs = image_inputs(images, None if paths_from is None else os.fspath(paths_from))
    notes = NoteCollector(ProgressReporter(quiet))
    opened = open_predictions(
        model,
        inputs,
        top=top,
        device=device,
        precision=precision,
        batch_size=batch_size,
        max_pixels=max_pixels,
        heads=heads,
        preprocessing=preprocessing,
        trust_code=trust_code,
        note=notes.add,
    )
    with opened as run, write_predictions(run, inputs, csv_path, folder, overwrite) as written:
        predictions = tuple(map(_checked, written, inputs))
    found = Predictions(predictions, run.classes, top, run.name, tuple(notes.texts))
    warn_caller((), found.unreadable)
    return found


def _checked(found: Prediction, source: PredictionInput) -> Prediction:
    """Raise an error if an array or a tensor is not an image. Files may be damaged, and are skipped."""
    if found.error is not None and isinstance(source.content, np.ndarray | Tensor):
        raise VitreousError(f"{source.name}: {found.error}")
    return found


@dataclass(frozen=True)
class PredictionRun:
    """Predictions that are computed as they are read."""

    name: str  # of the model
    classes: tuple[str, ...]
    top: int
    predictions: Iterator[Prediction]


@contextmanager
def open_predictions(  # noqa: PLR0913 (the arguments of `predict`)
    model: ModelSource,
    inputs: Sequence[PredictionInput],
    *,
    top: int,
    device: str | torch.device,
    precision: str,
    batch_size: int,
    max_pixels: int,
    heads: int | None,
    preprocessing: Preprocessing | str | None,
    trust_code: bool,
    note: Callable[[str], object],
) -> Iterator[PredictionRun]:
    """Yield the predictions of the images, named as the inputs. `note` is called with notes about the model."""
    for name, value in (("top", top), ("batch_size", batch_size), ("max_pixels", max_pixels)):
        check_count(name, value)  # before a large checkpoint is read
    options = choose_inference_options(model_device(model, device), batch_size, None, precision, note)
    evaluated = model_argument(
        model, "predict", device=options.device, heads=heads, preprocessing=preprocessing, trust_code=trust_code
    )
    network = cast(Model, evaluated.model)
    for text in (*evaluated.notes, *_label_notes(network, model)):
        note(text)
    with restored_modes(network):
        found = predict_images(
            network,
            (one.content for one in inputs),
            top=top,
            batch_size=batch_size,
            precision=options.precision,
            max_pixels=max_pixels,
        )
        named = (replace(one, image=source.name) for one, source in zip(found, inputs, strict=True))
        count = evaluated.model.config.num_classes
        classes = labels_of(network) or tuple(f"class {index}" for index in range(count))
        yield PredictionRun(evaluated.name, classes, top, named)


def _label_notes(network: Model, source: ModelSource) -> Iterator[str]:
    """Yield where the class names come from."""
    if source == MINI:
        labels = network.labels or ()
        yield f"the model is {MINI}, which has {len(labels)} classes: {', '.join(labels)}"
    if network.labels is None and labels_of(network):
        yield "the model has no class names; its 1,000 classes are assumed to be ImageNet-1k's"
