"""LAMB (You et al., 2019): Adam, with each update scaled by the norm of the matrix over that of the update.

Weight decay is added to the update before its norm is computed. Norms, biases and other parameters without weight decay
take Adam's step unscaled, and so do matrices of zeros.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

EPS = 1e-6


class Lamb(torch.optim.Optimizer):
    """Group option `scaled`: whether updates are multiplied by the trust ratio."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        scaled: bool = True,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "scaled": scaled})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self.state[p] = {
                "step": torch.zeros((), device="cpu"),  # on the CPU, so that reading it does not wait for the GPU
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                updates = self._adam_updates(parameters, group["betas"])
                if group["weight_decay"]:
                    torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
                if group["scaled"]:
                    torch._foreach_mul_(updates, trust_ratios(parameters, updates))
                torch._foreach_add_(parameters, updates, alpha=-group["lr"])
        return loss

    def _adam_updates(self, parameters: list[Tensor], betas: tuple[float, float]) -> list[Tensor]:
        """First moment over the square root of the second, both with bias correction."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        means, squares, steps = ([self.state[p][k] for p in parameters] for k in ("exp_avg", "exp_avg_sq", "step"))
        torch._foreach_add_(steps, 1.0)
        torch._foreach_lerp_(means, gradients, 1 - betas[0])
        torch._foreach_mul_(squares, betas[1])
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - betas[1])
        corrections = [[1 - beta ** step.item() for step in steps] for beta in betas]
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, [correction**0.5 for correction in corrections[1]])
        torch._foreach_add_(roots, EPS)
        torch._foreach_mul_(roots, corrections[0])
        return list(torch._foreach_div(means, roots))


def trust_ratios(parameters: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """For each parameter, its norm over that of its update, on the device; 1 where one of them is 0."""
    weight_norms, update_norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, updates))
    return list(torch.where((weight_norms > 0) & (update_norms > 0), weight_norms / update_norms, 1.0).unbind())
