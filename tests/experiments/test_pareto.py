"""Pareto fronts, the ratio of compute at equal accuracy, and its bootstrap."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.experiments.grid.pareto import (
    Point,
    SeedNoise,
    bootstrap_ratios,
    compute_ratio,
    log_compute_at,
    pareto_front,
)

POINTS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=9)


@settings(max_examples=150, deadline=None)
@given(POINTS)
def test_front_against_brute_force(pairs: list[tuple[int, int]]) -> None:
    def beaten(one: tuple[int, int]) -> bool:
        return any(other[0] <= one[0] and other[1] >= one[1] and other != one for other in pairs)

    front = pareto_front([Point(*pair) for pair in pairs])
    expected = sorted({pair for pair in pairs if not beaten(pair)})
    assert [(point.compute, point.accuracy) for point in front] == expected


def test_front_of_equal_and_dominated_points() -> None:
    points = [Point(1, 50), Point(2, 50), Point(2, 60), Point(2, 55), Point(4, 60), Point(8, 59)]
    assert pareto_front(points) == (Point(1, 50), Point(2, 60))
    assert pareto_front([]) == ()


def test_ratio_of_hand_made_fronts() -> None:
    cheap = (Point(1, 50), Point(10, 70))
    dear = (Point(3, 50), Point(30, 70))
    ratio = compute_ratio(dear, cheap)
    assert ratio is not None
    assert (ratio.low, ratio.high) == (50, 70)
    assert ratio.mean == pytest.approx(3)
    inverse = compute_ratio(cheap, dear)
    assert inverse is not None
    assert inverse.mean == pytest.approx(1 / 3)
    closing = compute_ratio((Point(4, 50), Point(10, 70)), cheap)  # 4 times at 50%, equal at 70%
    assert closing is not None
    assert math.exp(closing.log_low) == pytest.approx(4)
    assert math.exp(closing.log_high) == pytest.approx(1)
    assert closing.mean == pytest.approx(2)


@settings(max_examples=60, deadline=None)
@given(POINTS, POINTS)
def test_ratio_against_numerical_integration(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    fronts = [pareto_front([Point(*pair) for pair in pairs]) for pairs in (a, b)]
    ratio = compute_ratio(*fronts)
    if not all(fronts) or max(f[0].accuracy for f in fronts) > min(f[-1].accuracy for f in fronts):
        assert ratio is None
        return
    assert ratio is not None
    accuracies = np.linspace(ratio.low, ratio.high, 4001)
    logs = [log_compute_at(fronts[0], x) - log_compute_at(fronts[1], x) for x in accuracies]
    assert ratio.log_mean == pytest.approx(float(np.mean(logs)), abs=5e-3)


def test_fronts_without_a_common_accuracy_are_not_comparable() -> None:
    low, high = (Point(1, 10), Point(2, 20)), (Point(1, 30), Point(2, 40))
    assert compute_ratio(low, high) is None
    assert compute_ratio(high, low) is None
    assert compute_ratio((), low) is None
    touching = compute_ratio(low, (Point(8, 20), Point(9, 25)))  # one common accuracy
    assert touching is not None
    assert (touching.low, touching.high, touching.mean) == (20, 20, pytest.approx(2 / 8))
    with pytest.raises(ValueError, match="outside"):
        log_compute_at(low, 20.5)


def test_noise_is_pooled_over_groups() -> None:
    noise = SeedNoise.pooled([[1.0, 3.0], [10.0, 10.0, 13.0], [7.0], []])
    assert noise is not None
    assert noise.degrees == 3
    assert noise.std == pytest.approx(math.sqrt((2 + 6) / 3))
    assert SeedNoise.pooled([[1.0], []]) is None


def line(factor: float, points: int = 5) -> tuple[Point, ...]:
    """A front of 10 points of accuracy per doubling of the compute."""
    return tuple(Point(factor * 2.0**i, 10.0 * i) for i in range(points))


def test_interval_of_the_bootstrap_agrees_with_the_truth() -> None:
    """Of data sets that are drawn with a true ratio of 2, about 95% have an interval that contains it."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        drawn = [
            tuple(Point(p.compute, p.accuracy + random.standard_normal(), p.seeds) for p in line(factor))
            for factor in (2.0, 1.0)
        ]
        noise = SeedNoise.pooled(random.standard_normal((4, 5)).tolist())
        assert noise is not None
        interval = bootstrap_ratios(*drawn, noise, draws=200).interval()
        assert interval is not None
        covered += interval[0] <= math.log(2) <= interval[1]
    assert covered >= 51


def test_p_of_the_bootstrap() -> None:
    certain = bootstrap_ratios(line(4.0), line(1.0), SeedNoise(0.1, 10), draws=400)
    assert certain.p([ratio and ratio.log_mean for ratio in certain.ratios]) == pytest.approx(2 / 401)
    unsure = bootstrap_ratios(line(1.0), line(1.0), SeedNoise(3.0, 4), draws=400)
    assert unsure.p([ratio and ratio.log_mean for ratio in unsure.ratios]) > 0.3
    # Draws that are not comparable count against both signs.
    assert certain.p([1.0] * 90 + [None] * 10) == pytest.approx(2 * 11 / 101)
    apart = bootstrap_ratios(line(1.0), tuple(Point(p.compute, p.accuracy + 90) for p in line(1.0)), SeedNoise(1.0, 4))
    assert set(apart.ratios) == {None}
    assert apart.interval() is None
    assert apart.p([None] * 10) == 1.0
