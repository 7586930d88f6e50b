"""A model of the user's own: any module that returns logits, with what Vitreous stores besides its weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, cast

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, brief, one_line
from vitreous.models.base import Model
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer
from vitreous.utils.import_path import run_user_code
from vitreous.utils.sizes import Size, pair

AnyModel: TypeAlias = "VisionTransformer | BiT | CustomModel"
ARGUMENTS = ("num_classes", "channels", "image_size")  # that a function or class may take to build the model
CHECKED_IMAGES = 2  # of zeros, for which a new model is run once


@dataclass(frozen=True)
class CustomConfig:
    """What is known about a model of the user's own."""

    code: str  # what builds it: "file.py:Net", or a description such as "<Net object>"
    num_classes: int
    channels: int
    image_size: Size

    @property
    def head_bias(self) -> float:
        return 0.0

    @property
    def head_width(self) -> int:
        raise VitreousError(f"{self.code}: the head of a model of your own is not known")


class CustomModel(Model):
    """Runs a module of the user's own, and checks its output: logits (B, num_classes)."""

    config: CustomConfig
    code_digest: str | None = None  # of the file with its code, if it is known

    def __init__(self, module: nn.Module, config: CustomConfig):
        super().__init__()
        self.module, self.config = module, config
        self.head, self.pre_logits = nn.Identity(), None  # the module has its own

    def forward(self, images: Tensor) -> Tensor:
        logits = run_user_code(f"model {self.config.code}", self.module, images)
        expected = (len(images), self.config.num_classes)
        if not isinstance(logits, Tensor) or tuple(logits.shape) != expected or not logits.is_floating_point():
            got = f"{tuple(logits.shape)} {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
            raise VitreousError(
                f"model {self.config.code}: expected logits, a floating-point tensor {expected} (images, classes), and"
                f" got {got}"
            )
        return logits

    def features(self, images: Tensor) -> Tensor:
        """Return the result of the module's own method `features`."""
        if not inspect.isfunction(getattr(type(self.module), "features", None)):
            raise VitreousError(f"model {self.config.code} has no method features(images)")
        features = run_user_code(f"model {self.config.code}.features", cast(Any, self.module).features, images)
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(images):
            raise VitreousError(f"model {self.config.code}.features: expected a tensor (images, dimensions)")
        return features

    def reset_head(self, num_classes: int) -> Self:
        raise VitreousError(f"{self.config.code}: only its own code can replace the head of this model")


def build_custom_module(source: object, code: str, num_classes: int, channels: int, image_size: Size) -> nn.Module:
    """Return a new module. `source`: a class or function that builds it, called with those of `ARGUMENTS` that it
    takes; or a module, which is copied."""
    if isinstance(source, nn.Module):
        try:
            return deepcopy(source)
        except Exception as error:
            raise VitreousError(
                f"model {code} cannot be copied ({one_line(error)}): pass a function that builds it"
            ) from error
    if not callable(source):
        raise VitreousError(f"model: expected a module, or a class or function that builds it, got {brief(source)}")
    height, width = pair(image_size)
    size: Size = height if height == width else (height, width)
    given: dict[str, Any] = {"num_classes": num_classes, "channels": channels, "image_size": size}
    module = run_user_code(f"model {code}", source, **{name: given[name] for name in _taken_arguments(source, code)})
    if not isinstance(module, nn.Module):
        raise VitreousError(f"model {code}: expected a torch.nn.Module, got {brief(module)}")
    return module


def _taken_arguments(source: Any, code: str) -> Iterator[str]:
    """Yield the arguments that a class or function takes by name. A further one without a default is an error."""
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # a built-in
        return
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if by_name and parameter.name in ARGUMENTS:
            yield parameter.name
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise VitreousError(
                f"model {code} needs the argument {parameter.name!r}: a model is built with {', '.join(ARGUMENTS)} at"
                " most; give a function that passes the others"
            )


def check_custom_model(model: CustomModel) -> None:
    """Raise an error for a module that cannot be trained and saved exactly, or that does not return logits."""
    code = model.config.code
    parameters = dict(model.module.named_parameters())
    if not any(p.requires_grad for p in parameters.values()):
        raise VitreousError(f"model {code}: it has no parameters to train")
    for name, p in parameters.items():
        if isinstance(p, nn.UninitializedParameter):
            raise VitreousError(f"model {code}: {name} has no shape yet: run the model once where it is built")
        if p.dtype != torch.float32:
            raise VitreousError(f"model {code}: {name} is {p.dtype}: parameters have to be float32 (precision: bf16)")
    for name, value in model.module.state_dict().items():
        if not isinstance(value, Tensor) or type(value) not in (Tensor, nn.Parameter):
            kind = type(value).__name__
            raise VitreousError(f"model {code}: its state_dict has {name}, a {kind}; only tensors can be saved")
    channels, (height, width) = model.config.channels, pair(model.config.image_size)
    training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()(torch.zeros(CHECKED_IMAGES, channels, height, width))
    except VitreousError as error:
        images = f"it was run once, for images ({CHECKED_IMAGES}, {channels}, {height}, {width})"
        raise VitreousError(f"{error}; {images}") from error
    finally:
        model.train(training)
