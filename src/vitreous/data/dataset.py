"""An opened data set: its splits, each a map from an index to an image and its label."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy import uint8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.errors import format_count


class Source(ABC):
    """The images of one split: a map from an index to an image and its label.

    It can be pickled; copies in worker processes reopen files. `len(source)` is the number of images.
    """

    labels: Tensor  # (N,) int64: a class for each image; or (N, classes) bool: multi-label

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        """The image, "L" or "RGB", upright. If it cannot be read, a VitreousError that names it is raised.

        `at_least`: minimum (height, width). A JPEG may be decoded at a reduced size that is not below it.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """A readable name of the image: its path, `digits.npz[17]`, `shard-0.tar:cat/3.jpg`."""

    def content(self, index: int) -> bytes:
        """The stored bytes of the image, to detect duplicates."""
        return self.image(index).tobytes()

    @property
    def array(self) -> NDArray[uint8] | None:
        """(N, height, width, channels), if all images are in memory and have the same size; otherwise None."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({format_count(len(self), 'image')})"


@dataclass(frozen=True, repr=False)
class Subset(Source):
    """The images of a source at the given indices, in that order."""

    source: Source
    indices: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", self.source.labels[self.indices])

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return self.source.image(int(self.indices[index]), at_least)

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def content(self, index: int) -> bytes:
        return self.source.content(int(self.indices[index]))

    @cached_property
    def array(self) -> NDArray[uint8] | None:
        array = self.source.array
        return None if array is None else array[self.indices.numpy()]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "array"}


@dataclass(frozen=True)
class UnlabelledSubset(Subset):
    """The images of a source at the given indices, without their labels: all are 0."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", torch.zeros(len(self.indices), dtype=torch.int64))


def without_labels(source: Source) -> Source:
    """The images of a source without their labels. Those of a subset remain a subset of the same source."""
    if type(source) is Subset:
        return UnlabelledSubset(source.source, source.indices)
    return UnlabelledSubset(source, torch.arange(len(source)))


@dataclass(frozen=True, repr=False)
class DataSet:
    """A data set with up to three splits: `train`, `val` (to select models and settings) and `test` (measured once).

    `vitreous.open_data` returns it.

    >>> data = vitreous.open_data("digits")
    >>> {split: len(images) for split, images in data.splits.items()}
    {'train': 1293, 'val': 144, 'test': 360}
    >>> data.train.image(0).size, data.train.name(0), data.classes[data.train.labels[0]]
    ((8, 8), 'digits:train[0]', '1')
    """

    name: str  # name for display: "digits", the name of the folder
    classes: tuple[str, ...]  # names; labels are indices of them. Empty: the data is used without labels
    channels: int  # 1 if all images are grey, otherwise 3
    train: Source  # images to train on
    val: Source | None = None  # images to select models and settings
    test: Source | None = None  # images to measure the result on
    split: str = ""  # origin of the validation split, for display: "val/ of the folder", "10% for validation, ..."
    notes: Sequence[str] = ()  # remarks for the user: ignored files, guessed columns
    held_out: tuple[str, ...] = ()  # the splits that were taken from the training images, since the data has none

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(source):,}" for name, source in self.splits.items())
        kinds = f"{format_count(len(self.classes), 'class')}{', several per image' if self.multi_label else ''}"
        return f"DataSet({self.name!r}: {kinds}, {'grey' if self.channels == 1 else 'colour'}; {sizes})"

    @property
    def multi_label(self) -> bool:
        """Whether an image can have several classes."""
        return self.train.labels.ndim == 2

    @property
    def splits(self) -> dict[str, Source]:
        """The splits that exist, by name."""
        splits: dict[str, Any] = {"train": self.train, "val": self.val, "test": self.test}
        return {name: source for name, source in splits.items() if source is not None}

    @property
    def stored_splits(self) -> dict[str, Source]:
        """The splits as they are stored: `train` includes the images that were held out."""
        if not self.held_out:
            return self.splits
        assert isinstance(self.train, Subset)
        stored = {name: source for name, source in self.splits.items() if name not in self.held_out}
        return {**stored, "train": self.train.source}
