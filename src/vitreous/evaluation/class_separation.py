"""Classes that cannot be told apart, with confidence intervals, from out-of-fold predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from vitreous.evaluation.metrics import wilson_interval

SEPARABLE = 0.8  # pairs whose accuracy is below this value with confidence are reported
CONFIDENCE = 0.95
MIN_IMAGES = 5  # of each class of a pair


@dataclass(frozen=True)
class ClassPair:
    """Two classes, and how often the classifier prefers the right one of the two."""

    classes: tuple[int, int]
    images: tuple[int, int]
    confused: tuple[int, int]  # images of each class for which the other one has the higher probability
    accuracy: float  # mean over both classes; 0.5 is chance
    interval: tuple[float, float]

    @property
    def better_than_chance(self) -> bool:
        return self.interval[0] > 0.5


@dataclass(frozen=True)
class ClassSeparation:
    indistinct: tuple[ClassPair, ...]  # the pairs whose accuracy is below `SEPARABLE` with confidence, worst first
    pairs: int  # pairs that were compared
    undecided: int  # pairs whose interval contains both chance and `SEPARABLE`: too few images to say


def separate_classes(probabilities: Tensor, labels: Tensor) -> ClassSeparation:
    """Compare every pair of classes with at least `MIN_IMAGES` images.

    For an image of class a, the pair (a, b) is decided by whether the probability of a or of b is higher. The intervals
    hold for all pairs together with 95% confidence (Bonferroni), since the worst pairs are selected.
    """
    classes = probabilities.shape[1]
    counts = labels.bincount(minlength=classes)
    wrong = torch.zeros(classes, classes, dtype=torch.int64)  # [a, b]: images of a with a higher probability of b
    for rows, truths in zip(probabilities.split(4096), labels.split(4096), strict=True):
        wrong.index_add_(0, truths, (rows > rows.gather(1, truths[:, None])).long())
    present = (counts >= MIN_IMAGES).nonzero()[:, 0].tolist()
    number = len(present) * (len(present) - 1) // 2
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / max(1, number))
    found, undecided = [], 0
    totals, mistakes = counts.tolist(), wrong.tolist()
    for place, a in enumerate(present):
        for b in present[place + 1 :]:
            pair = _compare((a, b), (totals[a], totals[b]), (mistakes[a][b], mistakes[b][a]), z)
            if pair.interval[1] < SEPARABLE:
                found.append(pair)
            undecided += pair.interval[0] <= 0.5 and pair.interval[1] >= SEPARABLE
    return ClassSeparation(tuple(sorted(found, key=lambda pair: pair.accuracy)), number, undecided)


def _compare(classes: tuple[int, int], images: tuple[int, int], confused: tuple[int, int], z: float) -> ClassPair:
    """The interval of the mean of two shares is combined from their Wilson intervals by squares (Newcombe's method)."""
    shares = [1 - count / total for count, total in zip(confused, images, strict=True)]
    bounds = [wilson_interval(share, total, z) for share, total in zip(shares, images, strict=True)]
    mean = sum(shares) / 2
    low = mean - math.hypot(*(share - bound[0] for share, bound in zip(shares, bounds, strict=True))) / 2
    high = mean + math.hypot(*(bound[1] - share for share, bound in zip(shares, bounds, strict=True))) / 2
    return ClassPair(classes, images, confused, mean, (max(0.0, low), min(1.0, high)))
