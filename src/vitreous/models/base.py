"""`Model`: the base class of ViT and BiT. It holds what is stored in a checkpoint besides the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, Self, TypeVar

from torch import Tensor, nn

from vitreous.errors import VitreousError, brief
from vitreous.models.calibration import Calibration
from vitreous.models.init import reset_head_
from vitreous.preprocessing import Preprocessing
from vitreous.utils.memory import require_memory


class ModelConfig(Protocol):
    """What the configs of all models have in common."""

    @property
    def image_size(self) -> int | tuple[int, int]: ...
    @property
    def channels(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def head_bias(self) -> float: ...
    @property
    def head_width(self) -> int: ...


class ModelReport(Protocol):
    """What `vitreous.load` reports about a file. `weights/load_report.py` implements it."""

    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def guessed(self) -> str: ...


AnyConfig = TypeVar("AnyConfig", bound=ModelConfig)


class Model(nn.Module):
    """A ViT or a BiT. `model(images)` returns logits, `model.features(images)` the input of the head."""

    config: ModelConfig  # architecture
    head: nn.Module  # a linear layer; the identity for num_classes=0
    pre_logits: nn.Module | None  # hidden layer before the head; None: there is none
    checkpoint_activations: bool = False  # recompute activations in the backward pass: less memory, same gradients

    # Stored in the checkpoint together with the weights:
    preprocessing: Preprocessing | None = None  # how images become the input of these weights; None: not known
    labels: tuple[str, ...] | None = None  # class names
    multi_label: bool = False  # several classes per image: probabilities are sigmoids, not a softmax
    calibration: Calibration | None = None  # temperature of the probabilities, and thresholds: `vitreous.calibrate`
    extras: Mapping[str, Tensor] | None = None  # tensors of the file that inference does not use: DINOv2's mask token
    report: ModelReport | None = None  # set by `vitreous.load`

    def reset_head(self, num_classes: int) -> Self:
        """Replace the head by a zero-initialised one for `num_classes` classes; 0 removes it, so that the model returns
        features.

        The config is updated; the class names and the calibration are removed. The pre-logits layer
        (`representation_size`) is removed with the old head, as in `vitreous.load(..., num_classes=K)`. Returns the
        model.

        >>> model = vitreous.load("vitreous-mini").reset_head(7)
        >>> model.head
        Linear(in_features=192, out_features=7, bias=True)
        """
        config = with_classes(self.config, num_classes)
        like = self.head.weight if isinstance(self.head, nn.Linear) else list(self.parameters())[-1]
        head: nn.Module = nn.Identity()
        if num_classes:
            needed = config.head_width * num_classes * like.dtype.itemsize
            require_memory(needed, f"a head of {num_classes:,} classes", like.device)
            head = nn.Linear(config.head_width, num_classes, device=like.device, dtype=like.dtype)
            reset_head_(head, config.head_bias)
        if "pre_logits" in self._modules and getattr(config, "representation_size", None) is None:
            del self.pre_logits  # otherwise the name would stay in the list of modules
            self.pre_logits = None
        self.config, self.head = config, head.train(self.training)
        self.labels, self.multi_label, self.calibration = None, False, None
        return self

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities of logits (..., classes): a softmax, or sigmoids of a multi-label model. The
        temperature of the model's calibration is applied."""
        logits = logits if logits.dtype.itemsize > 4 else logits.float()
        if self.calibration is not None:
            logits = logits / self.calibration.temperature
        return logits.sigmoid() if self.multi_label else logits.softmax(-1)


@contextmanager
def restored_modes(model: nn.Module) -> Iterator[None]:
    """Restore the training or eval mode of every module at the end of the block."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def with_classes(config: AnyConfig, num_classes: int) -> AnyConfig:
    """Return the config with a linear head for `num_classes` classes and no pre-logits; 0: without a head."""
    check_num_classes(num_classes)
    changes: dict[str, int | None] = {"num_classes": num_classes}
    if num_classes and hasattr(config, "representation_size"):
        changes["representation_size"] = None
    changed: AnyConfig = replace(config, **changes)  # type: ignore[type-var]
    return changed


def check_num_classes(num_classes: object) -> None:
    if type(num_classes) is not int or num_classes < 0:
        raise VitreousError(f"num_classes = {brief(num_classes)}: expected 0 or more")
