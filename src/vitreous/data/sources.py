"""Images and labels by number: what every kind of data set is, once it is opened."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy import uint8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor


class Source(ABC):
    """A map from a number to an image and its label. It can be pickled: workers get copies, and open files anew."""

    labels: Tensor  # (N,) int64, a class for each image; or (N, classes) bool, any number of them for each

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        """The image, "L" or "RGB", upright. What cannot be read is a VitreousError that names it.

        `at_least`: (height, width) that is enough; a JPEG may be decoded at a fraction of its size that is no smaller.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """What a person would call the image: the path of its file, `digits.npz[17]`, `shard-0.tar:cat/3.jpg`."""

    def content(self, index: int) -> bytes:
        """The bytes that the image is stored in, to tell copies by."""
        return self.image(index).tobytes()

    @property
    def array(self) -> NDArray[uint8] | None:
        """(N, height, width, channels), where all images are in memory already and of one size."""
        return None


@dataclass(frozen=True)
class Subset(Source):
    """Some images of a source, in a given order."""

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
        whole = self.source.array
        return None if whole is None else whole[self.indices.numpy()]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "array"}


@dataclass(frozen=True)
class DataSet:
    """Everything that there is of one data set. `train` is what one learns from, `val` what one chooses by; `test` is
    looked at once, at the end."""

    name: str  # for people: "digits", the folder's name
    classes: tuple[str, ...]
    channels: int  # 1: all images are grey
    train: Source
    val: Source | None = None
    test: Source | None = None
    split: str = ""  # how val came about, in words: "val/ of the folder", "10% of train, stratified, seed 0"
    notes: Sequence[str] = ()  # what one should know: left-out files, guessed columns

    @property
    def multi_label(self) -> bool:
        return self.train.labels.ndim == 2

    @property
    def splits(self) -> dict[str, Source]:
        named: dict[str, Any] = {"train": self.train, "val": self.val, "test": self.test}
        return {name: source for name, source in named.items() if source is not None}
