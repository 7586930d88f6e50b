"""A learning curve: accuracy on held-out images against the number of training images, for each class.

The classifier is the same as for label errors. In every fold it is fitted to a half, a quarter ... of the training
images of each class, and predicts the images of the fold. All classes grow together, so the curve of a class shows what
more pictures of all classes would do; with few images per class it often cannot say anything, and then it says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from vitreous.evaluation.metrics import wilson_interval
from vitreous.evaluation.out_of_fold import masked_probabilities
from vitreous.evaluation.probe import ProbeHead

SHARES = (0.125, 0.25, 0.5)  # of the training images; the whole is known from the out-of-fold predictions
REPEATS = 2  # random halves, to reduce the variance of the gain from the last doubling
MIN_TRAINING = 4  # images per class, on average; smaller shares are left out
SMALL_GAIN = 0.02  # if the gain is below this value with confidence, more pictures hardly help
MIN_DISCORDANT = 5  # images that a doubling must change before its effect is judged
CONFIDENCE = 0.95

Verdict = Literal["more", "enough", "unknown"]


@dataclass(frozen=True)
class CurvePoint:
    share: float  # of the training images
    images: tuple[float, ...]  # mean number of training images of each class
    accuracy: float  # over all images
    recall: tuple[float | None, ...]  # of each class; None: the class has no images


@dataclass(frozen=True)
class ClassNeed:
    """Whether more pictures of a class would help, judged by the last doubling of the training images.

    `gain_interval` holds for all classes together with 95% confidence, `interval` for each class.
    """

    index: int
    images: int
    recall: float
    interval: tuple[float, float]
    gain: float  # of the recall, from half of the training images to all
    gain_interval: tuple[float, float]
    verdict: Verdict


@dataclass(frozen=True)
class LearningCurve:
    points: tuple[CurvePoint, ...]
    gain: float | None  # of the accuracy over all images, from the last doubling; None: too few images
    gain_interval: tuple[float, float] | None  # 95%
    needs: tuple[ClassNeed, ...]  # the largest lower bound of the gain first
    classes: tuple[int, ...] = ()  # class of each column of `CurvePoint.recall`; empty: 0, 1, 2 ...

    @property
    def needy(self) -> tuple[ClassNeed, ...]:
        return tuple(need for need in self.needs if need.verdict == "more")


def curve_sets(labels: Tensor, fold: Tensor) -> list[float]:
    """Return the shares of training images to measure, `REPEATS` times the last one. Empty: too few images."""
    folds = int(fold.max()) + 1
    per_class = len(labels) / max(1, int((labels.bincount() > 0).sum())) * (folds - 1) / folds
    shares = [share for share in SHARES if share * per_class >= MIN_TRAINING]
    return shares + [SHARES[-1]] * (REPEATS - 1) if shares else []


def measure_learning_curve(
    features: Tensor,
    labels: Tensor,
    fold: Tensor,
    head: ProbeHead,
    full: Tensor,
    tick: Callable[[int], None] = lambda images: None,
) -> LearningCurve:
    """Measure the curve. `full` (N, classes): the out-of-fold probabilities with all training images."""
    classes, folds = full.shape[1], int(fold.max()) + 1
    sets = curve_sets(labels, fold)
    right: dict[float, Tensor] = {}
    if sets:
        masks = [
            _draw(labels, fold != number, share, seed) for seed, share in enumerate(sets) for number in range(folds)
        ]
        predicted = masked_probabilities(features, labels, fold, torch.stack(masks, 1), head, classes, tick).argmax(2)
        for share in set(sets):
            columns = [place for place, one in enumerate(sets) if one == share]
            right[share] = (predicted[:, columns] == labels[:, None]).float().mean(1)
    right[1.0] = (full.argmax(1) == labels).float()
    counts = labels.bincount(minlength=classes)
    points = tuple(_point(share, right[share], labels, counts, (folds - 1) / folds) for share in sorted(right))
    if SHARES[-1] not in right:
        return LearningCurve(points, None, None, ())
    gains = right[1.0] - right[SHARES[-1]]
    present = counts.nonzero()[:, 0].tolist()
    z = _z(len(present))
    needs = [_judge(index, right[1.0][labels == index], gains[labels == index], z) for index in present]
    needs.sort(key=lambda need: (need.gain_interval[0], need.gain), reverse=True)
    return LearningCurve(points, float(gains.mean()), _gain_interval(gains, _z(1)), tuple(needs))


def _z(comparisons: int) -> float:
    """Return the normal quantile of intervals that hold together with 95% confidence (Bonferroni)."""
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / comparisons)


def _draw(labels: Tensor, allowed: Tensor, share: float, seed: int) -> Tensor:
    """Return a random share (N,) bool of the allowed images of each class, at least one of each."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    order = order[allowed[order]]
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    for index in labels[allowed].unique().tolist():
        members = order[labels[order] == index]
        drawn[members[: max(1, round(share * len(members)))]] = True
    return drawn


def _point(share: float, right: Tensor, labels: Tensor, counts: Tensor, training: float) -> CurvePoint:
    sums = torch.zeros(len(counts)).index_add_(0, labels, right).tolist()
    totals = counts.tolist()
    recall = tuple(value / total if total else None for value, total in zip(sums, totals, strict=True))
    return CurvePoint(share, tuple(share * training * total for total in totals), float(right.mean()), recall)


def _gain_interval(gains: Tensor, z: float) -> tuple[float, float]:
    """Return the interval of a mean of paired differences.

    One change is added (as Agresti and Min do), so that few changes or none do not give an interval of width 0.
    """
    images, gain = len(gains), float(gains.mean())
    variance = (float((gains**2).sum()) + 1) / (images + 2) - gain**2 * images / (images + 2)
    half = z * math.sqrt(max(0.0, variance) / images)
    return max(-1.0, gain - half), min(1.0, gain + half)


def _judge(index: int, right: Tensor, gains: Tensor, z: float) -> ClassNeed:
    images, recall, gain = len(right), float(right.mean()), float(gains.mean())
    interval = _gain_interval(gains, z)
    verdict: Verdict = "unknown"
    if interval[0] > 0 and int((gains != 0).sum()) >= MIN_DISCORDANT:
        verdict = "more"
    elif interval[1] < SMALL_GAIN:
        verdict = "enough"
    return ClassNeed(index, images, recall, wilson_interval(recall, images), gain, interval, verdict)
