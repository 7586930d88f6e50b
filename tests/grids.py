"""Very small experiments, as a user would write them: tests pass them as FILE:NAME."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous import VitreousError
from vitreous.experiments.grid.cell_measures import (
    CellMeasure,
    SelectedRate,
    TrainedCell,
    TrainingCompute,
    ValidationAccuracy,
)
from vitreous.experiments.grid.experiment import Cell, Experiment, Scale
from vitreous.experiments.grid.plots import line_panels
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.settings import Setting
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = Path(__file__)
FAULT = "VITREOUS_TEST_FAULT"  # CELL:KIND, read by the cells; CELL is WIDTH-SEED, or WIDTH for all seeds


@dataclass(frozen=True)
class WeightSum(CellMeasure):
    """The sum of all weights: two runs that differ in one bit have other sums. In one of the cells it can fail."""

    cell: str  # WIDTH-SEED

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        name, _, kind = os.environ.get(FAULT, "").partition(":")
        if name and self.cell.startswith(name):
            if kind.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, kind))
            raise VitreousError("no | luck\nat all") if kind == "refused" else RuntimeError("a bug in the measure")
        return {"sum": sum(p.detach().double().abs().sum().item() for p in cell.opened.model.parameters())}


class WidthGrid(Experiment):
    title = "two widths"
    place = "tests"
    conclusion = "The wider model is better."
    seeds: ClassVar[Mapping[Scale, int]] = {"tiny": 2, "small": 2, "paper": 2}

    def __init__(self, steps: int = 5, **changes: Any):
        self.changes = {"duration": f"{steps} steps", **changes}

    def cells(self, setting: Setting) -> list[Cell]:
        return [
            Cell(
                {"width": width},
                (ValidationAccuracy(), WeightSum(f"{width}-{seed}")),
                seed,
                setting.pretraining(seed, width=width, mlp_dim=16, depth=1, **self.changes),
            )
            for width in (8, 16)
            for seed in range(setting.seeds)
        ]

    def table(self, records: CellRecords) -> ResultTable:
        rows = tuple(
            (f"width {group['width']}", *(records.summary(name, **group) for name in records.measured_names))
            for group in records.groups("width")
        )
        return ResultTable(("model", *records.measured_names), rows)

    def draw(self, records: CellRecords) -> "Figure":
        return line_panels({"accuracy (%)": {"": records.curve("val", "width")}}, "width")

    def verdict(self, records: CellRecords) -> Verdict:
        narrow, wide = (records.by_seed("val", width=width) for width in (8, 16))
        return judge([Claim("width 16 is better than width 8", paired_difference(wide, narrow))])


class RateGrid(WidthGrid):
    """The first cell selects the learning rate that the second one takes; a third one is fine-tuned from the second."""

    def cells(self, setting: Setting) -> list[Cell]:
        config = setting.pretraining(0, width=8, mlp_dim=16, depth=1, **self.changes)
        search = config.with_(lr=None, lr_candidates=(1e-9, 3e-3), dev_fraction=0.2)
        measures = (ValidationAccuracy(), WeightSum("8-0"))
        first = Cell({"width": 1}, (SelectedRate(), TrainingCompute(), *measures), 0, search)
        second = Cell({"width": 2}, measures, 0, config.with_(lr=None), lr_of=first, weights="best")
        tuned = setting.finetuning(0, 8).with_(duration="2 steps")
        return [first, second, Cell({"width": 3}, measures, 0, tuned, second, setting.data)]


SMALL = WidthGrid()
RATES = RateGrid(20, evaluate_every="50%")
LONG = WidthGrid(60, save_minutes=0.001)
