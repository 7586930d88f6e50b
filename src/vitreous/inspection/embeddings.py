"""Filters of the first layer and similarity of positions, as in figure 7 (left, middle) of the ViT paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.inspection import figures
from vitreous.inspection.internals import (
    BLOCKS,
    HEAD,
    IN_BLOCKS,
    NORMS,
    POOL,
    STEM,
    eval_mode,
    pick_indices,
    prepare_batch,
    require_unmodified,
    require_vit,
)
from vitreous.models.base import Model
from vitreous.models.checks import Grid
from vitreous.models.embed import position_biases
from vitreous.utils.device import float64_device
from vitreous.utils.memory import free_memory
from vitreous.utils.sizes import pair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILTERS = 28  # as in the paper


@dataclass(frozen=True)
class Filters:
    """The principal components of the filters of the first layer."""

    components: Tensor  # (count, channels, height, width), float32, each of norm one
    share: Tensor  # (count,): fraction of the variance of all filters
    of: str  # the layer, as text

    def figure(self) -> Figure:
        return figures.draw_filters(self.components, self.share, f"principal components of {self.of}")


def embedding_filters(model: Model, count: int = FILTERS) -> Filters:
    """Return the filters of the patch embedding; for a hybrid or a BiT, of the first convolution."""
    if count < 1:
        raise VitreousError(f"count = {count}: must be 1 or more")
    model = require_unmodified(model, "embedding_filters", BLOCKS, NORMS, POOL, HEAD, r"drop|backbone\.(stages|norm)")
    backbone: Any = getattr(model, "backbone", None)
    if backbone is None:
        weight, of = model.get_parameter("patch_embed.proj.weight"), "the patch embedding"
    else:
        weight, of = backbone.stem.conv.weight, "the first convolution"
    rows = weight.detach().to(float64_device(weight.device)).double().flatten(1)
    rows = rows - rows.mean(0)
    _, strength, components = torch.linalg.svd(rows, full_matrices=False)
    power = strength.square()
    if not power.sum() > 0:
        raise VitreousError("embedding_filters: all filters are equal, so there are no components")
    components = components[:count]
    leading = components.gather(1, components.abs().argmax(1, keepdim=True))  # the sign is arbitrary: make it positive
    signed = (components * leading.sign()).float().unflatten(1, weight.shape[1:])
    return Filters(signed, (power / power.sum())[:count].float(), f"{of} ({len(weight)} filters)")


@dataclass(frozen=True)
class Positions:
    """The similarity of positions: a map for each position; or relative position biases: a map for each head."""

    similarity: Tensor  # cosines (rows, cols, rows, cols), or relative biases (heads, 2 rows - 1, 2 cols - 1)
    grid: Grid
    kind: str  # `position` of the config
    layer: int

    @property
    def relative(self) -> bool:
        return self.kind == "relative"

    def figure(self) -> Figure:
        if self.relative:
            titles = [f"head {n + 1}" for n in range(len(self.similarity))]
            return figures.draw_offsets(self.similarity, titles, f"bias by position of the key, layer {self.layer + 1}")
        return figures.draw_position_maps(self.similarity, "cosine similarity of position embeddings")


def position_similarity(
    model: Model, size: int | tuple[int, int] | None = None, *, layer: int = 0, images: Tensor | None = None
) -> Positions:
    """Return the cosine similarity of all pairs of position embeddings, at an image `size` (None: the model's own).

    Relative positions have an embedding per offset, whose product with a query is a bias. The result is then the bias
    for the mean query of `images` in this layer, or without images for the query given by the bias of the layer's qkv
    projection.
    """
    model = require_vit(model, "position_similarity", STEM, IN_BLOCKS, NORMS, POOL, HEAD)
    if model.config.position == "relative" and images is None:
        model = require_vit(model, "position_similarity without images")  # parameters of a block are read directly
    config = model.config
    (layer,) = pick_indices([layer], config.depth, "layers")
    grid = config.grid_at(pair(size if size is not None else config.image_size))
    patches = grid[0] * grid[1]
    if 8 * patches**2 > free_memory(model.patch_embed.proj.weight.device):
        raise VitreousError(
            f"size = {size}: the similarity of {patches:,} x {patches:,} positions exceeds the free memory"
        )
    if images is not None:
        images = prepare_batch(model, images)
    if config.position == "none":
        raise VitreousError("position_similarity: this model has no position embeddings (position = 'none')")
    if config.position == "relative":
        return Positions(_offset_biases(model, grid, layer, images), grid, config.position, layer)
    with torch.no_grad():
        table = model.positions(grid)
        assert table is not None
        unit = F.normalize(table[layer % len(table), config.prefix :].float(), dim=-1)
        cosines = unit @ unit.T
    return Positions(cosines.unflatten(1, grid).unflatten(0, grid), grid, config.position, layer)


@torch.no_grad()
def _offset_biases(model: Any, grid: Grid, layer: int, images: Tensor | None) -> Tensor:
    """Return the bias added to attention logits by offset from query to key, (heads, 2 rows - 1, 2 cols - 1)."""
    attn, (rows, cols) = model.blocks[layer].attn, grid
    if images is not None:
        queries: list[Tensor] = []

        def visit(number: int, block: Any, before: Tensor, *rest: object) -> None:
            if number == layer:
                queries.append(block.attn.split(block.norm1(before))[0][:, :, model.config.prefix :].mean((0, 2)))

        with eval_mode(model):
            model.encode(images, visit, layer)
        query = queries[0]
    elif attn.qkv.bias is not None and attn.qkv.bias.chunk(3)[0].any():
        query = attn.q_norm(attn.qkv.bias.chunk(3)[0].unflatten(0, (attn.heads, -1)))
    else:
        raise VitreousError("position_similarity: relative position biases depend on queries; pass images")
    bias = position_biases(model.config, model.rel_pos_embed, grid)[layer % model.config.tables]
    # With the same query for all tokens, the four corners of the grid cover all offsets.
    same_query = query[None, :, None].expand(1, -1, model.config.prefix + rows * cols, -1)
    logits = bias(same_query)[0, :, model.config.prefix :, model.config.prefix :].unflatten(2, grid).unflatten(1, grid)
    out = logits.new_empty(len(logits), 2 * rows - 1, 2 * cols - 1)
    for y, down in ((0, slice(rows - 1, None)), (rows - 1, slice(0, rows))):
        for x, right in ((0, slice(cols - 1, None)), (cols - 1, slice(0, cols))):
            out[:, down, right] = logits[:, y, x]
    result: Tensor = out.float()
    return result
