"""Images that are kept as files are, in JPEG, PNG and so on, wherever those bytes lie."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.decoding import decode, decode_array, reason
from vitreous.data.sources import Source
from vitreous.errors import VitreousError

T = TypeVar("T")


class Encoded(Source):
    """A source that reads bytes; the rest, and what to say of bytes that are no image, is the same for all."""

    @abstractmethod
    def stored(self, index: int) -> bytes:
        """The bytes of one image. It may fail as files do."""

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return self._decoded(decode, index, at_least)

    def pixels(self, index: int, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Of the image, (height, width, 1 or 3), by the fastest decoder that is installed."""
        return self._decoded(decode_array, index, at_least)

    def _decoded(
        self, by: Callable[[bytes, tuple[int, int] | None], T], index: int, at_least: tuple[int, int] | None
    ) -> T:
        data = self.content(index)
        try:
            return by(data, at_least)
        except VitreousError as error:
            raise VitreousError(f"{self.name(index)}: {error}") from error

    def content(self, index: int) -> bytes:
        try:
            return self.stored(index)
        except VitreousError as error:
            raise VitreousError(f"{self.name(index)}: {error}") from error
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte in it
            raise VitreousError(f"{self.name(index)}: {reason(error)}") from error


class Strings(Sequence[str]):
    """Many short texts in two arrays: quick to pickle, and nothing that a forked worker would have to copy."""

    def __init__(self, texts: Iterable[str]):
        encoded = [os.fsencode(text) for text in texts]  # names of files need not be UTF-8
        self._bytes = b"".join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return os.fsdecode(self._bytes[self._ends[at] : self._ends[at + 1]])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))


class Files(Encoded):
    """Image files: their names below a folder. One that starts at the root of the file system stands for itself."""

    def __init__(self, root: str | Path, names: Iterable[str], labels: Tensor):
        self.root, self.names, self.labels = str(root), Strings(names), labels

    def name(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])  # noqa: PTH118 (Path would tidy it up, at some cost)

    def stored(self, index: int) -> bytes:
        with open(self.name(index), "rb") as file:  # noqa: PTH123
            return file.read()
