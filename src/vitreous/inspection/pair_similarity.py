"""Similarity of all pairs of patches in three numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.models.checks import Grid


@dataclass(frozen=True)
class PairSimilarity:
    mean: float  # over all pairs of different patches
    neighbours: float  # over all pairs that share an edge
    nearest: float  # share of the patches whose most similar other patch shares an edge with them
    patches: int


def summarise_pairs(similarity: Tensor, grid: Grid) -> PairSimilarity | None:
    """Summarise a matrix (N, N) of similarities between the patches of a grid; None if there is only one patch."""
    count = grid[0] * grid[1]
    if count < 2:
        return None
    row, col = torch.arange(count) // grid[1], torch.arange(count) % grid[1]
    apart = (row[:, None] - row).abs() + (col[:, None] - col).abs()
    values = similarity.detach().cpu().double()
    others = values.masked_fill(apart == 0, -torch.inf)
    nearest = apart[torch.arange(count), others.argmax(1)] == 1
    return PairSimilarity(
        mean=float(values[apart > 0].mean()),
        neighbours=float(values[apart == 1].mean()),
        nearest=float(nearest.double().mean()),
        patches=count,
    )
