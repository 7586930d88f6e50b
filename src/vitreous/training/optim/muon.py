"""Muon: momentum, with the update of each matrix replaced by the nearest orthogonal matrix, approximately.

The iteration is by Keller Jordan (2024): five steps of an odd polynomial of degree five bring the singular values of a
matrix close to 1, with matrix products only. They end between 0.7 and 1.2, which is close enough for an update.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MAX_STACKED = 2**27  # elements orthogonalised at once: 256 MiB in bf16, and the iteration allocates several of them


class Muon(torch.optim.Optimizer):
    """For matrices. Group option `parts`: into how many equal parts the rows of a parameter are split before each is
    orthogonalised: 3 for the queries, keys and values of a `qkv`. Weight decay is decoupled, as in AdamW."""

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
                    f"Muon: a parameter of {tuple(p.shape)} cannot be split into {group['parts']} matrices of equal"
                    " size"
                )
            self.state[p]["momentum_buffer"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        # All groups at once, since matrices of equal shape are batched, whatever their learning rates.
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
        """Nesterov momentum of each parameter, split into its parts."""
        if not parameters:
            return []
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, buffers, group["momentum"])
        return [update.chunk(group["parts"]) for update in updates]


def orthogonalise(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return each matrix with its singular values close to 1. Matrices of equal shape are batched."""
    results: list[Tensor | None] = [None] * len(matrices)
    by_shape: dict[tuple[object, ...], list[int]] = {}
    for i, matrix in enumerate(matrices):
        by_shape.setdefault((matrix.shape, matrix.device, matrix.dtype), []).append(i)
    for indices in by_shape.values():
        count = max(1, MAX_STACKED // max(1, matrices[indices[0]].numel()))
        for start in range(0, len(indices), count):
            batch = indices[start : start + count]
            for i, result in zip(batch, newton_schulz(torch.stack([matrices[i] for i in batch])), strict=True):
                results[i] = result
    return [result for result in results if result is not None]


def newton_schulz(x: Tensor) -> Tensor:
    """Orthogonalise a stack of matrices (N, rows, cols): in bf16 on CUDA, where it is exact enough; in float32
    elsewhere, since bf16 on a CPU is slow or not supported. The Gram matrix is that of the smaller side."""
    if x.shape[1] > x.shape[2]:
        return newton_schulz(x.mT).mT
    dtype = x.dtype
    # Singular values have to start below 1. The clamp is below any gradient, and keeps zeros.
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-20)
    x = x.bfloat16() if x.is_cuda else x.float()
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(dtype)
