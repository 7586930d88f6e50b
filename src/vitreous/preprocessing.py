"""From an image to what a model was trained to see: size, crop, interpolation, mean and standard deviation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError

if TYPE_CHECKING:
    from PIL.Image import Image

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Crop = Literal["round", "down"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
MOST_PIXELS = 2**27  # a long thin image grows with its short side: 1 x 100,000 would become 256 x 25,600,000


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop the centre, normalise. Calling it turns one image into a (C, H, W) tensor for the model.

    `size` is settled to a pair, lists (they come from JSON) to tuples. An image smaller than the crop gets black edges.
    """

    size: tuple[int, int] | int = 224  # (height, width) that the model is shown; one number is a square
    resize: tuple[int, int] | int | None = None  # before the crop. int: the short side; pair, None (`size`): squashed
    interpolation: Interpolation = "bilinear"
    antialias: bool = True  # as Pillow, in whole numbers; False: as tf.image.resize, from the nearest pixels, in floats
    crop: Crop = "round"  # an odd pixel: "round" half to even (torchvision, timm), or "down" (Hugging Face)
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # of pixels in 0..1, for each channel: one is grey, three are RGB
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the class is frozen
        set_field(self, "size", _pair(self.size, "size"))
        if isinstance(self.resize, list | tuple):
            set_field(self, "resize", _pair(self.resize, "resize"))
        elif self.resize is not None:
            _pair(self.resize, "resize")
        _choice(self.interpolation, "interpolation", get_args(Interpolation))
        _choice(self.crop, "crop", get_args(Crop))
        _choice(self.antialias, "antialias", (True, False))
        if not self.antialias and self.interpolation not in KERNELS:
            raise VitreousError(
                f"Preprocessing.interpolation = {self.interpolation!r}: without antialiasing there are {_list(KERNELS)}"
            )
        set_field(self, "mean", _numbers(self.mean, "mean"))
        set_field(self, "std", _numbers(self.std, "std"))
        if min(self.std) <= 0:
            raise VitreousError(f"Preprocessing.std = {self.std!r}: must be positive")
        if len(self.mean) != len(self.std):
            raise VitreousError(f"Preprocessing.std = {self.std!r}: expected as many as in mean, {len(self.mean)}")

    def pixels(self, image: Image) -> Tensor:
        """The resized and cropped image, (C, H, W) in 0..255: uint8, or float32 without antialiasing."""
        from PIL.Image import Resampling

        modes = {1: "L", 3: "RGB"}
        if (channels := len(self.mean)) not in modes:
            raise VitreousError(f"Preprocessing.mean is for {channels} channels, and an image has 1 (grey) or 3 (RGB)")
        if image.mode != modes[channels]:
            image = image.convert(modes[channels])
        height, width = self._resized(image.height, image.width)
        if self.antialias:
            x = _tensor(image.resize((width, height), Resampling[self.interpolation.upper()]))
        else:
            kernel = KERNELS[self.interpolation]
            x = _sample(_tensor(image), height, kernel)
            x = _sample(x.mT, width, kernel).mT
        size = _pair(self.size, "size")
        top, left = self._offset(height - size[0]), self._offset(width - size[1])
        # Padding by less than nothing is a crop, so this does both.
        return F.pad(x, (-left, left + size[1] - width, -top, top + size[0] - height))

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels / 255 - mean) / std in float32, of (C, H, W) or a batch of them."""
        if pixels.ndim not in (3, 4) or pixels.shape[-3] != len(self.mean):
            raise VitreousError(f"pixels: expected {len(self.mean)} x height x width, got {tuple(pixels.shape)}")
        mean, std = (torch.tensor(v, device=pixels.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return pixels.float().div(255).sub_(mean).div_(std)

    def __call__(self, image: Image) -> Tensor:
        return self.normalise(self.pixels(image))

    def at(self, size: tuple[int, int] | int) -> Preprocessing:
        """The same for another size: what is cropped away stays the same fraction of the image."""
        old, new = _pair(self.size, "size"), _pair(size, "size")
        resize = self.resize
        if isinstance(resize, int):
            resize = max(1, round(resize * min(new) / min(old)))
        elif resize is not None:
            height, width = (max(1, round(r * n / o)) for r, n, o in zip(resize, new, old, strict=True))
            resize = (height, width)
        return replace(self, size=new, resize=resize)

    def for_channels(self, channels: int) -> Preprocessing:
        """The same for as many channels: where it is not for them already, each has the average mean and std."""
        if channels == len(self.mean):
            return self
        mean, std = (sum(values) / len(values) for values in (self.mean, self.std))
        return replace(self, mean=(mean,) * channels, std=(std,) * channels)

    def __str__(self) -> str:
        height, width = _pair(self.size, "size")
        steps = f"squash to {height} x {width}"
        if isinstance(self.resize, int):
            steps = f"short side to {self.resize}, centre {height} x {width}"
        elif self.resize is not None:
            steps = f"squash to {self.resize[0]} x {self.resize[1]}, centre {height} x {width}"
        how = f"{self.interpolation}{'' if self.antialias else ' without antialiasing'}"
        mean, std = (", ".join(f"{x:g}" for x in values) for values in (self.mean, self.std))
        return f"{steps}, {how}; mean {mean}; std {std}"

    def to_json(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> Preprocessing:
        """What `to_json` gave; fields that are missing take their defaults."""
        if not isinstance(data, dict):
            raise VitreousError(f"preprocessing: expected an object with fields, got {data!r}")
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in data if name not in known]:
            raise VitreousError(f"preprocessing: {_list(unknown)} not known; the fields are {_list(known)}")
        return cls(**data)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.resize, int):
            return _pair(self.size if self.resize is None else self.resize, "resize")
        short, long = min(height, width), max(height, width)
        long = int(self.resize * long / short)
        if self.resize * long > MOST_PIXELS:
            raise VitreousError(f"{height} x {width} pixels: too long and thin for a short side of {self.resize}")
        return (self.resize, long) if height < width else (long, self.resize)

    def _offset(self, spare: int) -> int:
        """Where the crop begins when it leaves `spare` pixels over; negative: so many black ones come first."""
        if self.crop == "down":
            return spare // 2
        return round(spare / 2) if spare > 0 else -(-spare // 2)


# Point sampling as tf.image.resize does it, with pixel centres at halves: how many pixels are looked at, and the weight
# of one by its distance. F.interpolate is no substitute: its bicubic kernel has a = -0.75, TensorFlow's Keys' -0.5.
def _keys(d: Tensor) -> Tensor:
    return torch.where(d < 1, (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2)


KERNELS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "nearest": (1, torch.ones_like),
    "bilinear": (2, lambda d: 1 - d),
    "bicubic": (4, _keys),
}


def _sample(x: Tensor, size: int, kernel: tuple[int, Callable[[Tensor], Tensor]]) -> Tensor:
    """(C, H, W) to (C, size, W) in float32. Pixels beyond the edge have no weight; the others make up for them."""
    taps, weigh = kernel
    centres = (torch.arange(size, dtype=torch.float64) + 0.5) * (x.shape[1] / size) - 0.5
    index = (centres - taps / 2).floor().long()[:, None] + torch.arange(1, taps + 1)  # (size, taps)
    inside = (index >= 0) & (index < x.shape[1])
    weights = weigh((index - centres[:, None]).abs()) * inside
    weights = (weights / weights.sum(1, keepdim=True)).float()
    rows = x[:, index.clamp(0, x.shape[1] - 1)].float()  # (C, size, taps, W)
    return torch.einsum("cstw,st->csw", rows, weights)


def _tensor(image: Image) -> Tensor:
    array = np.array(image)  # a copy: torch wants it writable
    return torch.from_numpy(array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))


def _pair(value: object, name: str) -> tuple[int, int]:
    values = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(values) != 2 or not all(type(v) is int and v > 0 for v in values):
        raise VitreousError(
            f"Preprocessing.{name} = {value!r}: expected a positive integer, or a pair of them (height, width)"
        )
    return values[0], values[1]


def _numbers(values: object, name: str) -> tuple[float, ...]:
    numbers = tuple(values) if isinstance(values, list | tuple) else ()
    if not numbers or not all((isinstance(v, float) or type(v) is int) and abs(v) < 1e30 for v in numbers):
        raise VitreousError(f"Preprocessing.{name} = {values!r}: expected a number for each channel, such as (0.5,)")
    return tuple(float(v) for v in numbers)


def _choice(value: object, name: str, choices: tuple[object, ...]) -> None:
    if not isinstance(value, type(choices[0])) or value not in choices:
        raise VitreousError(f"Preprocessing.{name} = {value!r}: expected one of {_list(choices)}")


def _list(items: Any) -> str:
    return ", ".join(repr(item) for item in items)


PRESETS = {  # at 224 px, for weights that do not say themselves
    "google": Preprocessing(224, antialias=False),
    "augreg": Preprocessing(224, 248, "bicubic"),
    "deit": Preprocessing(224, 256, "bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "torchvision": Preprocessing(224, 256, "bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "dino": Preprocessing(224, 256, "bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD),
}


def plain(size: tuple[int, int] | int, channels: int) -> Preprocessing:
    """For a model of which nothing is known: squashed to its size, pixels in -1..1."""
    half = (0.5,) * channels
    return Preprocessing(size, mean=half, std=half)


def preset(name: str, size: tuple[int, int] | int = 224, channels: int = 3) -> Preprocessing:
    """One of the presets, for another size and number of channels."""
    if name not in PRESETS:
        raise VitreousError(f"no preprocessing is called {name!r}: there is {', '.join(PRESETS)}")
    return PRESETS[name].at(size).for_channels(channels)
