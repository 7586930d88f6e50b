"""Dropout and stochastic depth that belong to an image, not to the batch it happens to be in."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import draws


class Drop(nn.Module):
    """In training: dropout of elements, then stochastic depth, all of a branch or nothing of it for each image.

    With `keys` (see `key_drops`) an image loses the same whatever it is trained with; without, torch's generator draws.
    """

    keys: Tensor | None = None  # one for each image of the batch

    def __init__(self, dropout: float, depth: float = 0.0):
        super().__init__()
        self.dropout, self.depth = dropout, depth

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout) if self.keys is None else self._thinned(x, self.keys)
        if self.training and self.depth:
            if self.keys is None:
                draw = torch.rand(x.shape[0], 1, 1, device=x.device)
            else:
                draw = draws.uniform(self.keys, "depth", 1)[..., None]
            x = x * ((draw >= self.depth) / (1 - self.depth)).to(x.dtype)
        return x

    def _thinned(self, x: Tensor, keys: Tensor) -> Tensor:
        numbers = torch.arange(x[0].numel(), device=x.device)
        kept = draws.elements(keys[:, None], "dropout", numbers) >= self.dropout
        return x * (kept.view_as(x) / (1 - self.dropout)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dropout}, depth={self.depth}"


def key_drops(model: nn.Module, keys: Tensor | None) -> None:
    """Tell every `Drop` of a model which images the next batch is made of. None: back to torch's generator."""
    drops = [module for module in model.modules() if isinstance(module, Drop) and (module.dropout or module.depth)]
    streams = [None] * len(drops) if keys is None else draws.streams(keys, len(drops)).unbind(1)
    for drop, stream in zip(drops, streams, strict=True):
        drop.keys = stream
