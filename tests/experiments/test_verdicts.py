"""Student's t, paired differences, Holm's correction and verdicts against scipy, and what experiments select."""

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import scipy.stats

from vitreous.experiments.grid.experiment import CellRecord
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.statistics import (
    ALPHA,
    Claim,
    PairedDifference,
    judge,
    paired_difference,
    summarize_seeds,
    t_quantile,
    t_tail,
)
from vitreous.experiments.shape import BASE, slope_by_seed

DEGREES = (1, 2, 3, 4, 5, 7, 10, 29, 30, 99, 400)


@pytest.mark.parametrize("degrees", DEGREES)
def test_tail_of_t(degrees: int) -> None:
    for t in (0.0, 1e-9, 0.01, 0.3, 1.0, 2.0, 4.303, 12.7, 100.0, 1e6):
        expected = 2 * scipy.stats.t.sf(t, degrees)
        assert t_tail(t, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-14)
        assert t_tail(-t, degrees) == t_tail(t, degrees)
    assert t_tail(math.inf, degrees) == pytest.approx(0, abs=1e-14)


def test_t_needs_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="degrees = 0"):
        t_tail(1.0, 0)


@pytest.mark.parametrize("degrees", DEGREES)
def test_quantile_of_t(degrees: int) -> None:
    for tail in (1e-6, 0.001, 0.01, 0.05, 0.1, 0.5, 0.9, 1.0):
        assert t_quantile(tail, degrees) == pytest.approx(scipy.stats.t.isf(tail / 2, degrees), rel=1e-8, abs=1e-12)


def drawn(seeds: int, shift: float, spread: float, seed: int = 0) -> tuple[dict[int, float], dict[int, float]]:
    random = np.random.default_rng(seed)
    base = random.normal(50, 10, seeds)
    other = base + random.normal(shift, spread, seeds)
    return dict(enumerate(other.tolist())), dict(enumerate(base.tolist()))


@pytest.mark.parametrize(("seeds", "shift"), [(2, 1.0), (3, 0.0), (3, 4.0), (5, -2.0), (12, 0.5)])
def test_paired_difference_is_a_paired_t_test(seeds: int, shift: float) -> None:
    a, b = drawn(seeds, shift, 2.0)
    found = paired_difference(a, b)
    assert found is not None
    expected = scipy.stats.ttest_rel(list(a.values()), list(b.values()))
    assert found.seeds == seeds
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    for confidence in (0.5, 0.95, 0.99):
        interval = expected.confidence_interval(confidence)
        assert found.interval(confidence) == pytest.approx((interval.low, interval.high), rel=1e-7)
    for bound in (-3.0, 0.0, 0.7, 3.0):
        one_sided = scipy.stats.ttest_1samp(
            np.subtract(list(a.values()), list(b.values())), bound, alternative="greater"
        )
        assert found.p_above(bound) == pytest.approx(one_sided.pvalue, rel=1e-9)


def test_only_seeds_of_both_groups_are_compared() -> None:
    found = paired_difference({0: 5.0, 1: 7.0, 3: 100.0}, {1: 4.0, 0: 3.0, 2: -100.0})
    assert found == PairedDifference(2.5, pytest.approx(math.sqrt(0.5)), 2)
    assert paired_difference({0: 1.0, 1: 2.0}, {0: 1.0}) is None
    assert paired_difference({}, {}) is None


def test_values_that_are_no_numbers_count_as_missing() -> None:
    nan, infinite = math.nan, math.inf
    assert paired_difference({0: nan, 1: 2.0}, {0: 1.0, 1: 1.0}) is None
    found = paired_difference({0: infinite, 1: 2.0, 2: 3.0}, {0: infinite, 1: 1.0, 2: 1.0})
    assert found is not None
    assert (found.mean, found.seeds) == (1.5, 2)


def test_summary_over_seeds() -> None:
    assert str(summarize_seeds([1.0])) == "1.0"
    summary = summarize_seeds([1.0, 2.0, 4.0])
    assert (summary.mean, summary.std, summary.seeds) == (
        pytest.approx(7 / 3),
        pytest.approx(np.std([1, 2, 4], ddof=1)),
        3,
    )
    assert str(summary) == "2.3 ± 1.5"


# ---------------------------------------------------------------- verdicts


def difference(mean: float, std: float, seeds: int = 3) -> PairedDifference:
    return PairedDifference(mean, std, seeds)


def numbers_in(text: str) -> list[float]:
    """The mean, both ends of the interval and p of the first claim in a sentence."""
    found = re.search(r"\(([-+.\d]+) \w[\w ]* \[([-+.\d]+), ([-+.\d]+)\], p = ([-.\de]+)\)", text)
    assert found is not None, text
    return [float(number) for number in found.groups()]


@pytest.mark.parametrize(
    ("mean", "std", "answer"), [(5.0, 0.5, "yes"), (-5.0, 0.5, "no"), (1.0, 2.0, "undecided"), (0.0, 1.0, "undecided")]
)
def test_claim_of_a_difference(mean: float, std: float, answer: str) -> None:
    verdict = judge([Claim("a is better than b", difference(mean, std))])
    assert verdict.answer == answer
    said = {"yes": "Supported", "no": "Contradicted", "undecided": "Neither supported nor contradicted"}[answer]
    assert verdict.text.startswith(f"{said}: a is better than b ({mean:+.1f} points [")
    expected = scipy.stats.ttest_1samp(sample(mean, std), 0)
    interval = expected.confidence_interval(0.95)
    assert numbers_in(verdict.text)[:3] == pytest.approx([mean, interval.low, interval.high], abs=0.051)
    assert numbers_in(verdict.text)[3] == pytest.approx(expected.pvalue, rel=0.06)
    assert "two-sided paired t-tests over 3 seeds. Level: 5%." in verdict.text
    assert "Holm" not in verdict.text


def sample(mean: float, std: float) -> list[float]:
    """Three numbers with this mean and standard deviation."""
    return [mean - std, mean, mean + std]


@pytest.mark.parametrize(
    ("mean", "std", "answer"),
    [
        (0.1, 0.2, "yes"),
        (-0.1, 0.2, "yes"),
        (0.9, 0.5, "undecided"),
        (0.0, 5.0, "undecided"),
        (8.0, 0.5, "no"),
        (-8.0, 0.5, "no"),
    ],
)
def test_claim_of_equality_is_two_one_sided_tests(mean: float, std: float, answer: str) -> None:
    verdict = judge([Claim("a equals b", difference(mean, std), margin=1.0)])
    assert verdict.answer == answer
    values = sample(mean, std)
    within = max(
        scipy.stats.ttest_1samp(values, -1.0, alternative="greater").pvalue,
        scipy.stats.ttest_1samp(values, 1.0, alternative="less").pvalue,
    )
    beyond = 2 * min(
        scipy.stats.ttest_1samp(values, 1.0, alternative="greater").pvalue,
        scipy.stats.ttest_1samp(values, -1.0, alternative="less").pvalue,
    )
    expected = "yes" if within < ALPHA else "no" if beyond < ALPHA else "undecided"
    assert expected == answer
    assert numbers_in(verdict.text)[3] == pytest.approx(min(within, beyond, 1.0), rel=0.06)
    assert "for differences within ±1 points, two one-sided tests" in verdict.text


def brute_force_holm(ps: list[float]) -> list[bool]:
    """Holm by the closure principle: a hypothesis is rejected if every subset that contains it is, by Bonferroni."""
    places = range(len(ps))
    subsets = [s for size in places for s in itertools.combinations(places, size + 1)]
    return [all(min(ps[j] for j in s) <= ALPHA / len(s) for s in subsets if i in s) for i in places]


def test_holm_against_brute_force_in_any_order() -> None:
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        stds = 10 ** random.uniform(-2.2, 0.5, int(random.integers(2, 6)))
        claims = [
            Claim(f"claim {i}", difference(random.choice([-1.0, 1.0, 1.0, 1.0]), std)) for i, std in enumerate(stds)
        ]
        ps = [
            scipy.stats.ttest_1samp(sample(claim.difference.mean, claim.difference.std), 0).pvalue for claim in claims
        ]
        rejected = brute_force_holm(ps)
        signs = [claim.difference.mean > 0 for claim in claims]
        contradicted = any(one and not up for one, up in zip(rejected, signs, strict=True))
        expected = "no" if contradicted else "yes" if all(rejected) else "undecided"
        for order in itertools.islice(itertools.permutations(range(len(claims))), 0, None, 5):
            verdict = judge([claims[i] for i in order])
            assert verdict.answer == expected
            for i in order:
                kind = (
                    "Neither supported nor contradicted"
                    if not rejected[i]
                    else "Supported"
                    if signs[i]
                    else "Contradicted"
                )
                assert re.search(rf"{kind}: [^.]*claim {i} \(", re.sub(r"\d\.\d", "0", verdict.text)), verdict.text
        seen.add(expected)
    assert seen == {"yes", "no", "undecided"}


def test_correction_is_named() -> None:
    claims = [Claim(name, difference(5.0, 0.1)) for name in "ab"]
    assert "with Holm's correction for 2 claims" in judge(claims).text
    mixed = [claims[0], Claim("c", difference(5.0, 0.1, seeds=2))]
    assert "over 2 to 3 seeds" in judge(mixed).text


def test_one_seed_and_missing_results_conclude_nothing() -> None:
    assert judge([]).answer == "undecided"
    verdict = judge([Claim("a", None), Claim("b", None)])
    assert verdict.answer == "undecided"
    assert "Nothing can be concluded: fewer than two seeds have results" in verdict.text
    assert "--seeds 3" in verdict.text


def test_a_claim_that_was_not_tested_leaves_the_verdict_open() -> None:
    strong = Claim("a is better", difference(5.0, 0.1))
    verdict = judge([strong, Claim("b is better", None)])
    assert verdict.answer == "undecided"
    assert "Not tested, since fewer than two seeds have results: b is better." in verdict.text
    assert judge([Claim("a is worse", difference(-5.0, 0.1)), Claim("b", None)]).answer == "no"


def test_zero_variance() -> None:
    assert judge([Claim("better", difference(1.0, 0.0))]).answer == "yes"
    assert judge([Claim("better", difference(-1.0, 0.0))]).answer == "no"
    assert judge([Claim("better", difference(0.0, 0.0))]).answer == "undecided"
    assert judge([Claim("equal", difference(0.0, 0.0), 1.0)]).answer == "yes"
    assert judge([Claim("equal", difference(3.0, 0.0), 1.0)]).answer == "no"
    assert judge([Claim("equal", difference(1.0, 0.0), 1.0)]).answer == "undecided"
    assert "(+1.0 points [+1.0, +1.0], p = 0)" in judge([Claim("better", difference(1.0, 0.0))]).text


def test_unit_is_in_the_sentence() -> None:
    text = judge([Claim("a", difference(0.1, 0.1), 0.5)], "points per doubling").text
    assert "+0.1 points per doubling [" in text
    assert "±0.5 points per doubling" in text


# ---------------------------------------------------------------- records


def record(factors: Mapping[str, Any], seed: int, error: str = "", **values: float) -> CellRecord:
    return CellRecord(factors, seed, values, error)


GRID = CellRecords(
    "tiny",
    (
        record({"pool": "gap", "lr": 0.1}, 0, val=10.0, shot=1.0),
        record({"pool": "gap", "lr": 0.1}, 1, val=20.0, shot=2.0),
        record({"pool": "gap", "lr": 0.3}, 0, val=99.0, shot=3.0),
        record({"pool": "gap", "lr": 0.3}, 1, error="diverged"),
        record({"pool": "token", "lr": 0.1}, 0, val=30.0, shot=5.0),
        record({"pool": "token", "lr": 0.1}, 1, val=31.0, shot=6.0),
        record({"pool": "token", "lr": 0.3}, 0, val=29.0, shot=7.0),
        record({"pool": "token", "lr": 0.3}, 1, val=33.0, shot=8.0),
        record({"pool": "none"}, 0, error="no pooling"),
    ),
)


def test_records_by_factors() -> None:
    assert [cell.seed for cell in GRID.where(pool="gap", lr=0.1)] == [0, 1]
    assert len(GRID.where(pool="max")) == len(GRID.where(size=3)) == 0
    assert GRID.groups("pool") == [{"pool": "gap"}, {"pool": "token"}, {"pool": "none"}]
    assert {"pool": "none"} not in GRID.groups("pool", "lr")
    assert GRID.by_seed("val", pool="gap", lr=0.1) == {0: 10.0, 1: 20.0}
    assert GRID.by_seed("val", pool="gap", lr=0.3) == {0: 99.0}
    assert str(GRID.summary("val", pool="gap", lr=0.1)) == "15.0 ± 7.1"
    assert str(GRID.summary("val", pool="gap", lr=0.3)) == "99.0"
    assert GRID.summary("val", pool="none") is None
    assert GRID.first("val", pool="token") == 30.0
    assert GRID.first("val", pool="none") is None
    assert GRID.has("shot")
    assert not GRID.has("top5")
    assert [cell.error for cell in GRID.failed] == ["diverged", "no pooling"]
    assert GRID.seeds == 2
    assert GRID.measured_names == ["val", "shot"]


def test_best_level_has_results_of_all_seeds() -> None:
    assert GRID.best_by("val", "lr", pool="gap") == 0.1  # 0.3 has failed with one seed
    assert GRID.best_by("val", "lr", pool="token") == 0.3  # although 0.1 has the better first seed
    assert GRID.best_by("val", "lr", pool="none") is None
    assert GRID.best_by("top5", "lr") is None


def test_curve_has_all_seeds() -> None:
    assert GRID.curve("val", "lr", pool="gap") == {0.1: [10.0, 20.0], 0.3: [99.0]}
    assert GRID.curve("val", "lr", pool="none") == {}


def test_slopes_of_the_shape_experiment_against_polyfit() -> None:
    random = np.random.default_rng(0)
    costs = {"base": 0.5, "depth": (0.25, 1.1, 2.0), "width": (0.7,)}
    cells = []
    for seed in range(3):
        for name, each in costs.items():
            for cost in np.atleast_1d(each).tolist():
                factors = {"dimension": name, "change": "", "GFLOPs": cost}
                cells.append(CellRecord(factors, seed, {"5-shot": float(random.normal(50, 9))}))
    records = CellRecords("tiny", tuple(cells))
    for dimension in ("depth", "width"):
        slopes = slope_by_seed(records, dimension)
        for seed in range(3):
            chosen = [c for c in cells if c.seed == seed and c.factors["dimension"] in (dimension, BASE)]
            x, y = np.log2([c.factors["GFLOPs"] for c in chosen]), [c.values["5-shot"] for c in chosen]
            assert slopes[seed] == pytest.approx(np.polyfit(x, y, 1)[0])
    failed = [
        CellRecord(c.factors, c.seed, {}, "failed") if c.seed == 1 and c.factors["dimension"] == "width" else c
        for c in cells
    ]
    assert set(slope_by_seed(CellRecords("tiny", tuple(failed)), "width")) == {0, 2}
    assert slope_by_seed(CellRecords("tiny", ()), "width") == {}
