"""Figure 7 of the paper: embedding filters, similarity of position embeddings, and attention distance by depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitreous.experiments.grid.experiment import Cell, Experiment, Needs
from vitreous.experiments.grid.inspection_measures import (
    LEARNED,
    ONE_SEED,
    FilterComponents,
    HeadDistances,
    PositionMaps,
    inspected_cell,
)
from vitreous.experiments.grid.inspection_plots import (
    add_similarity_bar,
    position_limits,
    show_distances,
    show_filters,
    show_positions,
    show_text,
)
from vitreous.experiments.grid.packed_values import unpack_array
from vitreous.experiments.grid.permutation_tests import PermutationTest
from vitreous.experiments.grid.statistics import ALPHA, Answer, Verdict
from vitreous.experiments.grid.tables import Entry, ResultTable
from vitreous.utils.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

IMAGES = 128  # at most
LEVEL = ALPHA / 3  # Bonferroni's correction: three permutation tests
LOWEST = 4  # the lowest layers are the first of 4 parts of the depth
# Shares of the distance of uniform attention. An untrained model attends uniformly and has no local head.
MOST = 0.75  # a head with at least this distance attends to most of the image
LOCAL = 0.5  # a head with at most this distance attends locally


@dataclass(frozen=True)
class InspectionClaim:
    """One part of the conclusion: what was measured, and whether it agrees."""

    text: str
    answer: Answer  # "none": it does not apply to this model
    numbers: str


class InspectionFigure(Experiment):
    title = "embedding filters, similarity of position embeddings, and attention distance by depth"
    place = "Figure 7"
    conclusion = (
        "Nearby patches have similar position embeddings, and rows and columns are visible; in the lowest layers some"
        " heads attend to most of the image and others locally; attention distance increases with depth."
    )
    seeds = ONE_SEED
    time = {"tiny": "7 s on 2 CPU cores", "small": "8 s, H200"}  # noqa: RUF012 (as in the base class)
    needs = Needs(pretraining=True, model=True)

    def cells(self, setting: Setting) -> list[Cell]:
        distances = HeadDistances.of(setting, IMAGES)
        return [inspected_cell(setting, [FilterComponents(), PositionMaps(), distances])]

    def table(self, records: CellRecords) -> ResultTable:
        rows: list[tuple[Entry, ...]] = []
        claims = inspection_claims(records.first("positions"), records.first("distances"))
        for claim in claims:
            rows.append((claim.text, claim.numbers, "does not apply" if claim.answer == "none" else claim.answer))
        filters, distances = records.first("filters"), records.first("distances")
        if filters:
            share = f"{100 * filters['share']:.1f}%"
            rows.append((f"variance of {filters['of']} in the first {len(filters['png'])} components", share, ""))
        notes = []
        if distances:
            notes.append(f"Attention distances are means over all query patches of {distances['images']:,} images.")
        return ResultTable(("statement", "measured", "holds"), tuple(rows), tuple(notes))

    def verdict(self, records: CellRecords) -> Verdict:
        claims = inspection_claims(records.first("positions"), records.first("distances"))
        if not claims:
            return Verdict("undecided", "Nothing can be concluded: the inspection has failed.")
        answers = [claim.answer for claim in claims]
        answer: Answer = "no" if "no" in answers else "yes" if set(answers) == {"yes"} else "undecided"
        said = {"yes": "supported", "no": "contradicted", "undecided": "undecided", "none": "does not apply"}
        sentences = [f"{claim.text}: {said[claim.answer]} ({claim.numbers})." for claim in claims]
        return Verdict(
            answer,
            f"{' '.join(sentences)} Rule: yes if all four statements are supported, no if one is contradicted. Tests:"
            f" two-sided permutation tests of positions (Mantel) and of heads over layers, level {ALPHA:.0%} with"
            " Bonferroni's correction for 3 tests. They are about this one model: another seed may differ.",
        )

    def draw(self, records: CellRecords) -> Figure:
        figure = new_figure(12, 3.7)
        left, centre, right = figure.subplots(1, 3, width_ratios=[1.4, 1.25, 1.1])
        left.set_title("embedding filters", fontsize=9)
        centre.set_title("similarity of position embeddings", fontsize=9)
        right.set_title("attention distance", fontsize=9)
        filters, positions = records.first("filters"), records.first("positions")
        show_filters(left, filters) if filters else show_text(left, "no result")
        _draw_positions(figure, centre, positions)
        distances = records.first("distances")
        show_distances(right, distances) if distances else show_text(right, "no result")
        return figure


def _draw_positions(figure: Any, axis: Any, positions: Any) -> None:
    if not positions or "similarity" not in positions:
        show_text(axis, position_reason(positions))
        return
    limits = position_limits([positions])
    show_positions(axis, positions, limits)
    axis.set_xlabel("column of the patch", fontsize=9)
    axis.set_ylabel("row of the patch", fontsize=9)
    add_similarity_bar(figure, axis, limits, shrink=0.85, aspect=22, pad=0.02)


def position_reason(positions: Any) -> str:
    """Return why there is no similarity of positions to draw."""
    if not positions:
        return "no result"
    if positions["kind"] == "relative":
        return "relative position embeddings:\na position has no embedding of its own"
    return "this model has no\nposition embeddings"


# ---------------------------------------------------------------- the four statements


def inspection_claims(positions: Any, distances: Any) -> list[InspectionClaim]:
    """Return the parts of the conclusion that could be measured, in the order of the conclusion."""
    claims = [] if not positions else [_nearby_claim(positions), _axis_claim(positions)]
    return claims if not distances else [*claims, _lowest_claim(distances), _depth_claim(distances)]


def _nearby_claim(positions: Any) -> InspectionClaim:
    text = "Nearby patches have more similar position embeddings"
    if positions["kind"] not in LEARNED:
        return InspectionClaim(text, "none", _not_learned(positions))
    test = PermutationTest(**positions["distance_test"])
    numbers = f"Spearman correlation of similarity and distance {test.statistic:+.2f}, p = {test.p:.2g}"
    return InspectionClaim(text, _answer(test.p, test.statistic < 0), numbers)


def _axis_claim(positions: Any) -> InspectionClaim:
    text = "Patches in one row or column have more similar position embeddings than other patches that are nearer"
    if positions["kind"] not in LEARNED:
        return InspectionClaim(text, "none", _not_learned(positions))
    test = PermutationTest(**positions["axis_test"])
    numbers = f"cosine {test.statistic:+.3f}, p = {test.p:.2g}"
    # A smaller similarity does not contradict rows and columns: the patches that it is compared with are nearer.
    return InspectionClaim(text, "undecided" if test.statistic < 0 else _answer(test.p, True), numbers)


def _lowest_claim(distances: Any) -> InspectionClaim:
    values = unpack_array(distances["distance"])
    lowest = values[: max(1, len(values) // LOWEST)]
    uniform = max(float(distances["uniform"]), 1e-9)
    least, most = float(lowest.min()) / uniform, float(lowest.max()) / uniform
    where = f"layers 1 to {len(lowest)}" if len(lowest) > 1 else "layer 1"
    text = (
        f"In the lowest quarter of the layers, some heads have at least {MOST:.0%} of the distance of uniform"
        f" attention, and others at most {LOCAL:.0%}"
    )
    numbers = f"{lowest.min():.1f} to {lowest.max():.1f} px in {where}: {least:.0%} to {most:.0%} of {uniform:.1f} px"
    return InspectionClaim(text, "yes" if most >= MOST and least <= LOCAL else "no", numbers)


def _depth_claim(distances: Any) -> InspectionClaim:
    test, layers = PermutationTest(**distances["depth_test"]), distances["distance"]["shape"][0]
    numbers = f"Spearman correlation over all heads of {layers} layers {test.statistic:+.2f}, p = {test.p:.2g}"
    return InspectionClaim("Attention distance increases with depth", _answer(test.p, test.statistic > 0), numbers)


def _answer(p: float, agrees: bool) -> Answer:
    return "undecided" if p > LEVEL else "yes" if agrees else "no"


def _not_learned(positions: Any) -> str:
    if "similarity" not in positions:
        return position_reason(positions).replace("\n", " ")
    return "positions are fixed, not learned"


EXPERIMENT = InspectionFigure()
