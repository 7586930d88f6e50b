"""A training step without data: the engine of a run, shown the same random images again and again."""

from __future__ import annotations

import torch

from vitreous.data.loading import Batch, BatchCropper
from vitreous.data.options import Augmentation
from vitreous.data.transforms import RandomResizedCrop
from vitreous.errors import VitreousError
from vitreous.models import BiT, VisionTransformer
from vitreous.training.config import Objective, Optimiser
from vitreous.training.engine import BatchPreparation, Engine
from vitreous.training.optim import losses, optimisers
from vitreous.utils import random_keys

# Nothing happens to the images but that they are normalised.
UNCHANGED = Augmentation(
    crop=1.0,
    aspect=1.0,
    shift=0.0,
    flip=False,
    randaugment=0,
    magnitude=0.0,
    three_augment=False,
    jitter=0.0,
    erase=0.0,
    mixup=0.0,
    cutmix=0.0,
)


def synthetic_engine(model: VisionTransformer | BiT, batch: int, size: tuple[int, int], precision: str) -> Engine:
    """The engine of a run with cross-entropy and AdamW, without clipping: whole batches in one pass, not compiled."""
    classes, channels = model.config.num_classes, model.config.channels
    if classes < 2:
        raise VitreousError(f"training needs a head that tells classes apart, and this model has {classes} classes")
    device = next(model.parameters()).device
    loss = losses.build_loss(Objective(loss="softmax", label_smoothing=0.0), torch.zeros(1).long(), classes, device)
    half = torch.full((channels, 1, 1), 0.5, device=device)
    return Engine(
        model.train(),
        loss,
        BatchPreparation(BatchCropper(None, RandomResizedCrop(size, channels, UNCHANGED)), UNCHANGED, half, half, loss),
        optimisers.build_optimisers(model, Optimiser(optimiser="adamw", lr=1e-4, weight_decay=0.05, clip=None)),
        None,
        None,
        batch,
        precision,
    )


def synthetic_batch(model: VisionTransformer | BiT, batch: int, size: tuple[int, int]) -> Batch:
    """Random pixels and labels, on the model's device."""
    device = next(model.parameters()).device
    pixels = torch.randint(256, (batch, model.config.channels, *size), dtype=torch.uint8, device=device)
    labels = torch.randint(model.config.num_classes, (batch,), device=device)
    return Batch(pixels, random_keys.keys(0, torch.arange(batch)).to(device), labels)


def way(engine: Engine) -> str:
    """How its steps are done, in words."""
    return engine.path + ("" if engine.captured is None else ", recorded as a CUDA graph")


@torch.no_grad()
def wake_head_(model: VisionTransformer | BiT) -> None:
    """The head starts at zero, so that a first backward would be one of zeros, which a GPU is quicker at."""
    if isinstance(model.head, torch.nn.Linear):
        torch.nn.init.normal_(model.head.weight, std=0.02)
