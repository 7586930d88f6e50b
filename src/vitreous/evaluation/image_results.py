"""The results of single images: prediction, probabilities and rank, collected batch by batch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.evaluation.metrics import wilson_interval
from vitreous.evaluation.thresholds import accepted_predictions
from vitreous.models.calibration import Calibration

MAX_PROBABILITIES = 2**26  # of all images and classes, for precision-recall curves: 256 MiB
DEFAULT_THRESHOLD = 0.5  # of multi-label predictions
CSV_COLUMNS = (
    "image",
    "split",
    "label",
    "predicted",
    "correct",
    "probability",
    "label_probability",
    "rank",
    "rejected",
)
SEPARATOR = "|"  # of several labels in a cell, as in the manifests that `vitreous train` reads


@dataclass(frozen=True)
class Rejection:
    """What thresholds do on some images."""

    images: int
    accepted: int  # images with an accepted prediction
    predictions: int  # accepted predictions: as many as images, or more for multi-label data
    right: int  # correct ones of these
    wanted: float  # the requested precision

    @property
    def coverage(self) -> float:
        return self.accepted / self.images

    @property
    def precision(self) -> float | None:
        return self.right / self.predictions if self.predictions else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.precision is None else wilson_interval(self.precision, self.predictions)

    def to_json(self) -> dict[str, object]:
        return {
            "wanted_precision": self.wanted,
            "coverage": self.coverage,
            "accepted": self.accepted,
            "predictions": self.predictions,
            "right": self.right,
            "precision": self.precision,
            "precision_interval": self.interval,
            "method": "95% interval, Wilson",
        }


@dataclass(frozen=True)
class ImageResults:
    """One row per readable image, ordered by index. NaN logits: the prediction is -1 and the probabilities are NaN."""

    indices: Tensor  # of the images in their source
    targets: Tensor  # (N,) classes of the model, or (N, K) bool
    losses: Tensor
    predicted: Tensor  # most probable class
    probability: Tensor  # of that class
    label_probability: Tensor  # of the true class (N,); of multi-label data: empty
    ranks: Tensor  # of the true class, from 1 (N,); of multi-label data: of each class (N, K)
    probabilities: Tensor | None  # of all classes (N, K), if they were kept
    calibration: Calibration | None  # that was applied

    @property
    def multi_label(self) -> bool:
        return self.targets.ndim == 2

    @property
    def accepted(self) -> Tensor | None:
        """Which images (N,), or which labels of images (N, K), are accepted; None if there are no thresholds."""
        if self.calibration is None or self.calibration.thresholds is None:
            return None
        if self.multi_label:
            assert self.probabilities is not None
            return accepted_predictions(self.probabilities, self.calibration.thresholds)
        limits = torch.tensor([math.inf if one is None else one for one in self.calibration.thresholds])
        return (self.probability.double() >= limits.double()[self.predicted]) & (self.predicted >= 0)

    def rejection(self) -> Rejection | None:
        """Return coverage and precision with the thresholds of the model's calibration; None without thresholds."""
        accepted = self.accepted
        if accepted is None:
            return None
        assert self.calibration is not None
        assert self.calibration.precision is not None
        right = accepted & (self.targets if self.multi_label else self.predicted == self.targets)
        images = accepted.any(1) if self.multi_label else accepted
        counts = (len(accepted), int(images.sum()), int(accepted.sum()), int(right.sum()))
        return Rejection(*counts, self.calibration.precision)

    def csv_rows(self, source: Source, split: str, names: Sequence[str]) -> Iterator[tuple[object, ...]]:
        """Yield a row of CSV_COLUMNS for each image. `names`: of the model's classes."""
        accepted = self.accepted
        for row, index in enumerate(self.indices.tolist()):
            cells = self._several(row, names, accepted) if self.multi_label else self._one(row, names, accepted)
            yield (source.name(index), split, *cells)

    def _one(self, row: int, names: Sequence[str], accepted: Tensor | None) -> tuple[object, ...]:
        truth, predicted = int(self.targets[row]), int(self.predicted[row])
        rejected = None if accepted is None else not bool(accepted[row])
        if predicted < 0:
            return names[truth], None, False, None, None, None, rejected
        probabilities = _round(self.probability[row]), _round(self.label_probability[row])
        return names[truth], names[predicted], predicted == truth, *probabilities, int(self.ranks[row]), rejected

    def _several(self, row: int, names: Sequence[str], accepted: Tensor | None) -> tuple[object, ...]:
        assert self.probabilities is not None
        values, truth = self.probabilities[row], self.targets[row].nonzero()[:, 0].tolist()
        chosen = (values >= DEFAULT_THRESHOLD) if accepted is None else accepted[row]
        found = [] if int(self.predicted[row]) < 0 else chosen.nonzero()[:, 0].tolist()
        rejected = None if accepted is None else not found
        return (
            join_names([names[index] for index in truth]),
            join_names([names[index] for index in found]),
            found == truth,
            SEPARATOR.join(str(_round(values[index])) for index in found),
            SEPARATOR.join(str(_round(values[index])) for index in truth),
            SEPARATOR.join(str(int(self.ranks[row, index])) for index in truth),
            rejected,
        )


def _round(value: Tensor) -> float:
    return float(f"{value.item():.6g}")


def join_names(names: Sequence[str]) -> str:
    """Return several labels as one cell: "cat|outdoors"; as a JSON list if a name contains the separator."""
    if any(SEPARATOR in name or name.startswith("[") for name in names):
        return json.dumps(list(names), ensure_ascii=False)
    return SEPARATOR.join(names)


class ImageResultCollector:
    """Collects `ImageResults` from batches, as `Scores` does.

    `keep`: keep the probabilities of all classes, for precision-recall curves. For multi-label data they are always
    kept.
    """

    def __init__(self, multi_label: bool, sigmoid: bool, calibration: Calibration | None, keep: bool = False):
        self.multi_label, self.sigmoid, self.calibration = multi_label, sigmoid, calibration
        self.keep = keep or multi_label
        self.batches: list[tuple[Tensor, ...]] = []

    @torch.no_grad()
    def add(self, logits: Tensor, targets: Tensor, losses: Tensor, indices: Tensor, /) -> None:
        invalid = logits.isnan().any(1)
        temperature = 1.0 if self.calibration is None else self.calibration.temperature
        scaled = logits.nan_to_num() / temperature
        probabilities = (scaled.sigmoid() if self.sigmoid else scaled.softmax(1)).masked_fill(
            invalid[:, None], math.nan
        )
        predicted = logits.argmax(1).masked_fill(invalid, -1)
        probability = probabilities.gather(1, predicted.clamp(min=0)[:, None])[:, 0]
        if self.multi_label:
            targets = targets if targets.dtype == torch.bool else targets > 0.5
            order = logits.nan_to_num().argsort(dim=1, descending=True, stable=True)
            ranks, own = order.argsort(dim=1) + 1, probability[:0]
        else:
            own_logits = logits.gather(1, targets[:, None])
            before = torch.arange(logits.shape[1], device=logits.device) < targets[:, None]
            ranks = ((logits > own_logits) | ((logits == own_logits) & before)).sum(1) + 1
            own = probabilities.gather(1, targets[:, None])[:, 0]
        kept = probabilities if self.keep else probabilities[:, :0]
        columns = (indices, targets, losses, predicted, probability, own, ranks, kept)
        self.batches.append(tuple(column.detach().cpu() for column in columns))

    def result(self) -> ImageResults:
        columns = [torch.cat(column) for column in zip(*self.batches, strict=True)]
        order = columns[0].argsort()
        indices, targets, losses, predicted, probability, own, ranks, kept = (
            column[order] if len(column) else column for column in columns
        )
        probabilities = kept if self.keep else None
        return ImageResults(
            indices, targets, losses.double(), predicted, probability, own, ranks, probabilities, self.calibration
        )
