"""Where a dialect keeps each of our tensors. One table serves both ways: it says what to read, and what to write."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError

State = dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """How their tensor is turned into ours, and back."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor], Tensor]
    rank: int | None = None  # dimensions of theirs
    axis: int = 0  # of theirs, which must be `size` long where that is given
    size: int | None = None

    def check(self, tensor: Tensor, name: str) -> None:
        if self.rank is not None and tensor.ndim != self.rank:
            raise VitreousError(f"{name} has shape {tuple(tensor.shape)}, expected {self.rank} dimensions")
        if self.size is not None and tensor.shape[self.axis] != self.size:
            raise VitreousError(f"{name} has {tensor.shape[self.axis]} heads, the first layer {self.size}")


SAME = Layout(lambda t: t, lambda t: t)


@dataclass(frozen=True)
class Place:
    """The names a tensor of ours has in a dialect: several are parts of it, one below the other."""

    names: tuple[str, ...]
    layout: Layout = SAME
    layer: int | None = None  # theirs is all layers in one, with this index

    def read(self, tensors: Mapping[str, Tensor]) -> Tensor:
        parts = []
        for name in self.names:
            tensor = tensors[name]
            if self.layer is not None:
                tensor = tensor[self.layer]
            if not tensor.is_floating_point():
                raise VitreousError(f"{name} holds {str(tensor.dtype)[6:]}, not floating-point numbers")
            self.layout.check(tensor, name)
            parts.append(self.layout.read(tensor))
        if len(parts) == 1:
            return parts[0].contiguous()
        if parts[0].ndim == 0 or len({(part.shape, part.dtype) for part in parts}) > 1:
            found = ", ".join(f"{tuple(p.shape)} {str(p.dtype)[6:]}" for p in parts)
            raise VitreousError(f"{', '.join(self.names)} do not go together: {found}")
        return join(parts)

    def write(self, tensor: Tensor) -> State:
        if len(self.names) == 1:
            return {self.names[0]: self.layout.write(tensor).contiguous()}
        # Copies: a pickle would hold the whole behind each part.
        parts = zip(self.names, tensor.chunk(len(self.names)), strict=True)
        return {name: self.layout.write(part).contiguous().clone() for name, part in parts}


def join(parts: list[Tensor]) -> Tensor:
    """`torch.cat` on one thread: where other programs keep the cores busy, waiting for a second one costs more."""
    whole = torch.empty(len(parts) * len(parts[0]), *parts[0].shape[1:], dtype=parts[0].dtype)
    for mine, part in zip(whole.chunk(len(parts)), parts, strict=True) if whole.numel() else ():
        np.copyto(mine.view(torch.uint8).numpy(), part.contiguous().view(torch.uint8).numpy())
    return whole


Places = dict[str, Place]  # our name -> where they keep it
