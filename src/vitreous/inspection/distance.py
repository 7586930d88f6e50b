"""How far attention reaches, and how many tokens it is spread over: the paper's figure 7, right."""

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
    check_room,
    pixels_of,
    ready,
    walk,
    with_attention,
)
from vitreous.models.base import Model
from vitreous.models.checks import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Distances:
    """Of every head of every layer, the mean over patches as queries, and over images."""

    distance: Tensor  # (layers, heads), in pixels of the image
    entropy: Tensor  # (layers, heads), in bits: spread evenly over n tokens, log2 n
    images: int
    largest: float  # distance that an even spread would have, in pixels; the mean over images
    tokens: float  # that attention can choose from; the mean over images

    def figure(self) -> Figure:
        """Distance and entropy against depth, a dot for each head."""
        return figures.dots(
            [
                (self.distance, "mean attention distance (px)", (self.largest, "looking everywhere alike")),
                (self.entropy, "entropy of attention (bits)", (math.log2(self.tokens), "looking everywhere alike")),
            ],
            f"over {self.images:,} image{'s' * (self.images != 1)}",
        )


def attention_distance(model: Model, images: Tensor | Iterable[Tensor]) -> Distances:
    """How far each head looks. `images` is a batch, or any number of them, one after the other, of any sizes.

    The distance from the middle of the query's patch to that of each patch it looks at, weighted by attention; what
    goes to class token and registers, which have no place, is left out, and the rest made to sum to one. Entropy is of
    all of it. A query is any patch.
    """
    model = with_attention(model, "attention_distance", STEM, IN_BLOCKS, NORMS, POOL, HEAD)
    depth, heads, prefix = model.config.depth, model.config.heads, model.config.prefix
    reach, spread = (torch.zeros(depth, heads, dtype=torch.float64) for _ in range(2))
    count, largest, tokens = 0, 0.0, 0.0
    for one in [images] if isinstance(images, Tensor) else images:
        batch = ready(model, one)
        check_room(model, batch, 0, 4 * heads)
        far = _apart(model.config.grid_at((batch.shape[2], batch.shape[3])), pixels_of(model.config)).to(batch.device)

        def see(layer: int, weights: Tensor, far: Tensor = far) -> None:
            rows = weights[:, :, prefix:]  # of patches
            there = rows[..., prefix:]
            mean = (there * far).sum(-1) / there.sum(-1).clamp(min=1e-30)
            reach[layer] += mean.mean(-1).double().sum(0).cpu()
            spread[layer] += -torch.special.xlogy(rows, rows).sum(-1).mean(-1).double().sum(0).cpu() / math.log(2)

        walk(model, batch, range(depth), see)
        count += len(batch)
        largest += len(batch) * far.mean().item()
        tokens += len(batch) * (prefix + len(far))
    if not count:
        raise VitreousError("attention_distance: there are no images")
    return Distances(reach / count, spread / count, count, largest / count, tokens / count)


def _apart(grid: Grid, pixels: tuple[int, int]) -> Tensor:
    """(N, N): from the middle of each patch to that of each other, in pixels."""
    y, x = (torch.arange(n, dtype=torch.float32) * step for n, step in zip(grid, pixels, strict=True))
    places = torch.cartesian_prod(y, x)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
