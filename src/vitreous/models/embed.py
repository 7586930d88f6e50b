"""Patch embedding, position embeddings, and their resampling to another grid."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models.checks import Grid, ceil_div

if TYPE_CHECKING:
    from vitreous.models.vit import ViTConfig

Bias = Callable[[Tensor], Tensor]  # from queries (B, heads, T, d) to a bias (B, heads, T, T) of the attention logits

# ---------------------------------------------------------------- patches


def patch_grid(size: tuple[int, int], stride: int, patch: tuple[int, int], crop: bool) -> Grid:
    """Return (rows, cols) of the patches of an image, or of a feature map with one cell per `stride` pixels."""
    cells = (ceil_div(size[0], stride), ceil_div(size[1], stride))
    rows, cols = cells[0] // patch[0], cells[1] // patch[1]
    whole = crop or (rows * patch[0], cols * patch[1]) == cells
    if whole and rows and cols:
        return rows, cols
    valid = []
    for n, p in zip(cells, patch, strict=True):
        below, above = n // p * p * stride, ceil_div(n, p) * p * stride
        valid.append(f"{below} or {above}" if 0 < below < above else f"{above}")
    raise VitreousError(
        f"an image of {size[0]} x {size[1]} px cannot be divided into patches of "
        f"{patch[0] * stride} x {patch[1] * stride}: the nearest height that works is {valid[0]}, width {valid[1]}"
        + ("" if crop else '; or crop the remainder with remainder="crop"')
    )


def project_by_convolution(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(images, weight, bias, stride=weight.shape[2:]).flatten(2).transpose(1, 2)


def project_by_linear(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same projection as a matrix product over flattened patches: the paper's x_p E."""
    h, w = weight.shape[2:]
    rows, cols = images.shape[2] // h, images.shape[3] // w
    images = images[:, :, : rows * h, : cols * w]
    patches = images.unflatten(2, (rows, h)).unflatten(4, (cols, w)).permute(0, 2, 4, 1, 3, 5)  # (B, r, c, C, h, w)
    return F.linear(patches.flatten(3).flatten(1, 2), weight.flatten(1), bias)


class PatchEmbed(nn.Module):
    """(B, C, H, W) -> (B, rows x cols, D). The weight has the layout of a convolution. On CUDA a matrix product is up
    to nine times as fast; on a CPU the convolution is slightly faster at inference (benchmarks/patch_projection.py)."""

    def __init__(self, channels: int, width: int, patch: tuple[int, int]):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        project = project_by_linear if images.is_cuda else project_by_convolution
        return project(images, self.proj.weight, self.proj.bias)


# ---------------------------------------------------------------- position embeddings


def sincos_1d(length: int, width: int, like: Tensor) -> Tensor:
    """Position embeddings (length, width) of the original Transformer: alternating sine and cosine, with wavelengths
    from 2 pi to 10,000 x 2 pi. Device and dtype are those of `like`."""
    omega = 1e4 ** (-_arange(0, width, 2, like=like) / width)
    angles = torch.outer(_arange(length, like=like), omega)
    return torch.stack([angles.sin(), angles.cos()], -1).view(length, width).to(like.dtype).to(like.device)


def sincos_2d(grid: Grid, width: int, like: Tensor) -> Tensor:
    """Position embeddings (rows x cols, width) of big_vision: [sin x, cos x, sin y, cos y], width / 4 each."""
    omega = 1e4 ** -(_arange(width // 4, like=like) / max(width // 4 - 1, 1))
    places = torch.arange(grid[0] * grid[1], device=omega.device)
    x, y = torch.outer(places % grid[1], omega), torch.outer(places // grid[1], omega)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).to(like.dtype).to(like.device)


def _arange(*arguments: int, like: Tensor) -> Tensor:
    """`torch.arange` in float64 on the device of `like`, or on the CPU for MPS, which has no float64."""
    return torch.arange(*arguments, dtype=torch.float64, device="cpu" if like.device.type == "mps" else like.device)


def position_shapes(c: "ViTConfig") -> dict[str, tuple[int, int, int]]:
    """Return the shape (1 or depth, entries, width) of each position parameter of a ViT."""
    rows, cols = c.grid
    if c.position == "learned-1d":
        return {"pos_embed": (c.tables, c.slots + rows * cols, c.width)}
    if c.position == "learned-2d":
        axes = {f"pos_embed_{axis}": (c.tables, n, c.width // 2) for axis, n in (("x", cols), ("y", rows))}
        return axes | ({"pos_embed_slots": (c.tables, c.slots, c.width)} if c.slots else {})
    if c.position == "relative":
        return {"rel_pos_embed": (c.tables, (2 * rows - 1) * (2 * cols - 1), c.width)}
    return {}


def position_table(c: "ViTConfig", tables: Mapping[str, Tensor], grid: Grid, like: Tensor) -> Tensor | None:
    """Return the position embeddings (1 or depth, T, D) for a grid, with zeros for tokens without one; None if the
    model adds none. `tables`: the position parameters by name. Fixed embeddings get the device and dtype of `like`."""
    if c.position in ("none", "relative"):
        return None
    slots = None
    if c.position == "sincos-2d":
        patches = sincos_2d(grid, c.width, like)[None]
    elif c.position == "sincos-1d":
        table = sincos_1d(c.slots + grid[0] * grid[1], c.width, like)
        slots, patches = table[None, : c.slots], table[None, c.slots :]
    elif c.position == "learned-1d":
        if grid == c.grid and c.slots == c.prefix:
            return tables["pos_embed"]
        slots, patches = tables["pos_embed"][:, : c.slots], tables["pos_embed"][:, c.slots :]
    else:
        slots, x, y = tables.get("pos_embed_slots"), tables["pos_embed_x"], tables["pos_embed_y"]
        rows, cols = c.grid
        patches = torch.cat([x[:, None].expand(-1, rows, -1, -1), y[:, :, None].expand(-1, -1, cols, -1)], dim=-1)
        patches = patches.flatten(1, 2)
    if c.position.startswith("learned") and grid != c.grid:
        patches = resample(patches, c.grid, grid, c.resample)
    zeros = patches.new_zeros(len(patches), c.prefix - c.slots, c.width)
    return torch.cat([zeros, patches] if slots is None else [slots, zeros, patches], dim=1)


def position_biases(c: "ViTConfig", table: Tensor, grid: Grid) -> list[Bias]:
    """Return the attention bias of relative positions: one for all layers, or one per layer."""
    old, new = ((2 * g[0] - 1, 2 * g[1] - 1) for g in (c.grid, grid))
    table = table if old == new else resample(table, old, new, c.resample)
    return [partial(relative_bias, table=t, grid=grid, prefix=c.prefix) for t in table]


def relative_bias(q: Tensor, table: Tensor, grid: Grid, prefix: int) -> Tensor:
    """Logits of the queries (B, H, T, d) against the embedding (H x d) of each key's offset from the query.

    Offsets are (rows, cols) on the grid, so `table` has (2 rows - 1)(2 cols - 1) of them. The first `prefix` tokens
    have no position and no bias.
    """
    rows, cols = grid
    keys = table.unflatten(-1, (q.shape[1], -1)).permute(1, 2, 0)  # (H, d, offsets)
    logits = (q[:, :, prefix:] * q.shape[-1] ** -0.5) @ keys.to(q.dtype)  # (B, H, N, offsets)
    places = torch.arange(rows * cols, device=q.device)
    y, x = places // cols, places % cols
    offset = (y[:, None] - y + rows - 1) * (2 * cols - 1) + (x[:, None] - x + cols - 1)  # (N, N)
    bias = logits.gather(-1, offset.expand(*logits.shape[:2], -1, -1))
    return F.pad(bias, (prefix, 0, prefix, 0))


# ---------------------------------------------------------------- resampling

Policy = Literal["google", "timm", "hf", "torchvision", "dino", "dinov2", "dinov2-registers"]


@dataclass(frozen=True)
class Resampling:
    """How a library resamples its position embeddings: an interpolation along rows, then along columns."""

    cubic: bool = True
    align_corners: bool = False  # the first and last cells keep their positions
    antialias: bool = False  # the kernel widens with the step when the grid shrinks
    offset: float = 0.0  # added to the new size before the step is computed: DINO's guard against rounding


RESAMPLING: dict[Policy, Resampling] = {
    "google": Resampling(cubic=False, align_corners=True),
    "timm": Resampling(antialias=True),
    "hf": Resampling(),
    "torchvision": Resampling(align_corners=True),
    "dino": Resampling(offset=0.1),
    "dinov2": Resampling(offset=0.1),
    "dinov2-registers": Resampling(antialias=True),
}


def _cubic(x: Tensor, a: float) -> Tensor:
    """Keys' cubic convolution kernel with slope `a` at 1, zero from 2 on."""
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0.0))


def resampling_weights(policy: Policy, old: int, new: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """For each of `new` cells along an axis: indices of the `old` cells it is interpolated from, and their weights.
    Both are (new, K), on the device of `like`; the weights have its dtype."""
    how = RESAMPLING[policy]
    cell = _arange(new, like=like)
    if how.align_corners:
        step = (old - 1) / (new - 1) if new > 1 else 0.0
        centre = cell * step
    else:
        step = old / (new + how.offset)
        centre = (cell + 0.5) * step - 0.5
    stretch = max(step, 1.0) if how.antialias else 1.0
    reach = math.ceil((2 if how.cubic else 1) * stretch)
    neighbours = torch.arange(1 - reach, reach + 1, device=cell.device)
    cells = centre.floor().long()[:, None] + neighbours
    distance = (cells - centre[:, None]) / stretch
    # torch's slopes: -0.5 with antialiasing (as Pillow), -0.75 without (as OpenCV).
    weight = _cubic(distance, -0.5 if how.antialias else -0.75) if how.cubic else (1 - distance.abs()).clamp(min=0)
    if how.antialias:  # cells beyond the border are dropped and the other weights renormalised
        weight = weight * ((cells >= 0) & (cells < old))
        weight = weight / weight.sum(1, keepdim=True)
    cells = cells.clamp(0, old - 1)  # without antialiasing, the border cell is repeated
    return cells.to(like.device), weight.to(like.dtype).to(like.device)


def resample(table: Tensor, old: Grid, new: Grid, policy: Policy) -> Tensor:
    """(T, rows x cols, D) on the grid `old` -> the same on the grid `new`.

    A weighted sum of neighbours instead of `F.interpolate`: its backward pass is deterministic on CUDA, and it does not
    depend on autocast or TF32.
    """
    x: Tensor = (table if table.dtype == torch.float64 else table.float()).unflatten(1, old)  # (T, rows, cols, D)
    for axis in (1, 2):
        cells, weight = resampling_weights(policy, old[axis - 1], new[axis - 1], like=x)  # (new, K)
        weight = weight.unflatten(1, (-1, *[1] * (3 - axis)))  # broadcast over the dimensions after `axis`
        parts = (x.index_select(axis, cells[:, k]) * weight[:, k] for k in range(cells.shape[1]))
        x = reduce(torch.add, parts)
    return x.flatten(1, 2).to(table.dtype)
