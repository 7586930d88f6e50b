"""The best and worst predictions of an evaluation, for display."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError

ANSWERS = 3  # classes per example


@dataclass(frozen=True)
class Example:
    """An image with the predictions of a model for it."""

    index: int  # in its data
    name: str  # "" in the result of `Extremes`, which has no names
    truth: tuple[int, ...]
    answers: tuple[tuple[int, float], ...]  # (class, probability), the most probable first; empty for NaN logits
    loss: float


@dataclass(frozen=True)
class _Rows:
    """Images ordered by `rank`, highest first."""

    rank: Tensor
    indices: Tensor
    logits: Tensor
    targets: Tensor
    losses: Tensor

    def merged(self, other: _Rows, keep: int) -> _Rows:
        rank = torch.cat((self.rank, other.rank))
        order = rank.sort(descending=True, stable=True).indices[:keep]  # stable: ties keep the order of the images
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("indices", "logits", "targets", "losses"))
        return _Rows(rank[order], *(torch.cat(pair)[order] for pair in pairs))


class Extremes:
    """The `keep` most confident correct predictions and the `keep` largest losses, collected batch by batch.

    `sigmoid`: probabilities are sigmoids instead of a softmax; default: for multi-label data only. A multi-label
    prediction is correct if all labels are; its confidence is the product of their probabilities.
    """

    def __init__(self, keep: int, multi_label: bool = False, sigmoid: bool | None = None) -> None:
        if keep < 0:
            raise VitreousError(f"keep = {keep}: the number of examples cannot be negative")
        self.keep, self.multi_label = keep, multi_label
        self.sigmoid = multi_label if sigmoid is None else sigmoid
        self.best: _Rows | None = None
        self.worst: _Rows | None = None

    @torch.no_grad()
    def add(self, logits: Tensor, targets: Tensor, losses: Tensor, indices: Tensor) -> None:
        """Add a batch as in `Scores.add`, with the indices (B,) of the images."""
        logits = logits.detach().double()  # in float32, many probabilities of a good model round to 1
        targets, losses, indices = (x.detach().to(logits.device) for x in (targets, losses.double(), indices))
        if self.multi_label:
            targets = targets if targets.dtype == torch.bool else targets > 0.5
        confidence = self._confidence(logits, targets)
        worst = losses.nan_to_num(torch.inf, torch.inf)  # NaN ranks as the largest loss
        self.best = self._merge(self.best, _Rows(confidence, indices, logits, targets, losses))
        self.worst = self._merge(self.worst, _Rows(worst, indices, logits, targets, losses))

    def result(self) -> tuple[list[Example], list[Example]]:
        """Return the best, most confident first, and the worst, largest loss first. The best are all correct."""
        best, worst = (self._examples(rows) for rows in (self.best, self.worst))
        return [e for e, rank in best if rank > -torch.inf], [e for e, _ in worst]

    def _confidence(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each image's target; minus infinity for wrong predictions."""
        if self.multi_label:
            right = ((logits > 0) == targets).all(1) & ~logits.isnan().any(1)
            confidence = F.logsigmoid(torch.where(targets, logits, -logits)).sum(1)
        else:
            right = (logits.argmax(1) == targets) & ~logits.isnan().any(1)
            own = targets.long().clamp(0, logits.shape[1] - 1)[:, None]
            confidence = (F.logsigmoid(logits) if self.sigmoid else logits.log_softmax(1)).gather(1, own)[:, 0]
        # Finite, to distinguish a correct prediction with extreme logits from a wrong one.
        return torch.where(right, confidence.nan_to_num(-1e300, neginf=-1e300), -torch.inf)

    def _merge(self, rows: _Rows | None, new: _Rows) -> _Rows:
        none = _Rows(new.rank[:0], new.indices[:0], new.logits[:0], new.targets[:0], new.losses[:0])
        return (rows or none).merged(new, self.keep)

    def _examples(self, rows: _Rows | None) -> list[tuple[Example, float]]:
        if rows is None:
            return []
        probabilities = rows.logits.sigmoid() if self.sigmoid else rows.logits.softmax(1)
        top = probabilities.sort(dim=1, descending=True, stable=True)
        examples = []
        columns = (rows.indices, rows.losses, rows.rank, top.values[:, :ANSWERS], top.indices[:, :ANSWERS])
        lists = zip(*(column.tolist() for column in columns), rows.targets, strict=True)
        for index, loss, rank, values, classes, target in lists:
            truth = tuple(target.nonzero()[:, 0].tolist()) if self.multi_label else (int(target),)
            answers = tuple((c, p) for c, p in zip(classes, values, strict=True) if not math.isnan(p))
            examples.append((Example(index, "", truth, answers, loss), rank))
        return examples
