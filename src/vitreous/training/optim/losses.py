"""What is minimised, image by image: the loop averages over a whole batch, however many passes it took."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.training import config

MOST = 100.0  # a class with one positive in a million would otherwise drown the rest


@dataclass(frozen=True)
class Loss:
    """`loss(logits, targets)`: one number for each image, (B,) in float32, from logits (B, classes).

    Targets are classes, (B,) int64; or (B, classes): shares of them after mixing, or any number of them.

    - softmax: cross-entropy.
    - sigmoid: binary cross-entropy of each class, summed over the classes.
    - label smoothing s: targets t become t (1 - s) + s / classes, with either loss: a single label's total stays 1.
      With one class alone it is t (1 - s) + s / 2, so that yes and no are treated alike.
    - weights: of each class. Softmax: each term -t log p of its class is multiplied, as torch does it. Sigmoid: the
      whole loss of the image is, by the weight of its class (of its mix of classes).
    - positive_weights: of the positives of each class, where images have any number of labels.
    """

    sigmoid: bool
    classes: int
    smoothing: float = 0.0
    weights: Tensor | None = None
    positive_weights: Tensor | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.float()
        if logits.ndim != 2 or logits.shape[1] != self.classes or len(logits) != len(targets):
            raise VitreousError(
                f"loss: expected logits ({len(targets)}, {self.classes}) for {len(targets)} targets, "
                f"got {tuple(logits.shape)}"
            )
        if not self.sigmoid:
            targets = targets if targets.ndim == 1 else self.prepared(targets)
            return F.cross_entropy(logits, targets, self.weights, reduction="none", label_smoothing=self.smoothing)
        targets = self.prepared(targets)
        smooth = targets * (1 - self.smoothing) + self.smoothing / max(self.classes, 2) if self.smoothing else targets
        losses = F.binary_cross_entropy_with_logits(
            logits, smooth, pos_weight=self.positive_weights, reduction="none"
        ).sum(1)
        return losses if self.weights is None else losses * (targets * self.weights).sum(1)

    def prepared(self, labels: Tensor) -> Tensor:
        """Targets (B, classes) in float32 that can be mixed. Not smoothed: calling the loss does that."""
        if labels.ndim == 1:
            labels = labels[:, None] == torch.arange(self.classes, device=labels.device)
        if labels.ndim != 2 or labels.shape[1] != self.classes:
            raise VitreousError(
                f"loss: expected targets (batch,) or (batch, {self.classes}), got {tuple(labels.shape)}"
            )
        return labels.float()


def build_loss(options: config.Objective, labels: Tensor, classes: int, device: torch.device | str) -> Loss:
    """The loss for the labels of the training images: (N,) int64, or (N, classes) of yes and no."""
    several = labels.ndim == 2
    smoothing = options.label_smoothing
    if options.loss not in ("softmax", "sigmoid") or smoothing is None:
        raise VitreousError(
            f"Objective: loss = {options.loss!r}, label_smoothing = {smoothing!r}: expected softmax or sigmoid, "
            "and a number; both have to be chosen before the loss is built"
        )
    if options.loss == "softmax" and several:
        raise VitreousError("loss = 'softmax': one class for each image, but here each may have several: use 'sigmoid'")
    if options.loss == "softmax" and classes < 2:
        raise VitreousError(
            f"loss = 'softmax': nothing to tell apart with {classes} class; use 'sigmoid', or more classes"
        )
    if not 0 <= smoothing < 1:
        raise VitreousError(f"label_smoothing = {smoothing}: expected at least 0 and below 1")
    if options.class_weights not in ("none", "balanced"):
        raise VitreousError(f"class_weights = {options.class_weights!r}: expected 'none' or 'balanced'")
    _check_labels(labels, classes)
    weights = positive_weights = None
    if options.class_weights == "balanced":
        if several:
            positive_weights = balanced_positive_weights(labels).to(device)
        else:
            weights = balanced(labels, classes).to(device)
    return Loss(options.loss == "sigmoid", classes, float(smoothing), weights, positive_weights)


def balanced(labels: Tensor, classes: int) -> Tensor:
    """Weights of classes as 1 / their number of images; 1 on average over the images, 0 where a class has none."""
    counts = torch.bincount(labels, minlength=classes).double()
    share = len(labels) / (counts > 0).sum()  # the images of a class if all had as many
    return torch.where(counts > 0, share / counts, 0.0).float()


def balanced_positive_weights(labels: Tensor) -> Tensor:
    """For each class negatives / positives, within a factor of 100 of 1; 1 where a class has no positives."""
    positives = (labels > 0).double().sum(0)
    weights = (len(labels) - positives) / positives
    return torch.where(positives > 0, weights.clamp(1 / MOST, MOST), 1.0).float()


def _check_labels(labels: Tensor, classes: int) -> None:
    """Here, once: a class that does not exist would kill the process on a GPU."""
    if not len(labels) or labels.ndim > 2:
        raise VitreousError(f"labels: expected one or more, (N,) or (N, {classes}), got {tuple(labels.shape)}")
    if labels.ndim == 2:
        if labels.shape[1] != classes:
            raise VitreousError(f"labels: for {labels.shape[1]} classes, but there are {classes}")
        if ((labels != 0) & (labels != 1)).any():
            raise VitreousError("labels: expected yes or no, 1 or 0, for each class of an image")
        return
    if labels.dtype != torch.int64:
        raise VitreousError(f"labels: expected classes as int64, got {labels.dtype}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise VitreousError(f"labels: from {low} to {high}, but the {classes} classes are 0 to {classes - 1}")
