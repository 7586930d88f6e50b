"""Pairs of training images and their targets, blended (mixup) or pasted into each other (cutmix).

Rows 2i and 2i + 1 of a batch are a pair, so that every micro-batch of even size makes the same pairs. What a pair draws
comes from the key of its first.
"""

import torch
from torch import Tensor

from vitreous import draws
from vitreous.data.augmentation import settled
from vitreous.data.geometry import rectangles
from vitreous.data.options import Augmentation

CELLS = 4096  # of the table behind `beta`


def mix(images: Tensor, targets: Tensor, keys: Tensor, options: Augmentation) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang et al., 2017), cutmix (Yun et al., 2019), or either for half the pairs if both are on.

    Images are (B, C, H, W) and targets (B, K), both floating point. What an image gives up of itself its target gives
    up too, so a target's sum stays. An odd last row has no partner and is left alone.
    """
    mixup, cutmix = settled(options.mixup), settled(options.cutmix)
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
        pasted = draws.uniform(keys, "mix", 1)[..., None, None] < 0.5
        weights = torch.where(pasted, _cutmix_weights(keys, cutmix, images), _mixup_weights(keys, mixup))
    shares = weights.mean((2, 3))[:, 0, None]
    mixed = torch.lerp(images, images[partners], weights.to(images.dtype))
    return mixed, torch.lerp(targets, targets[partners], shares.to(targets.dtype))


def beta(uniform: Tensor, alpha: float) -> Tensor:
    """Numbers uniform in [0, 1) made to follow Beta(alpha, alpha), by a table of its distribution function.

    The distribution is symmetric, so the table covers the lower half. Its cells are even in s, where x = s^p / 2: with
    p = 1/alpha for alpha < 1 the density, which is infinite at x = 0, is smooth in s. The table adds up whole numbers,
    so that it is the same on every device and its sums are deterministic on CUDA.
    """
    if alpha == 1:
        return uniform
    power = max(1.0, 1 / alpha)
    s = (torch.arange(CELLS, dtype=torch.float64, device=uniform.device) + 0.5) / CELLS
    spread = 2 - s**power  # 2 (1 - x)
    density = (spread if alpha < 1 else spread * s) ** (alpha - 1)
    masses = (density / density.amax() * 2**40).round().long()
    upper = masses.cumsum(0)
    wanted = torch.where(uniform < 0.5, uniform, 1 - uniform).double() * 2 * upper[-1]
    cell = torch.searchsorted(upper, wanted.long(), right=True).clamp(max=CELLS - 1)
    part = 1 - (upper[cell] - wanted) / masses[cell].clamp(min=1)
    x = ((cell + part) / CELLS).clamp(0, 1) ** power / 2
    return torch.where(uniform < 0.5, x, 1 - x).float()


def _mixup_weights(keys: Tensor, alpha: float) -> Tensor:
    """How much of the partner, (B, 1, 1, 1)."""
    return beta(draws.uniform(keys, "mixup", 1), alpha)[..., None, None]


def _cutmix_weights(keys: Tensor, alpha: float, images: Tensor) -> Tensor:
    """Where the partner is: 1 inside a rectangle that may reach over the edge, 0 elsewhere, (B, 1, H, W)."""
    height, width = images.shape[2:]
    share, down, right = draws.uniform(keys, "cutmix", 3).unbind(1)
    side = beta(share, alpha).sqrt()
    tall, wide = (side * height).round(), (side * width).round()
    top, left = (down * height).floor() - (tall / 2).floor(), (right * width).floor() - (wide / 2).floor()
    return rectangles(top, left, tall, wide, (height, width)).float()
