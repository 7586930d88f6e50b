"""95% confidence intervals of an evaluation: Wilson for shares of images, bootstrap over the images for the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.image_results import ImageResults
from vitreous.evaluation.metrics import ClassScore, Result, wilson_interval
from vitreous.evaluation.real_labels import RealResult

RESAMPLES, MIN_RESAMPLES = 1000, 100
MAX_VALUES = 2 * 10**8  # values that the resamples of one number may touch


@dataclass(frozen=True)
class Interval:
    low: float
    high: float
    method: str  # "Wilson", or "bootstrap, 1,000 resamples of the images"

    def to_json(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "method": f"95% interval, {self.method}"}


def result_intervals(result: Result, images: ImageResults, real: RealResult | None = None) -> dict[str, Interval]:
    """Return the interval of each number of a result that has one.

    The calibration error has none: resampling images with replacement makes it systematically larger.
    """
    shares = [("top1", result.top1, result.images), ("top5", result.top5, result.images)]
    if real is not None:
        shares.append(("real", real.top1, real.images))
    found = {
        name: Interval(*wilson_interval(share, count), "Wilson") for name, share, count in shares if share is not None
    }
    losses = images.losses.numpy()
    if np.isfinite(losses).all():
        _add_bootstrap(found, "loss", losses[:, None], lambda weights: weights @ losses / len(losses))
    if result.balanced is not None:
        _add_bootstrap(found, "balanced", losses[:, None], _balanced_accuracy(images))
    if result.map is not None and images.probabilities is not None and not result.invalid:
        _add_bootstrap(found, "map", images.probabilities.numpy(), _mean_average_precision(images))
    return found


def class_intervals(score: ClassScore) -> dict[str, tuple[float, float] | None]:
    """Return the Wilson intervals of the recall and precision of a class."""
    predictions = round(score.right / score.precision) if score.precision else 0
    return {
        "recall_interval": None if score.recall is None else wilson_interval(score.recall, score.images),
        "precision_interval": wilson_interval(score.precision or 0.0, predictions) if predictions else None,
    }


def _add_bootstrap(found: dict[str, Interval], name: str, values: NDArray[Any], statistic: Any) -> None:
    """Add the percentile interval of a statistic over resamples of the images. `statistic` takes the number of times
    that each image was drawn. `values` (N, K) is the size of its input. No interval if all resamples agree: the images
    then say nothing about the spread."""
    resamples = min(RESAMPLES, MAX_VALUES // values.size)
    if resamples < MIN_RESAMPLES or len(values) < 2:
        return
    random = np.random.default_rng(0)
    drawn = [
        float(statistic(np.bincount(random.integers(len(values), size=len(values)), minlength=len(values))))
        for _ in range(resamples)
    ]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    if math.isfinite(low) and low < high:
        found[name] = Interval(float(low), float(high), f"bootstrap, {resamples:,} resamples of the images")


def _balanced_accuracy(images: ImageResults) -> Any:
    _, labels = np.unique(images.targets.numpy(), return_inverse=True)
    right = (images.predicted == images.targets).numpy()

    def statistic(weights: NDArray[Any]) -> float:
        totals = np.bincount(labels, weights)
        occurring = totals > 0
        return float((np.bincount(labels, weights * right)[occurring] / totals[occurring]).mean())

    return statistic


def _mean_average_precision(images: ImageResults) -> Any:
    """Return the mAP as a function of image weights. Columns are sorted once; ties share the last rank among them, as
    in `metrics.average_precision`."""
    assert images.probabilities is not None
    scores, targets = images.probabilities.double().numpy(), images.targets.numpy()
    order = np.argsort(-scores, axis=0, kind="stable")
    ordered, truth = np.take_along_axis(scores, order, 0), np.take_along_axis(targets, order, 0)
    ends = np.empty_like(order)
    for column in range(scores.shape[1]):
        ends[:, column] = np.searchsorted(-ordered[:, column], -ordered[:, column], side="right") - 1

    def statistic(weights: NDArray[Any]) -> float:
        drawn = weights[order]
        right = drawn * truth
        precision = np.take_along_axis(right.cumsum(0), ends, 0) / np.maximum(
            np.take_along_axis(drawn.cumsum(0), ends, 0), 1
        )
        positives = right.sum(0)
        values = (precision * right).sum(0)[positives > 0] / positives[positives > 0]
        return float(values.mean()) if len(values) else math.nan

    return statistic
