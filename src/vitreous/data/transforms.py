"""Transforms of single images in worker processes: decode, resize and crop to arrays (height, width, channels)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.augmentation import crop_box, crop_draws, flip_mask
from vitreous.data.dataset import Source, Subset
from vitreous.data.encoded import EncodedSource
from vitreous.data.options import Augmentation
from vitreous.preprocessing import Preprocessing

CACHE_SCALE = 1.5  # size of cached images relative to the model's input, for crops of a part of them
SUBPIXEL_LIMIT = 64  # crops with a shorter side use fractional boxes; for longer sides half a pixel is below 1%
HAS_AVX = torch.backends.cpu.get_cpu_capability().startswith("AVX")  # without AVX torch resizes more slowly than Pillow


class ImageTransform(ABC):
    """Makes an array (height, width, channels) from an image: uint8, unless the preprocessing needs floats."""

    def draw_parameters(self, keys: Tensor) -> Sequence[Any]:
        """Random parameters of each image, drawn for many images at once. None for transforms without randomness."""
        return [None] * len(keys)

    @abstractmethod
    def __call__(self, source: Source, index: int, parameters: Any) -> NDArray[Any]: ...


@dataclass(frozen=True)
class DecodeCheck(ImageTransform):
    """Only checks that an image can be decoded, at the smallest scale, which still reads every byte."""

    def __call__(self, source: Source, index: int, parameters: Any) -> NDArray[Any]:
        source.image(index, (1, 1))
        return np.empty((0, 0, 1), np.uint8)


@dataclass(frozen=True)
class EvalTransform(ImageTransform):
    """The preprocessing of evaluation, without normalisation."""

    preprocessing: Preprocessing

    def __call__(self, source: Source, index: int, parameters: Any) -> NDArray[Any]:
        return self.preprocessing.pixels(source.image(index)).permute(1, 2, 0).numpy()


@dataclass(frozen=True)
class ResizeForCache(ImageTransform):
    """Shrinks an image for the device cache: to `CACHE_SCALE` times the model's input, so that crops stay sharp."""

    size: tuple[int, int]
    channels: int

    def __call__(self, source: Source, index: int, parameters: Any) -> NDArray[Any]:
        minimum = (round(self.size[0] * CACHE_SCALE), round(self.size[1] * CACHE_SCALE))
        image = source.image(index, minimum)
        scale = max(minimum[0] / image.height, minimum[1] / image.width)
        if scale < 1:
            smaller = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
            image = image.resize(smaller, Image.Resampling.BILINEAR)
        return _to_array(image, self.channels)


@dataclass(frozen=True)
class RandomResizedCrop(ImageTransform):
    """A random resized crop and flip, drawn from the sample's key. JPEGs are decoded no larger than needed."""

    size: tuple[int, int]
    channels: int
    options: Augmentation

    def draw_parameters(self, keys: Tensor) -> Sequence[Any]:
        boxes = crop_draws(keys, self.size[1] / self.size[0], self.options)
        return list(zip(boxes.tolist(), flip_mask(keys, self.options).tolist(), strict=True))

    def __call__(self, source: Source, index: int, parameters: Any) -> NDArray[Any]:
        draws, flip = parameters
        min_area, aspect = self.options.crop or 1.0, self.options.aspect or 1.0
        scale = (aspect / min_area) ** 0.5  # of the whole image, so that its smallest crop has the model's input size
        image = _decode_pixels(source, index, (round(self.size[0] * scale), round(self.size[1] * scale)))
        box = crop_box(draws, *image.shape[:2])
        pixels = torch.from_numpy(_convert_channels(self._crop(image, *box), self.channels))
        return (pixels.flip(1) if flip else pixels).numpy()

    def _crop(self, image: NDArray[Any], top: float, left: float, height: float, width: float) -> NDArray[Any]:
        """The box at the model's input size, rounded to whole pixels unless it is small.

        torch resizes only boxes of whole pixels, but in a fifth of Pillow's time. The two agree to one grey level.
        """
        box = (left, top, left + width, top + height)
        if min(height, width) < SUBPIXEL_LIMIT:
            return _resize_with_pillow(image, self.size, box)
        x, y, right, bottom = map(round, box)
        part = image[y:bottom, x:right].copy()  # a copy, since torch needs writable memory
        if not HAS_AVX:
            return _resize_with_pillow(part, self.size)
        batch = torch.from_numpy(part)[None].permute(0, 3, 1, 2)
        return F.interpolate(batch, self.size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)[0].numpy()


def _resize_with_pillow(
    pixels: NDArray[Any], size: tuple[int, int], box: tuple[float, float, float, float] | None = None
) -> NDArray[Any]:
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    return np.array(image.resize(size[::-1], Image.Resampling.BILINEAR, box=box)).reshape(*size, -1)


def _decode_pixels(source: Source, index: int, at_least: tuple[int, int]) -> NDArray[Any]:
    """The pixels of an image, (height, width, 1 or 3), from the fastest decoder."""
    while isinstance(source, Subset):
        index, source = int(source.indices[index]), source.source
    if isinstance(source, EncodedSource):
        return source.pixels(index, at_least)
    image = source.image(index, at_least)
    return np.asarray(image).reshape(image.height, image.width, -1)


def _convert_channels(pixels: NDArray[Any], channels: int) -> NDArray[Any]:
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, 2)
    return np.array(Image.fromarray(pixels).convert("L"))[..., None]


def _to_array(image: Image.Image, channels: int) -> NDArray[Any]:
    image = image.convert("L" if channels == 1 else "RGB")
    return np.asarray(image).reshape(image.height, image.width, channels)
