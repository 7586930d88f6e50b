"""Augmentation of training images in batches, on the training device.

Each sample draws its own parameters from its key alone, and each operation runs on the whole batch at once: no loop
over samples, and no synchronisation with the device.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vitreous.data import colour
from vitreous.data.geometry import per_image, rectangles, shift
from vitreous.data.options import Augmentation
from vitreous.data.randaugment import randaugment
from vitreous.errors import VitreousError
from vitreous.utils import random_keys

INWARDS = 1 - 2**-22  # keeps a box inside the image after rounding to float32; Pillow refuses boxes outside

BLUR_SIGMAS = 0.1, 2.0  # range for 3-Augment, in pixels of a 224-pixel image

ERASED_AREA = 0.02, 0.33
ERASED_ASPECT = 0.3, 3.3
NOISE_MEAN, NOISE_STD = 127.5, 64.0

T = TypeVar("T")


def crop_draws(keys: Tensor, shape: float, options: Augmentation) -> Tensor:
    """Random parameters of a random resized crop, (B, 4) in float64: fraction of the area, aspect ratio (width over
    height), and vertical and horizontal position in 0..1.

    The area fraction is uniform in [crop, 1]. The aspect ratio is log-uniform in [1/aspect, aspect], times `shape`, the
    aspect ratio of the model's input.
    """
    min_area, max_aspect = require_value(options.crop), require_value(options.aspect)
    area, aspect, down, right = random_keys.uniform(keys, "crop", 4).double().unbind(1)
    area, aspect = min_area + (1 - min_area) * area, torch.exp((2 * aspect - 1) * math.log(max_aspect)) * shape
    return torch.stack((area, aspect, down, right), 1)


def crop_boxes(keys: Tensor, heights: Tensor, widths: Tensor, shape: float, options: Augmentation) -> Tensor:
    """A random resized crop of each image: (top, left, height, width) in pixels, (B, 4) in float32.

    torchvision draws up to ten times until a box fits, and then takes a centre crop. Here the aspect ratio of a box
    that does not fit is clamped to the nearest ratio that does. This needs no loop, keeps the area distribution uniform
    (redrawing makes large boxes rarer), and never crops less than `crop`. Each side is at least one pixel long.
    """
    area, aspect, down, right = crop_draws(keys, shape, options).unbind(1)
    aspect = aspect * heights / widths  # relative to the aspect ratio of the image
    aspect = torch.minimum(torch.maximum(aspect, area), 1 / area)
    height = (heights * (area / aspect).sqrt()).clamp(min=1).float()
    width = (widths * (area * aspect).sqrt()).clamp(min=1).float()
    top, left = INWARDS * down * (heights - height.double()), INWARDS * right * (widths - width.double())
    return torch.stack((top.float(), left.float(), height, width), 1)


def crop_box(draws: Sequence[float], height: int, width: int) -> tuple[float, float, float, float]:
    """The box that `crop_boxes` computes for one image from its `crop_draws`, bit-identical.

    torch needs 0.1 ms for these few operations, so single images use Python's floats. Square roots still come from
    torch, since MKL rounds them differently from Python.
    """
    area, aspect, down, right = draws
    aspect = min(max(aspect * height / width, area), 1 / area)
    tall, wide = torch.from_numpy(np.array((area / aspect, area * aspect))).sqrt_().tolist()
    tall, wide = float(np.float32(max(height * tall, 1.0))), float(np.float32(max(width * wide, 1.0)))
    top, left = INWARDS * down * (height - tall), INWARDS * right * (width - wide)
    return float(np.float32(top)), float(np.float32(left)), tall, wide


def flip_mask(keys: Tensor, options: Augmentation) -> Tensor:
    """Which images are flipped horizontally, (B,) bool."""
    return (random_keys.uniform(keys, "flip", 1)[:, 0] < 0.5) & require_value(options.flip)


def augment(images: Tensor, keys: Tensor, options: Augmentation) -> Tensor:
    """Augment images (B, C, H, W) in 0..255, uint8 or float32, already cropped and flipped. Returns float32 in 0..255.

    Order of the operations that are enabled: shift, RandAugment, 3-Augment, colour jitter, random erasing.
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise VitreousError(f"images: expected (batch, 1 or 3 channels, height, width), got {tuple(images.shape)}")
    images = images.float()
    if fraction := require_value(options.shift):
        images = _random_shift(images, keys, fraction)
    if count := require_value(options.randaugment):
        images = randaugment(images, keys, count, require_value(options.magnitude))
    if require_value(options.three_augment):
        images = three_augment(images, keys)
    if jitter := require_value(options.jitter):
        images = colour_jitter(images, keys, jitter)
    if probability := require_value(options.erase):
        images = random_erasing(images, keys, probability)
    return images


def _random_shift(images: Tensor, keys: Tensor, fraction: float) -> Tensor:
    """Translate by whole pixels, up to `fraction` of the side in each direction."""
    draws = random_keys.uniform(keys, "shift", 2)
    limits = [round(fraction * side) for side in images.shape[2:]]
    down, right = ((draws[:, i] * (2 * limits[i] + 1)).long() - limits[i] for i in range(2))
    return shift(images, down, right)


def three_augment(images: Tensor, keys: Tensor) -> Tensor:
    """3-Augment of DeiT III (Touvron et al., 2022): each sample is converted to grey, solarised, or blurred."""
    draws, amount = random_keys.uniform(keys, "three-augment", 2).unbind(1)
    kind = (draws * 3).long()
    scale = min(images.shape[2:]) / 224
    low, high = (sigma * scale for sigma in BLUR_SIGMAS)
    images = torch.where(per_image(kind == 0), colour.grey(images), images)
    images = torch.where(per_image(kind == 1), colour.solarise(images, 128), images)
    return colour.blur(images, (low + (high - low) * amount) * (kind == 2), radius=math.ceil(3 * high))


def colour_jitter(images: Tensor, keys: Tensor, jitter: float) -> Tensor:
    """Change brightness, contrast and saturation, in this order, by factors uniform in 1 - jitter to 1 + jitter."""
    factors = (1 + jitter * (2 * random_keys.uniform(keys, "jitter", 3) - 1)).clamp(min=0)
    for i, enhance in enumerate((colour.brightness, colour.contrast, colour.saturation)):
        images = enhance(images, factors[:, i])
    return images


def random_erasing(images: Tensor, keys: Tensor, probability: float) -> Tensor:
    """Random erasing (Zhong et al., 2017): replace a rectangle with noise. The rectangle always fits into the image."""
    size = height, width = images.shape[2], images.shape[3]
    chance, area, aspect, down, right = random_keys.uniform(keys, "erase", 5).double().unbind(1)
    min_area, max_area = ERASED_AREA
    area = (min_area + (max_area - min_area) * area) * (height * width)
    low, high = (math.log(ratio) for ratio in ERASED_ASPECT)
    aspect = torch.exp(low + (high - low) * aspect)  # height over width
    aspect = torch.minimum(torch.maximum(aspect, area / width**2), height**2 / area)
    tall, wide = (area * aspect).sqrt().round().clamp(1, height), (area / aspect).sqrt().round().clamp(1, width)
    top, left = (down * (height - tall + 1)).floor(), (right * (width - wide + 1)).floor()
    erased = rectangles(top, left, tall, wide, size) & per_image(chance < probability)
    return torch.where(erased, _noise(keys, images.shape[1], size), images)


def _noise(keys: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """Gaussian noise, clipped to 0..255. Each draw has 24 random bits: one byte for each of up to three channels."""
    positions = torch.arange(size[0] * size[1], device=keys.device).view(size)
    bits = (random_keys.uniform_at(keys[:, None, None, None], "erase noise", positions) * 2**24).int()
    bytes_ = torch.cat([(bits >> (8 * channel)) & 255 for channel in range(channels)], 1)
    normal = math.sqrt(2) * torch.erfinv((bytes_ + 0.5) / 128 - 1)  # the quantile function at 256 even positions
    return (NOISE_MEAN + NOISE_STD * normal).clamp(0, 255)


def require_value(option: T | None) -> T:
    """An option's value. Options that are None must be replaced by their defaults before images are augmented."""
    if option is None:
        raise VitreousError("augmentation: an option is None; give every field of Augmentation a value")
    return option
