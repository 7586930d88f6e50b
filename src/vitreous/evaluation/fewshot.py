"""The paper's cheap measure of features: a linear classifier from a few images of each class, in closed form."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError

STRENGTH = 2.0**10  # of the ridge
CONSTANT = 100.0  # the feature that stands for the bias: so large that the ridge hardly touches its weight


@dataclass(frozen=True)
class FewShot:
    """Accuracies on the test images, from 0 to 1."""

    shots: int
    each: tuple[float, ...]  # of each seed

    @property
    def mean(self) -> float:
        return statistics.fmean(self.each)

    @property
    def spread(self) -> float:
        """The standard deviation between seeds."""
        return statistics.stdev(self.each) if len(self.each) > 1 else 0.0


def fewshot(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    shots: int = 10,
    seeds: Iterable[int] = range(3),
    strength: float = STRENGTH,
) -> FewShot:
    """Learn from `shots` images of each class, drawn anew for each seed; measure on all test images.

    In float64, wherever the features are; so that nothing depends on the device.
    """
    check_features("train", train_features, train_labels)
    check_features("test", test_features, test_labels)
    train_features, test_features = train_features.double(), test_features.double()
    accuracies = []
    for seed in seeds:
        chosen = draw_shots(train_labels, shots, seed)
        ridge = Ridge.fitted(train_features[chosen], train_labels[chosen], strength)
        accuracies.append((ridge.classes(test_features) == test_labels).double().mean().item())
    if not accuracies:
        raise VitreousError("seeds: none were given")
    return FewShot(shots, tuple(accuracies))


def draw_shots(labels: Tensor, shots: int, seed: int) -> Tensor:
    """The numbers of the images to learn from: of each class the first `shots` of a seeded permutation."""
    if shots < 1:
        raise VitreousError(f"shots = {shots}: must be 1 or more")
    random = np.random.default_rng(seed)
    chosen = []
    for number in labels.unique().tolist():
        members = (labels == number).nonzero()[:, 0].numpy()
        if len(members) < shots:
            raise VitreousError(
                f"{shots} shots: class {number} has only {len(members)} training images; ask for fewer shots"
            )
        chosen.append(random.permutation(members)[:shots])
    return torch.from_numpy(np.concatenate(chosen))


@dataclass(frozen=True)
class Ridge:
    """A linear classifier of standardised features."""

    mean: Tensor
    std: Tensor
    weights: Tensor  # (D + 1, classes)

    @classmethod
    def fitted(cls, features: Tensor, labels: Tensor, strength: float = STRENGTH) -> "Ridge":
        """Least squares from x (N, D) to targets y (N, K) of -1 and +1, with `strength` times the weights' squares.

        The answer is (x'x + l)^-1 x'y, or the same as x'(xx' + l)^-1 y, whichever matrix is the smaller. With its
        eigenvectors q and eigenvalues e the inverse is q (e + l)^-1 q', which is sound even where N is less than D.

        In the precision of the features: in float32 as the reference computes, where a ridge far weaker than the usual
        one comes near the rounding of the constant's square, N x 100^2.
        """
        mean, std = features.mean(0), features.std(0, correction=0) + 1e-5
        x = _with_constant((features - mean) / std)
        y = 2.0 * F.one_hot(labels).to(x.dtype) - 1.0
        if len(x) >= x.shape[1]:
            e, q = torch.linalg.eigh(x.T @ x)
            left, right = q, q.T @ (x.T @ y)
        else:
            e, q = torch.linalg.eigh(x @ x.T)
            left, right = x.T @ q, q.T @ y
        return cls(mean, std, (left / (e + strength)) @ right)

    def classes(self, features: Tensor) -> Tensor:
        """The class of each row."""
        return (_with_constant((features - self.mean) / self.std) @ self.weights).argmax(1)


def check_shots(labels: Tensor, tests: Tensor, classes: Sequence[str], shots: Iterable[int], name: str) -> None:
    """Before anything is computed: every class that occurs has enough images."""
    most = max(shots)
    counts, asked = (found.bincount(minlength=len(classes)) for found in (labels, tests))
    for number in range(len(classes)):
        if counts[number] < most and (counts[number] or asked[number]):
            raise VitreousError(
                f"{name}: {most} shots, and {classes[number]!r} has only {int(counts[number])} training images;"
                " ask for fewer (--shots)"
            )


def _with_constant(x: Tensor) -> Tensor:
    return F.pad(x, (0, 1), value=CONSTANT)


def check_features(name: str, features: Tensor, labels: Tensor) -> None:
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels) or not len(labels):
        shapes = f"{tuple(features.shape)} features and {tuple(labels.shape)} labels"
        raise VitreousError(f"{name}: {shapes}; expected a row of features and one class for each image")
    if not features.isfinite().all():
        raise VitreousError(f"{name}: some features are not numbers (NaN or infinite)")
