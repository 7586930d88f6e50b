"""Axial attention (appendix D.6 of the ViT paper): a patch attends to the patches of its own row, or of its own column.

Rows or columns ("lines") are moved into the batch dimension, so that attention is computed within each of them. The
prefix tokens (class token, registers) belong to no line: their keys and values are appended to every line, and their
queries attend to all tokens.

Shapes: B batch, H heads, d width of a head, P prefix tokens, T = P + rows x cols tokens, L lines of n patches each.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.models.checks import Grid

Axis = Literal["row", "column"]


def axis_of(layer: int) -> Axis:
    """Even layers, counted from 0, attend within rows, odd layers within columns."""
    return "column" if layer % 2 else "row"


def require_grid(grid: Grid | None, bias: object) -> Grid:
    """Return the grid. Raise if axial attention is called without it, or with a bias, which it does not support."""
    if grid is None:
        raise VitreousError("axial attention needs the grid of the patches: block(x, None, (rows, cols))")
    if bias is not None:
        raise VitreousError("axial attention does not support a bias of the attention logits")
    return grid


def axial_attention(q: Tensor, k: Tensor, v: Tensor, grid: Grid, axis: Axis, dropout: float) -> Tensor:
    """Attention of queries, keys and values (B, H, T, d) with dropout of the weights, (B, H, T, d)."""
    prefix = q.shape[2] - grid[0] * grid[1]
    keys, values = (_with_prefix(x[:, :, :prefix], _lines(x[:, :, prefix:], grid, axis)) for x in (k, v))
    queries = _lines(q[:, :, prefix:], grid, axis)
    x = F.scaled_dot_product_attention(
        queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), dropout_p=dropout
    )
    x = x.unflatten(0, queries.shape[:2])  # (B, L, H, n, d)
    x = (x.transpose(2, 3) if axis == "row" else x.permute(0, 3, 1, 2, 4)).flatten(1, 2)  # (B, rows x cols, H, d)
    if prefix:
        first = F.scaled_dot_product_attention(q[:, :, :prefix], k, v, dropout_p=dropout)
        x = torch.cat([first.transpose(1, 2), x], dim=1)
    return x.transpose(1, 2)


def compared_tokens(grid: Grid, axis: Axis, tokens: int, device: torch.device) -> Tensor:
    """Return which query attends to which key, (T, T) bool."""
    places = torch.arange(grid[0] * grid[1], device=device)
    line = places // grid[1] if axis == "row" else places % grid[1]
    prefix = tokens - len(places)
    return F.pad(line[:, None] == line, (prefix, 0, prefix, 0), value=True)


def _lines(x: Tensor, grid: Grid, axis: Axis) -> Tensor:
    """(B, H, rows x cols, d) -> (B, L, H, n, d)."""
    x = x.unflatten(2, grid)
    return x.transpose(1, 2) if axis == "row" else x.permute(0, 3, 1, 2, 4)


def _with_prefix(prefix: Tensor, lines: Tensor) -> Tensor:
    """Append the prefix tokens (B, H, P, d) to every line: (B, L, H, n + P, d)."""
    if not prefix.shape[2]:
        return lines
    return torch.cat([lines, prefix[:, None].expand(-1, lines.shape[1], -1, -1, -1)], dim=3)
