"""Results of the experiments on data and compute with made-up numbers: the real grid, without any training."""

import math
from collections.abc import Callable

import numpy as np

from vitreous.experiments.grid.experiment import Cell, CellRecord
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.scaling import TUNED
from vitreous.experiments.grid.settings import Setting
from vitreous.experiments.grid.work import cell_model, images_seen
from vitreous.experiments.registry import find_experiment
from vitreous.models.cost import cost

IMAGES = 40_000
SETTING = Setting("small", "photos.npz", ("cifar10.npz",), 3, ("cat", "dog", "fox"), ("owl", "rat"))
Accuracy = Callable[[str, float, float, int], float]
"""From family, images, GFLOPs of pre-training and seed to an accuracy in percent."""


def by_images(slopes: dict[str, float], start: dict[str, float], noise: float = 0.3) -> Accuracy:
    """Accuracies that grow by a slope with every factor of 10 of the images, and a little with the compute."""

    def accuracy(family: str, images: float, gflops: float, seed: int) -> float:
        drawn = np.random.default_rng([seed, round(images), len(family), round(gflops)]).standard_normal()
        return start[family] + slopes[family] * math.log10(images / 800) + 3 * math.log10(gflops / 1e5) + noise * drawn

    return accuracy


CROSSING = by_images({"ViT": 14, "hybrid": 12, "BiT": 8}, {"ViT": 50, "hybrid": 53, "BiT": 55})
PARALLEL = by_images({"ViT": 8, "hybrid": 8, "BiT": 8}, {"ViT": 50, "hybrid": 53, "BiT": 55})
EQUAL = by_images({"ViT": 8, "hybrid": 8, "BiT": 8}, {"ViT": 50, "hybrid": 50, "BiT": 50}, noise=0)


def records_of(name: str, accuracy: Accuracy, missing: Callable[[Cell], bool] = lambda cell: False) -> CellRecords:
    """The records of an experiment at scale small. `missing`: whether a cell has failed."""
    cells = find_experiment(name).cells(SETTING)
    return CellRecords("small", tuple(_record(cell, accuracy, missing(cell)) for cell in cells))


def _record(cell: Cell, accuracy: Accuracy, failed: bool) -> CellRecord:
    assert cell.config is not None
    run = "-".join(str(value) for value in (*cell.factors.values(), cell.seed))
    if failed:
        return CellRecord(cell.factors, cell.seed, {}, "no luck", run)
    pretraining = cell if cell.start is None else cell.start
    assert pretraining.config is not None
    images = round(IMAGES * float(cell.factors["share"]))
    seen = images_seen(pretraining.config.with_(lr_candidates=None), images)
    flops = seen * cost(cell_model(pretraining)).training_flops
    value = accuracy(str(cell.factors["family"]), images, flops / 1e9, cell.seed)
    values: dict[str, float] = {TUNED: value}
    if cell.start is None:
        values = {"training images": images, "exaFLOPs": flops / 1e18, "unseen 5-shot": value - 20}
    if cell.config.finetuning.lr_candidates:
        values["learning rate"] = cell.config.finetuning.lr_candidates[1]
    settings = {name: value for name, value in cell.config.flat().items() if value is not None}
    return CellRecord(cell.factors, cell.seed, values, "", run, 1.0, settings)
