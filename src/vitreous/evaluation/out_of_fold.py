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


def select_head(features: Tensor, labels: Tensor, fold: Tensor, classes: int, seed: int = 0) -> ProbeHead:
    """Return the head with the smallest loss on the first fold after a fit to the others."""
    fit, dev = (fold != 0).nonzero()[:, 0], (fold == 0).nonzero()[:, 0]
    return choose_head(features, labels, fit, dev, classes, seed, CANDIDATES)


def out_of_fold_probabilities(
    features: Tensor,
    labels: Tensor,
    fold: Tensor,
    head: ProbeHead,
    classes: int,
    *,
    keep: Tensor | None = None,
    tick: Callable[[int], None] = lambda fits: None,
) -> Tensor:
    """Return probabilities (N, classes) of every image, from a classifier fitted to the images of the other folds.

    `keep` (N,) bool: fit to these images only; all images are predicted. `tick` is called after each fit.
    """
    result = torch.empty(len(labels), classes)
    for number in range(int(fold.max()) + 1):
        rows = fold != number
        rows = rows if keep is None else rows & keep
        result[fold == number] = fit_and_predict(features, labels, rows, fold == number, head, classes)
        tick(1)
    return result


def fit_and_predict(
    features: Tensor, labels: Tensor, fit: Tensor, predict: Tensor, head: ProbeHead, classes: int
) -> Tensor:
    """Return probabilities of the rows `predict` after a fit to the rows `fit`; both are (N,) bool."""
    probe = fit_heads(features[fit], labels[fit], [head], classes)
    return probe.logits(features[predict])[:, 0].softmax(1)
