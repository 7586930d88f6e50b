"""Pareto fronts of accuracy against compute, and the ratio of the compute that two fronts need for equal accuracy.

Nothing is extrapolated: a front is defined between the accuracies of its first and its last point only, and two fronts
without a common accuracy are not comparable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

DRAWS = 2000  # of the bootstrap
SEED = 0


@dataclass(frozen=True)
class Point:
    """A model with a training budget: its compute, and its accuracy as the mean over seeds."""

    compute: float
    accuracy: float
    seeds: int = 1


Front = tuple[Point, ...]


def pareto_front(points: Sequence[Point]) -> Front:
    """Return the points that no other one exceeds in accuracy with the same compute or less, by increasing compute."""
    front: list[Point] = []
    for point in sorted(points, key=lambda one: (one.compute, -one.accuracy)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return tuple(front)


def log_compute_at(front: Front, accuracy: float) -> float:
    """Return the logarithm of the compute that a front needs for an accuracy, which must be within the front. Between
    two points, it is linear in the accuracy."""
    accuracies = [point.accuracy for point in front]
    if not front or not accuracies[0] <= accuracy <= accuracies[-1]:
        raise ValueError(f"accuracy {accuracy} is outside of the front")
    return float(np.interp(accuracy, accuracies, [math.log(point.compute) for point in front]))


@dataclass(frozen=True)
class ComputeRatio:
    """How many times the compute of the second front the first one needs, at equal accuracy."""

    low: float  # lowest and highest accuracy that both fronts reach
    high: float
    log_mean: float  # logarithm of the ratio, its mean over these accuracies
    log_low: float  # at the lowest of them
    log_high: float

    @property
    def mean(self) -> float:
        """The geometric mean of the ratio over the common accuracies."""
        return math.exp(self.log_mean)


def compute_ratio(first: Front, second: Front) -> ComputeRatio | None:
    """Return the compute of the first front divided by that of the second at equal accuracy; None: they have no common
    accuracy, so they are not comparable."""
    if not first or not second:
        return None
    low = max(front[0].accuracy for front in (first, second))
    high = min(front[-1].accuracy for front in (first, second))
    if low > high:
        return None
    inner = {point.accuracy for point in (*first, *second) if low < point.accuracy < high}
    accuracies = [low, *sorted(inner), high]  # the logarithm is linear between these
    logs = [log_compute_at(first, a) - log_compute_at(second, a) for a in accuracies]
    mean = float(np.trapezoid(logs, accuracies)) / (high - low) if high > low else logs[0]
    return ComputeRatio(low, high, mean, logs[0], logs[-1])


# ---------------------------------------------------------------- uncertainty


@dataclass(frozen=True)
class SeedNoise:
    """The standard deviation of an accuracy over seeds, pooled over groups of cells with several seeds."""

    std: float
    degrees: int  # of freedom

    @classmethod
    def pooled(cls, groups: Sequence[Sequence[float]]) -> SeedNoise | None:
        """Return None if no group has two seeds."""
        several = [group for group in groups if len(group) > 1]
        degrees = sum(len(group) - 1 for group in several)
        if not degrees:
            return None
        squares = sum((len(group) - 1) * float(np.var(group, ddof=1)) for group in several)
        return cls(math.sqrt(squares / degrees), degrees)


@dataclass(frozen=True)
class RatioDraws:
    """Ratios of the bootstrap. A draw whose fronts have no common accuracy is not comparable."""

    ratios: tuple[ComputeRatio | None, ...]

    def interval(self, name: str = "log_mean") -> tuple[float, float] | None:
        """Return the 95% interval of a logarithm over comparable draws; None: more than 5% are not comparable."""
        values = [getattr(ratio, name) for ratio in self.ratios if ratio is not None]
        if len(values) < 0.95 * len(self.ratios):
            return None
        low, high = np.quantile(values, (0.025, 0.975))
        return float(low), float(high)

    def p(self, signs: Sequence[float | None]) -> float:
        """Return the two-sided p of a statistic with these values in the draws; None: not comparable, which counts
        against both signs."""
        above = sum(1 for sign in signs if sign is None or sign >= 0)
        below = sum(1 for sign in signs if sign is None or sign <= 0)
        return min(1.0, 2 * (1 + min(above, below)) / (1 + len(signs)))


@lru_cache(maxsize=16)
def bootstrap_ratios(first: Front, second: Front, noise: SeedNoise, draws: int = DRAWS) -> RatioDraws:
    """Draw the accuracies of all points again, find their fronts and compare them.

    Each accuracy gets normal noise with the standard deviation over seeds, divided by the root of its number of seeds.
    The standard deviation itself is drawn from its distribution (scaled inverse chi-squared), since it is an estimate.
    `first`, `second`: all points, also those that are not on the front.
    """
    random = np.random.default_rng(SEED)
    found = []
    for _ in range(draws):
        std = noise.std * math.sqrt(noise.degrees / random.chisquare(noise.degrees))
        drawn = [
            pareto_front([_with_noise(point, std * random.standard_normal()) for point in points])
            for points in (first, second)
        ]
        found.append(compute_ratio(*drawn))
    return RatioDraws(tuple(found))


def _with_noise(point: Point, noise: float) -> Point:
    return Point(point.compute, point.accuracy + noise / math.sqrt(point.seeds), point.seeds)
