"""Accuracy against the number of pre-training images: table, figure, and who leads at which size."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from vitreous.experiments.compare_figure import COLOURS, MARKERS
from vitreous.experiments.grid.paper_results import PRETRAINING_IMAGES
from vitreous.experiments.grid.plots import MAX_TICKS, plain_log_ticks
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.scaling import (
    accuracies,
    images_by_share,
    models_of,
    seeded_pair,
    subset_records,
)
from vitreous.experiments.grid.scaling_plans import FAMILIES, VIT
from vitreous.experiments.grid.statistics import (
    ALPHA,
    Answer,
    Claim,
    PairedDifference,
    Verdict,
    holm_answers,
    judge,
    paired_difference,
    summarize_seeds,
)
from vitreous.experiments.grid.tables import Entry
from vitreous.utils.figures import add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")  # of the models of one family


@dataclass(frozen=True)
class DataCurves:
    """One measure of every model, by share of the pre-training images and seed."""

    label: str  # of the axis
    short: str  # in the columns of the table
    shares: tuple[float, ...]  # of all cells, also of those without a result
    images: Mapping[float, int]  # by share
    families: Mapping[str, str]  # by model
    values: Mapping[str, Mapping[float, Mapping[int, float]]]  # by model, share and seed
    runs: Mapping[tuple[str, float, int], str]  # names of the run directories
    pair: tuple[str, str]  # the ViT and the BiT that are compared

    @classmethod
    def of(cls, records: CellRecords, measured: CellRecords, value: str, label: str, short: str) -> DataCurves:
        """`measured`: the cells that have the measure, with those of other budgets."""
        chosen = subset_records(measured)
        shares = tuple(sorted({float(group["share"]) for group in chosen.groups("share")}))
        models = models_of(chosen)
        return cls(
            label,
            short,
            shares,
            images_by_share(records),
            models,
            {model: accuracies(chosen, value, model, shares) for model in models},
            {(str(c.factors["model"]), float(c.factors["share"]), c.seed): c.run for c in chosen if c.run},
            seeded_pair(records),
        )

    def size(self, share: float) -> str:
        """Return the size of a subset as text."""
        return f"{self.images[share]:,} images" if share in self.images else f"{share:.3g} of the images"

    def lead(self, share: float) -> PairedDifference | None:
        """Return by how much the ViT is better than the BiT, over seeds."""
        vit, bit = (self.values.get(model, {}).get(share, {}) for model in self.pair)
        return paired_difference(vit, bit)

    def mean_lead(self, share: float) -> float | None:
        """Return the difference of the means of all seeds; None: one of them has no result."""
        vit, bit = (list(self.values.get(model, {}).get(share, {}).values()) for model in self.pair)
        return statistics.fmean(vit) - statistics.fmean(bit) if vit and bit else None

    def leaders(self) -> dict[float, str]:
        """Return which model of the pair is significantly better on which subset (Holm over all that are tested)."""
        tested = {share: lead for share in self.shares if (lead := self.lead(share)) is not None}
        pointing: list[tuple[Answer, float]] = [("yes" if lead.mean > 0 else "no", lead.p) for lead in tested.values()]
        names = {"yes": self.pair[0], "no": self.pair[1]}
        return {
            share: names[answer]
            for share, answer in zip(tested, holm_answers(pointing), strict=True)
            if answer in names
        }

    def notes(self) -> list[str]:
        """Return sentences on the columns of the table."""
        vit, bit = self.pair
        seeds = {model: max((len(each) for each in by.values()), default=0) for model, by in self.values.items()}
        return [
            f"Difference: {vit} minus {bit}, mean over seeds with its 95% interval; leader: the better one by a"
            f" two-sided paired t-test at {ALPHA:.0%} with Holm's correction over the subsets, otherwise undecided.",
            f"Seeds: {', '.join(f'{model} {count}' for model, count in seeds.items())}.",
        ]


def curve_rows(curves: DataCurves, with_pair: bool = True) -> tuple[tuple[str, ...], tuple[tuple[Entry, ...], ...]]:
    """Return columns and rows of a table: one row per subset, one column per model, and who leads."""
    columns = ["pre-training images", "share", *(f"{model}: {curves.short} (%)" for model in curves.values)]
    if with_pair:
        columns += ["difference (points)", "leader"]
    leaders = curves.leaders()
    rows = []
    for share in curves.shares:
        each = [curves.values[model][share] for model in curves.values]
        row: list[Entry] = [curves.images.get(share), f"{100 * share:g}%"]
        row += [summarize_seeds(list(values.values())) if values else None for values in each]
        if with_pair:
            row += [_difference_text(curves, share), leaders.get(share, "undecided")]
        rows.append(tuple(row))
    return tuple(columns), tuple(rows)


def _difference_text(curves: DataCurves, share: float) -> str | None:
    lead, mean = curves.lead(share), curves.mean_lead(share)
    if lead is not None:
        low, high = lead.interval()
        return f"{lead.mean:+.1f} [{low:+.1f}, {high:+.1f}]"
    return None if mean is None else f"{mean:+.1f}"


# ---------------------------------------------------------------- verdict


def crossing_verdict(curves: DataCurves) -> Verdict:
    """Judge whether the BiT is better on the smallest subset and the ViT on all images, and say where lines cross."""
    if not curves.shares:
        return judge([])
    vit, bit = curves.pair
    first, last = curves.shares[0], curves.shares[-1]
    smallest = curves.lead(first)
    negated = None if smallest is None else PairedDifference(-smallest.mean, smallest.std, smallest.seeds)
    claims = [
        Claim(f"{bit} is better than {vit} with {curves.size(first)}", negated),
        Claim(f"{vit} is better than {bit} with {curves.size(last)}", curves.lead(last)),
    ]
    verdict = judge(claims)
    return Verdict(verdict.answer, f"{verdict.text} {crossing_sentence(curves)}".strip())


def crossing_sentence(curves: DataCurves) -> str:
    """Say whether the lines of the pair cross: by the tests of all subsets, and by the means."""
    leads = {share: lead for share in curves.shares if (lead := curves.mean_lead(share)) is not None}
    if len(leads) < 2:
        return "Whether the lines cross cannot be said: fewer than two subsets have results of both."
    leaders = curves.leaders()
    where = _first_change([(share, leaders[share]) for share in curves.shares if share in leaders])
    missing = len(curves.shares) - len(leads)
    rest = f" {missing} of {len(curves.shares)} subsets have no results of both." if missing else ""
    if where is not None:
        (before, one), (after, other) = where
        return (
            f"The lines cross: {one} leads with {curves.size(before)} and {other} with {curves.size(after)}, both"
            f" significantly (Holm over {len(curves.shares)} subsets).{rest}"
        )
    vit, bit = curves.pair
    ahead = [(share, vit if lead > 0 else bit) for share, lead in leads.items() if lead]
    where = _first_change(ahead)
    if where is not None:
        (before, one), (after, other) = where
        return (
            f"The means change order between {curves.size(before)} ({one} ahead) and {curves.size(after)} ({other}"
            f" ahead), but not significantly: whether the lines cross is undecided.{rest}"
        )
    if not ahead:
        return f"The means are equal on all {len(leads)} subsets.{rest}"
    own = sum(leader == ahead[0][1] for leader in leaders.values())
    tested = sum(curves.lead(share) is not None for share in curves.shares)
    how = f"significantly on {own} of {tested}" if tested else "without a test"
    return f"The means do not cross: {ahead[0][1]} is ahead or equal on all {len(leads)} subsets, {how}.{rest}"


def _first_change(names: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], tuple[float, str]] | None:
    """Return the first two neighbours with different names."""
    return next(((a, b) for a, b in pairwise(names) if a[1] != b[1]), None)


# ---------------------------------------------------------------- figure


def family_style(family: str) -> dict[str, Any]:
    """Return the colour and the marker of a family."""
    number = FAMILIES.index(family) if family in FAMILIES else len(FAMILIES)
    return {"color": COLOURS[number], "marker": MARKERS[number]}


def draw_curves(
    panels: Sequence[DataCurves], paper: Mapping[str, Mapping[str, float]] | None = None, paper_label: str = ""
) -> Figure:
    """Draw one panel per measure, with a line through the means and a dot per run; and a panel of the paper's numbers.

    In the SVG file, the id of a dot is the name of its run.
    """
    count = len(panels) + (paper is not None)
    figure = new_figure(max(5.0, 4.2 * count), 4.0)
    axes = figure.subplots(1, count, squeeze=False)[0]
    lines: dict[str, Any] = {}
    for axis, curves in zip(axes, panels, strict=False):
        lines |= _draw_models(axis, curves)
        _finish_axis(axis, curves.label)
        if curves.images and len(curves.images) <= MAX_TICKS:
            _set_ticks(axis, {number: f"{number:,}" for number in curves.images.values()})
    if lines:
        add_legend(figure, list(lines.values()), list(lines), loc="outside upper center", ncols=3, frameon=False)
    if paper is not None:
        _draw_paper(axes[-1], paper, paper_label)
    return figure


def _draw_paper(axis: Any, paper: Mapping[str, Mapping[str, float]], label: str) -> None:
    """Draw the accuracy of the paper's ViTs by pre-training data, in the colour of ViTs."""
    drawn = {}
    for number, (model, values) in enumerate(paper.items()):
        style = {
            **family_style(VIT),
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": STYLES[number % len(STYLES)],
        }
        images = [PRETRAINING_IMAGES[data] for data in values]
        (drawn[f"ViT-{model}"],) = axis.plot(images, list(values.values()), markersize=5, linewidth=1, **style)
    _finish_axis(axis, label)
    _set_ticks(axis, {number: f"{name}\n{number / 1e6:.3g}M" for name, number in PRETRAINING_IMAGES.items()})
    add_legend(axis, list(drawn.values()), list(drawn), fontsize=8, loc="lower right")


def _draw_models(axis: Any, curves: DataCurves) -> dict[str, Any]:
    """Draw the lines of one measure, and return them by model."""
    lines = {}
    drawn: list[str] = []
    for model, by_share in curves.values.items():
        family = curves.families[model]
        style = {**family_style(family), "linestyle": STYLES[drawn.count(family) % len(STYLES)]}
        drawn.append(family)
        present = {share: each for share, each in by_share.items() if each and share in curves.images}
        if not present:
            continue
        means = [statistics.fmean(each.values()) for each in present.values()]
        (lines[model],) = axis.plot([curves.images[share] for share in present], means, markersize=6, **style)
        for share, each in present.items():
            for seed, value in each.items():
                run = curves.runs.get((model, share, seed))
                dot = {**style, "linestyle": "none", "markersize": 3, "alpha": 0.5}
                axis.plot(curves.images[share], value, gid=run, **dot)
    return lines


def _set_ticks(axis: Any, labels: Mapping[float, str]) -> None:
    axis.set_xticks(list(labels), list(labels.values()))
    axis.minorticks_off()


def _finish_axis(axis: Any, label: str) -> None:
    axis.set_xscale("log")
    plain_log_ticks(axis.xaxis)
    axis.set(xlabel="pre-training images", ylabel=label)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(alpha=0.3)
    axis.margins(0.06)
