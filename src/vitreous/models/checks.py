"""Checks of configs and inputs that all models share. Errors name the field and its value."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.utils.annotations import describe_annotation, matches_annotation
from vitreous.utils.sizes import Size, pair

FLOAT32_MAX = torch.finfo(torch.float32).max  # fields become values of float32 parameters
Grid = tuple[int, int]  # (rows, cols)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def require(condition: object, config: object, field: str, problem: str) -> None:
    """Raise unless `condition` holds. The message names the config, the field, its value and what is allowed."""
    if not condition:
        raise VitreousError(f"{type(config).__name__}.{field} = {brief(getattr(config, field))}: {problem}")


def settle(config: object, **values: object) -> None:
    """Set the fields of a frozen config that are None (AUTO) to these values."""
    for field, value in values.items():
        if getattr(config, field) is None:
            object.__setattr__(config, field, value)


def check_fields(config: Any) -> None:
    """Check every field of a dataclass against its annotation, and convert sizes to pairs. None is accepted where it is
    the default: the config replaces it afterwards (`settle`)."""
    for field in fields(config):
        value = getattr(config, field.name)
        if value is None and field.default is None:
            continue
        if field.type == Size:
            object.__setattr__(config, field.name, pair(value, f"{type(config).__name__}.{field.name}"))
        else:
            expected = f"expected {describe_annotation(field.type)}"
            require(matches_annotation(value, field.type), config, field.name, expected)
            finite = not isinstance(value, float) or abs(value) <= FLOAT32_MAX
            require(finite, config, field.name, "expected a finite number of 32 bits")
            require(not isinstance(value, int) or abs(value) < 2**31, config, field.name, "must be below 2**31")


def check_images(
    images: Tensor, channels: int, integer: torch.dtype | None = None, weight: Tensor | None = None
) -> None:
    """Raise unless images are (B, C, H, W) in floating point, or in the integer dtype `integer` if given. With
    `weight`, the first weight of the model, the dtypes must agree: nothing is cast silently."""
    if not isinstance(images, Tensor):
        raise VitreousError(f"images: expected a tensor, got {type(images).__name__}")
    if images.is_nested or images.layout != torch.strided:
        kind = "nested" if images.is_nested else "sparse"
        raise VitreousError(f"images: expected a dense tensor, got a {kind} one")
    if images.ndim != 4 or images.shape[1] != channels or 0 in images.shape[2:]:
        raise VitreousError(f"images: expected (batch, {channels}, height, width), got {tuple(images.shape)}")
    if not images.is_floating_point() and images.dtype != integer:
        raise VitreousError(
            f"images: expected floating-point pixels, not {images.dtype}: scale and normalise them first"
        )
    if weight is not None and images.dtype != weight.dtype and not _autocast(images, weight):
        ours, theirs = str(weight.dtype)[6:], str(images.dtype)[6:]
        raise VitreousError(
            f"images are {theirs} and the model is {ours}: convert the images (images.to(torch.{ours})) or the model"
            f" (model.to(torch.{theirs}))"
        )


def _autocast(images: Tensor, weight: Tensor) -> bool:
    """Return whether torch.autocast casts both to one dtype. It does not cast float64."""
    kind = images.device.type
    known = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return known and torch.float64 not in (images.dtype, weight.dtype)


def pick_layers(layers: Sequence[int], count: int) -> list[int]:
    """Return layer indices from 0; negative ones count from the end."""
    if not isinstance(layers, Sequence) or not all(_is_integer(i) for i in layers):
        raise VitreousError(f"layers: expected a list of integers, got {brief(layers)}")
    if wrong := [i for i in layers if not -count <= i < count]:
        raise VitreousError(f"layers: {wrong} out of range: the model has {count} layers; use {-count} to {count - 1}")
    return [i % count for i in layers]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
