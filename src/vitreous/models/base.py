"""What every model is, whatever it is made of."""

from typing import Any

from torch import nn


class Model(nn.Module):
    """A ViT or a BiT: `model(images)` gives logits, `model.features(images)` what is under the head.

    Set `checkpoint_activations` to trade a second forward for memory in training; the gradients are the same.
    The rest travels with the weights, from the file they were read from to the file they are written to.
    """

    checkpoint_activations: bool = False
    preprocessing: Any = None  # vitreous.preprocessing.Preprocessing: the images it was trained on
    labels: tuple[str, ...] | None = None  # the names of its classes
    multi_label: bool = False  # an image may be of several classes: probabilities are sigmoids, not a softmax
    extras: Any = None  # tensors of the file that no inference needs, for the way back: the mask token of DINOv2
    report: Any = None  # vitreous.weights.report.LoadReport: what was found in the file
