"""Few-shot evaluation of features as in the ViT paper: ridge regression from a few images per class, in closed form."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError

STRENGTH = 2.0**10  # of the L2 regularisation
CONSTANT = 100.0  # value of the bias feature: so large that the regularisation hardly affects the bias


@dataclass(frozen=True)
class FewShot:
    """Accuracies on the test images, from 0 to 1."""

    shots: int
    each: tuple[float, ...]  # one per seed

    @property
    def mean(self) -> float:
        return statistics.fmean(self.each)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds."""
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
    """Fit on `shots` random images per class, once per seed, and measure the accuracy on all test images.

    Computed in float64, so that the result does not depend on the device.
    """
    check_features("train", train_features, train_labels)
    check_features("test", test_features, test_labels)
    train_features, test_features = train_features.double(), test_features.double()
    accuracies = []
    for seed in seeds:
        chosen = draw_shots(train_labels, shots, seed)
        ridge = Ridge.fit(train_features[chosen], train_labels[chosen], strength)
        accuracies.append((ridge.predict(test_features) == test_labels).double().mean().item())
    if not accuracies:
        raise VitreousError("seeds: none were given")
    return FewShot(shots, tuple(accuracies))


def draw_shots(labels: Tensor, shots: int, seed: int) -> Tensor:
    """Return the indices of the training images: per class, the first `shots` of a seeded permutation."""
    if shots < 1:
        raise VitreousError(f"shots = {shots}: must be 1 or more")
    random = np.random.default_rng(seed)
    chosen = []
    for number in labels.unique().tolist():
        members = (labels == number).nonzero()[:, 0].numpy()
        if len(members) < shots:
            raise VitreousError(
                f"{shots} shots: class {number} has only {len(members)} training images; use fewer shots"
            )
        chosen.append(random.permutation(members)[:shots])
    return torch.from_numpy(np.concatenate(chosen))


@dataclass(frozen=True)
class Ridge:
    """A linear classifier on standardised features."""

    mean: Tensor
    std: Tensor
    weights: Tensor  # (D + 1, classes)

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, strength: float = STRENGTH) -> "Ridge":
        """Fit least squares from x (N, D) to targets y (N, K) of -1 and +1, with L2 regularisation l = `strength`.

        The solution is (x'x + l)^-1 x'y, or equally x'(xx' + l)^-1 y; the smaller matrix is inverted. With its
        eigenvectors q and eigenvalues e the inverse is q (e + l)^-1 q', which is stable even for N < D.

        Computed in the dtype of the features. The reference uses float32, where a much weaker regularisation than the
        default would be close to the rounding error of the bias feature's square, N x 100^2.
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

    def predict(self, features: Tensor) -> Tensor:
        """Return the class of each row."""
        return self.scores(features).argmax(1)

    def scores(self, features: Tensor) -> Tensor:
        """Return the score of each class, about -1 to +1, for each row."""
        return _with_constant((features - self.mean) / self.std) @ self.weights


def check_shots(
    train_labels: Tensor, test_labels: Tensor, classes: Sequence[str], shots: Iterable[int], name: str
) -> None:
    """Raise an error if a class that occurs has too few training images."""
    most = max(shots)
    counts, tested = (labels.bincount(minlength=len(classes)) for labels in (train_labels, test_labels))
    for number in range(len(classes)):
        if counts[number] < most and (counts[number] or tested[number]):
            raise VitreousError(
                f"{name}: {most} shots, but {classes[number]!r} has only {int(counts[number])} training images;"
                " use fewer (--shots)"
            )


def _with_constant(x: Tensor) -> Tensor:
    return F.pad(x, (0, 1), value=CONSTANT)


def check_features(name: str, features: Tensor, labels: Tensor) -> None:
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels) or not len(labels):
        shapes = f"{tuple(features.shape)} features and {tuple(labels.shape)} labels"
        raise VitreousError(f"{name}: {shapes}; expected one row of features and one class per image")
    if not features.isfinite().all():
        raise VitreousError(f"{name}: some features are NaN or infinite")
