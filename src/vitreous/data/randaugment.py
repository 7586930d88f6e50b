"""RandAugment (Cubuk et al., 2019) for a batch: each sample by operations of its own, without a loop over samples."""

import torch
from torch import Tensor

from vitreous import draws
from vitreous.data import colour
from vitreous.data.geometry import affine, affine_matrices, per_image

OPERATIONS = (
    "identity", "autocontrast", "equalise", "rotate", "solarise", "colour", "posterise",
    "contrast", "brightness", "sharpness", "shear x", "shear y", "translate x", "translate y",
)  # fmt: skip

# What magnitude 10 does; 0 does nothing but autocontrast and equalise, and between them strength is proportional.
# As in torchvision and in timm's "increasing" variants, where a higher magnitude never means a weaker operation.
MOST_DEGREES = 30.0
MOST_SHEAR = 0.3
MOST_TRANSLATION = 0.45  # of the side
MOST_ENHANCEMENT = 0.9  # factors of 0.1 and 1.9
MOST_BITS_LOST = 4


def randaugment(images: Tensor, keys: Tensor, count: int, magnitude: float) -> Tensor:
    """`count` operations for each sample of (B, C, H, W) in 0..255, drawn anew each time, with random signs.

    Colours come first, by the image's own statistics. The geometric operations of a sample are multiplied into one
    affine map, so that its pixels are interpolated once; what comes in from outside is mid grey.
    """
    strength = magnitude / 10
    drawn = draws.uniform(keys, "randaugment", 2 * count)
    operations = (drawn[:, :count] * len(OPERATIONS)).long()
    amounts = torch.where(drawn[:, count:] < 0.5, -strength, strength)
    matrices = torch.eye(3, dtype=torch.float64, device=images.device)
    for operation, amount in zip(operations.unbind(1), amounts.unbind(1), strict=True):
        images = recolour(images, operation, amount, strength)
        matrices = matrices @ moves(operation, amount, (images.shape[2], images.shape[3]))
    return affine(images, matrices[:, :2])


def recolour(images: Tensor, operation: Tensor, amount: Tensor, strength: float) -> Tensor:
    """The colour operation of each sample: four are tables of 256 entries, four are blends, the others leave it alone.

    What goes through a table is rounded to whole levels first.
    """
    levels = colour.levels(images)
    tables, by_table = _tables(levels, operation, strength)
    return torch.where(per_image(by_table), colour.look_up(tables, levels), _blended(images, operation, amount))


def moves(operation: Tensor, amount: Tensor, size: tuple[int, int]) -> Tensor:
    """The affine map of each sample's operation, (B, 3, 3); the identity if it is not a geometric one."""
    turn, shear_x, shear_y, move_x, move_y = (
        amount * _is(name, operation) for name in ("rotate", "shear x", "shear y", "translate x", "translate y")
    )
    shears = MOST_SHEAR * torch.stack((shear_x, shear_y), 1)
    pixels = MOST_TRANSLATION * torch.stack((move_x * size[1], move_y * size[0]), 1)
    return affine_matrices(MOST_DEGREES * turn, shears, pixels, size)


def _blended(images: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    by_colour, by_contrast, by_brightness, by_sharpness = (
        _is(name, operation) for name in ("colour", "contrast", "brightness", "sharpness")
    )
    grey = colour.grey(images)
    degenerate = torch.where(per_image(by_contrast), colour.mean_grey(grey), 0.0)
    degenerate = torch.where(per_image(by_colour), grey, degenerate)
    degenerate = torch.where(per_image(by_sharpness), colour.smooth(images), degenerate)
    enhanced = by_colour | by_contrast | by_brightness | by_sharpness
    return colour.blend(degenerate, images, 1 + MOST_ENHANCEMENT * amount * enhanced)


def _tables(levels: Tensor, operation: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """A table for each sample and channel, (B, C, 256), and which samples are to use it."""
    ramp = colour.ramp(levels.device)
    candidates = {
        "autocontrast": colour.autocontrast_tables(levels),
        "equalise": colour.equalise_tables(levels),
        "solarise": colour.solarise(ramp, 256 * (1 - strength)),
        "posterise": colour.posterise(ramp, 8 - round(MOST_BITS_LOST * strength)),
    }
    tables, by_table = ramp, torch.zeros_like(operation, dtype=torch.bool)
    for name, candidate in candidates.items():
        chosen = _is(name, operation)
        tables = torch.where(chosen[:, None, None], candidate, tables)
        by_table = by_table | chosen
    return tables, by_table


def _is(name: str, operation: Tensor) -> Tensor:
    return operation == OPERATIONS.index(name)
