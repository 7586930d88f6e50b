"""Position similarity of models trained with different hyper-parameters: Figure 10 of the paper's second version."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from vitreous.experiments.grid.experiment import Cell, Experiment, Factor, Scale
from vitreous.experiments.grid.inspection_measures import ONE_SEED, PositionMaps
from vitreous.experiments.grid.inspection_plots import (
    SMALL,
    add_similarity_bar,
    position_limits,
    show_positions,
    show_text,
)
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import Entry, ResultTable
from vitreous.utils.figures import label_text, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

# Low, centre and high value of each setting. All runs differ from the centre in at most one of them.
VALUES: dict[Scale, dict[str, tuple[Factor, Factor, Factor]]] = {
    "tiny": {
        "duration": ("10 steps", "30 steps", "60 steps"),
        "lr": (1e-3, 3e-3, 1e-2),
        "weight_decay": (0.0, 0.1, 0.3),
    },
    "small": {
        "duration": ("3 epochs", "10 epochs", "30 epochs"),
        "lr": (3e-4, 1e-3, 3e-3),
        "weight_decay": (0.0, 0.1, 0.3),
    },
    "paper": {
        "duration": ("3 epochs", "7 epochs", "14 epochs"),
        "lr": (3e-4, 8e-4, 3e-3),
        "weight_decay": (0.0, 0.1, 0.3),
    },
}
NAMES = {"duration": "length of training", "lr": "learning rate", "weight_decay": "weight decay"}
MOST_PATCHES = 8  # per row and column of a panel


def grid_factors(scale: Scale) -> list[dict[str, Factor]]:
    """Return the settings of all runs: the centre, then the variations of one setting after the other."""
    values = VALUES[scale]
    centre = {name: middle for name, (_, middle, _) in values.items()}
    others = [{**centre, name: value} for name, (low, _, high) in values.items() for value in (low, high)]
    return [centre, *others]


class HyperparameterFigure(Experiment):
    title = "similarity of position embeddings after training with different lengths, learning rates and weight decays"
    place = "Figure 10, Appendix D.4"
    conclusion = (
        "The learned position similarity depends on the training hyper-parameters: length of training, learning rate"
        " and weight decay."
    )
    seeds = ONE_SEED
    time = {"tiny": "9 s on 2 CPU cores", "small": "2 min / jobs, H200"}  # noqa: RUF012 (as in the base class)

    def cells(self, setting: Setting) -> list[Cell]:
        return [
            Cell(
                factors,
                (*setting.measures(), PositionMaps(MOST_PATCHES)),
                seed,
                setting.pretraining(seed, position="learned-1d", **factors),
            )
            for factors in grid_factors(setting.scale)
            for seed in range(setting.seeds)
        ]

    def table(self, records: CellRecords) -> ResultTable:
        rows: list[tuple[Entry, ...]] = []
        accuracies = records.measured_names
        for group in records.groups(*NAMES):
            own = records.where(**group)
            tests = [_mean(own, name) for name in ("distance_test", "axis_test")]
            given = (group["duration"], f"{group['lr']:g}", f"{group['weight_decay']:g}")
            shown = (None if test is None else f"{test:+.3f}" for test in tests)
            rows.append((*given, *shown, *(records.summary(name, **group) for name in accuracies)))
        columns = ("length", "learning rate", "weight decay", "correlation with distance", "row and column")
        notes = (
            "Correlation with distance: Spearman correlation of the cosine similarity of two position embeddings and"
            " the distance of their patches, over all pairs.",
            "Row and column: how much larger the cosine similarity of patches in one row or column is than that of"
            " other patches that are nearer.",
            "Weight decay applies to weight matrices, not to the position embeddings themselves.",
        )
        return ResultTable((*columns, *records.percent_columns), tuple(rows), notes)

    def verdict(self, records: CellRecords) -> Verdict:
        claims, centre = [], _centre(records)
        for name, text in NAMES.items():
            low, _, high = VALUES[records.scale][name]  # type: ignore[index]
            scores = [_correlations(records, {**centre, name: value}) for value in (low, high)]
            scores.sort(key=lambda each: fmean(each.values()) if each else 0.0)  # the sign does not matter: both sides
            claim = f"the correlation with distance differs between {text} {low} and {high}"
            claims.append(Claim(claim, paired_difference(scores[1], scores[0])))
        return judge(claims, "hundredths")

    def draw(self, records: CellRecords) -> Figure:
        figure = new_figure(7.4, 8.4)
        axes = figure.subplots(3, 3)
        centre, groups = _centre(records), records.groups(*NAMES)
        drawn = [record.values["positions"] for record in records if "positions" in record.values]
        limits = position_limits(drawn) if drawn else (0.0, 1.0)
        for row, (name, text) in zip(axes, NAMES.items(), strict=True):
            for axis, value in zip(row, VALUES[records.scale][name], strict=True):  # type: ignore[index]
                group = {**centre, name: value}
                shown = str(value) if isinstance(value, str) else f"{text} {value:g}"
                title = f"{shown}{' (centre)' if group == centre else ''}"
                _draw_panel(axis, records.where(**group) if group in groups else None, limits, title)
        for axis in axes[-1]:
            axis.set_xlabel("column of the patch", fontsize=SMALL)
        for axis in axes[:, 0]:
            axis.set_ylabel("row of the patch", fontsize=SMALL)
        if drawn:
            add_similarity_bar(figure, axes, limits, shrink=0.6, aspect=30, pad=0.02)
        return figure


def _draw_panel(axis: Any, records: CellRecords | None, limits: tuple[float, float], title: str) -> None:
    positions = records.first("positions") if records else None
    if not records or not positions:
        axis.set_title(title, fontsize=9)
        show_text(axis, "failed")
        return
    show_positions(axis, positions, limits)
    test, measure = positions["distance_test"]["statistic"], records.main_measure
    accuracy = label_text(f"{measure} {records.first(measure):.1f}%", 32)
    axis.set_title(f"{title}\ncorrelation {test:+.2f}\n{accuracy}", fontsize=SMALL)


def _centre(records: CellRecords) -> dict[str, Factor]:
    return grid_factors(records.scale)[0]  # type: ignore[arg-type]


def _correlations(records: CellRecords, group: dict[str, Factor]) -> dict[int, float]:
    """Return the correlation of similarity and distance by seed, in hundredths."""
    own = [record for record in records.where(**group) if "positions" in record.values]
    return {record.seed: 100 * float(record.values["positions"]["distance_test"]["statistic"]) for record in own}


def _mean(records: CellRecords, test: str) -> float | None:
    values = [float(one.values["positions"][test]["statistic"]) for one in records if "positions" in one.values]
    return sum(values) / len(values) if values else None


EXPERIMENT = HyperparameterFigure()
