"""Colour operations: Pillow's ImageEnhance and ImageOps for batches in 0..255, with a factor for each sample.

Images are (B, C, H, W) in float32, of 1 or 3 channels; factors are (B,).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 256


def grey(images: Tensor) -> Tensor:
    """Luminance (ITU-R 601), (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def blend(degenerate: Tensor | float, images: Tensor, factors: Tensor) -> Tensor:
    """ImageEnhance: a factor of 0 gives the degenerate image, 1 the image; larger factors extrapolate."""
    factors = factors[:, None, None, None]
    return (images * factors + degenerate * (1 - factors)).clamp(0, 255)


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    return blend(0.0, images, factors)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    return blend(mean_grey(images), images, factors)


def saturation(images: Tensor, factors: Tensor) -> Tensor:
    return blend(grey(images), images, factors)


def sharpness(images: Tensor, factors: Tensor) -> Tensor:
    return blend(smooth_filter(images), images, factors)


def mean_grey(images: Tensor) -> Tensor:
    """Mean luminance, (B, 1, 1, 1), rounded to an integer as in Pillow, so that the summation order does not matter."""
    return (grey(images).mean((2, 3), keepdim=True) + 0.5).floor()


def smooth_filter(images: Tensor) -> Tensor:
    """ImageFilter.SMOOTH: a 3 x 3 mean with weight 5 for the centre; border pixels are unchanged."""
    height, width = images.shape[2:]
    if height < 3 or width < 3:
        return images
    rows = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smoothed = images.clone()
    smoothed[:, :, 1:-1, 1:-1] = (sums + 4 * images[:, :, 1:-1, 1:-1]) / 13
    return smoothed


def solarise(values: Tensor, threshold: float) -> Tensor:
    return torch.where(values < threshold, values, 255 - values)


def posterise(values: Tensor, bits: int) -> Tensor:
    step = 1 << (8 - bits)
    return (values / step).floor() * step


def to_levels(images: Tensor) -> Tensor:
    """Pixels rounded to integers in 0..255, int64."""
    return images.round().clamp(0, LEVELS - 1).long()


def identity_table(device: torch.device) -> Tensor:
    """The lookup table of the identity, (256,)."""
    return torch.arange(LEVELS, dtype=torch.float32, device=device)


def apply_tables(tables: Tensor, levels: Tensor) -> Tensor:
    """Map pixels through lookup tables (B, C, 256)."""
    return tables.gather(2, levels.flatten(2)).view(levels.shape)


def autocontrast_tables(levels: Tensor) -> Tensor:
    """Lookup tables that stretch each channel from its minimum and maximum to 0 and 255; constant channels stay."""
    low, high = levels.amin((2, 3))[..., None], levels.amax((2, 3))[..., None]
    unchanged = identity_table(levels.device)
    stretched = ((unchanged - low) * (255 / (high - low).clamp(min=1))).clamp(0, 255)
    return torch.where(high > low, stretched, unchanged)


def equalise_tables(levels: Tensor) -> Tensor:
    """Lookup tables that equalise the histogram of each channel, in Pillow's integer arithmetic."""
    counts = _histograms(levels)
    last = counts.gather(2, levels.amax((2, 3))[..., None])
    total = levels.shape[2] * levels.shape[3]
    step = (total - last) // (LEVELS - 1)
    below = counts.cumsum(2) - counts
    equalised = ((step // 2 + below) // step.clamp(min=1)).clamp(max=LEVELS - 1)
    return torch.where(step > 0, equalised.float(), identity_table(levels.device))


def blur(images: Tensor, sigmas: Tensor, radius: int) -> Tensor:
    """Gaussian blur with a sigma in pixels for each sample, truncated at `radius`. Sigma 0 changes nothing.

    It is a sum over shifted images rather than a convolution: nothing is rounded to TF32, and torch.compile fuses it
    into one pass along rows and one along columns.
    """
    steps = torch.arange(radius + 1, device=images.device)
    weights = torch.exp(-0.5 * (steps / sigmas.clamp(min=1e-3)[:, None]) ** 2)
    weights = weights / (2 * weights.sum(1, keepdim=True) - weights[:, :1])
    for axis, border in ((2, (0, 0, radius, radius)), (3, (radius, radius, 0, 0))):
        size = images.shape[axis]
        padded = F.pad(images, border, mode="replicate")
        images = images * weights[:, 0, None, None, None]
        for step in range(1, radius + 1):
            sides = padded.narrow(axis, radius - step, size) + padded.narrow(axis, radius + step, size)
            images = images + sides * weights[:, step, None, None, None]
    return images


def _histograms(levels: Tensor) -> Tensor:
    """Histograms (B, C, 256), in integers, so that the summation order does not matter."""
    flat = levels.flatten(2)
    counts = torch.zeros((*flat.shape[:2], LEVELS), dtype=torch.int64, device=levels.device)
    return counts.scatter_add(2, flat, torch.ones_like(flat))
