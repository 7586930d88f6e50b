"""The order of training images: a stream of shuffled epochs whose complete state is (seed, position)."""

from functools import lru_cache

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.utils import random_keys


class TrainingSampler:
    """An endless stream of image indices: one seeded permutation per epoch, without gaps, so batches may span epochs.

    `classes` (the label of each image) balances it: epochs keep their length, and all classes are equally frequent.
    """

    def __init__(self, images: int, seed: int, classes: Tensor | None = None):
        if classes is not None and classes.ndim != 1:
            raise VitreousError("balanced: multi-label data has no single class per image to balance by")
        self.images, self.seed = images, seed
        self.groups = None if classes is None else [(classes == c).nonzero()[:, 0] for c in classes.unique()]
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "epoch"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def indices(self, start: int, stop: int) -> Tensor:
        """The image indices at the positions from `start` to before `stop`."""
        first, last = start // self.images, max(start, stop - 1) // self.images
        begins = [(epoch, epoch * self.images) for epoch in range(first, last + 1)]
        parts = [self.epoch(epoch)[max(0, start - begin) : stop - begin] for epoch, begin in begins]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _epoch(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(int(random_keys.keys(self.seed, torch.tensor(number))) & (2**63 - 1))
        if self.groups is None:
            return torch.randperm(self.images, generator=generator)
        share, rest = divmod(self.images, len(self.groups))
        extra = (torch.randperm(len(self.groups), generator=generator) < rest).tolist()  # classes with one more image
        parts = zip(self.groups, extra, strict=True)
        order = torch.cat([self._sample_class(group, share + more, generator) for group, more in parts])
        return order[torch.randperm(self.images, generator=generator)]

    @staticmethod
    def _sample_class(group: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """`count` images of a class, from as many shuffled passes over its images as needed."""
        rounds = -(-count // len(group))
        return torch.cat([group[torch.randperm(len(group), generator=generator)] for _ in range(rounds)])[:count]
