"""Attention weights pooled to a coarser grid, for models whose weights are too many for the inspection page."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.models.checks import Grid


def coarse_grid(grid: Grid, prefix: int, maps: int, max_weights: int) -> Grid | None:
    """Return the finest coarser grid with at most `max_weights` weights in all maps; None if the full grid fits."""
    rows, cols, step = *grid, 1
    while maps * (prefix + rows * cols) ** 2 > max_weights and rows * cols > 1:
        step += 1
        rows, cols = -(-grid[0] // step), -(-grid[1] // step)
    return (rows, cols) if step > 1 else None


def cell_membership(grid: Grid, coarse: Grid) -> Tensor:
    """Return a one-hot matrix (N, n): the coarse cell of each patch."""
    cells_by_axis = [torch.arange(n) * m // n for n, m in zip(grid, coarse, strict=True)]
    cells = (cells_by_axis[0][:, None] * coarse[1] + cells_by_axis[1]).flatten()
    return F.one_hot(cells, coarse[0] * coarse[1]).float()


def pool_attention(weights: Tensor, membership: Tensor, prefix: int) -> Tensor:
    """Return attention between coarse cells: summed over keys and averaged over queries, so that rows sum to one."""
    keys = torch.cat([weights[..., :prefix], weights[..., prefix:] @ membership], -1)
    queries = (membership / membership.sum(0)).T @ keys[..., prefix:, :]
    return torch.cat([keys[..., :prefix, :], queries], -2)
