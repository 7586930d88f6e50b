"""Outliers: images that are far from all others in feature space, and images that are much smaller than the others."""

import torch
from torch import Tensor

from vitreous.evaluation.near_duplicates import Neighbours

RANK = 5  # the distance of an image is that to its 5th neighbour, so that a few copies do not hide an outlier
FENCE = 1.5  # Tukey's fence: the third quartile plus this many interquartile ranges
MAX_SHARE, MIN_SHOWN = 0.01, 5  # at most 1% of the images, but up to 5 of a small folder
MIN_IMAGES = 20
PHOTO_SIDE, TINY_SIDE, TINY_RATIO = 64, 32, 4


def find_outliers(neighbours: Neighbours) -> tuple[Tensor, Tensor]:
    """Return the indices of the outliers, the farthest first, and the distances (N,) of all images (1 - cosine)."""
    images, known = neighbours.cosines.shape
    if images < MIN_IMAGES:
        return torch.empty(0, dtype=torch.int64), torch.zeros(images)
    distances = 1 - neighbours.cosines[:, min(RANK, known) - 1]
    low, high = distances.quantile(0.25), distances.quantile(0.75)
    far = (distances > high + FENCE * (high - low)).nonzero()[:, 0]
    far = far[distances[far].sort(descending=True, stable=True).indices]
    return far[: max(MIN_SHOWN, int(MAX_SHARE * images))], distances


def tiny_limit(sides: Tensor) -> int:
    """Return the shorter side (pixels) below which an image counts as tiny, from the shorter sides of all images.

    A quarter of the median; at least 32 px if the median is 64 px or more (photographs).
    """
    median = int(sides.median()) if len(sides) else 0
    return max(median // TINY_RATIO, TINY_SIDE if median >= PHOTO_SIDE else 0)
