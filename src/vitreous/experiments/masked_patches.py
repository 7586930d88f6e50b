"""Masked-patch pre-training against training from scratch and supervised pre-training (B.1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous.experiments.grid.cell_measures import FewShotAccuracy, ValidationAccuracy
from vitreous.experiments.grid.experiment import Cell, Experiment, Needs, Scale
from vitreous.experiments.grid.plots import dot_rows
from vitreous.experiments.grid.records import measure_label
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

TUNED = "fine-tuned"
SCRATCH, SUPERVISED, MASKED = "none (from scratch)", "supervised", "masked patches: mean colour, 50%"
VARIANTS: Mapping[str, dict[str, Any]] = {  # of masked-patch pre-training
    MASKED: {"patch_target": "colour", "mask_ratio": 0.5},
    "masked patches: mean colour, 15%": {"patch_target": "colour", "mask_ratio": 0.15},
    "masked patches: 4 x 4 colours, 50%": {"patch_target": "colours", "mask_ratio": 0.5},
    "masked patches: pixels (L2), 50%": {"patch_target": "pixels", "mask_ratio": 0.5},
}
PAPER = {SCRATCH: 77.91, MASKED: 79.9, SUPERVISED: 83.97}  # B/16 on ImageNet: Table 5, and Appendix B.1.2
PATCH_SIZES = {"tiny": 4, "small": 8}  # px: 4 x 4 colours need a multiple of 4
WITHOUT_LABELS: dict[str, Any] = {"loss": None, "label_smoothing": None, "class_weights": None}


class MaskedPatchExperiment(Experiment):
    title = "masked-patch pre-training, three targets and two mask ratios, then fine-tuned; from scratch; supervised"
    place = "Appendix B.1.2"
    conclusion = (
        "Masked-patch pre-training improves on training from scratch, and is worse than supervised pre-training."
    )
    needs = Needs(transfer=True)
    time: ClassVar[Mapping[Scale, str]] = {}

    def cells(self, setting: Setting) -> list[Cell]:
        data = setting.transfer[0] if setting.transfer else setting.data
        size, cells = setting.image_size, list[Cell]()
        for seed in range(setting.seeds):
            patch = {"patch_size": PATCH_SIZES[setting.scale]} if setting.scale in PATCH_SIZES else {}
            supervised = setting.pretraining(seed, **patch)
            starts: dict[str, Any] = {SUPERVISED: supervised}
            for name, fields in VARIANTS.items():
                starts[name] = supervised.with_(objective="masked-patches", **WITHOUT_LABELS, **fields)
            for name, config in starts.items():
                before = Cell({"stage": "pre-training", "pre-training": name}, fewshot_measures(setting), seed, config)
                tuned = setting.finetuning(seed, size)
                factors: dict[str, str | int | float] = {"stage": "fine-tuning", "pre-training": name}
                cells += [before, Cell(factors, (ValidationAccuracy(TUNED),), seed, tuned, before, data)]
            scratch = supervised.with_(only_classes=(), duration=setting.finetuning(seed, size).schedule.duration)
            factors = {"stage": "fine-tuning", "pre-training": SCRATCH}
            cells.append(Cell(factors, (ValidationAccuracy(TUNED),), seed, scratch, data=data))
        return cells

    def table(self, records: CellRecords) -> ResultTable:
        before = records.where(stage="pre-training")
        shots = [name for name in records.measured_names if name.endswith("-shot")]
        rows = []
        for name in (SCRATCH, *VARIANTS, SUPERVISED):
            values = [None if name == SCRATCH else before.summary(shot, **{"pre-training": name}) for shot in shots]
            tuned = records.where(stage="fine-tuning").summary(TUNED, **{"pre-training": name})
            rows.append((name, tuned, *values, PAPER.get(name)))
        own = (measure_label(shot) for shot in shots)
        columns = ("pre-training", "accuracy after fine-tuning (%)", *own, "paper: ImageNet (%)")
        notes = (
            "Percentages of mask ratio: corrupted patches. All pre-trainings have the same length and the same model.",
            "From scratch: the settings of supervised pre-training on the fine-tuning data, with the length of"
            " fine-tuning. Last weights; nothing was selected.",
            "Paper: B/16. Masked patches: Appendix B.1.2; from scratch and supervised on ImageNet-21k: Table 5.",
        )
        return ResultTable(columns, tuple(rows), notes)

    def verdict(self, records: CellRecords) -> Verdict:
        tuned = records.where(stage="fine-tuning")
        scratch, masked, supervised = (
            tuned.by_seed(TUNED, **{"pre-training": name}) for name in (SCRATCH, MASKED, SUPERVISED)
        )
        return judge(
            [
                Claim("masked patches are better than from scratch", paired_difference(masked, scratch)),
                Claim("supervised is better than masked patches", paired_difference(supervised, masked)),
            ]
        )

    def draw(self, records: CellRecords) -> Figure:
        tuned = records.where(stage="fine-tuning")
        names = (SCRATCH, *VARIANTS, SUPERVISED)
        rows = [(name, list(tuned.by_seed(TUNED, **{"pre-training": name}).values())) for name in names]
        paper = [PAPER.get(name) for name in names]
        return dot_rows(rows, "accuracy after fine-tuning (%)", paper, "paper: B/16 on ImageNet (%)")


def fewshot_measures(setting: Setting) -> tuple[FewShotAccuracy, ...]:
    """What is measured on the pre-trained models: they have no classes."""
    return tuple(one for one in setting.measures() if isinstance(one, FewShotAccuracy))


EXPERIMENT = MaskedPatchExperiment()
