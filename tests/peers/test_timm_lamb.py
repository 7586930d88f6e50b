"""Our LAMB takes the same steps as timm's."""

import timm.optim
import torch
from torch import nn

from vitreous.training.optim.lamb import Lamb


def test_the_same_steps() -> None:
    weights = [torch.randn(24, 16), torch.randn(16, 24), torch.randn(3, 8)]
    ours, theirs = ([nn.Parameter(w.clone()) for w in weights] for _ in range(2))
    pair = (
        Lamb(ours, lr=2e-2, weight_decay=0.05),
        timm.optim.Lamb(theirs, lr=2e-2, weight_decay=0.05, max_grad_norm=None),
    )
    for _ in range(10):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimiser in pair:
            optimiser.step()
    for p, q, w in zip(ours, theirs, weights, strict=True):
        assert (p - q).norm() < 1e-5 * (p - w).norm()
