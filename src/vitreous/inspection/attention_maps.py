"""Who looks at whom: attention as it is, and rolled out through the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.inspection import figures
from vitreous.inspection.internals import (
    HEAD,
    IN_BLOCKS,
    NORMS,
    POOL,
    STEM,
    Place,
    check_room,
    names_of,
    picked,
    pooled,
    ready,
    still,
    token_at,
    walk,
    with_attention,
)
from vitreous.models.base import Model
from vitreous.models.checks import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True)
class Attention:
    """Exact attention weights: those of each query sum to one."""

    weights: Tensor  # (layers, B, heads, T, T), float32, queries before keys
    grid: Grid  # of the patches, which come last among the T tokens
    names: tuple[str, ...]  # of the tokens in front of them
    layers: tuple[int, ...]  # counted from 0
    heads: tuple[int, ...]

    def seen_from(self, source: Place | None = None) -> Tensor:
        """How much a token looks at each patch, (layers, B, heads, rows, cols). None: the class token, or else the mean
        over all patches."""
        prefix = len(self.names)
        if source is None and "class" not in self.names:
            rows = self.weights[..., prefix:, :].mean(-2)
        else:
            rows = self.weights[..., token_at("class" if source is None else source, self.names, self.grid), :]
        maps: Tensor = rows[..., prefix:].unflatten(-1, self.grid)
        return maps

    def figure(self, pixels: Any = None, source: Place | None = None, image: int = 0) -> Figure:
        """A row for each layer, a column for each head, over the picture if there is one."""
        maps = self.seen_from(source)[:, image]
        layers, heads = ([f"{what} {n + 1}" for n in numbers] for what, numbers in self._axes())
        mark = (
            divmod(source, self.grid[1]) if isinstance(source, int) else source if isinstance(source, tuple) else None
        )
        looking = "mean of the patches" if source is None and "class" not in self.names else "class token"
        if source is not None:
            looking = source if isinstance(source, str) else "framed patch"
        title = f"attention of the {looking}"
        return figures.table(maps, layers, heads, "share of the attention", pixels, figures.Look(title, mark))

    def _axes(self) -> tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]:
        return ("layer", self.layers), ("head", self.heads)


def attention(
    model: Model, images: Tensor, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Attention:
    """Attention weights of the layers and heads asked for, from 0, negative ones from the end; None is all of them.

    Everything else runs fused, and nothing runs behind the last layer asked for.
    """
    model = with_attention(model, "attention", STEM, IN_BLOCKS, NORMS, POOL, HEAD)
    images = ready(model, images)
    at, kept = picked(layers, model.config.depth, "layers"), picked(heads, model.config.heads, "heads")
    check_room(model, images, len(at) * len(kept), 2 * model.config.heads)
    whole: list[Tensor] = []

    def see(layer: int, weights: Tensor) -> None:
        if not whole:  # filled as it comes: a stack would hold everything twice
            whole.append(weights.new_empty(len(at), len(images), len(kept), *weights.shape[2:]))
        for place in (place for place, wanted in enumerate(at) if wanted == layer):
            whole[0][place] = weights[:, kept]

    _, grid = walk(model, images, at, see)
    return Attention(whole[0], grid, names_of(model.config), tuple(at), tuple(kept))


@dataclass(frozen=True)
class Rollout:
    """How much of each token's input comes from where, through all layers: attention rollout (Abnar and Zuidema, 2020).

    The paper's figure 6: heads are fused, the identity is added for the residual, rows are made to sum to one, and the
    layers are multiplied.
    """

    weights: Tensor  # (B, T, T), float32: rows sum to one
    taken: Tensor  # (B, T): what the head takes from each token
    grid: Grid
    names: tuple[str, ...]
    fusion: Fusion
    discard: float

    def seen_from(self, source: Place | None = None) -> Tensor:
        """Over the patches, (B, rows, cols), from a token; None: from what the head looks at."""
        if source is None:
            rows = torch.einsum("bt,btk->bk", self.taken, self.weights)
        else:
            rows = self.weights[:, token_at(source, self.names, self.grid)]
        maps: Tensor = rows[:, len(self.names) :].unflatten(-1, self.grid)
        return maps

    def figure(self, pixels: Sequence[Any] | None = None, source: Place | None = None) -> Figure:
        """Each picture, and beside it what it comes to."""
        return figures.beside(self.seen_from(source), "attention rollout", pixels)


def rollout(model: Model, images: Tensor, *, fusion: Fusion = "mean", discard: float = 0.0) -> Rollout:
    """`fusion` makes one of all heads; `discard` is the share of each query's weights, the smallest ones, that is left
    out of every layer."""
    model = with_attention(model, "rollout", STEM, IN_BLOCKS, NORMS, HEAD)
    images = ready(model, images)
    if fusion not in get_args(Fusion):
        raise VitreousError(f"fusion = {brief(fusion)}: expected one of {', '.join(get_args(Fusion))}")
    if not isinstance(discard, int | float) or not 0 <= discard < 1:
        raise VitreousError(f"discard = {brief(discard)}: expected a share, from 0 to less than 1")
    check_room(model, images, 2, 2 * model.config.heads)
    rolled: list[Tensor] = []

    def see(layer: int, weights: Tensor) -> None:
        fused = weights.mean(1) if fusion == "mean" else weights.amax(1) if fusion == "max" else weights.amin(1)
        if (drop := int(discard * fused.shape[-1])) > 0:
            fused = fused.scatter(-1, fused.topk(drop, dim=-1, largest=False).indices, 0.0)
        fused = fused + torch.eye(fused.shape[-1], device=fused.device)
        fused = fused / fused.sum(-1, keepdim=True)
        rolled[:] = [fused @ rolled[0] if rolled else fused]

    tokens, grid = walk(model, images, range(model.config.depth), see)
    with still(model), torch.no_grad():
        taken = pooled(model, tokens)
    return Rollout(rolled[0], taken, grid, names_of(model.config), fusion, discard)
