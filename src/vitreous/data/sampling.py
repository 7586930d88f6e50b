"""In which order images are trained on: a sequence whose whole state is (seed, position)."""

from functools import lru_cache

import torch
from torch import Tensor

from vitreous import draws
from vitreous.errors import VitreousError


class Stream:
    """Every image once in each epoch, in a seeded order, epoch after epoch without a gap: batches may straddle two.

    `classes` (the label of each image) makes it balanced: an epoch is as long, and every class has an equal part of it.
    """

    def __init__(self, images: int, seed: int, classes: Tensor | None = None):
        if classes is not None and classes.ndim != 1:
            raise VitreousError("balanced: images with several labels have no class to be drawn by")
        self.images, self.seed = images, seed
        self.groups = None if classes is None else [(classes == c).nonzero()[:, 0] for c in classes.unique()]
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "epoch"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def indices(self, start: int, stop: int) -> Tensor:
        """The images at these positions."""
        first, last = start // self.images, max(start, stop - 1) // self.images
        begins = [(epoch, epoch * self.images) for epoch in range(first, last + 1)]
        parts = [self.epoch(epoch)[max(0, start - begin) : stop - begin] for epoch, begin in begins]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _epoch(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(int(draws.keys(self.seed, torch.tensor(number))) & (2**63 - 1))
        if self.groups is None:
            return torch.randperm(self.images, generator=generator)
        share, rest = divmod(self.images, len(self.groups))
        extra = (torch.randperm(len(self.groups), generator=generator) < rest).tolist()  # who has one more this time
        parts = zip(self.groups, extra, strict=True)
        order = torch.cat([self._repeated(group, share + more, generator) for group, more in parts])
        return order[torch.randperm(self.images, generator=generator)]

    @staticmethod
    def _repeated(group: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """`count` images of a class: all of them as often as they fit, then some of them once more."""
        rounds = -(-count // len(group))
        return torch.cat([group[torch.randperm(len(group), generator=generator)] for _ in range(rounds)])[:count]
