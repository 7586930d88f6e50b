"""From an image to tokens that know their place: patches, position embeddings, and their resampling to another grid."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models.checks import Grid, ceil_div

if TYPE_CHECKING:
    from vitreous.models.vit import ViTConfig

Bias = Callable[[Tensor], Tensor]  # from queries (B, heads, T, d) to what is added to their logits (B, heads, T, T)

# ---------------------------------------------------------------- patches


def patch_grid(size: tuple[int, int], stride: int, patch: tuple[int, int], crop: bool) -> Grid:
    """(rows, cols) of whole patches, cut from an image or from a map with a cell every `stride` pixels of it."""
    cells = (ceil_div(size[0], stride), ceil_div(size[1], stride))
    rows, cols = cells[0] // patch[0], cells[1] // patch[1]
    whole = crop or (rows * patch[0], cols * patch[1]) == cells
    if whole and rows and cols:
        return rows, cols
    works = []
    for n, p in zip(cells, patch, strict=True):
        below, above = n // p * p * stride, ceil_div(n, p) * p * stride
        works.append(f"{below} or {above}" if 0 < below < above else f"{above}")
    raise VitreousError(
        f"an image of {size[0]} x {size[1]} px is not made of whole patches of "
        f"{patch[0] * stride} x {patch[1] * stride}: the nearest height that works is {works[0]}, width {works[1]}"
        + ("" if crop else '; or leave the rest out with remainder="crop"')
    )


def project_by_convolution(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(images, weight, bias, stride=weight.shape[2:]).flatten(2).transpose(1, 2)


def project_by_linear(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same map as a matrix product over patches laid out as rows: the paper's x_p E."""
    h, w = weight.shape[2:]
    rows, cols = images.shape[2] // h, images.shape[3] // w
    images = images[:, :, : rows * h, : cols * w]
    patches = images.unflatten(2, (rows, h)).unflatten(4, (cols, w)).permute(0, 2, 4, 1, 3, 5)  # (B, r, c, C, h, w)
    return F.linear(patches.flatten(3).flatten(1, 2), weight.flatten(1), bias)


class PatchEmbed(nn.Module):
    """(B, C, H, W) -> (B, rows x cols, D). The weight is stored as a convolution's. On CUDA a matrix product is up to
    nine times as fast; on a CPU the convolution is a little faster at inference (benchmarks/patches.py)."""

    def __init__(self, channels: int, width: int, patch: tuple[int, int]):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        project = project_by_linear if images.is_cuda else project_by_convolution
        return project(images, self.proj.weight, self.proj.bias)


# ---------------------------------------------------------------- positions


def sincos_1d(length: int, width: int) -> NDArray[np.float64]:
    """Positions of the original Transformer: sine and cosine in turn, wavelengths from 2 pi to 10,000 x 2 pi."""
    angles = np.outer(np.arange(length), 1e4 ** (-np.arange(0, width, 2) / width))
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width)


def sincos_2d(grid: Grid, width: int) -> NDArray[np.float64]:
    """big_vision's: [sin x, cos x, sin y, cos y], a quarter of the width each."""
    omega = 1e4 ** -(np.arange(width // 4) / max(width // 4 - 1, 1))
    y, x = (np.multiply.outer(axis.ravel(), omega) for axis in np.mgrid[: grid[0], : grid[1]])
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)


def position_shapes(c: "ViTConfig") -> dict[str, tuple[int, int, int]]:
    """The parameters that hold positions: (1 or depth, entries, width) of each."""
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
    """What is added to the tokens of a grid, (1 or depth, T, D): zero for tokens that have no slot. Fixed positions
    take the device and dtype of `like`."""
    if c.position in ("none", "relative"):
        return None
    slots = None
    if c.position == "sincos-2d":
        (places,) = constants("sincos_2d", grid, c.width, like=like)
        places = places[None]
    elif c.position == "sincos-1d":
        (table,) = constants("sincos_1d", c.slots + grid[0] * grid[1], c.width, like=like)
        slots, places = table[None, : c.slots], table[None, c.slots :]
    elif c.position == "learned-1d":
        if grid == c.grid and c.slots == c.prefix:
            return tables["pos_embed"]
        slots, places = tables["pos_embed"][:, : c.slots], tables["pos_embed"][:, c.slots :]
    else:
        slots, x, y = tables.get("pos_embed_slots"), tables["pos_embed_x"], tables["pos_embed_y"]
        rows, cols = c.grid
        places = torch.cat([x[:, None].expand(-1, rows, -1, -1), y[:, :, None].expand(-1, -1, cols, -1)], dim=-1)
        places = places.flatten(1, 2)
    if c.position.startswith("learned") and grid != c.grid:
        places = resample(places, c.grid, grid, c.resample)
    nowhere = places.new_zeros(len(places), c.prefix - c.slots, c.width)
    return torch.cat([nowhere, places] if slots is None else [slots, nowhere, places], dim=1)


def position_biases(c: "ViTConfig", table: Tensor, grid: Grid) -> list[Bias]:
    """What relative positions add to the logits of attention, for one layer or for each."""
    old, new = ((2 * g[0] - 1, 2 * g[1] - 1) for g in (c.grid, grid))
    table = table if old == new else resample(table, old, new, c.resample)
    return [partial(relative_bias, table=t, grid=grid, prefix=c.prefix) for t in table]


def relative_bias(q: Tensor, table: Tensor, grid: Grid, prefix: int) -> Tensor:
    """Logits of the queries (B, H, T, d) over the embeddings (offsets, H x d) of where each key lies from them.

    A place is a cell of the grid, so an offset is (rows, cols) away: (2 rows - 1)(2 cols - 1) of them. The first
    `prefix` tokens have no place, and no bias.
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
    """How a dialect stretches its grid of positions. Each is an interpolation along rows, then along columns."""

    cubic: bool = True
    align_corners: bool = False  # the first and last cells stay where they are
    antialias: bool = False  # the kernel widens with the step when the grid shrinks
    offset: float = 0.0  # added to the new size before the step is taken: DINO's guard against rounding


RESAMPLING: dict[Policy, Resampling] = {
    "google": Resampling(cubic=False, align_corners=True),
    "timm": Resampling(antialias=True),
    "hf": Resampling(),
    "torchvision": Resampling(align_corners=True),
    "dino": Resampling(offset=0.1),
    "dinov2": Resampling(offset=0.1),
    "dinov2-registers": Resampling(antialias=True),
}


def _cubic(x: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """Keys' cubic convolution kernel with slope `a` at 1, zero from 2 on."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def resampling_weights(policy: Policy, old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each of `new` cells along an axis: which of the `old` cells it is made of, and how much of each. (new, K)"""
    how = RESAMPLING[policy]
    if how.align_corners:
        step = (old - 1) / (new - 1) if new > 1 else 0.0
        centre = np.arange(new) * step
    else:
        step = old / (new + how.offset)
        centre = (np.arange(new) + 0.5) * step - 0.5
    stretch = max(step, 1.0) if how.antialias else 1.0
    reach = (2 if how.cubic else 1) * stretch
    cells = np.floor(centre).astype(np.int64)[:, None] + np.arange(1 - math.ceil(reach), math.ceil(reach) + 1)
    distance = (cells - centre[:, None]) / stretch
    # torch's slopes: -0.5 where it antialiases (as Pillow does), -0.75 elsewhere (as OpenCV does).
    weight = _cubic(distance, -0.5 if how.antialias else -0.75) if how.cubic else np.clip(1 - np.abs(distance), 0, None)
    if how.antialias:  # cells beyond the border do not exist: what is left is made to sum to one
        weight *= (cells >= 0) & (cells < old)
        weight /= weight.sum(1, keepdims=True)
    return np.clip(cells, 0, old - 1), weight  # elsewhere the border cell is repeated


FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (sincos_1d, sincos_2d, resampling_weights)}
KEPT: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}  # what they gave for a size, on a device


def constants(function: str, *arguments: Any, like: Tensor) -> tuple[Tensor, ...]:
    """What one of the functions above makes of a size, as tensors: made once and kept on the device of `like`."""
    device, dtype = like.device, like.dtype
    if torch.compiler.is_compiling() or type(like) not in (Tensor, nn.Parameter):  # nothing a tracer makes may be kept
        return transfer(function, *arguments, device=device, dtype=dtype)
    key = (function, arguments, device, dtype)
    if key not in KEPT:
        with torch.inference_mode(False):  # training will want them too
            made = transfer(function, *arguments, device=device, dtype=dtype)
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, made)):  # gone when vmap or grad is
            return made
        if len(KEPT) >= 256:
            KEPT.clear()
        KEPT[key] = made
    return KEPT[key]


def transfer(function: str, *arguments: Any, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    result = FUNCTIONS[function](*arguments)
    arrays = result if isinstance(result, tuple) else (result,)
    single = [a.astype(np.float32) if a.dtype.kind == "f" and dtype != torch.float64 else a for a in arrays]
    return tuple(torch.tensor(a, device=device, dtype=dtype if a.dtype.kind == "f" else None) for a in single)


# In a compiled graph they are constants; the compiler takes nothing but plain values here, so functions go by name.
# This is what torch.compiler.assume_constant_result does, less the import of the whole compiler (a second).
transfer._dynamo_marked_constant = True  # type: ignore[attr-defined]


def resample(table: Tensor, old: Grid, new: Grid, policy: Policy) -> Tensor:
    """(T, rows x cols, D) on the grid `old` -> the same on the grid `new`.

    A weighted sum of neighbours rather than `F.interpolate`: its backward is deterministic on CUDA, it has no opinion
    of autocast or TF32, and it costs no matrix product.
    """
    wide = table if table.dtype == torch.float64 else table.float()
    x: Tensor = wide.unflatten(1, old)  # (T, rows, cols, D)
    for axis in (1, 2):
        cells, weight = constants("resampling_weights", policy, old[axis - 1], new[axis - 1], like=x)  # (new, K)
        weight = weight.unflatten(1, (-1, *[1] * (3 - axis)))  # to go with what follows the axis
        parts = (x.index_select(axis, cells[:, k]) * weight[:, k] for k in range(cells.shape[1]))
        x = reduce(torch.add, parts)
    return x.flatten(1, 2).to(table.dtype)
