"""What a model says of itself, and what is taken for granted where it says nothing."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.models.base import Model
from vitreous.preprocessing import Preprocessing, plain
from vitreous.weights.labels import imagenet1k


def preprocessing_of(model: Model) -> Preprocessing:
    """What the model was trained to see; for one that does not say, its own size and pixels in -1..1."""
    config: Any = model.config
    found = model.preprocessing
    if found is None:
        return plain(config.image_size, config.channels)
    assert isinstance(found, Preprocessing)
    if len(found.mean) != config.channels:
        raise VitreousError(
            f"the model takes {config.channels} channels, and its preprocessing is for {len(found.mean)}"
        )
    return found


def labels_of(model: Model) -> tuple[str, ...] | None:
    """The names of the model's classes. A thousand classes without names are taken to be ImageNet-1k's."""
    config: Any = model.config
    classes = config.num_classes
    if model.labels is None:
        return imagenet1k() if classes == 1000 else None
    if len(model.labels) != classes:
        raise VitreousError(f"the model has {classes} classes and {len(model.labels)} names for them")
    return model.labels


def content_hash(model: Model) -> str:
    """Of the weights and of how they are put together: two models with the same one give the same numbers."""
    return digest(dict(model.named_parameters()), repr(model.config))


def digest(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """Of tensors with their names, and of what is said about them."""
    found = blake2b(about.encode(), digest_size=16)
    for name, tensor in tensors.items():
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    data: memoryview = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return data
