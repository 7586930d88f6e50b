"""`vitreous.calibrate`: fit a temperature and choose thresholds, and store them with the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.dataset import DataSet
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading, RunReading
from vitreous.errors import VitreousError, brief, format_count, summarize_names
from vitreous.evaluation.calibration_images import CalibrationImages, encode_digests, select_calibration_images
from vitreous.evaluation.evaluate import binary_losses, check_head, softmax_losses
from vitreous.evaluation.evaluated_model import RANDOM_PREFIX, EvaluatedModel, open_model
from vitreous.evaluation.image_results import Rejection
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.matching import match_classes, read_class_map
from vitreous.evaluation.metrics import wilson_interval
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar
from vitreous.evaluation.temperature import NOT_BETTER, CalibrationScores, calibration_scores, fit_temperature
from vitreous.evaluation.thresholds import (
    ThresholdGroup,
    accepted_predictions,
    check_precision,
    choose_thresholds,
    class_thresholds,
    images_needed,
)
from vitreous.evaluation.training_images import run_split_options
from vitreous.models.calibration import MAX_NAME, Calibration, format_confidence
from vitreous.preprocessing import Preprocessing
from vitreous.utils.atomic import check_output
from vitreous.utils.torch_settings import default_modes
from vitreous.weights.model_info import labels_of
from vitreous.weights.save import save_calibrated

MIN_IMAGES = 10
FOLDS = 5
DEFAULT_CONFIDENCE = 0.95
MAX_LOGITS = 2**28


@dataclass(frozen=True, repr=False)
class CalibrationReport:
    """The calibration of a model, and how good it is on images that it was not chosen on (cross-validation)."""

    calibration: Calibration  # temperature and thresholds, as stored with the model
    accuracy: float | None  # top-1; None for multi-label data
    before: CalibrationScores  # scores without a temperature
    after: CalibrationScores  # scores with the temperature, cross-validated
    groups: tuple[
        ThresholdGroup, ...
    ]  # classes with a common threshold, and how precise they are; empty without a requested precision
    rejection: Rejection | None  # how many images are accepted, and how many of those correctly; cross-validated
    names: tuple[str, ...]  # class names of the model
    left_out: str  # images that were not used, and why
    warnings: tuple[str, ...]  # reasons to distrust the calibration
    notes: tuple[str, ...]  # other remarks
    unreadable: tuple[str, ...] = ()  # errors of images that could not be read
    out: Path = field(default_factory=Path)  # the file that was written

    def __repr__(self) -> str:
        lines = [f"{self.out}: {self.calibration}"]
        pairs = (
            ("log-loss", self.before.loss, self.after.loss),
            ("calibration error", self.before.error, self.after.error),
        )
        lines += [
            f"{name}: {before:.4f} before, {after:.4f} after ({FOLDS}-fold cross-validated)"
            for name, before, after in pairs
        ]
        if self.rejection is not None:
            precision = (
                "none accepted" if self.rejection.precision is None else f"precision {self.rejection.precision:.1%}"
            )
            lines.append(
                f"accepted: {self.rejection.coverage:.1%} of the images, {precision} ({FOLDS}-fold cross-validated)"
            )
        return "\n  ".join([*lines, *(f"WARNING: {text}" for text in self.warnings)])

    def to_json(self) -> dict[str, Any]:
        """Return values for `json.dumps`."""
        record = {name: value for name, value in self.calibration.to_json().items() if name != "digests"}
        images = self.calibration.images
        return {
            "out": str(self.out),
            **record,
            "left_out": self.left_out or None,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "accuracy": self.accuracy,
            "accuracy_interval": None if self.accuracy is None else wilson_interval(self.accuracy, images),
            "before": vars(self.before),
            "after": {**vars(self.after), "method": f"{FOLDS}-fold cross-validation"},
            "rejection": self.rejection and {**self.rejection.to_json(), "images": f"{FOLDS}-fold cross-validation"},
            "groups": [
                {
                    "classes": [self.names[index] for index in group.classes],
                    "threshold": group.threshold,
                    "predictions": group.predictions,
                    "accepted": group.accepted,
                    "right": group.right,
                    "precision": group.precision,
                }
                for group in self.groups
            ],
            "unreadable": list(self.unreadable),
        }


def calibrate(  # noqa: PLR0913 (keyword arguments, the same as the command's flags)
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    precision: float | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    split: str | None = None,
    classes: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    reading: Reading | None = None,
    options: InferenceOptions | None = None,
    bar: ProgressBar = no_progress_bar,
) -> CalibrationReport:
    """Fit a temperature, so that the probabilities of a model agree with its accuracy, and write it with the model.

    On request, thresholds are chosen too, below which predictions are rejected.

    - `model`: a checkpoint or run, as in `vitreous.load`
    - `data`: a path or name, as in `vitreous.open_data`. Images that the model was trained on are left out
    - `out`: the .safetensors file to write. Its weights are bit-identical to those of `model`
    - `precision`: also choose thresholds, so that accepted predictions reach this precision
    - `confidence`: with which it is reached; 0: on the calibration images only, without a guarantee
    - `split`: train, val, test or all; default: the val split that the data has; else the one that the model's run held
      out, if the data has a test split; else the test split; else all images
    - `classes`: a file that maps the classes of the data to those of the model
    - `overwrite`: replace an existing `out`
    - `heads`, `preprocessing`: as in `vitreous.load`
    - `reading`: as in `vitreous.open_data`; default: that of the model's run
    - `options`: an `InferenceOptions`: device, batch size, workers, precision
    - `bar`: a function that shows the progress

    Returns a `CalibrationReport`. Too few images, or a precision that is not reached, raise a `VitreousError`.

    >>> outcome = vitreous.train("digits", out="run", duration="20 steps", quiet=True)
    >>> report = vitreous.calibrate("run", "digits", "calibrated.safetensors")
    >>> report.calibration.images, report.calibration.split
    (144, 'val')
    >>> vitreous.load("calibrated.safetensors").calibration == report.calibration
    True
    """
    target = _check_arguments(model, Path(out), precision, confidence, overwrite)
    options = options or InferenceOptions()
    opened = open_data(data, reading or RunReading(**run_split_options(model)))
    evaluated = open_model(model, options.device, heads, preprocessing)
    check_head(evaluated)
    if opened.multi_label and not evaluated.model.multi_label:
        raise VitreousError(
            f"{opened.name}: images have several labels, and the model was trained for one class per image"
        )
    selected = select_calibration_images(opened, evaluated, split, bar)
    logits, targets, digests, unreadable = _collect(evaluated, opened, selected, classes, options, bar)
    report = _fit(evaluated, opened, selected, (logits, targets, digests), precision, confidence)
    notes = save_calibrated(
        model, target, report.calibration, heads=heads, preprocessing=preprocessing, overwrite=overwrite
    )
    changes = {"notes": (*report.notes, *notes), "unreadable": unreadable, "out": target}
    return CalibrationReport(**{**vars(report), **changes})


def _check_arguments(
    model: str | os.PathLike[str], target: Path, precision: float | None, confidence: float, overwrite: bool
) -> Path:
    """Raise an error for arguments that cannot be used, before anything is read. Returns the file to write."""
    if precision is not None:
        check_precision(precision, confidence)
    elif confidence != DEFAULT_CONFIDENCE:
        raise VitreousError(f"confidence = {brief(confidence)} has no effect without a precision (--precision)")
    if target.suffix != ".safetensors":
        raise VitreousError(f"{target}: expected a name that ends in .safetensors")
    check_output(target, overwrite)
    if os.fsdecode(model).startswith(RANDOM_PREFIX):
        raise VitreousError(f"{os.fsdecode(model)}: random weights cannot be calibrated")
    return target


@default_modes()
@torch.no_grad()
def _collect(
    evaluated: EvaluatedModel,
    data: DataSet,
    selected: CalibrationImages,
    class_map: str | os.PathLike[str] | None,
    options: InferenceOptions,
    bar: ProgressBar,
) -> tuple[Tensor, Tensor, Tensor, tuple[str, ...]]:
    """Return logits, labels and digests of all readable images, and the errors of the others."""
    model, classes = evaluated.model, evaluated.model.config.num_classes
    labels, source = labels_of(model), selected.images
    if len(source) * classes > MAX_LOGITS:
        most = MAX_LOGITS // classes
        raise VitreousError(f"{data.name}: {len(source):,} images; with {classes:,} classes, use at most {most:,}")
    mapping = (
        match_classes(data.classes, labels, classes)
        if class_map is None
        else read_class_map(Path(class_map), data.classes, labels, classes)
    )
    preprocessing, unreadable = evaluated.preprocessing(), dict[int, str]()
    loader = options.loader(mapping.relabelled(source, classes), preprocessing, unreadable)
    run, batches = options.logits_function(model), []
    with bar(f"{evaluated.name} on {data.name}", len(source)) as tick:
        for pixels, targets, indices in loader:
            logits = run(preprocessing.normalise(pixels)).float()
            batches.append((logits.cpu(), targets.cpu(), indices.cpu()))
            tick(len(pixels))
    count = len(source) - len(unreadable)
    if count < MIN_IMAGES:
        raise VitreousError(
            f"{data.name}, {selected.split}: {format_count(count, 'readable image')}; a calibration needs at least"
            f" {MIN_IMAGES}, and is reliable with a few hundred"
        )
    logits, targets, indices = (torch.cat(column) for column in zip(*batches, strict=True))
    if bad := int((~logits.isfinite()).any(1).sum()):
        raise VitreousError(f"{bad:,} images have logits that are not finite numbers: check the weights")
    return logits, targets, selected.digests[indices], tuple(unreadable.values())


def _fit(
    evaluated: EvaluatedModel,
    data: DataSet,
    selected: CalibrationImages,
    tensors: tuple[Tensor, Tensor, Tensor],
    precision: float | None,
    confidence: float,
) -> CalibrationReport:
    model, (logits, targets, digests) = evaluated.model, tensors
    sigmoid = model.multi_label
    folds = torch.from_numpy(np.random.default_rng(0).permutation(len(logits)) % FOLDS)
    chosen = _choose_temperature(logits, targets, folds, sigmoid)
    temperature, notes = chosen.temperature, list(chosen.notes)
    probabilities = _probabilities(logits, temperature, sigmoid)
    groups = [] if precision is None else choose_thresholds(probabilities, targets, precision, confidence)
    names = labels_of(model) or tuple(f"class {index}" for index in range(logits.shape[1]))
    rejection = None
    if precision is not None:
        notes += _check_groups(groups, names, precision, confidence)
        scaled = logits / chosen.by_image[:, None]
        rejection = _cross_validate(scaled, targets, folds, sigmoid, precision, confidence)
    thresholds = None if precision is None else class_thresholds(groups, logits.shape[1])
    calibration = Calibration(
        temperature,
        len(logits),
        data.name[:MAX_NAME],
        selected.split,
        encode_digests(digests),
        precision,
        None if precision is None else confidence,
        thresholds,
    )
    accuracy = None if targets.ndim == 2 else (logits.argmax(1) == targets).double().mean().item()
    texts = (selected.left_out, (*selected.warnings, *chosen.warnings), tuple(notes))
    scores = (chosen.before, chosen.after, tuple(groups), rejection)
    return CalibrationReport(calibration, accuracy, *scores, names, *texts)


@dataclass(frozen=True)
class _ChosenTemperature:
    temperature: float
    by_image: Tensor  # the temperature fitted without the fold of each image
    before: CalibrationScores
    after: CalibrationScores  # with `by_image`
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _choose_temperature(logits: Tensor, targets: Tensor, folds: Tensor, sigmoid: bool) -> _ChosenTemperature:
    """Fit the temperature on all images. It stays 1 if cross-validation finds no improvement."""
    losses: Callable[[Tensor, Tensor], Tensor] = binary_losses if sigmoid else softmax_losses
    fit = fit_temperature(logits, targets, sigmoid)
    ones = torch.ones(len(logits), dtype=torch.float64)
    by_image = ones.clone()
    for fold in range(FOLDS):
        other = folds != fold
        by_image[~other] = fit_temperature(logits[other], targets[other], sigmoid).temperature
    before = calibration_scores(logits, targets, sigmoid, ones, losses)
    after = calibration_scores(logits, targets, sigmoid, by_image, losses)
    if fit.problem == NOT_BETTER:
        warning = f"{fit.problem}: the temperature stays 1. Check the labels, and how the classes are matched"
        return _ChosenTemperature(1.0, ones, before, before, warnings=(warning,))
    if fit.problem:
        return _ChosenTemperature(1.0, ones, before, before, (f"{fit.problem}: the temperature stays 1",))
    if after.loss >= before.loss:
        note = (
            f"the temperature stays 1: the fitted one, {fit.temperature:.3g}, does not reduce the log-loss of images"
            f" that it was not fitted on ({before.loss:.4f} before, {after.loss:.4f} after, cross-validated)"
        )
        return _ChosenTemperature(1.0, ones, before, before, (note,))
    return _ChosenTemperature(fit.temperature, by_image, before, after)


def _probabilities(logits: Tensor, temperature: float, sigmoid: bool) -> Tensor:
    scaled = logits.double() / temperature
    return scaled.sigmoid() if sigmoid else scaled.softmax(1)


def _check_groups(
    groups: list[ThresholdGroup], names: tuple[str, ...], precision: float, confidence: float
) -> list[str]:
    """Return notes on classes that are always rejected. Raise an error if no class reaches the precision."""
    failed = [group for group in groups if group.threshold is None]
    needed = images_needed(precision, confidence)
    sure = f" with {format_confidence(confidence)}" if confidence else ""
    count = format_count(needed, "accepted image")
    takes = f" (that takes at least {count}, even if all are correct)" if confidence else ""
    if len(failed) == len(groups):
        without = ", or drop the guarantee (--confidence 0)" if confidence else ""
        raise VitreousError(
            f"a precision of {precision:g} is not reached{sure}{takes}: use more images or a lower --precision{without}"
        )
    present = {index for group in groups for index in group.classes}
    reasons = {
        f"a precision of {precision:g} is not reached{sure}{takes}": {i for group in failed for i in group.classes},
        "no image of the data has this label": set(range(len(names))) - present,
    }
    return [
        f"all predictions of {summarize_names([names[index] for index in sorted(classes)])} are rejected: {reason}"
        for reason, classes in reasons.items()
        if classes
    ]


def _cross_validate(
    logits: Tensor, targets: Tensor, folds: Tensor, sigmoid: bool, precision: float, confidence: float
) -> Rejection:
    """Choose the thresholds without a fifth of the images, apply them to that fifth, and so on. `logits` are scaled."""
    probabilities = _probabilities(logits, 1.0, sigmoid)
    several = targets.ndim == 2
    images = predictions = right = 0
    for fold in range(FOLDS):
        other, mine = folds != fold, folds == fold
        groups = choose_thresholds(probabilities[other], targets[other], precision, confidence)
        accepted = accepted_predictions(probabilities[mine], class_thresholds(groups, logits.shape[1]))
        truth = targets[mine]
        if not several:
            predicted = probabilities[mine].argmax(1, keepdim=True)
            accepted = torch.zeros_like(accepted).scatter_(1, predicted, accepted.gather(1, predicted))
            truth = torch.zeros_like(accepted).scatter_(1, truth[:, None], True)
        images += int(accepted.any(1).sum())
        predictions += int(accepted.sum())
        right += int((accepted & truth).sum())
    return Rejection(len(logits), images, predictions, right, precision)
