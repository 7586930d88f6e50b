"""Geometric operations on batches, with parameters for each sample: resampled boxes, shifts, affine transforms.

Positions are computed in float64, so that CPU and CUDA agree on which pixels are read and which are outside.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GREY = 128.0  # fill value outside of the image


def gather_boxes(  # noqa: PLR0913 (the cached images, the boxes, and how to resample them)
    flat: Tensor,
    offsets: Tensor,
    heights: Tensor,
    widths: Tensor,
    boxes: Tensor,
    flips: Tensor,
    size: tuple[int, int],
    channels: int,
    *,
    taps: int = 1,
) -> Tensor:
    """Boxes (top, left, height, width) of images, resampled to `size`: float32 (B, C, H, W) in 0..255.

    `flat` contains all images as bytes, height x width x channels each, starting at `offsets`. Sampling is bilinear,
    with pixel centres at halves, and clamped to the image. For a box larger than `size`, each pixel is the mean of
    taps x taps samples, spread so that they blur as much as Pillow's antialiasing does: n taps are enough for boxes of
    up to about n times the size. More taps make smaller boxes slower, but do not change them.
    """
    pixels = flat.unfold(0, channels, 1)  # (bytes, C) without a copy: the pixel that starts at each byte
    top, left, height, width = boxes.double()[..., None].unbind(1)
    column = torch.arange(size[1], device=flat.device)
    column = torch.where(flips[:, None], size[1] - 1 - column, column)
    rows = _positions(top, height, torch.arange(size[0], device=flat.device), size[0], taps)
    columns = _positions(left, width, column, size[1], taps)
    begin, stride = per_image(offsets), per_image(widths)

    def read(y: Tensor, x: Tensor) -> Tensor:
        return pixels[(begin + (y * stride + x) * channels)[:, 0]].float().movedim(3, 1)

    total = torch.zeros((), device=flat.device)
    for y in rows:
        across = _neighbours(y[:, None, :, None], per_image(heights))
        for x in columns:
            total = total + _bilinear(read, across, _neighbours(x[:, None, None, :], stride))
    return (total / taps**2).contiguous()


def _positions(start: Tensor, length: Tensor, number: Tensor, count: int, taps: int) -> list[Tensor]:
    """Input position of pixel `number` of `count`, for each tap. Pixel centres are at integers here."""
    scale = length / count
    centres = start + (number + 0.5) * scale - 0.5
    if taps == 1:
        return [centres]
    # Pillow's triangle filter is `scale` times as wide as a bilinear one: variance scale²/6 instead of 1/6. The taps
    # add the difference: spread evenly over `spread` pixels, their variance is spread² (1 - 1/taps²) / 12.
    spread = (2 * (scale**2 - 1).clamp(min=0) / (1 - 1 / taps**2)).sqrt()
    return [centres + spread * ((tap + 0.5) / taps - 0.5) for tap in range(taps)]


def affine(images: Tensor, matrices: Tensor, fill: float = GREY) -> Tensor:
    """Affine transforms (B, 2, 3) of images (B, C, H, W), as Pillow's `Image.transform(size, AFFINE, ..., BILINEAR)`.

    A matrix maps (x, y, 1) of an output pixel to its position in the input, with pixel centres at halves. Positions
    outside of the image get `fill`; those within half a pixel of the border get the border's colour. The identity
    returns bit-identical images.
    """
    images, matrices = images.float(), matrices.double()
    height, width = images.shape[2:]
    y = torch.arange(height, dtype=torch.float64, device=images.device)[:, None] + 0.5
    x = torch.arange(width, dtype=torch.float64, device=images.device) + 0.5
    a, b, c, d, e, f = matrices.flatten(1)[..., None, None].unbind(1)
    columns, rows = (a * x + c) + b * y, (d * x + f) + e * y  # (B, H, W)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    grid = torch.stack((columns * (2 / width) - 1, rows * (2 / height) - 1), 3).float()
    sampled = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    identity = (matrices == torch.eye(3, device=images.device)[:2]).all(2).all(1)
    return torch.where(per_image(identity), images, torch.where(inside[:, None], sampled, fill))


def affine_matrices(degrees: Tensor, shears: Tensor, translations: Tensor, size: tuple[int, int]) -> Tensor:
    """Affine matrices (B, 3, 3): rotation by degrees (B,), shear (x, y) and translation (x, y), (B, 2) each.

    Rotation is counter-clockwise about the centre, shear is about the top left corner, as is usual with Pillow, and
    translation is in pixels.
    """
    angle = -torch.deg2rad(degrees.double())
    cos, sin = angle.cos(), angle.sin()
    x, y = size[1] / 2, size[0] / 2
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    rotation = (cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y, zero, zero, one)
    (shear_x, shear_y), (move_x, move_y) = shears.double().unbind(1), translations.double().unbind(1)
    shear = (one, shear_x, zero, shear_y, one, zero, zero, zero, one)
    move = (one, zero, move_x, zero, one, move_y, zero, zero, one)
    rotations, shears, moves = (torch.stack(entries, 1).view(-1, 3, 3) for entries in (rotation, shear, move))
    return rotations @ shears @ moves


def shift(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Images translated by whole pixels, (B,) each, and padded with black."""
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device)[:, None] - per_image(down)
    columns = torch.arange(width, device=images.device) - per_image(right)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    index = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    moved = images.flatten(2).gather(2, index.flatten(2).expand(-1, images.shape[1], -1))
    return moved.view(images.shape) * inside


def rectangles(tops: Tensor, lefts: Tensor, heights: Tensor, widths: Tensor, size: tuple[int, int]) -> Tensor:
    """Mask of the pixels inside the rectangle of each sample, (B, 1, H, W) bool."""
    tops, lefts, heights, widths = map(per_image, (tops, lefts, heights, widths))
    rows = torch.arange(size[0], device=tops.device)[:, None]
    columns = torch.arange(size[1], device=tops.device)
    return (rows >= tops) & (rows < tops + heights) & (columns >= lefts) & (columns < lefts + widths)


def per_image(values: Tensor) -> Tensor:
    """Values (B,) reshaped to (B, 1, 1, 1), to broadcast with images."""
    return values[:, None, None, None]


class _Neighbours(NamedTuple):
    low: Tensor
    high: Tensor
    weight: Tensor  # weight of `high`


def _neighbours(positions: Tensor, size: Tensor) -> _Neighbours:
    """The two pixels around each position, clamped to the image."""
    floor = positions.floor()
    low = floor.long()
    low, high = (torch.minimum(pixel.clamp(min=0), size - 1) for pixel in (low, low + 1))
    return _Neighbours(low, high, (positions - floor).float())


def _bilinear(read: Callable[[Tensor, Tensor], Tensor], rows: _Neighbours, columns: _Neighbours) -> Tensor:
    upper = torch.lerp(read(rows.low, columns.low), read(rows.low, columns.high), columns.weight)
    lower = torch.lerp(read(rows.high, columns.low), read(rows.high, columns.high), columns.weight)
    return torch.lerp(upper, lower, rows.weight)
