"""Near-duplicates: resized, re-encoded, mirrored, brightened and slightly cropped copies of an image.

Candidates are each image's nearest neighbours by model features and by small grey copies. A candidate is accepted if
the grey copies agree after the best alignment of a crop of one image with the other: both the low-resolution image and
its detail (the image minus its local mean). Everything is computed in blocks; memory grows linearly with the images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.evaluation.image_signatures import SIDE

NEIGHBOURS = 4  # candidates of each image, by features and by pixels each
BLOCK_ELEMENTS = 2**24  # similarities in memory at a time: 64 MiB
PAIR_BLOCK = 256
COARSE, FINE = 8, 16  # side of the compared images in the first and the second step
COARSE_SCALES, FINE_SCALES = (1.0, 0.9, 0.8), (1.0, 0.95, 0.9, 0.85, 0.8)
MIN_COSINE = 0.5  # of centred features, or of grey copies
MIN_COARSE = 0.8
MIN_CORRELATION, MIN_DETAIL = 0.94, 0.8  # measured: copies have at least 0.947 and 0.86, photographs of others less
RANDOM_PAIRS = 2000  # to measure how similar different images of the data are
CERTAIN = 0.98, 0.95  # correlations of image and detail above which a random pair is a pair of copies
MIN_SAMPLE = 50  # images or random pairs from which the usual similarity is measured
UNUSUAL = 8.0  # copies differ at least this many times less than the most similar random pairs
MIN_CONTRAST = 3.0  # standard deviation of grey values; images below it look alike and are not compared


@dataclass(frozen=True)
class Neighbours:
    """The nearest other images of each image."""

    indices: Tensor  # (N, k)
    cosines: Tensor  # (N, k), in decreasing order


def nearest_neighbours(rows: Tensor, k: int, tick: Callable[[int], None] = lambda images: None) -> Neighbours:
    """Return the k nearest other rows of each row by cosine, computed in blocks."""
    unit = F.normalize(rows.float(), dim=1)
    k = min(k, len(unit) - 1)
    indices, cosines = torch.empty(len(unit), k, dtype=torch.int64), torch.empty(len(unit), k)
    block = max(1, BLOCK_ELEMENTS // max(1, len(unit)))
    for start in range(0, len(unit), block):
        part = unit[start : start + block] @ unit.T
        part[torch.arange(len(part)), torch.arange(start, start + len(part))] = -torch.inf
        top = part.topk(k, dim=1)
        indices[start : start + block], cosines[start : start + block] = top.indices, top.values
        tick(len(part))
    return Neighbours(indices, cosines)


def grey_contrast(grey: Tensor) -> Tensor:
    """Return the standard deviation of each image's grey values, (N,)."""
    return torch.cat([part.flatten(1).float().std(1, correction=0) for part in grey.split(4096)])


def find_near_duplicates(
    neighbours: Neighbours, grey: Tensor, digests: Tensor, tick: Callable[[int], None] = lambda images: None
) -> tuple[Tensor, Tensor]:
    """Return the group (N,) of each image, the lowest index of its copies, and the similarity (N,) to its closest copy.

    An image without a copy is its own group and has similarity 0. Images with the same bytes (`digests`) have 1.
    """
    firsts: dict[int, int] = {}
    groups, similarity = _Groups(len(grey)), torch.zeros(len(grey))
    for index, digest in enumerate(digests.tolist()):
        first = firsts.setdefault(digest, index)
        if first != index:
            groups.join(first, index)
            similarity[index] = similarity[first] = 1.0
    pairs = _candidates(neighbours, grey, torch.tensor(sorted(firsts.values())), tick)
    if len(pairs):
        values = _confirmed(grey, pairs, tick)
        for (one, other), value in zip(pairs[values > 0].tolist(), values[values > 0].tolist(), strict=True):
            groups.join(one, other)
            for index in (one, other):
                similarity[index] = max(float(similarity[index]), value)
    return torch.tensor([groups.root(index) for index in range(len(grey))], dtype=torch.int64), similarity


class _Groups:
    """Union-find; the root of a group is its lowest index."""

    def __init__(self, count: int):
        self.parent = list(range(count))

    def root(self, index: int) -> int:
        while self.parent[index] != index:
            self.parent[index] = self.parent[self.parent[index]]
            index = self.parent[index]
        return index

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self.parent[high] = low


def _candidates(neighbours: Neighbours, grey: Tensor, unique: Tensor, tick: Callable[[int], None]) -> Tensor:
    """Return pairs (P, 2) of images to compare, without blank images and without repetitions."""
    visible = grey_contrast(grey) >= MIN_CONTRAST
    unique = unique[visible[unique]]
    parts = [_pairs_above(neighbours, torch.arange(len(grey)))]
    if len(unique) > 1:
        pixels = torch.cat([_shrink(part, FINE).flatten(1) for part in grey[unique].split(4096)])
        pixels -= pixels.mean(1, keepdim=True)
        parts.append(_pairs_above(nearest_neighbours(pixels, NEIGHBOURS, tick), unique))
    pairs = torch.cat(parts)
    pairs = pairs[visible[pairs].all(1)]
    chosen = torch.zeros(len(grey), dtype=torch.bool)
    chosen[unique] = True
    unique_pairs: Tensor = pairs[chosen[pairs].all(1)].sort(1).values.unique(dim=0)
    return unique_pairs


def _pairs_above(neighbours: Neighbours, names: Tensor) -> Tensor:
    k = min(NEIGHBOURS, neighbours.indices.shape[1])
    rows, columns = (neighbours.cosines[:, :k] >= MIN_COSINE).nonzero(as_tuple=True)
    return torch.stack((names[rows], names[neighbours.indices[rows, columns]]), 1)


# ---------------------------------------------------------------- comparison of pixels


def _confirmed(grey: Tensor, pairs: Tensor, tick: Callable[[int], None]) -> Tensor:
    """Return the similarity (P,) of each pair; 0 if it is not a pair of copies."""
    correlation_limit, detail_limit = _limits(grey)
    result = torch.zeros(len(pairs))
    for start in range(0, len(pairs), PAIR_BLOCK):
        part = pairs[start : start + PAIR_BLOCK]
        coarse, _ = _aligned_correlation(grey[part[:, 0]], grey[part[:, 1]], COARSE, COARSE_SCALES)
        kept = (coarse >= MIN_COARSE).nonzero()[:, 0]
        if len(kept):
            one, other = grey[part[kept, 0]], grey[part[kept, 1]]
            correlation, detail = _aligned_correlation(one, other, FINE, FINE_SCALES)
            same = (correlation >= correlation_limit) & (detail >= detail_limit)
            result[start + kept] = torch.where(same, correlation.clamp(max=1.0), 0.0)
        tick(len(part))
    return result


def _limits(grey: Tensor) -> tuple[float, float]:
    """Return the minimum correlations of image and detail.

    In some data all images are alike (scanned digits, garments on black). There a pair has to agree much better than
    random pairs do.
    """
    visible = grey[grey_contrast(grey) >= MIN_CONTRAST]
    if len(visible) < MIN_SAMPLE:  # random pairs would often be copies
        return MIN_CORRELATION, MIN_DETAIL
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randint(len(visible), (RANDOM_PAIRS,), generator=generator) for _ in range(2))
    one, other = one[one != other], other[one != other]
    parts = [
        _aligned_correlation(visible[a], visible[b], FINE, FINE_SCALES[:1])
        for a, b in zip(one.split(PAIR_BLOCK), other.split(PAIR_BLOCK), strict=True)
    ]
    high = 0.99 if len(visible) >= 200 else 0.9  # lower for few images: a random pair may be a pair of copies
    correlation, detail = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    different = (correlation < CERTAIN[0]) | (detail < CERTAIN[1])  # data may contain many copies of one image
    if int(different.sum()) < MIN_SAMPLE:
        return MIN_CORRELATION, MIN_DETAIL
    usual = [float(values[different].quantile(high)) for values in (correlation, detail)]
    limits = [1 - max(0.0, 1 - value) / UNUSUAL for value in usual]
    return max(MIN_CORRELATION, limits[0]), max(MIN_DETAIL, limits[1])


def _aligned_correlation(one: Tensor, other: Tensor, side: int, scales: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Return the highest correlation (P,) of a crop of one image with the other, and of their detail at that crop."""
    best, detail = _crop_correlation(one, other, side, scales)
    if len(scales) > 1:
        swapped, swapped_detail = _crop_correlation(other, one, side, scales)
        detail = torch.where(swapped > best, swapped_detail, detail)
        best = torch.maximum(best, swapped)
    return best, detail


def _crop_correlation(cropped: Tensor, whole: Tensor, side: int, scales: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    resize = _crop_matrices(side, scales)
    rows = torch.einsum("coh,nhw->ncow", resize, cropped.float())
    crops = torch.einsum("ncow,dpw->ncdop", rows, resize).flatten(1, 2)  # (P, crops, side, side)
    target = _shrink(whole, side)
    unit = _unit(crops)
    best, detail = torch.full((len(target),), -1.0), torch.full((len(target),), -1.0)
    for image in (target, target.flip(-1)):  # as it is, and mirrored
        correlation, place = torch.einsum("nck,nk->nc", unit, _unit(image)).max(1)
        chosen = crops[torch.arange(len(crops)), place]
        agreement = (_unit(_detail(chosen)) * _unit(_detail(image))).sum(1)
        detail = torch.where(correlation > best, agreement, detail)
        best = torch.maximum(best, correlation)
    return best, detail


@cache
def _crop_matrices(side: int, scales: tuple[float, ...]) -> Tensor:
    """Matrices (crops, side, SIDE) that cut a part of a row of SIDE pixels and shrink it: start, middle and end."""
    matrices = []
    for scale in scales:
        for position in (0.0,) if scale == 1 else (0.0, 0.5, 1.0):
            edges = (position * (1 - scale) + torch.arange(side + 1) * scale / side) * SIDE
            pixels = torch.arange(SIDE)
            overlap = torch.minimum(edges[1:, None], pixels + 1) - torch.maximum(edges[:-1, None], pixels)
            matrices.append(overlap.clamp(min=0) * side / (scale * SIDE))
    return torch.stack(matrices)


def _shrink(grey: Tensor, side: int) -> Tensor:
    return F.adaptive_avg_pool2d(grey.float()[:, None], side)[:, 0]


def _detail(images: Tensor) -> Tensor:
    """Subtract the local mean of each pixel's 3 x 3 neighbourhood."""
    padded = F.pad(images[:, None], (1, 1, 1, 1), mode="replicate")
    return images - F.avg_pool2d(padded, 3, 1)[:, 0]


def _unit(images: Tensor) -> Tensor:
    """Flatten images to vectors with mean 0 and length 1."""
    flat = images.flatten(-2)
    flat = flat - flat.mean(-1, keepdim=True)
    unit: Tensor = flat / flat.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    return unit
