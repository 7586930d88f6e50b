"""The map from the model's parameter names to the tensor names of a dialect. Reading and writing use the same map."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError

State = dict[str, Tensor]  # a state dict


@dataclass(frozen=True)
class Layout:
    """Conversion between the layout of a dialect's tensor and the layout of the model's parameter."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor], Tensor]
    rank: int | None = None  # expected number of dimensions of the dialect's tensor
    axis: int = 0  # axis of the dialect's tensor whose length must be `size`, if that is set
    size: int | None = None

    def check(self, tensor: Tensor, name: str) -> None:
        if self.rank is not None and tensor.ndim != self.rank:
            raise VitreousError(f"{name} has shape {tuple(tensor.shape)}, expected {self.rank} dimensions")
        if self.size is not None and tensor.shape[self.axis] != self.size:
            raise VitreousError(f"{name} has {tensor.shape[self.axis]} heads, the first layer {self.size}")


SAME = Layout(lambda t: t, lambda t: t)


@dataclass(frozen=True)
class DialectTensor:
    """Where a dialect stores one parameter. Several names: the parameter is their concatenation along axis 0."""

    names: tuple[str, ...]
    layout: Layout = SAME
    layer: int | None = None  # index into a tensor that stacks all layers (scanned models)

    def read(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the parameter in the model's layout."""
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
            shapes = ", ".join(f"{tuple(p.shape)} {str(p.dtype)[6:]}" for p in parts)
            raise VitreousError(f"{', '.join(self.names)} have different shapes or types: {shapes}")
        return _concatenate(parts)

    def write(self, tensor: Tensor) -> State:
        """Return the dialect's tensors for a parameter."""
        if len(self.names) == 1:
            return {self.names[0]: self.layout.write(tensor).contiguous()}
        # Copies, because torch.save would store the full tensor behind each view.
        parts = zip(self.names, tensor.chunk(len(self.names)), strict=True)
        return {name: self.layout.write(part).contiguous().clone() for name, part in parts}


def _concatenate(parts: list[Tensor]) -> Tensor:
    """`torch.cat` on one thread. On a busy machine, synchronising with a second thread costs more than it saves."""
    if parts[0].is_meta:
        return torch.cat(parts)
    result = torch.empty(len(parts) * len(parts[0]), *parts[0].shape[1:], dtype=parts[0].dtype)
    for chunk, part in zip(result.chunk(len(parts)), parts, strict=True) if result.numel() else ():
        np.copyto(chunk.view(torch.uint8).numpy(), part.contiguous().view(torch.uint8).numpy())
    return result


TensorMap = dict[str, DialectTensor]  # parameter name -> tensors of the dialect
