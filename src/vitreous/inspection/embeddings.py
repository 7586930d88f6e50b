"""What a model knows before it sees anything: filters of its first layer, and positions; figure 7, left and middle."""

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
    as_described,
    picked,
    ready,
    still,
    with_attention,
)
from vitreous.models.base import Model
from vitreous.models.checks import Grid, pair
from vitreous.models.embed import position_biases
from vitreous.utils.memory import free_memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILTERS = 28  # that the paper shows


@dataclass(frozen=True)
class Filters:
    """The principal components of what the first layer compares patches with."""

    components: Tensor  # (count, channels, height, width), float32, of length one each
    share: Tensor  # (count,): of the variance of all filters
    of: str  # what they are the components of, in words

    def figure(self) -> Figure:
        return figures.filters(self.components, self.share, f"principal components of {self.of}")


def embedding_filters(model: Model, count: int = FILTERS) -> Filters:
    """Of the patch embedding; of a hybrid or a BiT, whose patches are not made of pixels, of the first convolution."""
    if count < 1:
        raise VitreousError(f"count = {count}: must be 1 or more")
    model = as_described(model, "embedding_filters", BLOCKS, NORMS, POOL, HEAD, r"drop|backbone\.(stages|norm)")
    backbone: Any = getattr(model, "backbone", None)
    if backbone is None:
        weight, of = model.get_parameter("patch_embed.proj.weight"), "the patch embedding"
    else:
        weight, of = backbone.stem.conv.weight, "the first convolution"
    rows = weight.detach().double().flatten(1)
    rows = rows - rows.mean(0)
    _, strength, components = torch.linalg.svd(rows, full_matrices=False)
    power = strength.square()
    if not power.sum() > 0:
        raise VitreousError("embedding_filters: all filters are the same, so that there is nothing to see")
    components = components[:count]
    leading = components.gather(1, components.abs().argmax(1, keepdim=True))  # the sign is free: let it be positive
    found = (components * leading.sign()).float().unflatten(1, weight.shape[1:])
    return Filters(found, (power / power.sum())[:count].float(), f"{of} ({len(weight)} filters)")


@dataclass(frozen=True)
class Positions:
    """How alike places are: a map for each."""

    similarity: Tensor  # (rows, cols, rows, cols): cosines; relative ones (heads, 2 rows - 1, 2 cols - 1): biases
    grid: Grid
    kind: str  # the config's word for it
    layer: int

    @property
    def relative(self) -> bool:
        return self.kind == "relative"

    def figure(self) -> Figure:
        if self.relative:
            titles = [f"head {n + 1}" for n in range(len(self.similarity))]
            return figures.offsets(self.similarity, titles, f"bias by where a key lies, layer {self.layer + 1}")
        return figures.grid_of_grids(self.similarity, "cosine similarity of position embeddings")


def position_similarity(
    model: Model, size: int | tuple[int, int] | None = None, *, layer: int = 0, images: Tensor | None = None
) -> Positions:
    """The cosine of each place's embedding with every other's, as they are at an image `size` (None: the model's own).

    Relative positions have no embedding of a place but one of each offset, which a query turns into a bias: that of the
    mean query of `images` in this layer, or without images, of the query that the layer's own bias makes.
    """
    model = with_attention(model, "position_similarity", STEM, IN_BLOCKS, NORMS, POOL, HEAD)
    if model.config.position == "relative" and images is None:
        model = with_attention(model, "position_similarity without images")  # which reads the parameters of a block
    config = model.config
    (layer,) = picked([layer], config.depth, "layers")
    grid = config.grid_at(pair(size if size is not None else config.image_size))
    places = grid[0] * grid[1]
    if 8 * places**2 > free_memory(model.patch_embed.proj.weight.device):
        raise VitreousError(f"size = {size}: {places:,} places are too many to hold each against all others")
    if images is not None:
        images = ready(model, images)
    if config.position == "none":
        raise VitreousError("position_similarity: this model has no position embeddings (position = 'none')")
    if config.position == "relative":
        return Positions(_offsets(model, grid, layer, images), grid, config.position, layer)
    with torch.no_grad():
        table = model.positions(grid)
        assert table is not None
        unit = F.normalize(table[layer % len(table), config.prefix :].float(), dim=-1)
        cosines = unit @ unit.T
    return Positions(cosines.unflatten(1, grid).unflatten(0, grid), grid, config.position, layer)


@torch.no_grad()
def _offsets(model: Any, grid: Grid, layer: int, images: Tensor | None) -> Tensor:
    """(heads, 2 rows - 1, 2 cols - 1): what is added to the logits of a key, by where it lies from the query."""
    attn, (rows, cols) = model.blocks[layer].attn, grid
    if images is not None:
        seen: list[Tensor] = []

        def visit(number: int, block: Any, before: Tensor, *rest: object) -> None:
            if number == layer:
                seen.append(block.attn.split(block.norm1(before))[0][:, :, model.config.prefix :].mean((0, 2)))

        with still(model):
            model.encode(images, visit, layer)
        query = seen[0]
    elif attn.qkv.bias is not None and attn.qkv.bias.chunk(3)[0].any():
        query = attn.q_norm(attn.qkv.bias.chunk(3)[0].unflatten(0, (attn.heads, -1)))
    else:
        raise VitreousError("position_similarity: relative positions answer to queries; give images to take them from")
    bias = position_biases(model.config, model.rel_pos_embed, grid)[layer % model.config.tables]
    # With the same query everywhere, the corners of the grid see every offset between them.
    everywhere = query[None, :, None].expand(1, -1, model.config.prefix + rows * cols, -1)
    logits = bias(everywhere)[0, :, model.config.prefix :, model.config.prefix :].unflatten(2, grid).unflatten(1, grid)
    out = logits.new_empty(len(logits), 2 * rows - 1, 2 * cols - 1)
    for y, down in ((0, slice(rows - 1, None)), (rows - 1, slice(0, rows))):
        for x, right in ((0, slice(cols - 1, None)), (cols - 1, slice(0, cols))):
            out[:, down, right] = logits[:, y, x]
    found: Tensor = out.float()
    return found
