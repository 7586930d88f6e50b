"""Rank correlations and permutation tests for measurements of one model, without variation between seeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MAX_EXACT = 7  # values: up to 5,040 orders are all tried
ROUNDING = 1e-12  # statistics that differ by less are equal


@dataclass(frozen=True)
class PermutationTest:
    """A statistic, and how often random orders give one that is as large or as small."""

    statistic: float
    p_above: float  # one-sided p of the hypothesis that there is no association, against a larger statistic
    p_below: float  # against a smaller one

    @property
    def p(self) -> float:
        """Two-sided p."""
        return min(1.0, 2 * min(self.p_above, self.p_below))


def value_ranks(values: Any) -> Array:
    """Return the ranks of an array from 1; equal values have the mean of their ranks."""
    array = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(array.ravel(), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: Array = (last - (counts - 1) / 2)[inverse].reshape(array.shape)
    return ranks


def spearman_test(x: Any, y: Any, draws: int = 9999, seed: int = 0) -> PermutationTest:
    """Spearman's correlation of x and y. The test permutes y: all orders of up to 7 values, else random ones."""
    a, b = _standardised(value_ranks(x)), _standardised(value_ranks(y))
    if len(a) <= MAX_EXACT:
        return _compare(float(a @ b), np.array([list(order) for order in permutations(b)]) @ a, exact=True)
    orders = np.random.default_rng(seed).permuted(np.broadcast_to(b, (draws, len(b))), axis=1)
    return _compare(float(a @ b), orders @ a)


def mantel_test(a: Any, b: Any, draws: int = 999, seed: int = 0) -> PermutationTest:
    """Spearman's correlation of the entries beside the diagonals of two symmetric matrices (N, N), with Mantel's test:
    the objects of `a` are permuted, that is its rows and columns together, since its entries are not independent."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    beside = ~np.eye(len(a), dtype=bool)
    ranks = [np.zeros_like(a), np.zeros_like(b)]
    for standardised, matrix in zip(ranks, (a, b), strict=True):
        standardised[beside] = _standardised(value_ranks(matrix[beside]))
    return weighted_sum_test(ranks[0], ranks[1], draws, seed)


def weighted_sum_test(matrix: Any, weights: Any, draws: int = 999, seed: int = 0) -> PermutationTest:
    """The sum of a symmetric matrix times weights. The test permutes rows and columns of the matrix together."""
    matrix, weights = np.asarray(matrix, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    random = np.random.default_rng(seed)
    orders = (random.permutation(len(matrix)) for _ in range(draws))
    drawn = [float((matrix[order][:, order] * weights).sum()) for order in orders]
    return _compare(float((matrix * weights).sum()), np.array(drawn))


def _standardised(values: Array) -> Array:
    """Return values with mean 0 and norm 1; zeros if all are equal."""
    centred = values - values.mean() if values.size else values
    norm = float(np.sqrt((centred**2).sum()))
    return centred / norm if norm > ROUNDING else np.zeros_like(centred)


def _compare(observed: float, drawn: Array, exact: bool = False) -> PermutationTest:
    """The observed order counts as one of the random ones, so that p is never 0. All orders contain it already."""
    own, tolerance = (0 if exact else 1), ROUNDING * max(1.0, abs(observed))
    above = (own + int((drawn >= observed - tolerance).sum())) / (own + len(drawn))
    below = (own + int((drawn <= observed + tolerance).sum())) / (own + len(drawn))
    return PermutationTest(observed, above, below)
