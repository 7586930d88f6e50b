"""The expected amount of work of a cell, to estimate the time left."""

from __future__ import annotations

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
        return OVERHEAD + training_flops(cell.config, images)
    except VitreousError:  # the settings are wrong: the run will say so
        return OVERHEAD


def training_flops(config: TrainConfig, images: int) -> float:
    """Return the FLOPs of a training run with this number of images per epoch, from its own architecture settings."""
    batch = config.schedule.batch_size or 256
    steps = durations.run_length(config.schedule.duration or "1 epoch", batch_size=batch, images=images)
    return steps * batch * 3e9 * model_gflops(config)


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
