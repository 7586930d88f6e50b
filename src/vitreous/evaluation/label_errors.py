"""Label errors: which labels are probably wrong, from out-of-fold predictions.

1. A classifier is fitted to frozen features, and every image is predicted by one that was not fitted to it.
2. Images are set aside if the classifier is confident of another class: its probability there is at least the mean
   probability of that class over the images labelled so (confident learning, Northcutt et al. 2021). The classifier is
   fitted again without them, so that it does not learn systematic errors, and predicts all images again.
3. A mixture explains the given labels: with probability 1 - rate a label is the true class, which follows the
   predictions at some temperature; with probability `rate` it is another class, drawn from a distribution that depends
   on the true class. Rate, temperature and distributions are fitted to the labels by EM. Bayes' rule then gives the
   probability that each label is wrong, and the most probable true class.

A label is a suspect if it is more probably wrong than right. So the number of suspects follows from the data: if the
classifier's mistakes are what its probabilities predict, there are none.

This needs features that separate the classes. If the classifier is wrong for most images, its systematic mistakes
cannot be distinguished from wrong labels. On 99 correctly labelled classes with 17 images each and an accuracy of 27%,
71% of the labels would seem wrong. So labels are checked only if the accuracy is at least `MIN_ACCURACY`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TEMPERATURES = tuple(np.geomspace(0.1, 4.0, 28).tolist())
STEPS = 40  # of EM
PRIOR_WRONG, PRIOR_RIGHT = 1.0, 49.0  # images: a weak prior of 2% errors
PRIOR_CLASS = 5.0  # images: prior of the uniform distribution of wrong labels, for each true class
MIN_ACCURACY = 0.5  # of the out-of-fold predictions
MAX_ELEMENTS = 2**24  # images x classes; of more, a sample determines the temperature


@dataclass(frozen=True)
class LabelErrors:
    """For each of N images: whether its label is wrong, and which label would be right."""

    wrong: Tensor  # (N,) float64: probability that the given label is wrong
    suggested: Tensor  # (N,) int64: the most probable true class among the others
    given_probability: Tensor  # (N,): probability of the given class according to the predictions
    suggested_probability: Tensor  # (N,): of the suggested class
    rate: float  # estimated share of wrong labels
    temperature: float

    @property
    def suspects(self) -> Tensor:
        """Indices of the suspects, the most probable errors first."""
        found = (self.wrong > 0.5).nonzero()[:, 0]
        return found[self.wrong[found].sort(descending=True, stable=True).indices]


def confident_mistakes(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return which images (N,) are confidently predicted as another class than their label: step 2 above."""
    classes = probabilities.shape[1]
    own = probabilities.gather(1, labels[:, None])[:, 0]
    counts = labels.bincount(minlength=classes)
    thresholds = torch.zeros(classes).index_add_(0, labels, own) / counts.clamp(min=1)
    thresholds[counts == 0] = torch.inf  # no image has this label
    confident = torch.where(probabilities >= thresholds, probabilities, -1.0)
    highest, predicted = confident.max(1)
    return (highest > 0) & (predicted != labels)


def estimate_label_errors(probabilities: Tensor, labels: Tensor) -> LabelErrors:
    """Fit the mixture of step 3 to predictions (N, classes), which must be out of fold, and labels (N,)."""
    logs = probabilities.double().clamp(min=1e-12).log()
    rows = torch.arange(len(labels))
    if logs.numel() > MAX_ELEMENTS:
        few = max(1, MAX_ELEMENTS // logs.shape[1])
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:few]
    fits = [_fit_mixture(logs[rows], labels[rows], temperature) for temperature in TEMPERATURES]
    best = max(range(len(fits)), key=lambda number: fits[number].likelihood)
    temperature = TEMPERATURES[best]
    fit = fits[best] if len(rows) == len(labels) else _fit_mixture(logs, labels, temperature)
    calibrated = (logs / temperature).softmax(1)
    posterior = calibrated * fit.confusion[:, labels].T  # of each true class, given that the label is wrong
    posterior.scatter_(1, labels[:, None], -1.0)
    suggested = posterior.argmax(1)
    given, other = (calibrated.gather(1, column[:, None])[:, 0] for column in (labels, suggested))
    return LabelErrors(fit.wrong, suggested, given, other, fit.rate, temperature)


@dataclass(frozen=True)
class _Mixture:
    likelihood: float
    rate: float
    confusion: Tensor  # (true class, wrong label): probabilities, rows sum to 1, the diagonal is 0
    wrong: Tensor  # (N,)


def _fit_mixture(logs: Tensor, labels: Tensor, temperature: float) -> _Mixture:
    """Fit rate and confusion by EM: the maximum of the posterior with the priors above."""
    images, classes = logs.shape
    probabilities = (logs / temperature).softmax(1)
    own = probabilities.gather(1, labels[:, None])[:, 0]
    confusion = torch.full((classes, classes), 1 / (classes - 1), dtype=torch.float64).fill_diagonal_(0)
    rate = 0.1
    for _ in range(STEPS):
        other = probabilities * confusion[:, labels].T  # (N, classes): this true class, and the given label is wrong
        total = other.sum(1)
        right, mistaken = (1 - rate) * own, rate * total
        evidence = (right + mistaken).clamp(min=1e-300)
        wrong = mistaken / evidence
        rate = (float(wrong.sum()) + PRIOR_WRONG) / (images + PRIOR_WRONG + PRIOR_RIGHT)
        share = other * (wrong / total.clamp(min=1e-300))[:, None]
        counts = torch.zeros(classes, classes, dtype=torch.float64).index_add_(1, labels, share.T)
        counts = (counts + PRIOR_CLASS / (classes - 1)).fill_diagonal_(0)
        confusion = counts / counts.sum(1, keepdim=True)
    prior = PRIOR_WRONG * np.log(rate) + PRIOR_RIGHT * np.log1p(-rate)
    off = ~torch.eye(classes, dtype=torch.bool)
    prior += PRIOR_CLASS / (classes - 1) * float(confusion[off].log().sum())
    return _Mixture(float(evidence.log().sum()) + prior, rate, confusion, wrong)
