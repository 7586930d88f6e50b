"""Accuracy against compute by family of models: fronts, the ratio of compute at equal accuracy, verdict and figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vitreous.experiments.grid.data_curves import family_style
from vitreous.experiments.grid.paper_results import TABLE_6
from vitreous.experiments.grid.pareto import (
    DRAWS,
    ComputeRatio,
    Front,
    Point,
    RatioDraws,
    SeedNoise,
    bootstrap_ratios,
    compute_ratio,
    pareto_front,
)
from vitreous.experiments.grid.plots import plain_log_ticks
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.scaling import FINETUNING, PRETRAINING, TUNED
from vitreous.experiments.grid.scaling_plans import BIT, FAMILIES, HYBRID, VIT
from vitreous.experiments.grid.statistics import ALPHA, Answer, Verdict, judge_tests
from vitreous.utils.figures import add_legend, label_text, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT = ("L/32",)  # of the paper's models: B/16 is to its right
PAIRS = ((BIT, VIT), (VIT, HYBRID), (BIT, HYBRID))


@dataclass(frozen=True)
class BudgetRun:
    """A model with one training budget, and its accuracies by seed."""

    family: str
    model: str
    epochs: float
    point: Point
    accuracies: Mapping[int, float]
    names: Mapping[int, str]  # of the run directories of fine-tuning, by seed

    @property
    def keys(self) -> tuple[str, ...]:
        """The ends of their names, which differ."""
        return tuple(name.rpartition("-")[2] for name in self.names.values())


@dataclass(frozen=True)
class ComputeFronts:
    """All models and budgets that have a result."""

    runs: tuple[BudgetRun, ...]
    missing: int  # models and budgets without a result
    label: str  # of the accuracy

    @classmethod
    def of(cls, records: CellRecords) -> ComputeFronts:
        pretrained, tuned = records.where(stage=PRETRAINING, share=1.0), records.where(stage=FINETUNING, share=1.0)
        data = next((str(group["data"]) for group in tuned.groups("data")), "")
        groups = sorted(tuned.groups("family", "model", "epochs"), key=lambda one: _place(str(one["family"])))
        runs = []
        for group in groups:
            compute = pretrained.first("exaFLOPs", **group)
            accuracies = tuned.by_seed(TUNED, **group)
            if compute is None or not accuracies:
                continue
            point = Point(float(compute), statistics.fmean(accuracies.values()), len(accuracies))
            names = {cell.seed: cell.run for cell in tuned.where(**group) if cell.seed in accuracies}
            runs.append(
                BudgetRun(str(group["family"]), str(group["model"]), float(group["epochs"]), point, accuracies, names)
            )
        runs.sort(key=lambda run: (_place(run.family), run.point.compute))
        name = "unseen classes" if data == "unseen" else data
        return cls(tuple(runs), len(groups) - len(runs), f"accuracy on {name} after fine-tuning (%)")

    @cached_property
    def points(self) -> dict[str, Front]:
        """All points of every family, by increasing compute."""
        return {
            family: tuple(sorted((run.point for run in self.runs if run.family == family), key=lambda one: one.compute))
            for family in FAMILIES
        }

    @cached_property
    def fronts(self) -> dict[str, Front]:
        return {family: pareto_front(points) for family, points in self.points.items()}

    @cached_property
    def noise(self) -> SeedNoise | None:
        return SeedNoise.pooled([list(run.accuracies.values()) for run in self.runs])

    def ratio(self, first: str, second: str) -> ComputeRatio | None:
        return compute_ratio(self.fronts[first], self.fronts[second])

    def draws(self, first: str, second: str) -> RatioDraws | None:
        """Return the bootstrap of a ratio; None: the seeds do not tell how much accuracies vary."""
        if self.noise is None:
            return None
        return bootstrap_ratios(self.points[first], self.points[second], self.noise)


def _place(family: str) -> int:
    return FAMILIES.index(family) if family in FAMILIES else len(FAMILIES)


# ---------------------------------------------------------------- ratios and verdict


def ratio_notes(fronts: ComputeFronts) -> list[str]:
    """Return sentences on the ratios of compute, and on how they were computed."""
    notes = [
        f"Compute at equal accuracy, {one} divided by {other}: {_ratio_text(fronts, one, other)}."
        for one, other in PAIRS
    ]
    method = (
        "The ratio is the geometric mean over the accuracies that both Pareto fronts reach; between two points of a"
        " front, the logarithm of the compute is linear in the accuracy, and nothing is extrapolated."
    )
    if fronts.noise is not None:
        method += (
            f" 95% intervals: parametric bootstrap with {DRAWS:,} draws of all accuracies, with the standard deviation"
            f" over seeds, {fronts.noise.std:.2f} points (pooled, {fronts.noise.degrees} degrees of freedom)."
        )
    notes.append(method)
    notes.append("Pre-training exaFLOPs: 3 x forward x images seen, without the search of the learning rate.")
    return notes


def _ratio_text(fronts: ComputeFronts, first: str, second: str) -> str:
    ratio = fronts.ratio(first, second)
    if ratio is None:
        ranges = [f"{family} {_accuracy_range(fronts.fronts[family])}" for family in (first, second)]
        return f"not comparable, since the fronts have no common accuracy ({', '.join(ranges)})"
    text = f"{ratio.mean:.2f}{_interval_text(fronts.draws(first, second), 'log_mean')}"
    if ratio.low == ratio.high:
        return f"{text}, at an accuracy of {ratio.low:.1f}%, the only one that both fronts reach"
    return f"{text}, at accuracies of {ratio.low:.1f}% to {ratio.high:.1f}%"


def _interval_text(draws: RatioDraws | None, name: str) -> str:
    """Return the 95% interval of a ratio as text."""
    if draws is None:
        return ""
    interval = draws.interval(name)
    if interval is None:
        return " [no interval: more than 5% of the draws are not comparable]"
    return f" [{math.exp(interval[0]):.2f}, {math.exp(interval[1]):.2f}]"


def _accuracy_range(front: Front) -> str:
    return f"{front[0].accuracy:.1f}% to {front[-1].accuracy:.1f}%" if front else "without results"


def compare_fronts(fronts: ComputeFronts) -> Verdict:
    """Judge whether ViTs need less compute than BiTs, and hybrids less than ViTs at low accuracy but not at high."""
    tests: list[tuple[Answer, float, str]] = []
    untested = []
    for text, pair, name in (
        ("ViTs need less compute than ResNets at equal accuracy", (BIT, VIT), "log_mean"),
        ("hybrids need less compute than ViTs at the lowest common accuracy", (VIT, HYBRID), "log_low"),
        ("this advantage is smaller at the highest common accuracy", (VIT, HYBRID), "fade"),
    ):
        ratio, draws = fronts.ratio(*pair), fronts.draws(*pair)
        if ratio is None:
            untested.append(f"{text} (not comparable: the fronts have no common accuracy)")
        elif draws is None:
            untested.append(f"{text} (no model has results with two seeds, and a test needs their variation)")
        else:
            tests.append(_tested(text, name, ratio, draws))
    sentence = f"Not tested: {'; '.join(untested)}." if untested else ""
    answer, described = judge_tests(tests, sentence)
    if not tests:
        return Verdict("undecided", f"Nothing can be concluded. {sentence}")
    holm = f" with Holm's correction for {len(tests)} claims" if len(tests) > 1 else ""
    how = (
        f"In parentheses: ratio of compute, its 95% interval and p, uncorrected; by a parametric bootstrap"
        f" with the variation over seeds. Level: {ALPHA:.0%}{holm}."
    )
    lost = f" {fronts.missing} models and budgets have no result." if fronts.missing else ""
    return Verdict(answer, f"{described} {how}{lost}")


def _tested(text: str, name: str, ratio: ComputeRatio, draws: RatioDraws) -> tuple[Answer, float, str]:
    """Return what the data points to, its p, and the claim with its numbers."""
    value = _statistic(ratio, name)
    p = draws.p([None if one is None else _statistic(one, name) for one in draws.ratios])
    if name == "fade":
        numbers = (
            f"{math.exp(ratio.log_low):.2f} at {ratio.low:.1f}%, {math.exp(ratio.log_high):.2f} at {ratio.high:.1f}%"
        )
    else:
        numbers = f"{math.exp(value):.2f}{_interval_text(draws, name)}"
    answer: Answer = "yes" if value > 0 else "no"
    return answer, p, f"{text} ({numbers}, p = {p:.2g})"


def _statistic(ratio: ComputeRatio, name: str) -> float:
    if name == "fade":
        return ratio.log_low - ratio.log_high
    return float(getattr(ratio, name))


# ---------------------------------------------------------------- figure


def draw_fronts(fronts: ComputeFronts) -> Figure:
    """Draw all models and budgets with the front of each family, and the paper's numbers beside them.

    In the SVG file, the id of a point is the name of its run.
    """
    figure = new_figure(10.5, 4.6)
    left, right = figure.subplots(1, 2)
    handles: dict[str, Any] = {}
    for family in FAMILIES:
        style = family_style(family)
        for run in (run for run in fronts.runs if run.family == family):
            for seed, accuracy in run.accuracies.items():
                dot = {**style, "linestyle": "none", "markersize": 5, "alpha": 0.6}
                left.plot(run.point.compute, accuracy, gid=run.names[seed], **dot)
        _name_models(left, [run for run in fronts.runs if run.family == family])
        if front := fronts.fronts[family]:
            handles[family] = _draw_front(left, front, style)
    points = {
        family: [Point(one.exaflops, one.accuracy) for one in TABLE_6 if one.family == family] for family in FAMILIES
    }
    for family, each in points.items():
        style = family_style(family)
        right.plot(
            [one.compute for one in each], [one.accuracy for one in each], linestyle="none", markersize=5, **style
        )
        line = _draw_front(right, pareto_front(each), style)
        handles.setdefault(family, line)
    for one in TABLE_6:
        _annotate(right, one.family, one.model, one.exaflops, one.accuracy, one.family == HYBRID or one.model in LEFT)
    for axis, label in ((left, fronts.label), (right, "paper (Table 6): ImageNet after fine-tuning (%)")):
        axis.set_xscale("log")
        axis.margins(0.2, 0.08)
        plain_log_ticks(axis.xaxis)
        axis.set(xlabel="pre-training exaFLOPs", ylabel=label)
        axis.tick_params(axis="x", labelsize=8)
        axis.grid(alpha=0.3)
    add_legend(
        figure,
        list(handles.values()),
        [f"{name}: Pareto front" for name in handles],
        loc="outside upper center",
        ncols=len(handles),
        frameon=False,
    )
    return figure


def _draw_front(axis: Any, front: Sequence[Point], style: Mapping[str, Any]) -> Any:
    (line,) = axis.plot(
        [one.compute for one in front], [one.accuracy for one in front], linewidth=1.5, markersize=7, **style
    )
    return line


def _name_models(axis: Any, runs: Sequence[BudgetRun]) -> None:
    """Write the name of each model beside its largest budget."""
    for model in dict.fromkeys(run.model for run in runs):
        last = max((run for run in runs if run.model == model), key=lambda run: run.point.compute)
        _annotate(axis, last.family, model, last.point.compute, last.point.accuracy, last.family == VIT)


def _annotate(axis: Any, family: str, text: str, x: float, y: float, left: bool) -> None:
    """Write a name to the upper left of a point, or to the lower right."""
    place, side = ((-6, 4), "right") if left else ((6, -9), "left")
    colour = family_style(family)["color"]
    named = {"textcoords": "offset points", "fontsize": 6.5, "color": colour, "ha": side}
    axis.annotate(label_text(text, 30), (x, y), place, **named)
