"""Mixup and CutMix: pairs of training images and their targets, blended or pasted into each other.

Samples 2i and 2i + 1 of a batch are a pair, so that the pairs do not depend on the micro-batch size if it is even. The
random draws of a pair come from the key of its first sample.
"""

import torch
from torch import Tensor

from vitreous.data.augmentation import require_value
from vitreous.data.geometry import rectangles
from vitreous.data.options import Augmentation
from vitreous.utils import random_keys

CELLS = 4096  # entries of the table of the Beta distribution


def mix(images: Tensor, targets: Tensor, keys: Tensor, options: Augmentation) -> tuple[Tensor, Tensor]:
    """Apply mixup (Zhang et al., 2017) or CutMix (Yun et al., 2019); if both are on, each to half of the pairs.

    Images are (B, C, H, W) and targets (B, K), both floating point. Targets are mixed in the same proportion as the
    images, so the sum of a target is preserved. In a batch of odd size the last sample is unchanged.
    """
    mixup, cutmix = require_value(options.mixup), require_value(options.cutmix)
    if not mixup and not cutmix:
        return images, targets
    rows = torch.arange(len(images), device=images.device)
    partners = (rows ^ 1).clamp(max=len(images) - 1)
    keys = keys[rows - rows % 2]
    if not cutmix:
        weights = _mixup_weights(keys, mixup)
    elif not mixup:
        weights = _cutmix_weights(keys, cutmix, images)
    else:
        pasted = random_keys.uniform(keys, "mix", 1)[..., None, None] < 0.5
        weights = torch.where(pasted, _cutmix_weights(keys, cutmix, images), _mixup_weights(keys, mixup))
    shares = weights.mean((2, 3))[:, 0, None]
    mixed = torch.lerp(images, images[partners], weights.to(images.dtype))
    return mixed, torch.lerp(targets, targets[partners], shares.to(targets.dtype))


def beta(uniform: Tensor, alpha: float) -> Tensor:
    """Samples of Beta(alpha, alpha) from samples that are uniform in [0, 1), by inverting a table of the CDF.

    The distribution is symmetric, so the table covers the lower half. It is uniform in s, where x = s^p / 2: with
    p = 1/alpha for alpha < 1 the density, which is infinite at x = 0, is smooth in s. The table is a sum of integers,
    so that it is the same on every device and deterministic on CUDA.
    """
    if alpha == 1:
        return uniform
    power = max(1.0, 1 / alpha)
    s = (torch.arange(CELLS, dtype=torch.float64, device=uniform.device) + 0.5) / CELLS
    spread = 2 - s**power  # 2 (1 - x)
    density = (spread if alpha < 1 else spread * s) ** (alpha - 1)
    masses = (density / density.amax() * 2**40).round().long()
    upper = masses.cumsum(0)
    target = torch.where(uniform < 0.5, uniform, 1 - uniform).double() * 2 * upper[-1]
    cell = torch.searchsorted(upper, target.long(), right=True).clamp(max=CELLS - 1)
    part = 1 - (upper[cell] - target) / masses[cell].clamp(min=1)
    x = ((cell + part) / CELLS).clamp(0, 1) ** power / 2
    return torch.where(uniform < 0.5, x, 1 - x).float()


def _mixup_weights(keys: Tensor, alpha: float) -> Tensor:
    """Weight of the partner's image, (B, 1, 1, 1)."""
    return beta(random_keys.uniform(keys, "mixup", 1), alpha)[..., None, None]


def _cutmix_weights(keys: Tensor, alpha: float, images: Tensor) -> Tensor:
    """Weight of the partner's image, (B, 1, H, W): 1 inside a rectangle, which may cross the border, 0 outside."""
    height, width = images.shape[2:]
    share, down, right = random_keys.uniform(keys, "cutmix", 3).unbind(1)
    side = beta(share, alpha).sqrt()
    tall, wide = (side * height).round(), (side * width).round()
    top, left = (down * height).floor() - (tall / 2).floor(), (right * width).floor() - (wide / 2).floor()
    return rectangles(top, left, tall, wide, (height, width)).float()
