"""The runs that `figure3`, `figure4`, `figure5` and `table5` share: pre-training on subsets, and fine-tuning.

The protocol is that of the paper's Figure 4: the same hyper-parameters and number of steps for all subsets, and early
stopping by validation accuracy. What differs: every family has a learning rate of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vitreous.experiments.grid.cell_measures import (
    BestValidationAccuracy,
    CellMeasure,
    FewShotAccuracy,
    SelectedRate,
    TrainingCompute,
    ValidationAccuracy,
)
from vitreous.experiments.grid.experiment import Cell, Factor
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.scaling_plans import FAMILIES, PLANS, ScaledModel, ScalingPlan
from vitreous.experiments.grid.settings import Setting, source_title

PRETRAINING, FINETUNING = "pre-training", "fine-tuning"
TUNED = "fine-tuned"  # accuracy
EARLY_STOPPING = "weights with the best validation accuracy of every pre-training run"
AFTER_TUNING = f"{EARLY_STOPPING}, and the last ones of fine-tuning"


@dataclass(frozen=True)
class TransferTask:
    """A data set to fine-tune on."""

    title: str
    source: str
    classes: tuple[str, ...] = ()  # (): all


def transfer_tasks(setting: Setting) -> list[TransferTask]:
    """Return the data sets to fine-tune on: those given with --transfer, otherwise the unseen classes."""
    if setting.transfer:
        return [TransferTask(source_title(source), source) for source in setting.transfer]
    return [TransferTask("unseen", setting.data, setting.unseen)]


@dataclass
class ScalingGrid:
    """Makes the cells, each of them once, in an order in which every cell comes after those that it needs."""

    setting: Setting
    cells: list[Cell] = field(default_factory=list)
    _made: dict[tuple[Any, ...], Cell] = field(default_factory=dict)

    @property
    def plan(self) -> ScalingPlan:
        return PLANS[self.setting.scale]

    @property
    def subset_runs(self) -> list[tuple[ScaledModel, float, int]]:
        """The models, shares of the images and seeds of the runs on subsets."""
        plan, seeds = self.plan, self.setting.seeds
        return [
            (plan.by_name[name], share, seed)
            for name in plan.subset_models
            for share in plan.shares
            for seed in range(seeds if name in plan.seeded else 1)
        ]

    def pretrained(self, model: ScaledModel, share: float, epochs: float, seed: int) -> Cell:
        """Return the cell of a pre-trained model. `epochs`: of all images; a subset is repeated as often as needed."""
        place = (PRETRAINING, model.name, share, epochs, seed)
        if place in self._made:
            return self._made[place]
        plan = self.plan
        lr_of, changes = None, dict[str, Any]()
        selects = bool(plan.lr_candidates) and place == self._selecting(model.family)
        if selects:
            changes = {"lr": None, "lr_candidates": plan.lr_candidates, "dev_fraction": plan.dev_fraction}
        elif plan.lr_candidates:
            lr_of, changes = self.pretrained(plan.first(model.family), 1.0, plan.epochs, 0), {"lr": None}
        if share < 1:
            changes["train_fraction"] = share
        config = self.setting.pretraining(
            seed, **{**plan.pretraining, "duration": f"{epochs / share:.10g} epochs", **model.fields, **changes}
        )
        measures = (BestValidationAccuracy(), TrainingCompute(), *self._fewshot())
        if selects:
            measures = (SelectedRate(), *measures)
        factors = _factors(PRETRAINING, model, share, epochs)
        return self._add(place, Cell(factors, measures, seed, config, None, lr_of=lr_of, weights="best"))

    def finetuned(self, model: ScaledModel, share: float, epochs: float, seed: int, task: TransferTask) -> Cell:
        """Return the cell of a pre-trained model that is fine-tuned on another data set."""
        place = (FINETUNING, model.name, share, epochs, seed, task.title)
        if place in self._made:
            return self._made[place]
        plan = self.plan
        start = self.pretrained(model, share, epochs, seed)
        lr_of, changes = None, dict[str, Any]()
        selects = bool(plan.finetuning_lr) and (
            plan.search_each or place == (FINETUNING, *self._selecting(model.family)[1:], task.title)
        )
        if selects:
            changes = {"lr": None, "lr_candidates": plan.finetuning_lr, "dev_fraction": plan.finetuning_dev}
        elif plan.finetuning_lr:
            lr_of, changes = self.finetuned(plan.first(model.family), 1.0, plan.epochs, 0, task), {"lr": None}
        config = self.setting.finetuning(seed, plan.finetuning_size)
        config = config.with_(**{"only_classes": task.classes, **plan.finetuning, **changes})
        measures: tuple[CellMeasure, ...] = (ValidationAccuracy(TUNED),)
        if selects:
            measures = (SelectedRate(), *measures)
        factors = {**_factors(FINETUNING, model, share, epochs), "data": task.title}
        return self._add(place, Cell(factors, measures, seed, config, start, task.source, lr_of=lr_of))

    def _selecting(self, family: str) -> tuple[Any, ...]:
        """The place of the pre-training cell that selects the learning rate of a family."""
        return (PRETRAINING, self.plan.first(family).name, 1.0, self.plan.epochs, 0)

    def _fewshot(self) -> tuple[CellMeasure, ...]:
        return tuple(one for one in self.setting.measures() if isinstance(one, FewShotAccuracy))

    def _add(self, place: tuple[Any, ...], cell: Cell) -> Cell:
        self._made[place] = cell
        self.cells.append(cell)
        return cell


def _factors(stage: str, model: ScaledModel, share: float, epochs: float) -> dict[str, Factor]:
    return {"stage": stage, "family": model.family, "model": model.name, "share": share, "epochs": epochs}


# ---------------------------------------------------------------- from the results


def subset_records(records: CellRecords) -> CellRecords:
    """Return the cells that are trained on subsets, with the budget that all subsets have."""
    return records.where(epochs=PLANS[records.scale].epochs)  # type: ignore[index]


def images_by_share(records: CellRecords) -> dict[float, int]:
    """Return the number of pre-training images of every subset of which a run has a result."""
    found = {
        float(cell.factors["share"]): int(cell.values["training images"])
        for cell in records
        if "training images" in cell.values
    }
    return dict(sorted(found.items()))


def models_of(records: CellRecords) -> dict[str, str]:
    """Return the families of all models, by name."""
    return {str(group["model"]): str(group["family"]) for group in records.groups("model", "family")}


def seeded_pair(records: CellRecords) -> tuple[str, str]:
    """Return the names of the ViT and the BiT that are compared over seeds."""
    return PLANS[records.scale].seeded  # type: ignore[index]


def protocol_notes(records: CellRecords) -> list[str]:
    """Return sentences on how the models were pre-trained, from the settings of the runs."""
    pretrained, tuned = records.where(stage=PRETRAINING), records.where(stage=FINETUNING)
    settings = next((cell.settings for cell in pretrained if cell.settings), {})
    notes = [
        "Subsets of the pre-training images are stratified and nested: a smaller one is part of a larger one"
        " (train_fraction, drawn with split_seed 0).",
        _augmentation(settings),
        _rate_note("Pre-training", pretrained),
    ]
    if len(tuned):
        notes.append(_rate_note("Fine-tuning", tuned))
    return [note for note in notes if note]


def _augmentation(settings: Any) -> str:
    if not settings:
        return ""
    crop = settings.get("crop", 1)
    crops = "no crops" if crop == 1 else f"random crops of at least {crop:.0%} of the area"
    flips = "flips" if settings.get("flip") else "no flips"
    size, batch = settings.get("image_size"), settings.get("batch_size")
    return (
        f"All models: {size} px, {batch} images per step, the same augmentation ({crops}, {flips}), weight decay"
        f" {settings.get('weight_decay'):g}, dropout {settings.get('dropout') or 0:g}, for subsets of every size."
    )


def _rate_note(stage: str, records: CellRecords) -> str:
    """State the learning rates, and how they were selected."""
    selecting = [cell for cell in records if cell.settings.get("lr_candidates")]
    if not selecting:
        given = sorted({float(cell.settings["lr"]) for cell in records if cell.settings.get("lr")})
        return f"{stage}: learning rates {', '.join(f'{rate:g}' for rate in given)}, without a search." if given else ""
    tried = selecting[0].settings["lr_candidates"]
    candidates = ", ".join(f"{rate:g}" for rate in tried)
    share = f"{selecting[0].settings['dev_fraction']:.0%} of the training images"
    how = f"selected among {candidates} on {share} that were held out for it"
    chosen = {
        family: [_rate_text(cell.values[SelectedRate.value], tried) for cell in selecting if _has_rate(cell, family)]
        for family in FAMILIES
    }
    rates = ", ".join(f"{family} {' and '.join(dict.fromkeys(each))}" for family, each in chosen.items() if each)
    runs = "every run" if len(selecting) > len(FAMILIES) * len(records.groups("data") or [{}]) else "each family"
    which = "" if runs == "every run" else ", with its first model, all images, seed 0"
    return f"{stage}: the learning rate of {runs} was {how}{which} ({rates or 'no results'})."


def _rate_text(rate: float, tried: Sequence[float]) -> str:
    """Return the selected rate, and whether a rate outside of the candidates may be better."""
    edge = {min(tried): " (the smallest)", max(tried): " (the largest)"}
    return f"{rate:g}{edge.get(rate, '')}"


def _has_rate(cell: Any, family: str) -> bool:
    return cell.factors.get("family") == family and SelectedRate.value in cell.values


def accuracies(records: CellRecords, value: str, model: str, shares: Sequence[float]) -> dict[float, dict[int, float]]:
    """Return a measure of one model by share of the images and seed."""
    return {share: records.by_seed(value, model=model, share=share) for share in shares}
