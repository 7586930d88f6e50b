"""Pre-training set x model: accuracy after fine-tuning on every data set at hand (Table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vitreous.experiments.grid.experiment import Cell, Experiment, Needs, Scale
from vitreous.experiments.grid.paper_results import TABLE_5
from vitreous.experiments.grid.records import CellRecords, measure_label
from vitreous.experiments.grid.scaling import (
    AFTER_TUNING,
    FINETUNING,
    PRETRAINING,
    TUNED,
    ScalingGrid,
    images_by_share,
    protocol_notes,
    seeded_pair,
    transfer_tasks,
)
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import Entry, ResultTable

if TYPE_CHECKING:
    from vitreous.experiments.grid.settings import Setting


class TransferTable(Experiment):
    title = "accuracy after fine-tuning on every data set at hand, by pre-training set and model"
    place = "Table 5"
    conclusion = "Pre-training on more images improves the accuracy after fine-tuning."
    needs = Needs(transfer=True)
    weights = AFTER_TUNING
    time: ClassVar[Mapping[Scale, str]] = {}

    def cells(self, setting: Setting) -> list[Cell]:
        grid = ScalingGrid(setting)
        for task in transfer_tasks(setting):
            for model, share, seed in grid.subset_runs:
                grid.finetuned(model, share, grid.plan.epochs, seed, task)
        return grid.cells

    def table(self, records: CellRecords) -> ResultTable:
        pretrained, tuned = records.where(stage=PRETRAINING), records.where(stage=FINETUNING)
        data = [str(group["data"]) for group in tuned.groups("data")]
        shots = [name for name in records.measured_names if name.endswith("-shot")]
        images = images_by_share(records)
        rows: list[tuple[Entry, ...]] = []
        for group in sorted(pretrained.groups("share", "model"), key=lambda one: float(one["share"])):
            share = float(group["share"])
            size = f"{images[share]:,} images" if share in images else "no results"
            values = [tuned.summary(TUNED, data=name, **group) for name in data]
            values += [pretrained.summary(name, **group) for name in shots]
            rows.append((f"{100 * share:g}%: {size}", str(group["model"]), *values, None))
        missing = (None,) * (len(data) + len(shots))
        for model, by_data in TABLE_5.items():
            rows += [(f"paper: {name}", model, *missing, accuracy) for name, accuracy in by_data.items()]
        columns = (
            *("pre-training data", "model"),
            *(f"fine-tuned: {'unseen classes' if name == 'unseen' else name} (%)" for name in data),
            *map(measure_label, shots),
            "paper: fine-tuned on ImageNet (%)",
        )
        return ResultTable(columns, tuple(rows), tuple(protocol_notes(records)))

    def verdict(self, records: CellRecords) -> Verdict:
        tuned = records.where(stage=FINETUNING)
        shares = sorted({float(group["share"]) for group in tuned.groups("share")})
        claims = []
        for data in (str(group["data"]) for group in tuned.groups("data")):
            for model in seeded_pair(records):
                least, most = (tuned.by_seed(TUNED, data=data, model=model, share=s) for s in (shares[0], shares[-1]))
                text = f"{model} on {data} is better with {shares[-1]:.0%} of the images than with {shares[0]:.0%}"
                claims.append(Claim(text, paired_difference(most, least)))
        return judge(claims)


EXPERIMENT = TransferTable()
