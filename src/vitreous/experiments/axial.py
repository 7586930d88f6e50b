"""Axial attention, within rows and within columns in turn, against full attention (D.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vitreous.experiments.grid.cell_measures import CellMeasure, TrainedCell
from vitreous.experiments.grid.experiment import Cell, Experiment, Scale
from vitreous.experiments.grid.plots import dot_rows
from vitreous.experiments.grid.records import measure_label
from vitreous.experiments.grid.settings import Setting
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import ResultTable
from vitreous.experiments.grid.work import model_config, model_gflops
from vitreous.experiments.speed import PLAIN_SPEED, best_speed, measurement
from vitreous.models.zoo import build_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords

SPEED_BATCHES: Mapping[str, tuple[int, int]] = {"cuda": (512, 2048), "cpu": (16, 64)}
ACCURACY, SPEED = "accuracy", "speed"


@dataclass(frozen=True)
class AttentionSpeed(CellMeasure):
    """Images per second of forward passes in plain PyTorch (bf16 on a GPU), of a model with random weights. The fused
    kernels support full attention only, so they are not used for either."""

    scale: Scale
    attention: str
    depth: int

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        kind = "cuda" if cell.device.type == "cuda" else "cpu"
        dtype = torch.bfloat16 if kind == "cuda" else torch.float32
        config = model_config(Setting(self.scale, "").pretraining(attention=self.attention, depth=self.depth))
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        with measurement(cell.device, f"{self.attention} attention", size):
            model = build_model(config).to(cell.device, dtype).eval()

            def run(images: torch.Tensor) -> object:
                with torch.inference_mode():
                    return model(images)

            return best_speed(PLAIN_SPEED, run, SPEED_BATCHES[kind], config.channels, size, dtype, cell.device)


class AxialExperiment(Experiment):
    title = "axial attention (rows, then columns) against full attention: accuracy and images per second"
    place = "Appendix D.6"
    conclusion = (
        "A ViT in which every block is replaced by a row and a column block is more accurate, and costs more compute."
    )
    seeds: ClassVar[Mapping[Scale, int]] = {"tiny": 1, "small": 3, "paper": 2}
    time: ClassVar[Mapping[Scale, str]] = {"tiny": "5 s on 2 CPU cores"}

    def cells(self, setting: Setting) -> list[Cell]:
        depth = model_config(setting.pretraining()).depth  # type: ignore[union-attr]
        cells = []
        for attention, blocks in (("full", depth), ("axial", depth), ("axial", 2 * depth)):
            factors = {"attention": attention, "depth": blocks}
            for seed in range(setting.seeds):
                # "full" is the default: the first model is then the same run as in other experiments.
                own = {} if attention == "full" else {"attention": attention}
                config = setting.pretraining(seed, depth=blocks, **own)
                gflops = float(f"{model_gflops(config):.4g}")
                cells.append(Cell({**factors, "cell": ACCURACY, "GFLOPs": gflops}, setting.measures(), seed, config))
            speed = AttentionSpeed(setting.scale, attention, blocks)
            cells.append(Cell({**factors, "cell": SPEED}, (speed,), alone=True))
        return cells

    def table(self, records: CellRecords) -> ResultTable:
        trained, timed = records.where(cell=ACCURACY), records.where(cell=SPEED)
        rows = []
        for group in trained.groups("attention", "depth", "GFLOPs"):
            same = {name: group[name] for name in ("attention", "depth")}
            accuracies = (trained.summary(name, **same) for name in trained.measured_names)
            gflops = f"{group['GFLOPs']:.3g}"
            rows.append((title_of(same), gflops, timed.first(PLAIN_SPEED, **same), *accuracies))
        note = (
            "images/s: inference in plain PyTorch, the median of several passes with the faster of two batch sizes."
            " The fused kernels support full attention only."
        )
        columns = ("model", "GFLOPs per image", "images/s", *trained.percent_columns)
        return ResultTable(columns, tuple(rows), (note,))

    def verdict(self, records: CellRecords) -> Verdict:
        trained = records.where(cell=ACCURACY)
        groups = trained.groups("attention", "depth")
        scores = {title_of(group): trained.by_seed(records.main_measure, **group) for group in groups}
        (full, base), *others = scores.items()
        claims = [Claim(f"{name} is better than {full}", paired_difference(each, base)) for name, each in others[-1:]]
        verdict = judge(claims)
        timed = records.where(cell=SPEED)
        speeds = {title_of(group): timed.first(PLAIN_SPEED, **group) for group in timed.groups("attention", "depth")}
        texts = [
            f"{name} runs at {speeds[name] / speeds[full]:.2f} times the images/s of {full}"
            for name, _ in others
            if speeds.get(name) and speeds.get(full)
        ]
        return Verdict(verdict.answer, " ".join([verdict.text, *(f"{text} (measured once)." for text in texts)]))

    def draw(self, records: CellRecords) -> Figure:
        trained, name = records.where(cell=ACCURACY), records.main_measure
        groups = trained.groups("attention", "depth")
        rows = [(title_of(group), list(trained.by_seed(name, **group).values())) for group in groups]
        speeds = [records.where(cell=SPEED).first(PLAIN_SPEED, **group) for group in groups]
        return dot_rows(rows, measure_label(name), speeds, "images/s, inference in plain PyTorch")


def title_of(group: Mapping[str, Any]) -> str:
    return f"{group['attention']} attention, {group['depth']} blocks"


EXPERIMENT = AxialExperiment()
