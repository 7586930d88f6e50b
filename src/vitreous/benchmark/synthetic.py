"""A training step on synthetic data: the engine of a training run with one batch of random images."""

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

# Images are only normalised.
NO_AUGMENTATION = Augmentation(
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
    """Return an engine with cross-entropy and AdamW, without clipping or gradient accumulation, not compiled."""
    classes, channels = model.config.num_classes, model.config.channels
    if classes < 2:
        raise VitreousError(f"training needs a head with 2 or more classes, and this model has {classes}")
    device = next(model.parameters()).device
    loss = losses.build_loss(Objective(loss="softmax", label_smoothing=0.0), torch.zeros(1).long(), classes, device)
    half = torch.full((channels, 1, 1), 0.5, device=device)
    return Engine(
        model.train(),
        loss,
        BatchPreparation(
            BatchCropper(None, RandomResizedCrop(size, channels, NO_AUGMENTATION)), NO_AUGMENTATION, half, half, loss
        ),
        optimisers.build_optimisers(model, Optimiser(optimiser="adamw", lr=1e-4, weight_decay=0.05, clip=None)),
        None,
        None,
        batch,
        precision,
    )


def synthetic_batch(model: VisionTransformer | BiT, batch: int, size: tuple[int, int]) -> Batch:
    """Return random pixels and labels on the device of the model."""
    device = next(model.parameters()).device
    pixels = torch.randint(256, (batch, model.config.channels, *size), dtype=torch.uint8, device=device)
    labels = torch.randint(model.config.num_classes, (batch,), device=device)
    return Batch(pixels, random_keys.keys(0, torch.arange(batch)).to(device), labels)


def step_path(engine: Engine) -> str:
    """Return the path of the engine's steps, for messages."""
    return engine.path + ("" if engine.captured is None else ", captured as a CUDA graph")


@torch.no_grad()
def randomise_head_(model: VisionTransformer | BiT) -> None:
    """Draw the weights of the head. They start at zero, and a GPU runs faster on the zero gradients of the blocks."""
    if isinstance(model.head, torch.nn.Linear):
        torch.nn.init.normal_(model.head.weight, std=0.02)
