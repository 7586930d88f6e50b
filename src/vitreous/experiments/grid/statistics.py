"""Statistical tests over seeds, and verdicts: does a conclusion of the paper hold here?

All tests are paired t-tests: cells with the same seed share the order of the images and the draws of the few-shot
classifier, so their differences vary less than the values themselves. With 3 seeds, a permutation test could not reach
p < 0.05, since it has only 8 outcomes; the t-test assumes that differences are normally distributed over seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

ALPHA = 0.05  # of each verdict, over all its tests
Answer = Literal["yes", "no", "undecided", "none"]


@dataclass(frozen=True)
class SeedSummary:
    """Mean and standard deviation of a number over seeds."""

    mean: float
    std: float | None  # None: there is only one seed
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.std is None else f" ± {self.std:.1f}")


def summarize_seeds(values: Sequence[float]) -> SeedSummary:
    return SeedSummary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Verdict:
    """Whether the paper's conclusion holds here. The text names the test and its result. "none": nothing is tested."""

    answer: Answer
    text: str


# ---------------------------------------------------------------- Student's t


def t_tail(t: float, degrees: int) -> float:
    """Return P(|T| > |t|) for Student's t distribution with an integer number of degrees of freedom.

    For integer degrees the distribution is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    if degrees < 1:
        raise ValueError(f"degrees = {degrees}: expected 1 or more")
    angle = math.atan(abs(t) / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0 if degrees == 1 else term
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))


def t_quantile(tail: float, degrees: int) -> float:
    """Return the t with P(|T| > t) = `tail`, by bisection."""
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > tail:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, degrees) > tail else (low, middle)
    return high


# ---------------------------------------------------------------- paired differences


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two groups of cells, over the seeds that both have."""

    mean: float
    std: float
    seeds: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.std / math.sqrt(self.seeds)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        reach = t_quantile(1 - confidence, self.seeds - 1) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def p(self) -> float:
        """Two-sided p of the hypothesis that the mean difference is 0."""
        return self.p_above(0.0, two_sided=True)

    def p_above(self, bound: float, two_sided: bool = False) -> float:
        """One-sided p of the hypothesis that the mean difference is `bound` or less."""
        if not self.error:
            return 1.0 if self.mean == bound else 0.0 if two_sided or self.mean > bound else 1.0
        t = (self.mean - bound) / self.error
        both = t_tail(t, self.seeds - 1)
        return both if two_sided else both / 2 if t > 0 else 1 - both / 2


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> PairedDifference | None:
    """Return a - b over the seeds of both, without NaN and infinite values.

    None with fewer than two seeds: a test needs their variation.
    """
    differences = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
    differences = [difference for difference in differences if math.isfinite(difference)]
    if len(differences) < 2:
        return None
    return PairedDifference(statistics.fmean(differences), statistics.stdev(differences), len(differences))


# ---------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class Claim:
    """One statement that is tested: the difference of two groups is above 0, or within a margin around 0."""

    text: str  # "1-D learned positions are better than none"
    difference: PairedDifference | None  # None: too few seeds
    margin: float | None = None  # points; None: the difference is above 0. Otherwise: it is within +-margin


def judge(claims: Sequence[Claim], unit: str = "points") -> Verdict:
    """Test all claims together at a level of 5% (Holm's correction). yes: all hold. no: at least one is contradicted.

    A claim of a difference is tested by a two-sided paired t-test, a claim of equality by two one-sided tests against
    the margin. A claim that is neither supported nor contradicted is undecided.
    """
    if not claims:
        return Verdict("undecided", "Nothing can be concluded: the cells to compare have no results.")
    known = [claim for claim in claims if claim.difference is not None]
    if not known:
        return Verdict(
            "undecided",
            "Nothing can be concluded: fewer than two seeds have results, and a test needs the variation between seeds"
            " (--seeds 3).",
        )
    tests = [(*_test_claim(claim), _describe_claim(claim, unit)) for claim in known]
    missing = "; ".join(claim.text for claim in claims if claim.difference is None)
    untested = f"Not tested, since fewer than two seeds have results: {missing}." if missing else ""
    answer, text = judge_tests(tests, untested)
    return Verdict(answer, f"{text} {_describe_test(known, unit)}")


def judge_tests(tests: Sequence[tuple[Answer, float, str]], untested: str = "") -> tuple[Answer, str]:
    """Judge the claims of a verdict together (Holm). A test: what the data points to, its p, and a text with numbers.

    `untested`: a sentence on claims without a test. Returns the answer, and sentences on all claims.
    """
    answers = holm_answers([(answer, p) for answer, p, _ in tests])
    answer: Answer = "undecided"
    if "no" in answers:
        answer = "no"
    elif set(answers) == {"yes"} and not untested:
        answer = "yes"
    sentences = []
    for kind, said in SAID.items():
        group = [text for (_, _, text), given in zip(tests, answers, strict=True) if given == kind]
        if group:
            sentences.append(f"{said}: {'; '.join(group)}.")
    return answer, " ".join([*sentences, *filter(None, [untested])])


def holm_answers(tests: Sequence[tuple[Answer, float]]) -> list[Answer]:
    """Holm's step-down correction: the smallest p is compared with alpha / n, the next with alpha / (n - 1), and so on
    until one is not significant. Answers that are not significant become "undecided"."""
    order = sorted(range(len(tests)), key=lambda i: tests[i][1])
    answers: list[Answer] = ["undecided"] * len(tests)
    for rank, place in enumerate(order):
        answer, p = tests[place]
        if p > ALPHA / (len(tests) - rank):
            break
        answers[place] = answer
    return answers


def _test_claim(claim: Claim) -> tuple[Answer, float]:
    """Return the answer that the data points to, and its p."""
    difference = claim.difference
    assert difference is not None
    if claim.margin is None:
        return ("yes" if difference.mean > 0 else "no"), difference.p
    negated = PairedDifference(-difference.mean, difference.std, difference.seeds)
    inside = max(difference.p_above(-claim.margin), negated.p_above(-claim.margin))
    larger = difference if difference.mean > 0 else negated
    outside = min(1.0, 2 * larger.p_above(claim.margin))
    return ("yes", inside) if inside <= outside else ("no", outside)


SAID: dict[Answer, str] = {"yes": "Supported", "no": "Contradicted", "undecided": "Neither supported nor contradicted"}


def _describe_claim(claim: Claim, unit: str) -> str:
    difference = claim.difference
    assert difference is not None
    low, high = difference.interval()
    return f"{claim.text} ({difference.mean:+.1f} {unit} [{low:+.1f}, {high:+.1f}], p = {_test_claim(claim)[1]:.2g})"


def _describe_test(claims: Sequence[Claim], unit: str) -> str:
    seeds = sorted({claim.difference.seeds for claim in claims if claim.difference is not None})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    margins = sorted({claim.margin for claim in claims if claim.margin is not None})
    one_sided = " and ".join(f"±{margin:g} {unit}" for margin in margins)
    equal = f"; for differences within {one_sided}, two one-sided tests" if margins else ""
    holm = f" with Holm's correction for {len(claims)} claims" if len(claims) > 1 else ""
    uncorrected = ", both uncorrected" if holm else ""
    numbers = f"In parentheses: mean difference, its 95% interval, and p{uncorrected}"
    return f"{numbers}. Tests: two-sided paired t-tests over {count} seeds{equal}. Level: {ALPHA:.0%}{holm}."
