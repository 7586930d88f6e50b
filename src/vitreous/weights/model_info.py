"""Preprocessing, labels and content hash of a model, with defaults for models that do not have them."""

from collections.abc import Mapping
from hashlib import blake2b
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models.base import Model
from vitreous.models.custom import CustomModel
from vitreous.models.standard import difference
from vitreous.preprocessing import Preprocessing, default_preprocessing
from vitreous.weights.labels import imagenet1k


def preprocessing_of(model: Model) -> Preprocessing:
    """Return the model's preprocessing. Default: its image size, pixels in -1..1."""
    config: Any = model.config
    preprocessing = model.preprocessing
    if preprocessing is None:
        return default_preprocessing(config.image_size, config.channels)
    assert isinstance(preprocessing, Preprocessing)
    if len(preprocessing.mean) != config.channels:
        raise VitreousError(
            f"the model takes {config.channels} channels, and its preprocessing is for {len(preprocessing.mean)}"
        )
    return preprocessing


def labels_of(model: Model) -> tuple[str, ...] | None:
    """Return the class names of a model. Default for 1000 classes: the names of ImageNet-1k.

    The number of classes is that of the head, which may have been replaced since the config was written."""
    any_model: Any = model
    head = any_model.head
    classes = len(head.weight) if isinstance(head, nn.Linear) else any_model.config.num_classes
    if model.labels is None:
        return imagenet1k() if classes == 1000 else None
    if len(model.labels) != classes:
        raise VitreousError(f"the model has {classes} classes and {len(model.labels)} names")
    return model.labels


def content_hash(model: Model) -> str:
    """Return a hash of config and weights: models with the same hash compute the same outputs.

    The computation of a hook, an adapter or a replaced module cannot be hashed: such a model has a new hash every time.
    """
    if isinstance(model, CustomModel):
        return tensors_digest(model.module.state_dict(), f"{model.config!r}{model.code_digest or token_hex()}")
    changed = difference(model, allowed=("compiled", "shared"))
    config = f"{model.config!r}{token_hex()}" if changed else repr(model.config)
    return tensors_digest(dict(model.named_parameters(remove_duplicate=False)), config)


def tensors_digest(tensors: Mapping[str, Tensor], prefix: str = "") -> str:
    """Return a hash of a text and of tensors: names, shapes, types and values."""
    digest = blake2b(prefix.encode(), digest_size=16)
    for name, tensor in tensors.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    data: memoryview = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return data
