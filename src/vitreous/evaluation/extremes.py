"""The best and the worst answers of an evaluation, to be looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError

ANSWERS = 3


@dataclass(frozen=True)
class Example:
    """One image and what a model said about it."""

    index: int  # in its data
    name: str  # "" as `Extremes` gives it: it knows no names
    truth: tuple[int, ...]
    answers: tuple[tuple[int, float], ...]  # (class, probability), the likeliest first; none if the model said NaN
    loss: float


@dataclass(frozen=True)
class _Rows:
    """Images in the order of `rank`, highest first."""

    rank: Tensor
    indices: Tensor
    logits: Tensor
    targets: Tensor
    losses: Tensor

    def merged(self, other: _Rows, keep: int) -> _Rows:
        rank = torch.cat((self.rank, other.rank))
        order = rank.sort(descending=True, stable=True).indices[:keep]  # stable: of equals, the first that were added
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("indices", "logits", "targets", "losses"))
        return _Rows(rank[order], *(torch.cat(pair)[order] for pair in pairs))


class Extremes:
    """The `keep` most confident right answers and the `keep` largest losses, found on the device as batches go by.

    `sigmoid` says how logits become probabilities; unless it is given, they do so where images have several labels.
    There an answer is right if every label is, and its confidence is that of all of them together.
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
        """As `Scores.add`, and the (B,) numbers of the images."""
        logits = (
            logits.detach().double()
        )  # in float32, most of a good model's probabilities are 1 and cannot be told apart
        targets, losses, indices = (x.detach().to(logits.device) for x in (targets, losses.double(), indices))
        if self.multi_label:
            targets = targets if targets.dtype == torch.bool else targets > 0.5
        confidence = self._confidence(logits, targets)
        worst = losses.nan_to_num(torch.inf, torch.inf)  # NaN is worse than anything
        self.best = self._kept(self.best, _Rows(confidence, indices, logits, targets, losses))
        self.worst = self._kept(self.worst, _Rows(worst, indices, logits, targets, losses))

    def result(self) -> tuple[list[Example], list[Example]]:
        """The best, most confident first, and the worst, largest loss first. Wrong answers are never among the best."""
        best, worst = (self._examples(rows) for rows in (self.best, self.worst))
        return [e for e, rank in best if rank > -torch.inf], [e for e, _ in worst]

    def _confidence(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The log-probability of what is right, for each image; of what is wrong, minus infinity."""
        if self.multi_label:
            right = ((logits > 0) == targets).all(1) & ~logits.isnan().any(1)
            confidence = F.logsigmoid(torch.where(targets, logits, -logits)).sum(1)
        else:
            right = (logits.argmax(1) == targets) & ~logits.isnan().any(1)
            own = targets.long().clamp(0, logits.shape[1] - 1)[:, None]
            confidence = (F.logsigmoid(logits) if self.sigmoid else logits.log_softmax(1)).gather(1, own)[:, 0]
        # Finite, so that a right answer of a broken model is not taken for a wrong one.
        return torch.where(right, confidence.nan_to_num(-1e300, neginf=-1e300), -torch.inf)

    def _kept(self, rows: _Rows | None, new: _Rows) -> _Rows:
        none = _Rows(new.rank[:0], new.indices[:0], new.logits[:0], new.targets[:0], new.losses[:0])
        return (rows or none).merged(new, self.keep)

    def _examples(self, rows: _Rows | None) -> list[tuple[Example, float]]:
        if rows is None:
            return []
        probabilities = rows.logits.sigmoid() if self.sigmoid else rows.logits.softmax(1)
        top = probabilities.sort(dim=1, descending=True, stable=True)
        found = []
        columns = (rows.indices, rows.losses, rows.rank, top.values[:, :ANSWERS], top.indices[:, :ANSWERS])
        lists = zip(*(column.tolist() for column in columns), rows.targets, strict=True)
        for index, loss, rank, values, classes, target in lists:
            truth = tuple(target.nonzero()[:, 0].tolist()) if self.multi_label else (int(target),)
            answers = tuple((c, p) for c, p in zip(classes, values, strict=True) if not math.isnan(p))
            found.append((Example(index, "", truth, answers, loss), rank))
        return found
