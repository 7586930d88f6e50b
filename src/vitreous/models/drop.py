"""Dropout and stochastic depth that belong to an image, not to the batch it happens to be in."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import draws


class Drop(nn.Module):
    """In training: dropout of elements, then stochastic depth, all of a branch or nothing of it for each image.

    With `keys` (see `key_drops`) an image loses the same whatever it is trained with; without, torch's generator draws.
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
            x = x * self.kept.to(x.dtype)
        elif self.training and self.depth:
            draw = torch.rand(x.shape[0], 1, 1, device=x.device)
            x = x * ((draw >= self.depth) / (1 - self.depth)).to(x.dtype)
        return x

    def _thinned(self, x: Tensor, keys: Tensor) -> Tensor:
        numbers = torch.arange(x[0].numel(), device=x.device)
        kept = draws.elements(keys[:, None], "dropout", numbers) >= self.dropout
        return x * (kept.view_as(x) / (1 - self.dropout)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dropout}" if self.depth is None else f"{self.dropout}, depth={self.depth}"


def key_drops(model: nn.Module, keys: Tensor | None) -> None:
    """Tell every `Drop` of a model which images the next batch is made of. None: back to torch's generator."""
    drops = [module for module in model.modules() if isinstance(module, Drop)]
    drops = [drop for drop in drops if drop.dropout or drop.depth is not None]
    if not any(drop.dropout or drop.depth for drop in drops):
        return
    if keys is None:
        for drop in drops:
            drop.keys = drop.kept = None
        return
    streams = draws.streams(keys, len(drops))
    depths = _on(keys.device, tuple(drop.depth or 0.0 for drop in drops))
    kept = (draws.elements(streams, "depth", torch.zeros_like(streams)) >= depths) / (1 - depths)
    shallow = any(drop.depth for drop in drops)
    for drop, stream, factor in zip(drops, streams.unbind(1), kept[..., None, None].unbind(1), strict=True):
        drop.keys = stream if drop.dropout else None
        drop.kept = factor if shallow and drop.depth is not None else None


@lru_cache(maxsize=64)
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Numbers on a device, brought there once: a pass that is being recorded cannot wait for the host."""
    return torch.tensor(numbers, device=device)
