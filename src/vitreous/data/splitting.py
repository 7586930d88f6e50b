"""Setting images aside for validation: each class its share, drawn from the seed and nothing else."""

import math

import torch
from torch import Tensor

from vitreous import draws
from vitreous.errors import VitreousError


def usual_fraction(images: int) -> float:
    """What is set aside where nobody says: a smaller share of more images."""
    return 0.2 if images <= 1_000 else 0.1 if images <= 50_000 else 0.05


def split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers of the images to train with and of those to set aside, each in order.

    Of labels (N,) every class gives its share, rounded so that the total is right; an image is drawn by its place
    within its class, so other classes do not matter. Training keeps at least one of each. Of labels (N, classes) the
    rarest class is shared out first, then the next of those that are left.
    """
    if not 0 <= fraction < 1:
        raise VitreousError(f"val_fraction = {fraction:g}: expected a share from 0 up to, not including, 1")
    chosen = (_many if labels.ndim == 2 else _one)(labels, fraction, seed)
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def _one(labels: Tensor, fraction: float, seed: int) -> Tensor:
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    if not len(labels) or not fraction:
        return chosen
    sizes = torch.bincount(labels)
    starts = sizes.cumsum(0) - sizes
    by_class = labels.argsort(stable=True)
    place = torch.empty_like(labels)  # of each image within its class
    place[by_class] = torch.arange(len(labels)) - starts[labels[by_class]]
    drawn = draws.elements(draws.keys(seed, labels), "split", place)
    order = drawn.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # class by class, and within it by what was drawn
    rank = torch.arange(len(labels)) - starts[labels[order]]
    chosen[order] = rank < _shares(sizes, fraction, seed)[labels[order]]
    return chosen


def _shares(sizes: Tensor, fraction: float, seed: int) -> Tensor:
    """How many of each class: whole shares first, then one each for the largest remainders. Equal ones are drawn."""
    room = (sizes - 1).clamp(min=0)
    wanted = min(_total(int(sizes.sum()), fraction), int(room.sum()))
    exact = sizes.double() * fraction
    shares = torch.minimum(exact.floor().long(), room)
    ties = draws.elements(draws.keys(seed, torch.arange(len(sizes))), "split ties", torch.tensor(0)).double()
    while (missing := wanted - int(shares.sum())) > 0:
        remainder = (exact - shares) + ties * 1e-6
        remainder[shares >= room] = -math.inf
        largest = remainder.argsort(descending=True, stable=True)[:missing]
        shares[largest[remainder[largest] > -math.inf]] += 1
    return shares


def _many(labels: Tensor, fraction: float, seed: int) -> Tensor:
    images = len(labels)
    chosen = torch.zeros(images, dtype=torch.bool)
    if images < 2 or not fraction:
        return chosen
    free = torch.ones(images, dtype=torch.bool)
    drawn = draws.elements(draws.keys(seed, torch.arange(images)), "split", torch.tensor(0))
    order = drawn.argsort(stable=True)
    sizes = labels.sum(0)

    def choose(members: Tensor, number: int) -> None:
        candidates = order[(members & free)[order]]
        chosen[candidates[: max(0, number)]] = True
        free[candidates] = False

    for c in sizes.argsort(stable=True).tolist():
        share = min(_total(int(sizes[c]), fraction, least=0), int(sizes[c]) - 1)
        choose(labels[:, c], share - int((chosen & labels[:, c]).sum()))
    choose(torch.ones_like(free), _total(images, fraction) - int(chosen.sum()))
    return chosen


def _total(images: int, fraction: float, least: int = 1) -> int:
    return max(least, math.floor(images * fraction + 0.5))
