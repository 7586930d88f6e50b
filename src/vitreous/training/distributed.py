"""The processes that train one model together: who this one is, and the one place where numbers are brought together.

Today there is one process unless torch.distributed was initialised before. Nothing else in training asks about ranks.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> "World":
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_main(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    def all_reduce(self, tensors: list[Tensor]) -> None:
        """Each becomes its sum over all processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def all_gather(self, tensors: list[Tensor]) -> list[Tensor]:
        """Each becomes the rows of all processes, which may have different numbers of them."""
        if self.size == 1:
            return tensors
        joined = []
        for tensor in tensors:
            rows = torch.zeros(self.size, dtype=torch.int64, device=tensor.device)
            rows[self.rank] = len(tensor)
            dist.all_reduce(rows)
            most = int(rows.max())
            padded = tensor.new_zeros((most, *tensor.shape[1:]))
            padded[: len(tensor)] = tensor
            parts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(parts, padded)
            joined.append(torch.cat([part[:count] for part, count in zip(parts, rows.tolist(), strict=True)]))
        return joined

    def barrier(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def any(self, flag: bool) -> bool:
        """Whether any process says so: all stop at one step, or none."""
        if self.size == 1:
            return flag
        vote = torch.tensor(float(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(vote)
        return bool(vote > 0)
