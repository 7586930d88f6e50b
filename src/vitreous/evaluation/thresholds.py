"""Thresholds for a requested precision: which predictions to accept and which to reject.

The guarantee: for images like those that the thresholds are chosen on, the precision of a group is at least the
requested one with probability `confidence`. A threshold passes if an exact one-sided binomial test rejects "the
precision is lower". Many thresholds are tested, so the tests are ordered: from a high threshold down, until the first
that fails (fixed-sequence testing, which needs no correction; Angelopoulos et al., 2021). One wrong label among the
most confident predictions would end a sequence at once. Therefore there are several sequences, which start at 1, 2,
4... times the smallest possible number of images, and share the error probability equally.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import VitreousError, brief

MIN_IMAGES = 10  # accepted images of a group, if no confidence is requested
MAX_TESTS = 256  # per sequence


@dataclass(frozen=True)
class ThresholdGroup:
    """Classes that share a threshold, with the images that it was chosen on."""

    classes: tuple[int, ...]
    threshold: float | None  # None: the precision is not reached, and all predictions of these classes are rejected
    predictions: int  # of these classes
    accepted: int  # of those, with a probability of at least the threshold
    right: int  # of those, correct

    @property
    def precision(self) -> float | None:
        return self.right / self.accepted if self.accepted else None


def check_precision(precision: float, confidence: float) -> None:
    if type(precision) not in (int, float) or not 0 < precision < 1:
        raise VitreousError(f"precision = {brief(precision)}: expected a number between 0 and 1, such as 0.95")
    if type(confidence) not in (int, float) or not 0 <= confidence < 1:
        raise VitreousError(f"confidence = {brief(confidence)}: expected 0 (no guarantee) or a number below 1")


def images_needed(precision: float, confidence: float) -> int:
    """Return how many accepted predictions, all correct, are necessary to reach the precision with this confidence."""
    if not confidence:
        return MIN_IMAGES
    return max(1, math.ceil(math.log(1 - confidence) / math.log(precision) - 1e-9))


def smallest_threshold(scores: Tensor, right: Tensor, precision: float, confidence: float) -> tuple[float | None, int]:
    """Return the smallest threshold whose precision is at least `precision`, and the number of accepted predictions.

    `scores`: probabilities (N,); `right`: which predictions are correct. With `confidence` 0 the precision is the
    measured one, without a guarantee. (None, 0) if no threshold passes.
    """
    if len(scores) < images_needed(precision, confidence):
        return None, 0
    ordered, order = scores.double().sort(descending=True, stable=True)
    errors = np.concatenate([[0], np.cumsum(~right.bool()[order].numpy())])
    values = ordered.numpy()
    # The last image of each group of ties: all images with the same probability are accepted together.
    ends = np.searchsorted(-values, -values, side="right")
    if confidence:
        accepted = _guaranteed_count(ends, errors, precision, confidence)
    else:
        sizes = np.unique(ends[MIN_IMAGES - 1 :])
        passing = sizes[errors[sizes] <= (1 - precision) * sizes + 1e-9]
        accepted = int(passing[-1]) if len(passing) else 0
    if not accepted:
        return None, 0
    if accepted == len(values):
        return 0.0, accepted
    return float((values[accepted - 1] + values[accepted]) / 2), accepted


def _guaranteed_count(ends: NDArray[Any], errors: NDArray[Any], precision: float, confidence: float) -> int:
    """Return the largest number of accepted images that a sequence of tests reaches; 0 if all first tests fail."""
    images, best = len(ends), 0
    sequences = 1 + int(math.log2(images / images_needed(precision, confidence)))
    level = (1 - confidence) / sequences
    start = images_needed(precision, 1 - level)
    while start <= images:
        sizes = np.unique(np.linspace(start, images, min(MAX_TESTS, images - start + 1)).round().astype(int))
        for size in np.unique(ends[sizes - 1]):
            if _binomial_tail(int(errors[size]), int(size), 1 - precision) > level:
                break
            best = max(best, int(size))
        start *= 2
    return best


def _binomial_tail(errors: int, images: int, rate: float) -> float:
    """Return the probability of at most `errors` errors among `images`, if each occurs with probability `rate`."""
    if errors >= rate * images:
        return 1.0  # no need for the exact value: the measured precision is below the requested one
    counts = np.arange(errors)
    ratios = np.log((images - counts) / (counts + 1)) + math.log(rate / (1 - rate))
    logs = images * math.log1p(-rate) + np.concatenate([[0.0], np.cumsum(ratios)])
    return float(np.exp(logs).sum())


def choose_thresholds(
    probabilities: Tensor, targets: Tensor, precision: float, confidence: float
) -> list[ThresholdGroup]:
    """Choose a threshold for each class with enough predictions, and a common one for the other classes.

    `probabilities` (N, K); `targets`: classes (N,), or True for each label (N, K). A class without images is not part
    of any group.
    """
    several = targets.ndim == 2
    if several:
        scores, right = probabilities.T, targets.bool().T
        counts = targets.sum(0).tolist()
    else:
        best, predicted = probabilities.max(1)
        counts = predicted.bincount(minlength=probabilities.shape[1]).tolist()
    present = targets.any(0) if several else targets.bincount(minlength=probabilities.shape[1]) > 0
    groups = []
    for classes in group_classes(counts, present.tolist(), images_needed(precision, confidence)):
        if several:
            group_scores, group_right = scores[list(classes)].flatten(), right[list(classes)].flatten()
        else:
            mine = torch.isin(predicted, torch.tensor(classes))
            group_scores, group_right = best[mine], (predicted == targets)[mine]
        threshold, accepted = smallest_threshold(group_scores, group_right, precision, confidence)
        correct = 0 if threshold is None else int(group_right[group_scores >= threshold].sum())
        groups.append(ThresholdGroup(tuple(classes), threshold, len(group_scores), accepted, correct))
    return groups


def group_classes(counts: list[int], present: list[bool], needed: int) -> list[list[int]]:
    """Return groups of classes: single classes with at least `needed` predictions, and one group of the others. If that
    group has fewer than `needed`, the smallest of the single classes join it."""
    order = sorted((index for index, occurs in enumerate(present) if occurs), key=lambda index: counts[index])
    shared: list[int] = []
    while order and (counts[order[0]] < needed or (shared and sum(counts[index] for index in shared) < needed)):
        shared.append(order.pop(0))
    return ([sorted(shared)] if shared else []) + [[index] for index in sorted(order)]


def class_thresholds(groups: list[ThresholdGroup], classes: int) -> tuple[float | None, ...]:
    """Return the threshold of each class of the model. None: always rejected."""
    thresholds: list[float | None] = [None] * classes
    for group in groups:
        for index in group.classes:
            thresholds[index] = group.threshold
    return tuple(thresholds)


def accepted_predictions(probabilities: Tensor, thresholds: tuple[float | None, ...]) -> Tensor:
    """Return which probabilities (N, K) reach the threshold of their class, (N, K) bool."""
    limits = torch.tensor([math.inf if one is None else one for one in thresholds], dtype=torch.float64)
    return probabilities.double() >= limits.to(probabilities.device)
