"""Dropout and stochastic depth that belong to an image, not to the batch it happens to be in."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.utils import random_keys


class Drop(nn.Module):
    """In training: dropout of elements, then stochastic depth, all of a branch or nothing of it for each image.

    Within `keyed_drops` an image loses the same in any batch; outside of it torch's generator draws.
    """

    keys: Tensor | None = None  # one for each image of the batch
    kept: Tensor | None = None  # what the branch of each image is multiplied by, (B, 1, 1), once that is drawn

    def __init__(self, dropout: float, depth: float | None = None):
        super().__init__()
        self.dropout, self.depth = dropout, depth  # None: not a branch that can be left out

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout) if self.keys is None else self._thinned(x, self.keys)
        if self.training and self.kept is not None:  # no look at `depth`: one compiled graph does for all blocks
            check_keys(self.kept, x)
            x = x * self.kept.to(x.dtype)
        elif self.training and self.depth:
            draw = torch.rand(x.shape[0], 1, 1, device=x.device)
            x = x * ((draw >= self.depth) / (1 - self.depth)).to(x.dtype)
        return x

    def _thinned(self, x: Tensor, keys: Tensor) -> Tensor:
        check_keys(keys, x)
        numbers = torch.arange(x[0].numel(), device=x.device)
        kept = random_keys.uniform_at(keys[:, None], "dropout", numbers) >= self.dropout
        return x * (kept.view_as(x) / (1 - self.dropout)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dropout}" if self.depth is None else f"{self.dropout}, depth={self.depth}"


def check_keys(keys: Tensor, x: Tensor) -> None:
    """Whether there is a key for each image. Broadcasting would make a batch of another size out of the two."""
    if len(keys) != len(x):
        raise VitreousError(
            f"a batch of {len(x)} images with keys for {len(keys)}: give `keyed_drops` one key for each image"
        )


@contextmanager
def keyed_drops(model: nn.Module, keys: Tensor) -> Iterator[None]:
    """Within this, every `Drop` of a model draws from `keys`, one for each image of the batch; afterwards as before,
    from torch's generator. Backward belongs inside too: activation checkpointing calls the model again there."""
    drops = [module for module in model.modules() if isinstance(module, Drop)]
    drops = [drop for drop in drops if drop.dropout or drop.depth is not None]
    if not any(drop.dropout or drop.depth for drop in drops):
        yield
        return
    before = [(drop.keys, drop.kept) for drop in drops]
    try:
        _set_keys(drops, keys)
        yield
    finally:
        for drop, state in zip(drops, before, strict=True):
            drop.keys, drop.kept = state


def _set_keys(drops: list[Drop], keys: Tensor) -> None:
    streams = random_keys.split_keys(keys, len(drops))
    depths = _on(keys.device, tuple(drop.depth or 0.0 for drop in drops))
    kept = (random_keys.uniform_at(streams, "depth", torch.zeros_like(streams)) >= depths) / (1 - depths)
    shallow = any(drop.depth for drop in drops)
    for drop, stream, factor in zip(drops, streams.unbind(1), kept[..., None, None].unbind(1), strict=True):
        drop.keys = stream if drop.dropout else None
        drop.kept = factor if shallow and drop.depth is not None else None


@lru_cache(maxsize=64)
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Numbers on a device, brought there once: a pass that is being recorded cannot wait for the host."""
    with torch.inference_mode(False):  # the next one who asks may want gradients
        return torch.tensor(numbers, dtype=torch.float32, device=device)
