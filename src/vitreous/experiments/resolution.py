"""Fine-tuning one pre-trained model at its own resolution, and at 1.5 and 2 times as many pixels per side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vitreous.experiments.grid.cell_measures import ValidationAccuracy
from vitreous.experiments.grid.experiment import Cell, Experiment, Needs, Scale
from vitreous.experiments.grid.plots import line_panels
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

FACTORS = (1.0, 1.5, 2.0)
VALUE = "fine-tuned"


class ResolutionExperiment(Experiment):
    title = "fine-tuning at 1, 1.5 and 2 times the resolution of pre-training, with resampled position embeddings"
    place = "Section 3.2"
    conclusion = "It is often beneficial to fine-tune at a higher resolution than that of pre-training."
    needs = Needs(transfer=True)
    time: ClassVar[Mapping[Scale, str]] = {"tiny": "4 s on 2 CPU cores"}

    def cells(self, setting: Setting) -> list[Cell]:
        cells = []
        data = setting.transfer[0] if setting.transfer else setting.data
        for seed in range(setting.seeds):
            pretrained = Cell({"stage": "pre-training"}, (ValidationAccuracy(),), seed, setting.pretraining(seed))
            cells.append(pretrained)
            for factor in FACTORS:
                size = round(factor * setting.image_size)
                config = setting.finetuning(seed, size)
                factors: dict[str, str | int | float] = {"stage": "fine-tuning", "px": size, "factor": factor}
                cells.append(Cell(factors, (ValidationAccuracy(VALUE),), seed, config, pretrained, data))
        return cells

    def table(self, records: CellRecords) -> ResultTable:
        tuned = records.where(stage="fine-tuning")
        rows = tuple(
            (f"{group['factor']:g} x", group["px"], records.summary(VALUE, **group))
            for group in tuned.groups("factor", "px")
        )
        before = records.where(stage="pre-training")
        values = ", ".join(f"{name} {before.summary(name)}%" for name in before.measured_names)
        note = f"The pre-trained model: {values or 'no results'}. Fine-tuned accuracy is that of the last weights."
        return ResultTable(("resolution", "px", "fine-tuned accuracy (%)"), rows, (note,))

    def verdict(self, records: CellRecords) -> Verdict:
        base = records.by_seed(VALUE, factor=1.0)
        return judge(
            [
                Claim(
                    f"{factor:g} times the resolution is better than 1 x",
                    paired_difference(records.by_seed(VALUE, factor=factor), base),
                )
                for factor in FACTORS[1:]
            ]
        )

    def draw(self, records: CellRecords) -> Figure:
        curve = records.where(stage="fine-tuning").curve(VALUE, "px")
        return line_panels({"accuracy after fine-tuning (%)": {"": curve}}, "image size in fine-tuning (px)")


EXPERIMENT = ResolutionExperiment()
