"""What every model checks of its config and its input, so that a wrong value is named where it was written."""

from collections.abc import Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief

LARGEST = torch.finfo(torch.float32).max  # fields become values of float32 parameters
MOST_SIDE = 2**20  # pixels of an image; sums of larger ones overflow
Size = int | tuple[int, int]  # one number is a square
Grid = tuple[int, int]  # (rows, cols)


def pair(size: Size, name: str = "size") -> tuple[int, int]:
    """(height, width) of a size. A list will do for a tuple: it may come from JSON."""
    values = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(values) != 2 or not all(_whole(v) and v > 0 for v in values):
        raise VitreousError(f"{name} = {brief(size)}: expected a positive integer, or a pair of them (height, width)")
    if max(values) > MOST_SIDE:
        raise VitreousError(f"{name} = {brief(size)}: expected {MOST_SIDE:,} pixels or less along a side")
    return values[0], values[1]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def require(condition: object, config: object, field: str, problem: str) -> None:
    """Raise unless `condition` holds, naming the config, the field, its value and what is allowed."""
    if not condition:
        raise VitreousError(f"{type(config).__name__}.{field} = {brief(getattr(config, field))}: {problem}")


def settle(config: object, field: str, value: object) -> None:
    """Give a field of a frozen config the value that follows from the others, if it was left at None."""
    if getattr(config, field) is None:
        object.__setattr__(config, field, value)


def check_fields(config: Any) -> None:
    """Hold every field of a dataclass against its annotation, and turn sizes into pairs."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type == Size:
            object.__setattr__(config, field.name, pair(value, f"{type(config).__name__}.{field.name}"))
        else:
            require(_matches(value, field.type), config, field.name, f"expected {_describe(field.type)}")
            require(not isinstance(value, int) or abs(value) < 2**31, config, field.name, "must be below 2**31")


def check_images(images: Tensor, channels: int, whole: torch.dtype | None = None, weight: Tensor | None = None) -> None:
    """Images are (B, C, H, W) in floating point, or in the integer type `whole` where the caller takes that. With
    `weight`, the first weight of the model, they have its type: nothing is cast silently."""
    if not isinstance(images, Tensor):
        raise VitreousError(f"images: expected a tensor, got {type(images).__name__}")
    if images.is_nested or images.layout != torch.strided:
        kind = "nested" if images.is_nested else "sparse"
        raise VitreousError(f"images: expected a dense tensor, got a {kind} one")
    if images.ndim != 4 or images.shape[1] != channels or 0 in images.shape[2:]:
        raise VitreousError(f"images: expected (batch, {channels}, height, width), got {tuple(images.shape)}")
    if not images.is_floating_point() and images.dtype != whole:
        raise VitreousError(
            f"images: expected floating-point pixels, not {images.dtype}: scale and normalise them first"
        )
    if weight is not None and images.dtype != weight.dtype and not _autocast(images, weight):
        ours, theirs = str(weight.dtype)[6:], str(images.dtype)[6:]
        raise VitreousError(
            f"images: they are {theirs} and the model is {ours}: convert them (images.to(torch.{ours})), or the model"
            f" (model.to(torch.{theirs}))"
        )


def _autocast(images: Tensor, weight: Tensor) -> bool:
    """Whether torch.autocast brings both to one type, which it does for all but float64."""
    kind = images.device.type
    known = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return known and torch.float64 not in (images.dtype, weight.dtype)


def pick_layers(layers: Sequence[int], count: int) -> list[int]:
    """Indices from 0, negative ones counted from the end."""
    if not isinstance(layers, Sequence) or not all(_matches(i, int) for i in layers):
        raise VitreousError(f"layers: expected a list of integers, got {brief(layers)}")
    if wrong := [i for i in layers if not -count <= i < count]:
        raise VitreousError(f"layers: {wrong} not among the {count} there are; use {-count} to {count - 1}")
    return [i % count for i in layers]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _matches(value: object, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin in (UnionType, Union):
        return any(_matches(value, option) for option in get_args(kind))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin is tuple:
        return isinstance(value, tuple) and all(_matches(v, get_args(kind)[0]) for v in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    if kind is int:
        return _whole(value)
    return isinstance(value, kind)


def _describe(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (UnionType, Union):
        return " or ".join(_describe(option) for option in get_args(kind))
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(kind))
    if origin is tuple:
        return f"a tuple of {_describe(get_args(kind)[0])}"
    names = {int: "an integer", float: "a finite number of 32 bits", bool: "True or False", type(None): "None"}
    return names.get(kind, f"a {getattr(kind, '__name__', kind)}")
