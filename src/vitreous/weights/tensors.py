"""The tensors of an open checkpoint file, by name: a read-only mapping that every container format implements."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import VitreousError


class Tensors(Mapping[str, Tensor]):
    """Tensors of a file by name, with the file's metadata. A tensor is loaded when it is accessed."""

    container = ""  # name of the file format

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}  # by tensor name; each container format stores what it needs
        self.metadata: dict[str, str] = {}
        self.notes: list[str] = []
        self.ignored: dict[str, str] = {}  # entries of the file that are not used -> reason

    def __contains__(self, name: object) -> bool:
        return name in self.entries  # does not load the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]: ...

    def release(self, name: str) -> None:
        """Free the memory of a tensor that has been copied."""


class InMemoryTensors(Tensors):
    """Tensors, or numpy arrays that are converted on access, in a dict."""

    def __init__(self, tensors: Mapping[str, Any], container: str):
        super().__init__()
        self.entries = dict(tensors)
        self.container = container

    def __getitem__(self, name: str) -> Tensor:
        value = self.entries[name]
        return value if isinstance(value, Tensor) else _from_array(value, name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.entries[name].shape)

    def release(self, name: str) -> None:
        value = self.entries[name]
        self.entries[name] = torch.empty(value.shape, device="meta")


def _from_array(array: NDArray[Any], name: str) -> Tensor:
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:  # numpy has no bfloat16 and saves it as raw bytes
        return torch.from_numpy(np.ascontiguousarray(array).view(np.uint16)).view(torch.bfloat16)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise VitreousError(f"{name} holds {array.dtype}, not floating-point numbers of 16 to 64 bits")
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    return torch.from_numpy(native if native.flags.writeable else native.copy())
