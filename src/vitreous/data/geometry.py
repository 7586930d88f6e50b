"""Where pixels come from: boxes cut out of images, shifts, affine maps; each sample by numbers of its own.

Positions are computed in float64, so that CPU and CUDA agree on which pixels are read and which lie outside.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GREY = 128.0  # what comes in from outside under an affine map


def gather_boxes(  # noqa: PLR0913 (what is held, which boxes of it, and how to sample them)
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

    `flat` holds all images as bytes, height x width x channels each, from `offsets` on. Sampling is bilinear with pixel
    centres at halves and stops at the image's border. A box that is larger than `size` is averaged over taps x taps
    positions for each pixel, spread so that they blur as much as Pillow's antialiasing does: two are good for boxes of
    up to about twice the size, n for n times. Boxes that are not larger cost more by it, and stay the same.
    """
    pixels = flat.unfold(0, channels, 1)  # (bytes, C) without a copy: the pixel that begins at each byte
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
    """Where pixel `number` of `count` lies in the input, once for each tap; pixel centres are at whole numbers here."""
    scale = length / count
    centres = start + (number + 0.5) * scale - 0.5
    if taps == 1:
        return [centres]
    # Pillow's triangle is `scale` times as wide as a bilinear one: variance scale²/6 against 1/6. What is missing comes
    # from the taps, spread evenly over `spread` pixels, whose variance is spread² (1 - 1/taps²) / 12.
    spread = (2 * (scale**2 - 1).clamp(min=0) / (1 - 1 / taps**2)).sqrt()
    return [centres + spread * ((tap + 0.5) / taps - 0.5) for tap in range(taps)]


def affine(images: Tensor, matrices: Tensor, fill: float = GREY) -> Tensor:
    """Images (B, C, H, W) under affine maps (B, 2, 3), as `Image.transform(size, AFFINE, ..., BILINEAR)` of Pillow.

    A matrix takes (x, y, 1) of an output pixel to its place in the input, with pixel centres at halves. Places outside
    the image become `fill`, mid grey unless told; those within half a pixel of its edge take the edge's colour.
    The identity changes nothing, to the last bit.
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
    still = (matrices == torch.eye(3, device=images.device)[:2]).all(2).all(1)
    return torch.where(per_image(still), images, torch.where(inside[:, None], sampled, fill))


def affine_matrices(degrees: Tensor, shears: Tensor, moves: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 3, 3), for `affine` and for multiplying: turn by degrees (B,), shear and move (x, y) by (B, 2) and (B, 2).

    Turned about the centre, counter-clockwise; sheared from the top left corner, as Pillow's users do; moves in pixels.
    """
    angle = -torch.deg2rad(degrees.double())
    cos, sin = angle.cos(), angle.sin()
    x, y = size[1] / 2, size[0] / 2
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    turn = (cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y, zero, zero, one)
    (shear_x, shear_y), (move_x, move_y) = shears.double().unbind(1), moves.double().unbind(1)
    shear = (one, shear_x, zero, shear_y, one, zero, zero, zero, one)
    move = (one, zero, move_x, zero, one, move_y, zero, zero, one)
    turned, sheared, moved = (torch.stack(entries, 1).view(-1, 3, 3) for entries in (turn, shear, move))
    return turned @ sheared @ moved


def shift(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Images moved by whole pixels, (B,) each; what comes in from outside is black."""
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device)[:, None] - per_image(down)
    columns = torch.arange(width, device=images.device) - per_image(right)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    index = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    moved = images.flatten(2).gather(2, index.flatten(2).expand(-1, images.shape[1], -1))
    return moved.view(images.shape) * inside


def rectangles(tops: Tensor, lefts: Tensor, heights: Tensor, widths: Tensor, size: tuple[int, int]) -> Tensor:
    """Which pixels of an image of this size lie in the rectangle of each sample, (B, 1, H, W) bool."""
    tops, lefts, heights, widths = map(per_image, (tops, lefts, heights, widths))
    rows = torch.arange(size[0], device=tops.device)[:, None]
    columns = torch.arange(size[1], device=tops.device)
    return (rows >= tops) & (rows < tops + heights) & (columns >= lefts) & (columns < lefts + widths)


def per_image(values: Tensor) -> Tensor:
    """(B,) to go with (B, C, H, W)."""
    return values[:, None, None, None]


class _Neighbours(NamedTuple):
    low: Tensor
    high: Tensor
    share: Tensor  # of the higher one


def _neighbours(positions: Tensor, size: Tensor) -> _Neighbours:
    """The two pixels around each position, kept inside the image."""
    whole = positions.floor()
    low = whole.long()
    low, high = (torch.minimum(pixel.clamp(min=0), size - 1) for pixel in (low, low + 1))
    return _Neighbours(low, high, (positions - whole).float())


def _bilinear(read: Callable[[Tensor, Tensor], Tensor], rows: _Neighbours, columns: _Neighbours) -> Tensor:
    upper = torch.lerp(read(rows.low, columns.low), read(rows.low, columns.high), columns.share)
    lower = torch.lerp(read(rows.high, columns.low), read(rows.high, columns.high), columns.share)
    return torch.lerp(upper, lower, rows.share)
