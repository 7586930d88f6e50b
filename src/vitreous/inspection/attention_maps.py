"""Attention weights of a model, and attention rollout."""

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
    Token,
    check_attention_memory,
    eval_mode,
    pick_indices,
    pooling_weights,
    prefix_names,
    prepare_batch,
    require_vit,
    token_index,
    visit_attention,
)
from vitreous.models.base import Model
from vitreous.models.checks import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True)
class AttentionMaps:
    """Exact attention weights. The weights of each query sum to one."""

    weights: Tensor  # (layers, B, heads, T, T), float32: queries, keys
    grid: Grid  # (rows, cols) of the patches, the last of the T tokens
    names: tuple[str, ...]  # of the tokens before the patches
    layers: tuple[int, ...]  # from 0
    heads: tuple[int, ...]

    def seen_from(self, source: Token | None = None) -> Tensor:
        """Return the attention of a query token to each patch, (layers, B, heads, rows, cols). None: the class token,
        or without one the mean over all patches."""
        prefix = len(self.names)
        if source is None and "class" not in self.names:
            rows = self.weights[..., prefix:, :].mean(-2)
        else:
            rows = self.weights[..., token_index("class" if source is None else source, self.names, self.grid), :]
        maps: Tensor = rows[..., prefix:].unflatten(-1, self.grid)
        return maps

    def figure(self, pixels: Any = None, source: Token | None = None, image: int = 0) -> Figure:
        """Draw a row per layer and a column per head, over the image if `pixels` are given."""
        maps = self.seen_from(source)[:, image]
        rows, columns = [f"layer {n + 1}" for n in self.layers], [f"head {n + 1}" for n in self.heads]
        mark = (
            divmod(source, self.grid[1]) if isinstance(source, int) else source if isinstance(source, tuple) else None
        )
        query = "mean of the patches" if source is None and "class" not in self.names else "class token"
        if source is not None:
            query = source if isinstance(source, str) else "framed patch"
        layout = figures.MapLayout(f"attention of the {query}", mark)
        return figures.draw_map_table(maps, rows, columns, "attention weight", pixels, layout)


def attention(
    model: Model, images: Tensor, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> AttentionMaps:
    """Return the attention weights of some layers and heads, counted from 0, negative from the end; None: all.

    The model itself runs with fused attention, up to the last of these layers.
    """
    model = require_vit(model, "attention", STEM, IN_BLOCKS, NORMS, POOL, HEAD)
    images = prepare_batch(model, images)
    picked = pick_indices(layers, model.config.depth, "layers")
    picked_heads = pick_indices(heads, model.config.heads, "heads")
    check_attention_memory(model, images, len(picked) * len(picked_heads), 2 * model.config.heads)
    result: list[Tensor] = []

    def visit(layer: int, weights: Tensor) -> None:
        if not result:  # allocated once: torch.stack at the end would need twice the memory
            result.append(weights.new_empty(len(picked), len(images), len(picked_heads), *weights.shape[2:]))
        for position in (position for position, number in enumerate(picked) if number == layer):
            result[0][position] = weights[:, picked_heads]

    _, grid = visit_attention(model, images, picked, visit)
    return AttentionMaps(result[0], grid, prefix_names(model.config), tuple(picked), tuple(picked_heads))


@dataclass(frozen=True)
class Rollout:
    """Attention rollout (Abnar and Zuidema, 2020): the contribution of each input token to each output token.

    Figure 6 of the ViT paper: heads are fused, the identity is added for the residual connection, rows are normalised
    to sum to one, and the matrices of all layers are multiplied.
    """

    weights: Tensor  # (B, T, T), float32: rows sum to one
    pooling: Tensor  # (B, T): weight of each token in the pooled representation
    grid: Grid
    names: tuple[str, ...]
    fusion: Fusion
    discard: float

    def seen_from(self, source: Token | None = None) -> Tensor:
        """Return the contribution of each patch, (B, rows, cols), to a token. None: to the pooled representation."""
        if source is None:
            rows = torch.einsum("bt,btk->bk", self.pooling, self.weights)
        else:
            rows = self.weights[:, token_index(source, self.names, self.grid)]
        maps: Tensor = rows[:, len(self.names) :].unflatten(-1, self.grid)
        return maps

    def figure(self, pixels: Sequence[Any] | None = None, source: Token | None = None) -> Figure:
        """Draw each image and its map side by side."""
        return figures.draw_image_maps(self.seen_from(source), "attention rollout", pixels)


def rollout(model: Model, images: Tensor, *, fusion: Fusion = "mean", discard: float = 0.0) -> Rollout:
    """Return attention rollout. `fusion` combines the heads; `discard` is the fraction of the smallest weights of each
    query that is set to zero in every layer."""
    model = require_vit(model, "rollout", STEM, IN_BLOCKS, NORMS, HEAD)
    images = prepare_batch(model, images)
    if fusion not in get_args(Fusion):
        raise VitreousError(f"fusion = {brief(fusion)}: expected one of {', '.join(get_args(Fusion))}")
    if not isinstance(discard, int | float) or not 0 <= discard < 1:
        raise VitreousError(f"discard = {brief(discard)}: expected a fraction, from 0 to less than 1")
    check_attention_memory(model, images, 2, 2 * model.config.heads)
    rolled: list[Tensor] = []

    def visit(layer: int, weights: Tensor) -> None:
        fused = weights.mean(1) if fusion == "mean" else weights.amax(1) if fusion == "max" else weights.amin(1)
        if (drop := int(discard * fused.shape[-1])) > 0:
            fused = fused.scatter(-1, fused.topk(drop, dim=-1, largest=False).indices, 0.0)
        fused = fused + torch.eye(fused.shape[-1], device=fused.device)
        fused = fused / fused.sum(-1, keepdim=True)
        rolled[:] = [fused @ rolled[0] if rolled else fused]

    tokens, grid = visit_attention(model, images, range(model.config.depth), visit)
    with eval_mode(model), torch.no_grad():
        pooling = pooling_weights(model, tokens)
    return Rollout(rolled[0], pooling, grid, prefix_names(model.config), fusion, discard)
