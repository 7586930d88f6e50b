"""The processes that train one model together, and all communication between them.

There is one process, unless torch.distributed was initialised before. No other module of training uses ranks.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """This process among all processes of a run."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> "World":
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def all_reduce(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def all_gather(self, tensors: list[Tensor]) -> list[Tensor]:
        """Concatenate the rows of each tensor over all processes, which may have different numbers of rows."""
        if self.size == 1:
            return tensors
        gathered = []
        for tensor in tensors:
            rows = torch.zeros(self.size, dtype=torch.int64, device=tensor.device)
            rows[self.rank] = len(tensor)
            dist.all_reduce(rows)
            padded = tensor.new_zeros((int(rows.max()), *tensor.shape[1:]))
            padded[: len(tensor)] = tensor
            parts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(parts, padded)
            gathered.append(torch.cat([part[:count] for part, count in zip(parts, rows.tolist(), strict=True)]))
        return gathered

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def any(self, flag: bool) -> bool:
        """Whether the flag is true in any process, so that all processes stop or save at the same step."""
        if self.size == 1:
            return flag
        votes = torch.tensor(float(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(votes)
        return bool(votes > 0)
