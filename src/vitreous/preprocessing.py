"""Image preprocessing of a model: resize, centre crop, normalisation."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL.Image import Image, Resampling
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.utils.images import as_image
from vitreous.utils.sizes import pair

# A path, the bytes of a file, a PIL image, an array (H, W[, C]) or a tensor ([C,] H, W) of uint8.
ImageLike = str | os.PathLike[str] | bytes | Image | NDArray[np.uint8] | Tensor
Images = ImageLike | list[ImageLike] | tuple[ImageLike, ...]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Crop = Literal["round", "down"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
MAX_PIXELS = 2**26  # of a resized image. Long thin images grow: 1 x 100,000 would become 256 x 25,600,000


@dataclass(frozen=True)
class Preprocessing:
    """Resize, centre crop and normalise images. Calling it converts an image to a tensor (C, H, W) for the model, and a
    list of images to a batch (B, C, H, W), on the CPU.

    An image is a path, the bytes of a file, a PIL image, an array (H, W) or (H, W, C), or a tensor (H, W) or (C, H, W).
    Arrays and tensors are uint8 with 1, 3 or 4 channels (grey, RGB, RGBA); one more dimension makes a batch. Files and
    PIL images are rotated by their EXIF orientation, 16 bits are scaled to 8, and transparent pixels become white, as
    in all commands.

    `size` is stored as a pair, and lists (from JSON) as tuples. Images smaller than the crop are padded with black.

    >>> from sklearn.datasets import load_sample_image
    >>> preprocessing = vitreous.Preprocessing(size=224, resize=256)
    >>> print(preprocessing)
    short side to 256, centre 224 x 224, bilinear; mean 0.5, 0.5, 0.5; std 0.5, 0.5, 0.5
    >>> preprocessing(load_sample_image("china.jpg")).shape
    torch.Size([3, 224, 224])
    """

    size: tuple[int, int] | int = 224  # (height, width) of the model's input; one number: a square
    resize: tuple[int, int] | int | None = None  # before the crop. int: the short side; pair or None (`size`): squashed
    interpolation: Interpolation = "bilinear"  # nearest, bilinear, bicubic; with antialias also lanczos, box, hamming
    antialias: bool = True  # True: as Pillow, in integers. False: as tf.image.resize, in floats, without a filter
    crop: Crop = (
        "round"  # rounding of an odd margin: "round" half to even (torchvision, timm), or "down" (Hugging Face)
    )
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # mean of pixels in 0..1, for each channel: 1 (grey) or 3 (RGB)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)  # standard deviation, for the same channels

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the class is frozen
        set_field(self, "size", _check_size(self.size, "size"))
        if isinstance(self.resize, list | tuple):
            set_field(self, "resize", _check_size(self.resize, "resize"))
        elif self.resize is not None:
            _check_size(self.resize, "resize")
        _check_choice(self.interpolation, "interpolation", get_args(Interpolation))
        _check_choice(self.crop, "crop", get_args(Crop))
        _check_choice(self.antialias, "antialias", (True, False))
        if not self.antialias and self.interpolation not in KERNELS:
            raise VitreousError(
                f"Preprocessing.interpolation = {self.interpolation!r}: without antialiasing, expected one of"
                f" {_repr_list(KERNELS)}"
            )
        set_field(self, "mean", _numbers(self.mean, "mean"))
        set_field(self, "std", _numbers(self.std, "std"))
        if min(self.std) <= 0:
            raise VitreousError(f"Preprocessing.std = {brief(self.std)}: must be positive")
        if len(self.mean) != len(self.std):
            raise VitreousError(
                f"Preprocessing.std = {brief(self.std)}: expected as many values as in mean, {len(self.mean)}"
            )

    def pixels(self, images: Images) -> Tensor:
        """Return the resized and cropped image, (C, H, W) in 0..255: uint8, or float32 without antialiasing. For
        several images, return a batch."""
        if isinstance(images, list | tuple) or (isinstance(images, np.ndarray | Tensor) and images.ndim == 4):
            if not len(images):
                raise VitreousError("no images: expected one or more")
            return torch.stack([self._one_of_several(number, image) for number, image in enumerate(images)])
        image = as_image(_to_array(images) if isinstance(images, Tensor) else images)
        try:
            return self._resize_and_crop(image)
        except VitreousError as error:
            raise (error.at(os.fspath(images)) if isinstance(images, str | os.PathLike) else error) from None

    def _one_of_several(self, number: int, image: ImageLike) -> Tensor:
        """Return the pixels of one image of a batch. Errors contain its index."""
        try:
            if isinstance(image, list | tuple) or (isinstance(image, np.ndarray | Tensor) and image.ndim > 3):
                raise VitreousError("expected one image, got several")
            return self.pixels(image)
        except VitreousError as error:
            raise error.at(f"image {number}") from None

    def _resize_and_crop(self, image: Image) -> Tensor:
        modes = {1: "L", 3: "RGB"}
        if (channels := len(self.mean)) not in modes:
            raise VitreousError(f"Preprocessing.mean is for {channels} channels, but images have 1 (grey) or 3 (RGB)")
        height, width = self._resized_size(image.height, image.width)
        if width * image.height > 2 * MAX_PIXELS:  # Pillow's intermediate image, after resizing the rows
            raise VitreousError(f"{image.height} x {image.width} pixels: too long and thin for a width of {width}")
        if image.mode != modes[channels]:
            image = image.convert(modes[channels])
        if self.antialias:
            x = _to_tensor(np.asarray(image.resize((width, height), Resampling[self.interpolation.upper()])))
        else:
            x = _point_sample(image, (height, width), KERNELS[self.interpolation])
        size = _check_size(self.size, "size")
        top, left = self._offset(height - size[0]), self._offset(width - size[1])
        # Negative padding crops, so this crops large images and pads small ones.
        return F.pad(x, (-left, left + size[1] - width, -top, top + size[0] - height))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return (pixels / 255 - mean) / std in float32, for (C, H, W) or a batch."""
        if pixels.ndim not in (3, 4) or pixels.shape[-3] != len(self.mean):
            raise VitreousError(f"pixels: expected {len(self.mean)} x height x width, got {tuple(pixels.shape)}")
        values = torch.tensor((self.mean, self.std), dtype=torch.float32, device=pixels.device)
        mean, std = values[..., None, None]
        return pixels.float().div(255).sub_(mean).div_(std)

    def __call__(self, images: Images) -> Tensor:
        return self.normalise(self.pixels(images))

    def at(self, size: tuple[int, int] | int) -> Preprocessing:
        """Return the same preprocessing for another size. The cropped fraction of the image stays the same.

        >>> print(vitreous.Preprocessing(size=224, resize=256).at(448))
        short side to 512, centre 448 x 448, bilinear; mean 0.5, 0.5, 0.5; std 0.5, 0.5, 0.5
        """
        old, new = _check_size(self.size, "size"), _check_size(size, "size")
        resize = self.resize
        if isinstance(resize, int):
            resize = max(1, round(resize * min(new) / min(old)))
        elif resize is not None:
            height, width = (max(1, round(r * n / o)) for r, n, o in zip(resize, new, old, strict=True))
            resize = (height, width)
        return replace(self, size=new, resize=resize)

    def for_channels(self, channels: int) -> Preprocessing:
        """Return the same preprocessing for another number of channels, each with the average mean and std."""
        if channels == len(self.mean):
            return self
        mean, std = (sum(values) / len(values) for values in (self.mean, self.std))
        return replace(self, mean=(mean,) * channels, std=(std,) * channels)

    def __str__(self) -> str:
        height, width = _check_size(self.size, "size")
        steps = f"squash to {height} x {width}"
        if isinstance(self.resize, int):
            steps = f"short side to {self.resize}, centre {height} x {width}"
        elif self.resize is not None:
            steps = f"squash to {self.resize[0]} x {self.resize[1]}, centre {height} x {width}"
        interpolation = f"{self.interpolation}{'' if self.antialias else ' without antialiasing'}"
        mean, std = (", ".join(f"{x:g}" for x in values) for values in (self.mean, self.std))
        return f"{steps}, {interpolation}; mean {mean}; std {std}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for `json.dumps`."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> Preprocessing:
        """Return the preprocessing that `to_json` described. Missing fields have their defaults."""
        if not isinstance(data, dict):
            raise VitreousError(f"preprocessing: expected an object with fields, got {brief(data)}")
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in data if name not in known]:
            raise VitreousError(f"preprocessing: unknown fields {_repr_list(unknown)}; expected {_repr_list(known)}")
        return cls(**data)

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.resize, int):
            return _check_size(self.size if self.resize is None else self.resize, "resize")
        short, long = min(height, width), max(height, width)
        long = int(self.resize * long / short)
        if self.resize * long > MAX_PIXELS:
            raise VitreousError(f"{height} x {width} pixels: too long and thin for a short side of {self.resize}")
        return (self.resize, long) if height < width else (long, self.resize)

    def _offset(self, spare: int) -> int:
        """Return the start of the crop. `spare`: pixels outside the crop; if negative, pixels of padding."""
        if self.crop == "down":
            return spare // 2
        return round(spare / 2) if spare > 0 else -(-spare // 2)


# Interpolation without antialiasing, as in tf.image.resize with half-pixel centres: the number of taps, and the weight
# of a pixel by its distance. F.interpolate differs: its bicubic kernel has a = -0.75, TensorFlow's (Keys) a = -0.5.
def _keys_cubic(d: Tensor) -> Tensor:
    return torch.where(d < 1, (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2)


KERNELS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "nearest": (1, torch.ones_like),
    "bilinear": (2, lambda d: 1 - d),
    "bicubic": (4, _keys_cubic),
}


def _point_sample(image: Image, size: tuple[int, int], kernel: tuple[int, Callable[[Tensor], Tensor]]) -> Tensor:
    """Return a resized image (C, height, width) in float32. Rows are interpolated before columns."""
    (rows, row_weights), (columns, column_weights) = (
        _taps(old, new, kernel) for old, new in zip((image.height, image.width), size, strict=True)
    )
    rows_used, rows = rows.unique(return_inverse=True)
    columns_used, columns = columns.unique(return_inverse=True)
    x = _to_tensor(np.asarray(image)[np.ix_(rows_used.numpy(), columns_used.numpy())])  # only pixels with a weight
    x = torch.einsum("cstw,st->csw", x[:, rows].float(), row_weights)
    return torch.einsum("csut,ut->csu", x[:, :, columns], column_weights)


def _taps(old: int, new: int, kernel: tuple[int, Callable[[Tensor], Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the indices of the source pixels of each new pixel, and their weights, both (new, taps). Pixels beyond the
    edge have weight zero, and the weights are normalised."""
    taps, weigh = kernel
    centres = (torch.arange(new, dtype=torch.float64) + 0.5) * (old / new) - 0.5
    index = (centres - taps / 2).floor().long()[:, None] + torch.arange(1, taps + 1)
    inside = (index >= 0) & (index < old)
    weights = weigh((index - centres[:, None]).abs()) * inside
    return index.clamp(0, old - 1), (weights / weights.sum(1, keepdim=True)).float()


def _to_array(image: Tensor) -> NDArray[np.uint8]:
    """Convert a tensor ([C,] H, W) to an array (H, W[, C])."""
    if image.dtype != torch.uint8:
        dtype = str(image.dtype).removeprefix("torch.")
        advice = "for values in 0..1, (x * 255).round().to(torch.uint8)"
        raise VitreousError(f"a tensor of {dtype}: expected uint8, from 0 to 255; {advice}")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[0] not in (1, 3, 4)) or 0 in image.shape:
        raise VitreousError(
            f"a tensor of shape {tuple(image.shape)}: expected (height, width), or (channels, height, width) with 1, 3"
            " or 4 channels"
        )
    array: NDArray[np.uint8] = image.detach().cpu().numpy()
    return array if image.ndim == 2 else array.transpose(1, 2, 0)


def _to_tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """Convert an array (H, W[, C]) to a tensor (C, H, W)."""
    array = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.array(array, order="C"))  # a copy: torch requires a writable array


def _check_size(value: tuple[int, int] | int, name: str) -> tuple[int, int]:
    """Return a size as (height, width). Raise an error if it is not positive or too large."""
    height, width = pair(value, f"Preprocessing.{name}")
    if height * width > MAX_PIXELS:
        raise VitreousError(
            f"Preprocessing.{name} = {brief(value)}: more than {MAX_PIXELS:,} pixels, the limit for a resized image"
        )
    return height, width


def _numbers(values: object, name: str) -> tuple[float, ...]:
    numbers = tuple(values) if isinstance(values, list | tuple) else ()
    if not numbers or not all((isinstance(v, float) or type(v) is int) and abs(v) < 1e30 for v in numbers):
        raise VitreousError(
            f"Preprocessing.{name} = {brief(values)}: expected a number for each channel, such as (0.5,)"
        )
    return tuple(float(v) for v in numbers)


def _check_choice(value: object, name: str, choices: tuple[object, ...]) -> None:
    if not isinstance(value, type(choices[0])) or value not in choices:
        raise VitreousError(f"Preprocessing.{name} = {brief(value)}: expected one of {_repr_list(choices)}")


def _repr_list(items: Any) -> str:
    return ", ".join(repr(item) for item in items)


PRESETS = {  # at 224 px, for weights that do not contain their preprocessing
    "google": Preprocessing(224, antialias=False),
    "augreg": Preprocessing(224, 248, "bicubic"),
    "deit": Preprocessing(224, 256, "bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "torchvision": Preprocessing(224, 256, "bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "dino": Preprocessing(224, 256, "bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD),
}


def default_preprocessing(size: tuple[int, int] | int, channels: int) -> Preprocessing:
    """Return the preprocessing for a model without one: squash to its size, pixels in -1..1."""
    half = (0.5,) * channels
    return Preprocessing(size, mean=half, std=half)


def preset(name: str, size: tuple[int, int] | int = 224, channels: int = 3) -> Preprocessing:
    """Return a preset for a size and a number of channels."""
    if name not in PRESETS:
        raise VitreousError(f"no preprocessing is called {brief(name)}: expected one of {', '.join(PRESETS)}")
    return PRESETS[name].at(size).for_channels(channels)
