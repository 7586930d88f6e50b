"""ViT, hybrid and BiT pre-trained on growing subsets, then fine-tuned on another data set (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vitreous.experiments.grid.data_curves import DataCurves, crossing_verdict, curve_rows, draw_curves
from vitreous.experiments.grid.experiment import Cell, Experiment, Needs, Scale
from vitreous.experiments.grid.paper_results import TABLE_5
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.scaling import (
    AFTER_TUNING,
    FINETUNING,
    TUNED,
    ScalingGrid,
    protocol_notes,
    transfer_tasks,
)
from vitreous.experiments.grid.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.settings import Setting
    from vitreous.experiments.grid.statistics import Verdict


class TransferByData(Experiment):
    title = "fine-tuned accuracy of ViT, hybrid and BiT against the number of pre-training images"
    place = "Figure 3"
    conclusion = (
        "Pre-trained on small data sets, ResNets are better than ViTs after fine-tuning; pre-trained on large ones,"
        " ViTs are better."
    )
    needs = Needs(transfer=True)
    weights = AFTER_TUNING
    time: ClassVar[Mapping[Scale, str]] = {}

    def cells(self, setting: Setting) -> list[Cell]:
        grid, task = ScalingGrid(setting), transfer_tasks(setting)[0]
        for model, share, seed in grid.subset_runs:
            grid.finetuned(model, share, grid.plan.epochs, seed, task)
        return grid.cells

    def table(self, records: CellRecords) -> ResultTable:
        curves = transfer_curves(records)
        columns, rows = curve_rows(curves)
        paper = "Paper: the ViTs of Table 5; the ResNets of its Figure 3 are not listed as numbers."
        notes = (*curves.notes(), *protocol_notes(records), paper)
        return ResultTable(columns, rows, notes)

    def verdict(self, records: CellRecords) -> Verdict:
        return crossing_verdict(transfer_curves(records))

    def draw(self, records: CellRecords) -> Figure:
        label = "paper (Table 5): fine-tuned on ImageNet (%)"
        return draw_curves([transfer_curves(records)], TABLE_5, label)


def transfer_curves(records: CellRecords) -> DataCurves:
    """Return the fine-tuned accuracy by number of pre-training images."""
    tuned = records.where(stage=FINETUNING)
    data = next((str(group["data"]) for group in tuned.groups("data")), "")
    name = "unseen classes" if data == "unseen" else data
    return DataCurves.of(records, tuned, TUNED, f"accuracy on {name} after fine-tuning (%)", TUNED)


EXPERIMENT = TransferByData()
