"""Temperature scaling (Guo et al., 2017): one number that the logits are divided by before the softmax or sigmoid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.evaluation.metrics import BINS
from vitreous.models.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE

CHUNK = 2**22  # logits processed at a time, in float64
STEPS = 100  # at most; about 10 are needed
NOT_BETTER = "the probabilities are not better than uniform ones on these images"
ALL_CORRECT = "every prediction is correct, so the log-loss has no minimum"


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature with the lowest log-loss; 1 if there is none."""

    temperature: float
    problem: str = ""  # why there is none: the log-loss decreases up to a limit of the temperature


def fit_temperature(logits: Tensor, targets: Tensor, sigmoid: bool) -> TemperatureFit:
    """Return the temperature that minimises the log-loss. targets: classes (N,) or True for each label (N, K).

    The log-loss is a convex function of b = 1 / temperature, so its derivative has at most one root. Newton's method
    finds it; a step that leaves the bracket is replaced by a bisection in log b.
    """
    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    if derivatives(logits, targets, sigmoid, low)[0] >= 0:
        return TemperatureFit(1.0, NOT_BETTER)
    if derivatives(logits, targets, sigmoid, high)[0] <= 0:
        return TemperatureFit(1.0, ALL_CORRECT)
    b = 1.0
    for _ in range(STEPS):
        slope, curvature = derivatives(logits, targets, sigmoid, b)
        low, high = (b, high) if slope < 0 else (low, b)
        step = b - slope / curvature if curvature > 0 else 0.0
        new = step if low < step < high else (low * high) ** 0.5
        if abs(new / b - 1) < 1e-12:
            break
        b = new
    return TemperatureFit(1 / b)


def derivatives(logits: Tensor, targets: Tensor, sigmoid: bool, b: float) -> tuple[float, float]:
    """Return the first and second derivative of the mean log-loss of `b * logits` with respect to b."""
    slope = curvature = 0.0
    rows = max(1, CHUNK // logits.shape[1])
    for part, y in zip(logits.split(rows), targets.split(rows), strict=True):
        z = part.double()
        if sigmoid:
            p = (b * z).sigmoid()
            slope += ((p - _one_hot(y, z)) * z).sum().item()
            curvature += (p * (1 - p) * z * z).sum().item()
        else:
            p = (b * z).softmax(1)
            mean = (p * z).sum(1)
            slope += (mean - z.gather(1, y[:, None])[:, 0]).sum().item()
            curvature += ((p * z * z).sum(1) - mean * mean).sum().item()
    return slope / len(logits), curvature / len(logits)


def _one_hot(targets: Tensor, like: Tensor) -> Tensor:
    return (targets if targets.ndim == 2 else F.one_hot(targets, like.shape[1])).to(like.dtype)


@dataclass(frozen=True)
class CalibrationScores:
    """How well probabilities agree with the truth."""

    loss: float  # log-loss
    error: float  # expected calibration error, 15 bins


def calibration_scores(
    logits: Tensor, targets: Tensor, sigmoid: bool, temperatures: Tensor, losses: Callable[[Tensor, Tensor], Tensor]
) -> CalibrationScores:
    """Return log-loss and calibration error. `temperatures`: one for each image.

    The calibration error of single labels uses the probability of the predicted class; for several labels, the
    probabilities of all classes.
    """
    scaled = logits.double() / temperatures[:, None]
    probabilities = scaled.sigmoid() if sigmoid else scaled.softmax(1)
    if targets.ndim == 2:
        confidence, right = probabilities.flatten(), targets.bool().flatten()
    else:
        confidence, right = probabilities.amax(1), logits.argmax(1) == targets
    return CalibrationScores(losses(scaled, targets).mean().item(), calibration_error(confidence, right))


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Return the expected calibration error: the mean gap between confidence and accuracy over 15 equal bins."""
    bins = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, right.double() - confidence.double())
    return gaps.abs().sum().item() / len(confidence)
