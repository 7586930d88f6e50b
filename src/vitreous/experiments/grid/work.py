"""The expected amount of work of a cell, to estimate the time left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitreous.errors import VitreousError
from vitreous.experiments.grid.experiment import Cell
from vitreous.models import zoo
from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.training import durations
from vitreous.training.config import TrainConfig

OVERHEAD = 2e12  # FLOPs that take about as long as starting a run and measuring it
IMAGES = 40_000  # per epoch: the real number is not needed for a relative estimate


def expected_work(cell: Cell, images: int = IMAGES) -> float:
    """Return the training FLOPs of a cell with this number of images per epoch, approximately."""
    if cell.config is None:
        return OVERHEAD
    try:
        return OVERHEAD + training_flops(cell, round(images * (cell.config.reading.train_fraction or 1)))
    except VitreousError:  # the settings are wrong: the run will say so
        return OVERHEAD


def training_flops(cell: Cell, images: int) -> float:
    """Return the FLOPs of the training run of a cell with this number of images per epoch, with those of the search of
    its learning rate."""
    assert cell.config is not None
    return images_seen(cell.config, images) * 3 * cost(cell_model(cell)).flops.total


def images_seen(config: TrainConfig, images: int) -> float:
    """Return how many images a run with this number of images per epoch is trained on, with repetitions."""
    batch = config.schedule.batch_size or 256
    steps = durations.run_length(config.schedule.duration or "1 epoch", batch_size=batch, images=images)
    each = durations.duration_steps(
        config.finetuning.candidate_duration, batch_size=batch, images=images, total_steps=steps
    )
    return batch * (steps + each * len(config.finetuning.lr_candidates or ()))


def cell_model(cell: Cell) -> ViTConfig | BiTConfig:
    """Return the model of a cell: that of the cell which it starts from, at its own image size."""
    assert cell.config is not None
    if cell.start is None or cell.start.config is None:
        return model_config(cell.config)
    before, size = cell_model(cell.start), cell.config.architecture.image_size
    return before if size is None else replace(before, image_size=size)


def model_gflops(config: TrainConfig) -> float:
    """Return the GFLOPs of a forward pass for one image, of the model that the settings describe."""
    return cost(model_config(config)).flops.total / 1e9


def model_config(config: TrainConfig) -> ViTConfig | BiTConfig:
    """Return the model that the settings of a run describe, with 1,000 classes."""
    own: dict[str, Any] = {
        name: value
        for name, value in vars(config.architecture).items()
        if value is not None and name not in ("start", "preprocessing", "model")
    }
    return zoo.config(config.architecture.model or "Ti/16", **own)
