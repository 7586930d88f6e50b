"""Training images varied in batches, on the device that trains.

Every sample has parameters of its own, drawn from its key alone, and every operation is done to the whole batch at
once: no loop over samples, and nothing that waits for the device.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vitreous import draws
from vitreous.data import colour
from vitreous.data.geometry import per_image, rectangles, shift
from vitreous.data.options import Augmentation
from vitreous.data.randaugment import randaugment
from vitreous.errors import VitreousError

INWARDS = 1 - 2**-22  # or rounding to float32 could push a box over the edge, which Pillow refuses

BLUR_SIGMAS = 0.1, 2.0  # of 3-Augment, in pixels of an image of 224

ERASED_AREA = 0.02, 0.33
ERASED_ASPECT = 0.3, 3.3
NOISE_MEAN, NOISE_STD = 127.5, 64.0

T = TypeVar("T")


def crop_draws(keys: Tensor, shape: float, options: Augmentation) -> Tensor:
    """What is random about a random resized crop, (B, 4) in float64: its share of the area, its width over its height,
    and how far down and to the right it lies, in 0..1.

    The share of the area is uniform in [crop, 1], the ratio of sides log-uniform in [1/aspect, aspect] times `shape`,
    the width over the height that the model is shown.
    """
    least, ratio = settled(options.crop), settled(options.aspect)
    area, aspect, down, right = draws.uniform(keys, "crop", 4).double().unbind(1)
    area, aspect = least + (1 - least) * area, torch.exp((2 * aspect - 1) * math.log(ratio)) * shape
    return torch.stack((area, aspect, down, right), 1)


def crop_boxes(keys: Tensor, heights: Tensor, widths: Tensor, shape: float, options: Augmentation) -> Tensor:
    """A random resized crop of each image: (top, left, height, width) in pixels, (B, 4) in float32.

    torchvision draws up to ten times until a box fits and then takes the centre; here the ratio of a box that would not
    fit is moved to the nearest that does. That needs no loop, keeps every area equally likely (drawing again makes
    large boxes rarer), and never takes less than `crop`. A side is no shorter than one pixel.
    """
    area, aspect, down, right = crop_draws(keys, shape, options).unbind(1)
    aspect = aspect * heights / widths  # relative to the whole image's
    aspect = torch.minimum(torch.maximum(aspect, area), 1 / area)
    height = (heights * (area / aspect).sqrt()).clamp(min=1).float()
    width = (widths * (area * aspect).sqrt()).clamp(min=1).float()
    top, left = INWARDS * down * (heights - height.double()), INWARDS * right * (widths - width.double())
    return torch.stack((top.float(), left.float(), height, width), 1)


def crop_box(drawn: Sequence[float], height: int, width: int) -> tuple[float, float, float, float]:
    """The box that `crop_boxes` gives one image by its draws, to the last bit. Whoever has one image at a time need not
    wait for torch, which takes 0.1 ms for these few numbers. Roots are torch's even so: those of MKL are not quite
    Python's."""
    area, aspect, down, right = drawn
    aspect = min(max(aspect * height / width, area), 1 / area)
    tall, wide = torch.from_numpy(np.array((area / aspect, area * aspect))).sqrt_().tolist()
    tall, wide = float(np.float32(max(height * tall, 1.0))), float(np.float32(max(width * wide, 1.0)))
    top, left = INWARDS * down * (height - tall), INWARDS * right * (width - wide)
    return float(np.float32(top)), float(np.float32(left)), tall, wide


def flips(keys: Tensor, options: Augmentation) -> Tensor:
    """Which images are mirrored, (B,) bool."""
    return (draws.uniform(keys, "flip", 1)[:, 0] < 0.5) & settled(options.flip)


def augment(images: Tensor, keys: Tensor, options: Augmentation) -> Tensor:
    """Images (B, C, H, W) in 0..255, uint8 or float32, cropped and flipped already; float32 in 0..255 comes back.

    In this order, each if its option is on: shift, RandAugment, 3-Augment, colour jitter, random erasing.
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise VitreousError(f"images: expected (batch, 1 or 3 channels, height, width), got {tuple(images.shape)}")
    images = images.float()
    if share := settled(options.shift):
        images = shift_randomly(images, keys, share)
    if count := settled(options.randaugment):
        images = randaugment(images, keys, count, settled(options.magnitude))
    if settled(options.three_augment):
        images = three_augment(images, keys)
    if jitter := settled(options.jitter):
        images = jitter_colours(images, keys, jitter)
    if probability := settled(options.erase):
        images = erase(images, keys, probability)
    return images


def shift_randomly(images: Tensor, keys: Tensor, share: float) -> Tensor:
    """Move by whole pixels, up to `share` of the side either way."""
    drawn = draws.uniform(keys, "shift", 2)
    most = [round(share * side) for side in images.shape[2:]]
    down, right = ((drawn[:, i] * (2 * most[i] + 1)).long() - most[i] for i in range(2))
    return shift(images, down, right)


def three_augment(images: Tensor, keys: Tensor) -> Tensor:
    """Of DeiT III (Touvron et al., 2022): each sample turns grey, or is solarised, or blurred."""
    drawn, amount = draws.uniform(keys, "three-augment", 2).unbind(1)
    kind = (drawn * 3).long()
    scale = min(images.shape[2:]) / 224
    least, most = (sigma * scale for sigma in BLUR_SIGMAS)
    images = torch.where(per_image(kind == 0), colour.grey(images), images)
    images = torch.where(per_image(kind == 1), colour.solarise(images, 128), images)
    return colour.blur(images, (least + (most - least) * amount) * (kind == 2), radius=math.ceil(3 * most))


def jitter_colours(images: Tensor, keys: Tensor, jitter: float) -> Tensor:
    """Brightness, contrast and saturation, in this order, by factors uniform in 1 - jitter to 1 + jitter."""
    factors = (1 + jitter * (2 * draws.uniform(keys, "jitter", 3) - 1)).clamp(min=0)
    for i, enhance in enumerate((colour.brightness, colour.contrast, colour.saturation)):
        images = enhance(images, factors[:, i])
    return images


def erase(images: Tensor, keys: Tensor, probability: float) -> Tensor:
    """Random erasing (Zhong et al., 2017): a rectangle becomes noise. Its shape is one that fits into the image."""
    size = height, width = images.shape[2], images.shape[3]
    chance, area, aspect, down, right = draws.uniform(keys, "erase", 5).double().unbind(1)
    least, most = ERASED_AREA
    area = (least + (most - least) * area) * (height * width)
    low, high = (math.log(ratio) for ratio in ERASED_ASPECT)
    aspect = torch.exp(low + (high - low) * aspect)  # height to width
    aspect = torch.minimum(torch.maximum(aspect, area / width**2), height**2 / area)
    tall, wide = (area * aspect).sqrt().round().clamp(1, height), (area / aspect).sqrt().round().clamp(1, width)
    top, left = (down * (height - tall + 1)).floor(), (right * (width - wide + 1)).floor()
    erased = rectangles(top, left, tall, wide, size) & per_image(chance < probability)
    return torch.where(erased, _noise(keys, images.shape[1], size), images)


def _noise(keys: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """A normal distribution, clipped to 0..255. One draw has 24 bits: a byte for each of up to three channels."""
    places = torch.arange(size[0] * size[1], device=keys.device).view(size)
    bits = (draws.elements(keys[:, None, None, None], "erase noise", places) * 2**24).int()
    bytes_ = torch.cat([(bits >> (8 * channel)) & 255 for channel in range(channels)], 1)
    normal = math.sqrt(2) * torch.erfinv((bytes_ + 0.5) / 128 - 1)  # the quantile function at 256 even places
    return (NOISE_MEAN + NOISE_STD * normal).clamp(0, 255)


def settled(option: T | None) -> T:
    """An option's value. Those left at None are filled in before anything is augmented."""
    if option is None:
        raise VitreousError("augmentation: an option is None; give every field of Augmentation a value")
    return option
