"""The loss of each image: softmax or sigmoid cross-entropy. The engine averages it over the whole batch."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.training import config

MAX_POSITIVE_WEIGHT = 100.0  # a class with very few positives would otherwise dominate the loss


@dataclass(frozen=True)
class Loss:
    """`loss(logits, targets)`: one value per image, (B,) in float32, from logits (B, classes).

    Targets are class indices, (B,) int64; or (B, classes): mixed labels, or several labels per image.

    - softmax: cross-entropy.
    - sigmoid: binary cross-entropy of each class, summed over the classes.
    - label smoothing s: targets t become t (1 - s) + s / classes, with either loss: the sum of a single label stays 1.
      With one class it is t (1 - s) + s / 2, so that positives and negatives are treated alike.
    - weights: class weights. Softmax: the term -t log p of each class is multiplied by its weight, as in torch.
      Sigmoid: the whole loss of the image is multiplied by the weight of its class (or of its mix of classes).
    - positive_weights: weights of the positives of each class, for images with several labels.
    """

    sigmoid: bool
    classes: int
    smoothing: float = 0.0
    weights: Tensor | None = None
    positive_weights: Tensor | None = None
    classifies: bool = True  # whether predictions are classes, so that they have an accuracy

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.float()
        if logits.ndim != 2 or logits.shape[1] != self.classes or len(logits) != len(targets):
            raise VitreousError(
                f"loss: expected logits ({len(targets)}, {self.classes}) for {len(targets)} targets, "
                f"got {tuple(logits.shape)}"
            )
        if not self.sigmoid:
            targets = targets if targets.ndim == 1 else self.dense_targets(targets)
            return F.cross_entropy(logits, targets, self.weights, reduction="none", label_smoothing=self.smoothing)
        targets = self.dense_targets(targets)
        smooth = targets * (1 - self.smoothing) + self.smoothing / max(self.classes, 2) if self.smoothing else targets
        losses = F.binary_cross_entropy_with_logits(
            logits, smooth, pos_weight=self.positive_weights, reduction="none"
        ).sum(1)
        return losses if self.weights is None else losses * (targets * self.weights).sum(1)

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """For each image, whether its class is predicted correctly; zeros for several labels."""
        if targets.dtype == torch.bool:  # a prediction is not simply right or wrong
            return torch.zeros(len(targets), device=logits.device)
        truth = targets if targets.ndim == 1 else targets.argmax(1)
        return logits.argmax(1) == truth

    def dense_targets(self, labels: Tensor) -> Tensor:
        """Targets (B, classes) in float32, for mixing. Without label smoothing, which is applied by the loss."""
        if labels.ndim == 1:
            labels = labels[:, None] == torch.arange(self.classes, device=labels.device)
        if labels.ndim != 2 or labels.shape[1] != self.classes:
            raise VitreousError(
                f"loss: expected targets (batch,) or (batch, {self.classes}), got {tuple(labels.shape)}"
            )
        return labels.float()


def build_loss(options: config.Objective, labels: Tensor, classes: int, device: torch.device | str) -> Loss:
    """Return the loss for training images with these labels: (N,) int64, or (N, classes) of 0 and 1."""
    multi_label = labels.ndim == 2
    smoothing = options.label_smoothing
    if options.loss not in ("softmax", "sigmoid") or smoothing is None:
        raise VitreousError(
            f"Objective: loss = {options.loss!r}, label_smoothing = {smoothing!r}: expected softmax or sigmoid, and a"
            " number; both have to be chosen before the loss is built"
        )
    if options.loss == "softmax" and multi_label:
        raise VitreousError("loss = 'softmax': is for one label per image, but images have several; use 'sigmoid'")
    if options.loss == "softmax" and classes < 2:
        raise VitreousError(f"loss = 'softmax': needs at least 2 classes, not {classes}; use 'sigmoid', or add classes")
    if not 0 <= smoothing < 1:
        raise VitreousError(f"label_smoothing = {smoothing}: expected at least 0 and below 1")
    if options.class_weights not in (None, "none", "balanced"):
        raise VitreousError(f"class_weights = {options.class_weights!r}: expected 'none' or 'balanced'")
    check_target_labels(labels, classes)
    weights = positive_weights = None
    if options.class_weights == "balanced":
        if multi_label:
            positive_weights = balanced_positive_weights(labels).to(device)
        else:
            weights = balanced_class_weights(labels, classes).to(device)
    return Loss(options.loss == "sigmoid", classes, float(smoothing), weights, positive_weights)


def balanced_class_weights(labels: Tensor, classes: int) -> Tensor:
    """Class weights proportional to 1 / number of images, with mean 1 over the images; 0 for a class without images."""
    counts = torch.bincount(labels, minlength=classes).double()
    mean_count = len(labels) / (counts > 0).sum()
    return torch.where(counts > 0, mean_count / counts, 0.0).float()


def balanced_positive_weights(labels: Tensor) -> Tensor:
    """For each class, negatives / positives, limited to 1/100 to 100; 1 for a class without positives."""
    positives = (labels > 0).double().sum(0)
    weights = (len(labels) - positives) / positives
    return torch.where(positives > 0, weights.clamp(1 / MAX_POSITIVE_WEIGHT, MAX_POSITIVE_WEIGHT), 1.0).float()


def check_target_labels(labels: Tensor, classes: int) -> None:
    """Checked before training: on a GPU a class out of range would abort the process."""
    if not len(labels) or labels.ndim > 2:
        raise VitreousError(f"labels: expected one or more, (N,) or (N, {classes}), got {tuple(labels.shape)}")
    if labels.ndim == 2:
        if labels.shape[1] != classes:
            raise VitreousError(f"labels: for {labels.shape[1]} classes, but there are {classes}")
        if ((labels != 0) & (labels != 1)).any():
            raise VitreousError("labels: expected 0 or 1 for each class of an image")
        return
    if labels.dtype != torch.int64:
        raise VitreousError(f"labels: expected classes as int64, got {labels.dtype}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise VitreousError(f"labels: from {low} to {high}, but the {classes} classes are 0 to {classes - 1}")
