"""Out-of-fold predictions: the probabilities of each image come from a classifier that was not fitted to it.

The classifier is the linear probe (logistic regression on frozen features). Copies of an image are in the same fold, so
that an image is never predicted from its own copy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitreous.evaluation.probe import ProbeHead, choose_head, fit_heads

FOLDS = 5
RATE = 0.01
DECAYS = (3e-1, 1e-1, 3e-2, 1e-2, 3e-3, 1e-3)  # candidates for the weight decay; noisy labels need a large one
ROWS = 1024  # predicted at a time
CANDIDATES = tuple(ProbeHead(RATE, decay) for decay in DECAYS)


def assign_folds(labels: Tensor, groups: Tensor, folds: int = FOLDS, seed: int = 0) -> Tensor:
    """Return the fold (N,) of each image. Images of a group share a fold; classes are spread evenly over the folds."""
    members: dict[int, list[int]] = {}
    for index in np.random.default_rng(seed).permutation(len(labels)).tolist():
        members.setdefault(int(groups[index]), []).append(index)
    classes = int(labels.max()) + 1
    per_class, totals = np.zeros((classes, folds), np.int64), np.zeros(folds, np.int64)
    result, numbers = torch.empty(len(labels), dtype=torch.int64), labels.tolist()
    for images in sorted(members.values(), key=len, reverse=True):  # large groups first, which are hardest to balance
        counts = per_class[numbers[images[0]]]
        fold = int(np.lexsort((totals, counts))[0])
        totals[fold] += len(images)
        for index in images:
            per_class[numbers[index], fold] += 1
            result[index] = fold
    return result


def select_head(
    features: Tensor,
    labels: Tensor,
    fold: Tensor,
    classes: int,
    seed: int = 0,
    tick: Callable[[int], None] = lambda images: None,
) -> ProbeHead:
    """Return the head with the smallest loss on the first fold after a fit to the others."""
    fit, dev = (fold != 0).nonzero()[:, 0], (fold == 0).nonzero()[:, 0]
    return choose_head(features, labels, fit, dev, classes, seed, CANDIDATES, tick)


def out_of_fold_probabilities(
    features: Tensor,
    labels: Tensor,
    fold: Tensor,
    head: ProbeHead,
    classes: int,
    *,
    keep: Tensor | None = None,
    tick: Callable[[int], None] = lambda images: None,
) -> Tensor:
    """Return probabilities (N, classes) of every image, from a classifier fitted to the images of the other folds.

    `keep` (N,) bool: fit to these images only; all images are predicted.
    """
    masks = fold[:, None] != torch.arange(int(fold.max()) + 1)
    masks = masks if keep is None else masks & keep[:, None]
    return masked_probabilities(features, labels, fold, masks, head, classes, tick)[:, 0]


def masked_probabilities(
    features: Tensor,
    labels: Tensor,
    fold: Tensor,
    masks: Tensor,
    head: ProbeHead,
    classes: int,
    tick: Callable[[int], None] = lambda images: None,
) -> Tensor:
    """Fit a classifier to each column of `masks` (N, sets x folds) bool, all of them at once.

    Return probabilities (N, sets, classes): in each set, an image is predicted by the classifier of its fold.
    """
    folds = int(fold.max()) + 1
    probe = fit_heads(features, labels, [head] * masks.shape[1], classes, masks=masks, tick=tick)
    parts = []
    for rows, number in zip(features.split(ROWS), fold.split(ROWS), strict=True):
        logits = probe.logits(rows).unflatten(1, (-1, folds))  # (rows, sets, folds, classes)
        parts.append(logits[torch.arange(len(rows)), :, number].softmax(-1))
    return torch.cat(parts)
