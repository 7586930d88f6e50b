"""Checks of labels: label errors, classes that cannot be told apart, and the learning curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.errors import format_count, summarize_names
from vitreous.evaluation.class_separation import ClassPair, ClassSeparation, separate_classes
from vitreous.evaluation.fewshot import check_features
from vitreous.evaluation.label_errors import MIN_ACCURACY, confident_mistakes, estimate_label_errors
from vitreous.evaluation.learning_curve import ClassNeed, LearningCurve, curve_sets, measure_learning_curve
from vitreous.evaluation.out_of_fold import CANDIDATES, FOLDS, assign_folds, out_of_fold_probabilities, select_head
from vitreous.evaluation.probe import fit_schedule
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar

POOR_ACCURACY = 0.7
MIN_PER_CLASS = 5  # different images; labels of smaller classes are not checked


@dataclass(frozen=True)
class LabelSuspect:
    """An image whose label is more probably wrong than right."""

    image: int
    label: int
    suggested: int
    wrong: float  # probability that the label is wrong
    label_probability: float  # according to the out-of-fold predictions
    suggested_probability: float

    def renumbered(self, numbers: Tensor) -> LabelSuspect:
        return replace(self, image=int(numbers[self.image]))


@dataclass(frozen=True)
class CheckedLabels:
    suspects: tuple[LabelSuspect, ...] = ()
    rate: float | None = None
    separation: ClassSeparation | None = None
    curve: LearningCurve | None = None
    accuracy: float | None = None
    judged: int = 0
    notes: tuple[str, ...] = ()


def find_label_problems(
    features: Tensor, labels: Tensor, groups: Tensor, classes: Sequence[str], bar: ProgressBar = no_progress_bar
) -> CheckedLabels:
    """Check the labels (N,) of features (N, D). `groups` (N,): copies of an image have the same number."""
    if labels.ndim == 2:
        return CheckedLabels(notes=("labels were not checked: images have several labels, one class each is needed",))
    check_features("the images", features, labels)
    distinct = torch.stack((labels, groups), 1).unique(dim=0)[:, 0].bincount(minlength=len(classes))
    large = (distinct >= MIN_PER_CLASS).nonzero()[:, 0]
    small = [classes[i] for i in ((distinct > 0) & (distinct < MIN_PER_CLASS)).nonzero()[:, 0].tolist()]
    notes = []
    if len(large) < 2:
        needed = f"two classes with at least {MIN_PER_CLASS} different images each are needed"
        return CheckedLabels(notes=(f"labels were not checked: {needed}",))
    if small:
        notes.append(
            f"labels of {format_count(len(small), 'class')} were not checked, since they have fewer than"
            f" {MIN_PER_CLASS} different images: {summarize_names(small)}"
        )
    rows = torch.isin(labels, large).nonzero()[:, 0]
    compact = torch.searchsorted(large, labels[rows])
    found = _check_compact(features[rows], compact, groups[rows], bar)
    if found.accuracy is not None and found.accuracy < POOR_ACCURACY:
        notes.append(_poor_features(found.accuracy))
    return replace(_with_class_numbers(found, rows, large), notes=tuple(notes))


def _poor_features(accuracy: float) -> str:
    cause = (
        f"only {accuracy:.0%} of the images are predicted as they are labelled: many labels are wrong, or these"
        " features separate the classes poorly"
    )
    if accuracy < MIN_ACCURACY:
        return (
            f"labels were not checked: {cause}. Below {MIN_ACCURACY:.0%}, mistakes of the classifier look like wrong"
            " labels. Use a model with better features (--model)"
        )
    return (
        f"{cause}; then label errors are missed, and correct labels are suspected. Another model may be better"
        " (--model)"
    )


def _check_compact(features: Tensor, labels: Tensor, groups: Tensor, bar: ProgressBar) -> CheckedLabels:
    """Check labels 0 ... K - 1, all of which occur."""
    classes, images = int(labels.max()) + 1, len(labels)
    fold = assign_folds(labels, groups)
    with bar("fitting classifiers", _work(labels, fold, classes)) as tick:
        head = select_head(features, labels, fold, classes, tick=tick)
        first = out_of_fold_probabilities(features, labels, fold, head, classes, tick=tick)
        keep = ~confident_mistakes(first, labels)
        keep |= _lonely(labels, keep, classes)
        second = out_of_fold_probabilities(features, labels, fold, head, classes, keep=keep, tick=tick)
        curve = measure_learning_curve(features, labels, fold, head, first, tick)
    accuracy = float((first.argmax(1) == labels).double().mean())
    separation = separate_classes(first, labels)
    if accuracy < MIN_ACCURACY:
        return CheckedLabels(separation=separation, curve=curve, accuracy=accuracy)
    errors = estimate_label_errors(second, labels)
    suspects = tuple(
        LabelSuspect(
            image=index,
            label=int(labels[index]),
            suggested=int(errors.suggested[index]),
            wrong=float(errors.wrong[index]),
            label_probability=float(errors.given_probability[index]),
            suggested_probability=float(errors.suggested_probability[index]),
        )
        for index in errors.suspects.tolist()
    )
    return CheckedLabels(suspects, errors.rate, separation, curve, accuracy, images)


def _work(labels: Tensor, fold: Tensor, classes: int) -> int:
    """Return the number of images in all steps of all fits."""
    sets = len(curve_sets(labels, fold))
    fits = [(int((fold != 0).sum()), len(CANDIDATES)), *[(len(labels), FOLDS)] * 2, (len(labels), sets * FOLDS)]
    return sum(math.prod(fit_schedule(images, heads * classes)) for images, heads in fits if heads)


def _lonely(labels: Tensor, keep: Tensor, classes: int) -> Tensor:
    """Return the images (N,) of classes of which too few images would be kept."""
    kept = labels[keep].bincount(minlength=classes)
    return (kept < MIN_PER_CLASS)[labels]


def _with_class_numbers(found: CheckedLabels, rows: Tensor, numbers: Tensor) -> CheckedLabels:
    """Replace the compact numbers of images and classes by those of the data."""
    suspects = [
        replace(s, image=int(rows[s.image]), label=int(numbers[s.label]), suggested=int(numbers[s.suggested]))
        for s in found.suspects
    ]
    assert found.separation is not None
    assert found.curve is not None
    pairs = [_renumbered_pair(pair, numbers) for pair in found.separation.indistinct]
    needs = [_renumbered_need(need, numbers) for need in found.curve.needs]
    return replace(
        found,
        suspects=tuple(suspects),
        separation=replace(found.separation, indistinct=tuple(pairs)),
        curve=replace(found.curve, needs=tuple(needs), classes=tuple(numbers.tolist())),
    )


def _renumbered_pair(pair: ClassPair, numbers: Tensor) -> ClassPair:
    return replace(pair, classes=(int(numbers[pair.classes[0]]), int(numbers[pair.classes[1]])))


def _renumbered_need(need: ClassNeed, numbers: Tensor) -> ClassNeed:
    return replace(need, index=int(numbers[need.index]))
