"""Transfer accuracy against pre-training compute: ViT, hybrid and BiT, and their Pareto fronts (Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vitreous.experiments.grid.compute_fronts import ComputeFronts, compare_fronts, draw_fronts, ratio_notes
from vitreous.experiments.grid.experiment import Cell, Experiment, Needs, Scale
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.scaling import AFTER_TUNING, ScalingGrid, protocol_notes, transfer_tasks
from vitreous.experiments.grid.statistics import summarize_seeds
from vitreous.experiments.grid.tables import Entry, ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.settings import Setting
    from vitreous.experiments.grid.statistics import Verdict


class TransferByCompute(Experiment):
    title = "transfer accuracy against pre-training exaFLOPs, with Pareto fronts and the ratio of compute"
    place = "Figure 5"
    conclusion = (
        "ViTs reach the same transfer accuracy as ResNets with less pre-training compute; hybrids are better than ViTs"
        " at small budgets, and this advantage fades at large ones."
    )
    needs = Needs(transfer=True)
    weights = AFTER_TUNING
    time: ClassVar[Mapping[Scale, str]] = {}

    def cells(self, setting: Setting) -> list[Cell]:
        grid, task = ScalingGrid(setting), transfer_tasks(setting)[0]
        for model, share, seed in grid.subset_runs:
            if share == 1:  # those of figure3: their seeds show how much the accuracy varies
                grid.finetuned(model, share, grid.plan.epochs, seed, task)
        for model in grid.plan.models:
            for epochs in model.epochs:
                grid.finetuned(model, 1.0, epochs, 0, task)
        return grid.cells

    def table(self, records: CellRecords) -> ResultTable:
        fronts = ComputeFronts.of(records)
        rows: list[tuple[Entry, ...]] = []
        for run in fronts.runs:
            on_front = "yes" if run.point in fronts.fronts[run.family] else "no"
            accuracy = summarize_seeds(list(run.accuracies.values()))
            exaflops = f"{run.point.compute:.3g}"
            rows.append((run.family, run.model, f"{run.epochs:g}", exaflops, accuracy, on_front, ", ".join(run.keys)))
        columns = (
            *("family", "model", "epochs", "pre-training exaFLOPs", fronts.label),
            *("on the front of its family", "runs (end of their names)"),
        )
        notes = (*ratio_notes(fronts), *protocol_notes(records))
        return ResultTable(columns, tuple(rows), notes)

    def verdict(self, records: CellRecords) -> Verdict:
        return compare_fronts(ComputeFronts.of(records))

    def draw(self, records: CellRecords) -> Figure:
        return draw_fronts(ComputeFronts.of(records))


EXPERIMENT = TransferByCompute()
