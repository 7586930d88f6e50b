"""Muon: momentum, with each matrix of the update replaced by the nearest orthogonal one, nearly.

The iteration is Keller Jordan's (2024): five steps of an odd polynomial of degree five push the singular values of a
matrix to about 1, by matrix products alone. They end between 0.7 and 1.2, which is as good as 1 here.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
TOGETHER = 2**27  # elements stacked at once: 256 MiB in bf16, and the iteration holds a few of them


class Muon(torch.optim.Optimizer):
    """For matrices. A group's `parts` says into how many of equal size the rows of its parameters are split before each
    is orthogonalised: 3 for the queries, keys and values of a `qkv`. Weight decay is that of AdamW."""

    def __init__(
        self, params: Iterable[Any], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0, parts: int = 1
    ):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": parts}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in group["params"]:
            if p.ndim != 2 or p.shape[0] % group["parts"]:
                raise VitreousError(
                    f"Muon: a parameter of {tuple(p.shape)} is not {group['parts']} matrices with as many rows each"
                )
            self.state[p]["momentum_buffer"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        # All groups at once: a projection has the shape of a query's matrix, whatever their learning rates.
        pieces = [piece for group, ps in groups for update in self._updates(group, ps) for piece in update]
        directions = iter(orthogonalise(pieces))
        for group, ps in groups:
            matrices = [rows for p in ps for rows in p.chunk(group["parts"])]
            if matrices:
                changes = list(islice(directions, len(matrices)))
                torch._foreach_mul_(changes, [max(1.0, m.shape[0] / m.shape[1]) ** 0.5 for m in matrices])
                torch._foreach_mul_(ps, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(matrices, changes, alpha=-group["lr"])
        return loss

    def _updates(self, group: dict[str, Any], parameters: list[Tensor]) -> list[tuple[Tensor, ...]]:
        """Nesterov's momentum, in the parts that are matrices of their own."""
        if not parameters:
            return []
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, buffers, group["momentum"])
        return [update.chunk(group["parts"]) for update in updates]


def orthogonalise(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Each whole matrix with its singular values at about 1. Those of one shape go through one batched product."""
    results: list[Tensor | None] = [None] * len(matrices)
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, matrix in enumerate(matrices):
        alike.setdefault((matrix.shape, matrix.device, matrix.dtype), []).append(i)
    for indices in alike.values():
        together = max(1, TOGETHER // max(1, matrices[indices[0]].numel()))
        for start in range(0, len(indices), together):
            batch = indices[start : start + together]
            for i, result in zip(batch, newton_schulz(torch.stack([matrices[i] for i in batch])), strict=True):
                results[i] = result
    return [result for result in results if result is not None]


def newton_schulz(x: Tensor) -> Tensor:
    """A stack of matrices (N, rows, cols), orthogonalised: in bf16 on CUDA, which is exact enough; in float32
    elsewhere, where bf16 is slow, or worse. The smaller side is the one that is multiplied with itself."""
    if x.shape[1] > x.shape[2]:
        return newton_schulz(x.mT).mT
    dtype = x.dtype
    # Singular values have to start below 1. No epsilon that a small gradient would notice; zeros stay zeros.
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-20)
    x = x.bfloat16() if x.is_cuda else x.float()
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(dtype)
