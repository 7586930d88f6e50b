"""Class token against global average pooling, each with its own learning rate (D.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vitreous.experiments.grid.experiment import Cell, Experiment, Scale
from vitreous.experiments.grid.plots import line_panels
from vitreous.experiments.grid.records import measure_label
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

NAMES = {"token": "class token", "gap": "global average pooling"}
LEARNING_RATES: Mapping[Scale, tuple[float, ...]] = {
    "tiny": (1e-3, 3e-3, 1e-2),
    "small": (3e-4, 1e-3, 3e-3),
    "paper": (3e-4, 8e-4, 3e-3),
}
MARGIN = 1.0  # points


class PoolingExperiment(Experiment):
    title = "class token against global average pooling, each with its own learning rate"
    place = "Figure 9, Appendix D.3"
    conclusion = (
        "The class token and global average pooling work equally well if each has its own learning rate (8e-4, 3e-4)."
    )
    time: ClassVar[Mapping[Scale, str]] = {"tiny": "6 s on 2 CPU cores", "small": "6 min / jobs, H200"}

    def cells(self, setting: Setting) -> list[Cell]:
        return [
            Cell({"pool": pool, "lr": lr}, setting.measures(), seed, setting.pretraining(seed, pool=pool, lr=lr))
            for pool in NAMES
            for lr in LEARNING_RATES[setting.scale]
            for seed in range(setting.seeds)
        ]

    def table(self, records: CellRecords) -> ResultTable:
        best = {pool: records.best_by("val", "lr", pool=pool) for pool in NAMES}
        rows = tuple(
            (
                NAMES[str(group["pool"])],
                f"{group['lr']:g}" + (" (selected)" if best[str(group["pool"])] == group["lr"] else ""),
                *(records.summary(name, **group) for name in records.measured_names),
            )
            for group in records.groups("pool", "lr")
        )
        note = "The learning rate of each kind of pooling was selected by its validation accuracy."
        return ResultTable(("pooling", "learning rate", *records.percent_columns), rows, (note,))

    def verdict(self, records: CellRecords) -> Verdict:
        chosen = {pool: records.best_by("val", "lr", pool=pool) for pool in NAMES}
        scores = {
            pool: {} if lr is None else records.by_seed(records.main_measure, pool=pool, lr=lr)
            for pool, lr in chosen.items()
        }
        text = (
            f"class token (lr {chosen['token']}) and average pooling (lr {chosen['gap']}) differ by less than"
            f" {MARGIN:g} point"
        )
        return judge([Claim(text, paired_difference(scores["token"], scores["gap"]), MARGIN)])

    def draw(self, records: CellRecords) -> Figure:
        panels = {
            measure_label(name): {title: records.curve(name, "lr", pool=pool) for pool, title in NAMES.items()}
            for name in (records.main_measure, "val")
        }
        return line_panels(panels, "learning rate", log=True)


EXPERIMENT = PoolingExperiment()
