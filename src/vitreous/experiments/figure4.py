"""Few-shot linear accuracy of ViT, hybrid and BiT pre-trained on growing subsets (Figure 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vitreous.experiments.grid.data_curves import DataCurves, crossing_verdict, curve_rows, draw_curves
from vitreous.experiments.grid.experiment import Cell, Experiment, Scale
from vitreous.experiments.grid.records import CellRecords, measure_label
from vitreous.experiments.grid.scaling import EARLY_STOPPING, PRETRAINING, ScalingGrid, protocol_notes
from vitreous.experiments.grid.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.settings import Setting
    from vitreous.experiments.grid.statistics import Verdict


class FewShotByData(Experiment):
    title = "few-shot linear accuracy of ViT, hybrid and BiT against the number of pre-training images"
    place = "Figure 4"
    conclusion = (
        "Pre-trained on small subsets, ResNets have better few-shot accuracy than ViTs; pre-trained on large ones, ViTs"
        " are better."
    )
    weights = EARLY_STOPPING
    time: ClassVar[Mapping[Scale, str]] = {}

    def cells(self, setting: Setting) -> list[Cell]:
        grid = ScalingGrid(setting)
        for model, share, seed in grid.subset_runs:
            grid.pretrained(model, share, grid.plan.epochs, seed)
        return grid.cells

    def table(self, records: CellRecords) -> ResultTable:
        curves = fewshot_curves(records)
        columns, rows = curve_rows(curves[0])
        for other in curves[1:]:
            more, values = curve_rows(other, with_pair=False)
            columns = (*columns, *more[2:])
            rows = tuple((*row, *value[2:]) for row, value in zip(rows, values, strict=True))
        return ResultTable(columns, rows, (*curves[0].notes(), *protocol_notes(records)))

    def verdict(self, records: CellRecords) -> Verdict:
        return crossing_verdict(fewshot_curves(records)[0])

    def draw(self, records: CellRecords) -> Figure:
        return draw_curves(fewshot_curves(records))


def fewshot_curves(records: CellRecords) -> list[DataCurves]:
    """Return every few-shot accuracy by number of pre-training images, the main measure first."""
    pretrained = records.where(stage=PRETRAINING)
    names = [name for name in records.measured_names if name.endswith("-shot")] or ["few-shot"]
    return [DataCurves.of(records, pretrained, name, measure_label(name), name) for name in names]


EXPERIMENT = FewShotByData()
