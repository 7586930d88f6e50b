"""Which images a model is calibrated on, and which images a calibration was chosen on."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.data.dataset import DataSet, Source, Subset
from vitreous.data.digests import UNREADABLE, image_digests
from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.evaluation_images import evaluation_split, seen_warnings
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar
from vitreous.models.calibration import MAX_IMAGES, Calibration


@dataclass(frozen=True)
class CalibrationImages:
    """The images to calibrate on: none of them is known to be a training image."""

    split: str
    images: Source
    digests: Tensor  # of these images
    left_out: str = ""  # description of the training images that are left out
    warnings: tuple[str, ...] = ()


def select_calibration_images(
    data: DataSet, evaluated: EvaluatedModel, requested: str | None = None, bar: ProgressBar = no_progress_bar
) -> CalibrationImages:
    """Return the images of a split without those that the model was trained on. Images are compared by content.

    Default: the val split that the data has; else the val split that the model's run held out, if the data has a test
    split, which is then free for `evaluate`; else the test split; else all images.
    """
    stored = data.stored_splits
    default = next((name for name in ("val", "test") if name in stored), "all")
    if default == "test" and evaluated.seen is not None and data.val is not None:
        default = "val"
    name, source = evaluation_split(data, requested or default)
    if len(source) > MAX_IMAGES:
        raise VitreousError(f"{data.name}: {len(source):,} images; calibrate on at most {MAX_IMAGES:,} (--split)")
    with bar(f"reading {data.name}", len(source)) as tick:
        digests = image_digests(source, tick)
    if evaluated.seen is None:
        return CalibrationImages(name, source, digests, "", seen_warnings(evaluated, None))
    trained = evaluated.seen.trained(digests)
    if trained.all():
        raise VitreousError(
            f"{data.name}, {name}: all {len(source):,} images are training images of this model; a model is too sure on"
            " its training images, so calibrate it on other images"
        )
    keep = (~trained).nonzero().flatten()
    left_out = f"{format_count(int(trained.sum()), 'training image')} of the model's run" if trained.any() else ""
    if left_out:
        name, source, digests = f"{name}, not trained on", Subset(source, keep), digests[keep]
    warnings = tuple(text.replace("evaluated images", "images") for text in seen_warnings(evaluated, digests))
    return CalibrationImages(name, source, digests, left_out, warnings)


def encode_digests(digests: Tensor) -> str:
    """Return digests (N,) int64 as text for `Calibration.digests`."""
    return base64.b64encode(digests.numpy().astype("<i8").tobytes()).decode()


def calibration_images(calibration: Calibration, digests: Tensor) -> Tensor:
    """Return which images (N,) the calibration was chosen on."""
    stored = np.frombuffer(base64.b64decode(calibration.digests), dtype="<i8").astype(np.int64)
    return torch.isin(digests, torch.from_numpy(stored)) & (digests != UNREADABLE)
