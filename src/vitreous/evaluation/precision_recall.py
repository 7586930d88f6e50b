"""Precision-recall curves: of each class against the others, and of all classes together (micro average)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.evaluation.image_results import ImageResults
from vitreous.evaluation.metrics import average_precision

MAX_POINTS = 100  # of a curve in JSON and in the figure
MAX_CURVES = 50  # classes whose curves are written, those with the lowest average precision


@dataclass(frozen=True)
class PrecisionRecallCurve:
    """Precision and recall at decreasing thresholds: predictions with a probability of at least the threshold count."""

    name: str
    positives: int
    average_precision: float
    thresholds: tuple[float, ...]
    precision: tuple[float, ...]
    recall: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "class": self.name,
            "positives": self.positives,
            "average_precision": self.average_precision,
            "thresholds": list(self.thresholds),
            "precision": list(self.precision),
            "recall": list(self.recall),
        }


@dataclass(frozen=True)
class PrecisionRecall:
    """Curves of all classes that occur. Curves have at most MAX_POINTS points; average precision uses all images."""

    micro: PrecisionRecallCurve
    classes: tuple[PrecisionRecallCurve, ...]  # the lowest average precision first

    def to_json(self) -> dict[str, Any]:
        return {
            "points": f"at most {MAX_POINTS} per curve; average_precision uses all images",
            "micro": self.micro.to_json(),
            "classes": [curve.to_json() for curve in self.classes[:MAX_CURVES]],
            "average_precision": {curve.name: curve.average_precision for curve in self.classes},
        }


def precision_recall_points(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return thresholds, precision and recall (M,) for each distinct score, highest first."""
    ordered, order = scores.double().sort(descending=True, stable=True)
    right = targets.bool()[order].cumsum(0)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    ends = last.nonzero()[:, 0]
    return ordered[ends], right[ends].double() / (ends + 1), right[ends].double() / right[-1]


def precision_recall(results: ImageResults, classes: Sequence[int], names: Sequence[str]) -> PrecisionRecall | None:
    """Return the curves of these classes of the model. None if probabilities were not kept, or no image is usable."""
    if results.probabilities is None:
        return None
    valid = results.predicted >= 0
    scores = results.probabilities[valid][:, list(classes)]
    truth = results.targets[valid]
    targets = truth[:, list(classes)] if results.multi_label else truth[:, None] == torch.tensor(list(classes))
    if not targets.any():
        return None
    curves = [
        _curve(name, scores[:, place], targets[:, place]) for place, name in enumerate(names) if targets[:, place].any()
    ]
    micro = _curve("all classes (micro average)", scores.flatten(), targets.flatten())
    return PrecisionRecall(micro, tuple(sorted(curves, key=lambda curve: curve.average_precision)))


def _curve(name: str, scores: Tensor, targets: Tensor) -> PrecisionRecallCurve:
    average = average_precision(scores[:, None], targets[:, None]).item()
    points = precision_recall_points(scores, targets)
    if len(points[0]) > MAX_POINTS:
        # Equal steps of recall; the first and last point stay.
        wanted = torch.linspace(0, 1, MAX_POINTS, dtype=torch.float64)
        kept = torch.searchsorted(points[2], wanted).clamp(max=len(points[0]) - 1).unique()
        points = (points[0][kept], points[1][kept], points[2][kept])
    thresholds, precision, recall = (tuple(column.tolist()) for column in points)
    return PrecisionRecallCurve(name, int(targets.sum()), average, thresholds, precision, recall)
