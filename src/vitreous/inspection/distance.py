"""Attention distance and entropy of every head, as in figure 7 (right) of the ViT paper."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.inspection import figures
from vitreous.inspection.internals import (
    HEAD,
    IN_BLOCKS,
    NORMS,
    POOL,
    STEM,
    check_attention_memory,
    patch_pixels,
    prepare_batch,
    require_vit,
    visit_attention,
)
from vitreous.models.base import Model
from vitreous.models.checks import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Distances:
    """Attention distance and entropy of every head, averaged over query patches and images."""

    distance: Tensor  # (layers, heads), in pixels of the image
    entropy: Tensor  # (layers, heads), in bits; log2 n for uniform attention to n tokens
    images: int
    largest: float  # distance of uniform attention in pixels, averaged over images
    tokens: float  # number of tokens, averaged over images

    def figure(self) -> Figure:
        """Draw distance and entropy by layer, with a dot per head."""
        return figures.draw_by_layer(
            [
                (self.distance, "mean attention distance (px)", (self.largest, "uniform attention")),
                (self.entropy, "entropy of attention (bits)", (math.log2(self.tokens), "uniform attention")),
            ],
            f"over {self.images:,} image{'s' * (self.images != 1)}",
        )


def attention_distance(model: Model, images: Tensor | Iterable[Tensor]) -> Distances:
    """Return the attention distance of every head. `images` is a batch, or an iterable of batches of any sizes.

    The distance is from the centre of the query patch to the centre of each key patch, weighted by attention. Class
    token and registers have no position: their weights are left out and the rest is normalised to sum to one. The
    entropy is over all tokens. Only patches are queries.
    """
    model = require_vit(model, "attention_distance", STEM, IN_BLOCKS, NORMS, POOL, HEAD)
    depth, heads, prefix = model.config.depth, model.config.heads, model.config.prefix
    distance, entropy = (torch.zeros(depth, heads, dtype=torch.float64) for _ in range(2))
    count, largest, tokens = 0, 0.0, 0.0
    for one in [images] if isinstance(images, Tensor) else images:
        batch = prepare_batch(model, one)
        check_attention_memory(model, batch, 0, 4 * heads)
        grid = model.config.grid_at((batch.shape[2], batch.shape[3]))
        between = _patch_distances(grid, patch_pixels(model.config)).to(batch.device)

        def visit(layer: int, weights: Tensor, between: Tensor = between) -> None:
            rows = weights[:, :, prefix:]  # patches as queries
            patches = rows[..., prefix:]
            mean = (patches * between).sum(-1) / patches.sum(-1).clamp(min=1e-30)
            distance[layer] += mean.mean(-1).cpu().double().sum(0)
            entropy[layer] += -torch.special.xlogy(rows, rows).sum(-1).mean(-1).cpu().double().sum(0) / math.log(2)

        visit_attention(model, batch, range(depth), visit)
        count += len(batch)
        largest += len(batch) * between.mean().item()
        tokens += len(batch) * (prefix + len(between))
    if not count:
        raise VitreousError("attention_distance: there are no images")
    return Distances(distance / count, entropy / count, count, largest / count, tokens / count)


def _patch_distances(grid: Grid, pixels: tuple[int, int]) -> Tensor:
    """Return the distances (N, N) between the centres of all patches, in pixels."""
    y, x = (torch.arange(n, dtype=torch.float32) * step for n, step in zip(grid, pixels, strict=True))
    centres = torch.cartesian_prod(y, x)
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
