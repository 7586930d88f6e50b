"""What every model is, whatever it is made of."""

from dataclasses import replace
from typing import Any, Self, TypeVar

from torch import nn

from vitreous.errors import VitreousError, brief
from vitreous.models.init import reset_head_
from vitreous.utils.memory import require_memory

C = TypeVar("C")


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
    report: Any = None  # vitreous.weights.load_report.LoadReport: what was found in the file

    def reset_head(self, num_classes: int) -> Self:
        """Replace the head by a new one of zeros for `num_classes` classes; 0: by none, so that features come out.

        As `load(..., num_classes=K)` does, the hidden layer of pre-training (`representation_size`) goes with the old
        head. The config follows, and the names of the old classes are forgotten. Returns the model.
        """
        model: Any = self  # a config and a head are what all models have, each of its own type
        config = with_classes(model.config, num_classes)
        like = model.head.weight if isinstance(model.head, nn.Linear) else list(self.parameters())[-1]
        head: nn.Module = nn.Identity()
        if num_classes:
            needed = config.head_width * num_classes * like.dtype.itemsize
            require_memory(needed, f"a head of {num_classes:,} classes", like.device)
            head = nn.Linear(config.head_width, num_classes, device=like.device, dtype=like.dtype)
            reset_head_(head, config.head_bias)
        if getattr(config, "representation_size", None) is None and hasattr(model, "pre_logits"):
            del model.pre_logits  # else torch would keep the name among the modules
            model.pre_logits = None
        model.config, model.head = config, head.train(self.training)
        self.labels, self.multi_label = None, False
        return self


def with_classes(config: C, num_classes: int) -> C:
    """The config with a plain head for `num_classes` classes, or with none."""
    check_classes(num_classes)
    changes: dict[str, Any] = {"num_classes": num_classes}
    if num_classes and hasattr(config, "representation_size"):
        changes["representation_size"] = None
    changed: C = replace(config, **changes)  # type: ignore[type-var]
    return changed


def check_classes(num_classes: Any) -> None:
    if type(num_classes) is not int or num_classes < 0:
        raise VitreousError(f"num_classes = {brief(num_classes)}: expected 0 or more")
