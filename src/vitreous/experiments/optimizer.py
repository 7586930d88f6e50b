"""Adam against SGD for pre-training a ResNet (D.1)."""

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

NAMES = {"adamw": "AdamW", "sgd": "SGD"}
# Peak learning rates, and the weight decay that is multiplied by them.
GRID: Mapping[Scale, Mapping[str, tuple[float, ...]]] = {
    "tiny": {"adamw": (1e-3, 3e-3), "sgd": (0.03, 0.1)},
    "small": {"adamw": (3e-4, 1e-3, 3e-3), "sgd": (0.03, 0.1, 0.3)},
    "paper": {"adamw": (3e-4, 1e-3, 3e-3), "sgd": (0.03, 0.1, 0.3)},
}
WEIGHT_DECAY = {"adamw": 0.1, "sgd": 1e-4}


class OptimizerExperiment(Experiment):
    title = "AdamW against SGD with momentum for pre-training the ResNet, each with its own learning rate"
    place = "Table 7, Appendix D.1"
    conclusion = "A ResNet pre-trained with Adam transfers better than one pre-trained with SGD."
    seeds: ClassVar[Mapping[Scale, int]] = {"tiny": 1, "small": 2, "paper": 2}
    time: ClassVar[Mapping[Scale, str]] = {"tiny": "7 s on 2 CPU cores", "small": "17 min / jobs, H200"}

    def cells(self, setting: Setting) -> list[Cell]:
        return [
            Cell(
                {"optimiser": optimiser, "lr": lr},
                setting.measures(),
                seed,
                setting.resnet(seed, optimiser=optimiser, lr=lr, weight_decay=WEIGHT_DECAY[optimiser]),
            )
            for optimiser, rates in GRID[setting.scale].items()
            for lr in rates
            for seed in range(setting.seeds)
        ]

    def table(self, records: CellRecords) -> ResultTable:
        best = {name: records.best_by("val", "lr", optimiser=name) for name in NAMES}
        rows = tuple(
            (
                NAMES[str(group["optimiser"])],
                f"{group['lr']:g}" + (" (selected)" if best[str(group["optimiser"])] == group["lr"] else ""),
                *(records.summary(name, **group) for name in records.measured_names),
            )
            for group in records.groups("optimiser", "lr")
        )
        note = "The learning rate of each optimiser was selected by its validation accuracy."
        return ResultTable(("optimiser", "learning rate", *records.percent_columns), rows, (note,))

    def verdict(self, records: CellRecords) -> Verdict:
        chosen = {name: records.best_by("val", "lr", optimiser=name) for name in NAMES}
        claims = []
        for measure in (name for name in records.measured_names if name != "val"):
            adam, sgd = (
                {} if lr is None else records.by_seed(measure, optimiser=name, lr=lr) for name, lr in chosen.items()
            )
            text = f"AdamW (lr {chosen['adamw']}) is better than SGD (lr {chosen['sgd']}) by {measure} accuracy"
            claims.append(Claim(text, paired_difference(adam, sgd)))
        return judge(claims)

    def draw(self, records: CellRecords) -> Figure:
        panels = {
            measure_label(name): {title: records.curve(name, "lr", optimiser=key) for key, title in NAMES.items()}
            for name in records.measured_names
        }
        return line_panels(panels, "learning rate", log=True)


EXPERIMENT = OptimizerExperiment()
