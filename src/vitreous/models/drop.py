"""Dropout and stochastic depth. Random draws can be keyed by image, so that they do not depend on the batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.utils import random_keys


class Drop(nn.Module):
    """In training mode: dropout of elements, then stochastic depth, which drops the whole branch of an image.

    Within `keyed_drops` the draws depend on the key of each image only. Otherwise torch's generator draws.
    """

    keys: Tensor | None = None  # one per image of the batch, within `keyed_drops`
    branch_scale: Tensor | None = None  # factor of the branch per image, (B, 1, 1), within `keyed_drops`

    def __init__(self, dropout: float, depth: float | None = None):
        super().__init__()
        self.dropout, self.depth = dropout, depth  # depth=None: not a residual branch

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout) if self.keys is None else self._keyed_dropout(x, self.keys)
        if self.training and self.branch_scale is not None:  # `depth` is not read: all blocks share one compiled graph
            check_keys(self.branch_scale, x)
            x = x * self.branch_scale.to(x.device, x.dtype)
        elif self.training and self.depth:
            draw = torch.rand(x.shape[0], 1, 1, device=x.device)
            x = x * ((draw >= self.depth) / (1 - self.depth)).to(x.dtype)
        return x

    def _keyed_dropout(self, x: Tensor, keys: Tensor) -> Tensor:
        check_keys(keys, x)
        elements = torch.arange(x[0].numel(), device=keys.device)  # for a model on MPS, keys are on the CPU
        keep = random_keys.uniform_at(keys[:, None], "dropout", elements) >= self.dropout
        return x * (keep.view_as(x) / (1 - self.dropout)).to(x.device, x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dropout}" if self.depth is None else f"{self.dropout}, depth={self.depth}"


def check_keys(keys: Tensor, x: Tensor) -> None:
    """Raise unless there is one key per image. Broadcasting would silently change the batch size."""
    if len(keys) != len(x):
        raise VitreousError(f"{len(x)} images with {len(keys)} keys: pass one key per image to `keyed_drops`")


@contextmanager
def keyed_drops(model: nn.Module, keys: Tensor) -> Iterator[None]:
    """Make every `Drop` of a model draw from `keys`, one per image of the batch, until the context ends. Run the
    backward pass inside the context too: activation checkpointing calls the model again."""
    drops = [module for module in model.modules() if isinstance(module, Drop)]
    drops = [drop for drop in drops if drop.dropout or drop.depth is not None]
    if not any(drop.dropout or drop.depth for drop in drops):
        yield
        return
    before = [(drop.keys, drop.branch_scale) for drop in drops]
    try:
        _set_keys(drops, keys)
        yield
    finally:
        for drop, state in zip(drops, before, strict=True):
            drop.keys, drop.branch_scale = state


def _set_keys(drops: list[Drop], keys: Tensor) -> None:
    streams = random_keys.split_keys(keys, len(drops))
    depths = _constant(keys.device, tuple(drop.depth or 0.0 for drop in drops))
    scales = (random_keys.uniform_at(streams, "depth", torch.zeros_like(streams)) >= depths) / (1 - depths)
    any_depth = any(drop.depth for drop in drops)
    for drop, stream, scale in zip(drops, streams.unbind(1), scales[..., None, None].unbind(1), strict=True):
        drop.keys = stream if drop.dropout else None
        drop.branch_scale = scale if any_depth and drop.depth is not None else None


@lru_cache(maxsize=64)
def _constant(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Numbers on a device, copied once: a copy from the host is not allowed while a CUDA graph is captured."""
    with torch.inference_mode(False):  # the cached tensor may be used in training later
        return torch.tensor(numbers, dtype=torch.float32, device=device)
