"""Stratified splits: which images are held out for validation and testing when the data has no such splits.

All commands use these functions. Every class contributes its share; the draw depends only on the seed and the labels.
"""

import math

import torch
from torch import Tensor

from vitreous.errors import VitreousError, format_count
from vitreous.utils import random_keys
from vitreous.utils.limits import check_seed

MIN_IMAGES_FOR_TEST = 100  # with fewer images, no test split is held out by default: it would be too small to be useful


def default_fraction(images: int, splits: int = 1) -> float:
    """The default size of each of `splits` held-out splits, as a fraction of all images."""
    if images <= 1_000:
        return 0.2 if splits == 1 else 0.15
    return 0.1 if images <= 50_000 else 0.05


def train_val_test_split(
    labels: Tensor, val_fraction: float | None, test_fraction: float | None, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The sorted indices of the training, validation and test images.

    A fraction of None means the default. Without validation (fraction 0), there is no test split by default either.
    """
    images = len(labels)
    _check_fraction(test_fraction or 0.0, "test_fraction")
    has_test = images >= MIN_IMAGES_FOR_TEST and val_fraction != 0 if test_fraction is None else test_fraction > 0
    default = default_fraction(images, splits=2 if has_test else 1)
    rest, val = stratified_split(labels, default if val_fraction is None else val_fraction, seed)
    if not has_test:
        return rest, val, rest[:0]
    test_fraction = default if test_fraction is None else test_fraction
    if test_fraction * images >= len(rest):
        raise VitreousError(
            f"test_fraction = {test_fraction:g}: only {len(rest):,} images are left after the validation split"
        )
    train, test = stratified_split(labels[rest], test_fraction * images / len(rest), seed)
    return rest[train], val, rest[test]


def _check_fraction(fraction: float, name: str) -> None:
    if not 0 <= fraction < 1:
        raise VitreousError(f"{name} = {fraction:g}: expected a fraction, at least 0 and less than 1")


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """The sorted indices of the remaining images and of the held-out images.

    With labels (N,), every class contributes its share, rounded so that the total is right. The draw of an image
    depends on its position within its class, not on other classes. At least one image of each class remains. With
    labels (N, classes), classes are split in order of increasing size, each over the images not yet assigned.
    """
    _check_fraction(fraction, "val_fraction")
    check_seed("split_seed", seed)
    held_out = (_split_multi_label if labels.ndim == 2 else _split_single_label)(labels, fraction, seed)
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def _split_single_label(labels: Tensor, fraction: float, seed: int) -> Tensor:
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    if not len(labels) or not fraction:
        return held_out
    sizes = torch.bincount(labels)
    order, rank = _ranks_within_class(labels, "split", seed)
    held_out[order] = rank < _class_shares(sizes, fraction, seed)[labels[order]]
    return held_out


def _ranks_within_class(labels: Tensor, purpose: str, seed: int) -> tuple[Tensor, Tensor]:
    """A random order of the images of each class: the images by class, and their ranks within it, from 0."""
    sizes = torch.bincount(labels)
    starts = sizes.cumsum(0) - sizes
    by_class = labels.argsort(stable=True)
    position = torch.empty_like(labels)  # of each image within its class
    position[by_class] = torch.arange(len(labels)) - starts[labels[by_class]]
    draws = random_keys.uniform_at(random_keys.keys(seed, labels), purpose, position)
    order = draws.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # by class, and within a class by the draws
    return order, torch.arange(len(labels)) - starts[labels[order]]


def training_subset(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """The sorted indices of a stratified subset of the training images, with labels (N,).

    Subsets with the same seed are nested: that of a smaller fraction is part of that of a larger one. The images of a
    class of n images have the places 1/2, 3/2, ... n - 1/2, divided by n, in a random order; the subset consists of the
    first images by place (the method of Sainte-Lague). So every class has its share, rounded up or down.
    """
    if not 0 < fraction <= 1:
        raise VitreousError(f"train_fraction = {fraction:g}: expected a fraction, more than 0 and at most 1")
    if labels.ndim != 1:
        raise VitreousError("train_fraction: images have several labels; this option needs images with one label each")
    check_seed("split_seed", seed)
    sizes = torch.bincount(labels)
    order, rank = _ranks_within_class(labels, "training subset", seed)
    places = (rank.double() + 0.5) / sizes[labels[order]]
    ties = random_keys.uniform_at(random_keys.keys(seed, labels[order]), "training subset order", rank)
    first = ties.argsort(stable=True)
    first = first[places[first].argsort(stable=True)]
    chosen = order[first[: _round_share(len(labels), fraction)]].sort().values
    if empty := int(((sizes > 0) & (torch.bincount(labels[chosen], minlength=len(sizes)) == 0)).sum()):
        raise VitreousError(
            f"train_fraction = {fraction:g}: {len(chosen):,} of {len(labels):,} training images are too few:"
            f" {format_count(empty, 'class')} would have none"
        )
    return chosen


def _class_shares(sizes: Tensor, fraction: float, seed: int) -> Tensor:
    """Number of held-out images of each class: rounded down, then one more for the largest remainders.

    Equal remainders are ordered at random.
    """
    limits = (sizes - 1).clamp(min=0)
    total = min(_round_share(int(sizes.sum()), fraction), int(limits.sum()))
    exact = sizes.double() * fraction
    shares = torch.minimum(exact.floor().long(), limits)
    ties = random_keys.uniform_at(
        random_keys.keys(seed, torch.arange(len(sizes))), "split ties", torch.tensor(0)
    ).double()
    while (missing := total - int(shares.sum())) > 0:
        remainder = (exact - shares) + ties * 1e-6
        remainder[shares >= limits] = -math.inf
        largest = remainder.argsort(descending=True, stable=True)[:missing]
        shares[largest[remainder[largest] > -math.inf]] += 1
    return shares


def _split_multi_label(labels: Tensor, fraction: float, seed: int) -> Tensor:
    images = len(labels)
    held_out = torch.zeros(images, dtype=torch.bool)
    if images < 2 or not fraction:
        return held_out
    unassigned = torch.ones(images, dtype=torch.bool)
    draws = random_keys.uniform_at(random_keys.keys(seed, torch.arange(images)), "split", torch.tensor(0))
    order = draws.argsort(stable=True)
    sizes = labels.sum(0)

    def assign(members: Tensor, number: int) -> None:
        candidates = order[(members & unassigned)[order]]
        held_out[candidates[: max(0, number)]] = True
        unassigned[candidates] = False

    for c in sizes.argsort(stable=True).tolist():
        share = min(_round_share(int(sizes[c]), fraction, minimum=0), int(sizes[c]) - 1)
        assign(labels[:, c], share - int((held_out & labels[:, c]).sum()))
    assign(torch.ones_like(unassigned), _round_share(images, fraction) - int(held_out.sum()))
    return held_out


def _round_share(images: int, fraction: float, minimum: int = 1) -> int:
    return max(minimum, math.floor(images * fraction + 0.5))
