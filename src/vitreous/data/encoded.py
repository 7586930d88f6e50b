"""Sources of encoded images (JPEG, PNG, ...): the base class of all of them, and image files on disk."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.errors import VitreousError
from vitreous.utils.images import MAX_PIXELS, decode, decode_array, describe_read_error, read_image_file
from vitreous.utils.regular_files import is_system_fault, system_fault

T = TypeVar("T")


class EncodedSource(Source):
    """A source of encoded images. Subclasses read the bytes; decoding and its errors are handled here."""

    max_pixels: int = MAX_PIXELS  # maximum number of pixels of an image

    @abstractmethod
    def read_bytes(self, index: int) -> bytes:
        """The encoded bytes of an image. May raise OSError, MemoryError, ValueError or VitreousError."""

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return self._decode(decode, index, at_least)

    def pixels(self, index: int, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """The image as an array (height, width, 1 or 3), from the fastest decoder that is installed."""
        return self._decode(decode_array, index, at_least)

    def _decode(
        self, decoder: Callable[[bytes, tuple[int, int] | None, int], T], index: int, at_least: tuple[int, int] | None
    ) -> T:
        data = self.content(index)
        try:
            return decoder(data, at_least, self.max_pixels)
        except VitreousError as error:
            raise error.at(self.name(index)) from error

    def content(self, index: int) -> bytes:
        try:
            return self.read_bytes(index)
        except VitreousError as error:
            raise error.at(self.name(index)) from error
        except (OSError, MemoryError, ValueError) as error:  # ValueError: a null byte in the path
            if is_system_fault(error):
                raise system_fault(error, self.name(index)) from error
            raise VitreousError(f"{self.name(index)}: {describe_read_error(error)}") from error


class PackedStrings(Sequence[str]):
    """Many short strings in two arrays: fast to pickle, and forked workers share them without copying."""

    def __init__(self, texts: Iterable[str]):
        encoded = [os.fsencode(text) for text in texts]  # file names need not be UTF-8
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


class FileSource(EncodedSource):
    """Image files, by their paths relative to a folder. Absolute paths are used unchanged."""

    def __init__(self, root: str | Path, names: Iterable[str], labels: Tensor):
        self.root, self.names, self.labels = str(root), PackedStrings(names), labels

    def name(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])  # noqa: PTH118 (Path would normalise it, at some cost)

    def read_bytes(self, index: int) -> bytes:
        return read_image_file(self.name(index), self.max_pixels)
