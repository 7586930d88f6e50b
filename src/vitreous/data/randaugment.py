"""RandAugment (Cubuk et al., 2019) for batches: different operations for each sample, without a loop over samples."""

import torch
from torch import Tensor

from vitreous.data import colour
from vitreous.data.geometry import affine, affine_matrices, per_image
from vitreous.utils import random_keys

OPERATIONS = (
    "identity", "autocontrast", "equalise", "rotate", "solarise", "colour", "posterise",
    "contrast", "brightness", "sharpness", "shear x", "shear y", "translate x", "translate y",
)  # fmt: skip

# Strength at magnitude 10. It is proportional to the magnitude; at 0 only autocontrast and equalise have an effect.
# As in torchvision and in timm's "increasing" variants, a higher magnitude never means a weaker operation.
MAX_DEGREES = 30.0
MAX_SHEAR = 0.3
MAX_TRANSLATION = 0.45  # fraction of the side
MAX_ENHANCEMENT = 0.9  # factors of 0.1 and 1.9
MAX_BITS_LOST = 4


def randaugment(images: Tensor, keys: Tensor, count: int, magnitude: float) -> Tensor:
    """Apply `count` random operations with random signs to each sample of (B, C, H, W) in 0..255.

    Colour operations come first, with statistics of the unmoved image. The geometric operations of a sample are
    multiplied into one affine transform, so that pixels are interpolated once, and filled with mid grey.
    """
    strength = magnitude / 10
    draws = random_keys.uniform(keys, "randaugment", 2 * count)
    operations = (draws[:, :count] * len(OPERATIONS)).long()
    amounts = torch.where(draws[:, count:] < 0.5, -strength, strength)
    matrices = torch.eye(3, dtype=torch.float64, device=images.device)
    for operation, amount in zip(operations.unbind(1), amounts.unbind(1), strict=True):
        images = apply_colour_operations(images, operation, amount, strength)
        matrices = matrices @ geometric_matrices(operation, amount, (images.shape[2], images.shape[3]))
    return affine(images, matrices[:, :2])


def apply_colour_operations(images: Tensor, operation: Tensor, amount: Tensor, strength: float) -> Tensor:
    """Apply the colour operation of each sample: four use lookup tables, four are blends, others change nothing.

    Before a lookup table, pixels are rounded to integers.
    """
    levels = colour.to_levels(images)
    tables, uses_table = _lookup_tables(levels, operation, strength)
    return torch.where(per_image(uses_table), colour.apply_tables(tables, levels), _blend(images, operation, amount))


def geometric_matrices(operation: Tensor, amount: Tensor, size: tuple[int, int]) -> Tensor:
    """The affine matrix of each sample's operation, (B, 3, 3); the identity for colour operations."""
    rotation, shear_x, shear_y, move_x, move_y = (
        amount * _is(name, operation) for name in ("rotate", "shear x", "shear y", "translate x", "translate y")
    )
    shears = MAX_SHEAR * torch.stack((shear_x, shear_y), 1)
    pixels = MAX_TRANSLATION * torch.stack((move_x * size[1], move_y * size[0]), 1)
    return affine_matrices(MAX_DEGREES * rotation, shears, pixels, size)


def _blend(images: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    by_colour, by_contrast, by_brightness, by_sharpness = (
        _is(name, operation) for name in ("colour", "contrast", "brightness", "sharpness")
    )
    grey = colour.grey(images)
    degenerate = torch.where(per_image(by_contrast), colour.mean_grey(grey), 0.0)
    degenerate = torch.where(per_image(by_colour), grey, degenerate)
    degenerate = torch.where(per_image(by_sharpness), colour.smooth_filter(images), degenerate)
    enhanced = by_colour | by_contrast | by_brightness | by_sharpness
    return colour.blend(degenerate, images, 1 + MAX_ENHANCEMENT * amount * enhanced)


def _lookup_tables(levels: Tensor, operation: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """A lookup table for each sample and channel, (B, C, 256), and which samples use it, (B,) bool."""
    ramp = colour.identity_table(levels.device)
    candidates = {
        "autocontrast": colour.autocontrast_tables(levels),
        "equalise": colour.equalise_tables(levels),
        "solarise": colour.solarise(ramp, 256 * (1 - strength)),
        "posterise": colour.posterise(ramp, 8 - round(MAX_BITS_LOST * strength)),
    }
    tables, uses_table = ramp, torch.zeros_like(operation, dtype=torch.bool)
    for name, candidate in candidates.items():
        selected = _is(name, operation)
        tables = torch.where(selected[:, None, None], candidate, tables)
        uses_table = uses_table | selected
    return tables, uses_table


def _is(name: str, operation: Tensor) -> Tensor:
    return operation == OPERATIONS.index(name)
