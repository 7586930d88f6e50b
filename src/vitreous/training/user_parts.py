"""Model, loss, optimiser and augmentation of the user's own: how settings name them, and how they are created.

A setting names a class or function by its import path (`file.py:name`), which config.json stores, so that `resume` and
other commands can import it again. Other objects have none: the setting is then a description such as "<Net object>",
and the object must be passed to `resume` again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, brief
from vitreous.models import BiT, VisionTransformer
from vitreous.models.custom import AnyModel, CustomConfig, CustomModel, build_custom_module, check_custom_model
from vitreous.models.resnet import BiTConfig
from vitreous.models.standard import difference
from vitreous.models.vit import ViTConfig
from vitreous.models.zoo import build_model
from vitreous.training.config import Optimiser, TrainConfig
from vitreous.training.masked_patches import build_masked_model, patch_loss
from vitreous.training.optim.losses import Loss, build_loss
from vitreous.training.optim.optimisers import Optimisers, build_optimisers
from vitreous.training.optim.user_loss import build_user_loss
from vitreous.training.optim.user_optimiser import build_user_optimiser
from vitreous.training.user_augment import UserAugment
from vitreous.utils.import_path import (
    absolute_import_path,
    import_object,
    import_path_of,
    is_import_path,
    is_object_text,
    object_text,
    run_user_code,
    short_import_path,
)
from vitreous.utils.sizes import Size, pair
from vitreous.utils.torch_settings import seeded_generators

PARTS = ("model", "loss", "optimiser", "augment")  # fields of TrainConfig that can be of the user's own
AnyModelConfig = ViTConfig | BiTConfig | CustomConfig


class UserModel:
    """A model of the user's own, or a ViT or BiT that the user's code builds."""

    def __init__(self, source: object, code: str):
        self.source, self.code = source, code
        self._configs: dict[tuple[int, int, tuple[int, int]], AnyModelConfig] = {}

    def config(self, classes: int, channels: int, size: Size) -> AnyModelConfig:
        """Build and check the model once, and return its config."""
        key = (classes, channels, pair(size))
        if key not in self._configs:
            own = getattr(self.source, "channels", channels)  # the module may say which images it takes
            if own not in (1, 3):
                raise VitreousError(f"model {self.code}: channels = {brief(own)}: expected 1 (grey) or 3 (RGB)")
            model = self.build(CustomConfig(self.code, classes, own, pair(size)), 0)
            if isinstance(model, CustomModel):
                check_custom_model(model)
            elif model.config.num_classes != classes:
                raise VitreousError(
                    f"model {self.code} has {model.config.num_classes} classes, and the data has {classes}: build it"
                    f" for these, or call model.reset_head({classes})"
                )
            self._configs[key] = model.config
        return self._configs[key]

    def build(self, config: AnyModelConfig, seed: int) -> AnyModel:
        """Return the model with its initial weights: a new one, or a copy of the given one."""
        size = pair(config.image_size)
        with seeded_generators(seed):
            module = build_custom_module(self.source, self.code, config.num_classes, config.channels, size)
        module = module.cpu()
        if type(module) in (VisionTransformer, BiT) and difference(module) is None:
            if any(p.dtype != torch.float32 for p in module.parameters()):
                raise VitreousError(f"model {self.code}: parameters have to be float32 (precision: bf16)")
            return module  # type: ignore[return-value]
        if not isinstance(config, CustomConfig):
            raise VitreousError(f"model {self.code}: its code returned a model of another kind than at first")
        return CustomModel(module, config)


@dataclass(frozen=True)
class UserParts:
    """The parts of a run that are of the user's own. None: the setting names one of Vitreous' own."""

    model: UserModel | None = None
    loss: Any = None
    optimiser: Any = None
    augment: Any = None

    @property
    def note(self) -> str | None:
        """What a reader of the results has to know."""
        if self.loss is None:
            return None
        return "the loss of evaluations is cross-entropy, that of training steps your own: do not compare them"


def name_parts(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replace objects among the fields of TrainConfig by their import paths or descriptions. Returns the fields, and
    the objects by field."""
    objects = {name: fields[name] for name in PARTS if not isinstance(fields.get(name), str | None)}
    return {**fields, **{name: import_path_of(value) or object_text(value) for name, value in objects.items()}}, objects


def load_parts(config: TrainConfig, objects: Mapping[str, Any]) -> UserParts:
    """Return the parts that the settings name: those of `objects`, and imported ones."""
    values = config.flat()
    loaded: dict[str, Any] = {}
    for name in PARTS:
        text = values[name]
        if name in objects:
            loaded[name] = objects[name]
        elif text is not None and is_object_text(text):
            raise VitreousError(
                f"{name} = {text}: this object cannot be imported: pass it again, vitreous.resume(RUN, {name}=...)"
            )
        elif _is_path(text):
            loaded[name] = import_object(text)
    model = UserModel(loaded["model"], short_import_path(values["model"])) if "model" in loaded else None
    for name in ("loss", "augment"):
        if isinstance(loaded.get(name), type):
            loaded[name] = run_user_code(f"{name} {values[name]}", loaded[name])
    for name in PARTS[1:]:
        if name in loaded and not callable(loaded[name]):
            raise VitreousError(f"{name} = {values[name]}: expected a function or class, got {brief(loaded[name])}")
    return UserParts(model, *(loaded.get(name) for name in PARTS[1:]))


def absolute_parts(config: TrainConfig) -> TrainConfig:
    """The config with absolute paths of the user's code, for a run that is resumed from another folder."""
    values = config.flat()
    return config.with_(**{name: absolute_import_path(values[name]) for name in PARTS if _is_path(values[name])})


def _is_path(text: str | None) -> bool:
    return text is not None and is_import_path(text)


def part_import_paths(config: TrainConfig) -> list[str]:
    """The import paths among the settings."""
    values = config.flat()
    return [values[name] for name in PARTS if _is_path(values[name])]


def parts_in_memory(config: TrainConfig) -> list[str]:
    """The settings whose objects cannot be imported."""
    values = config.flat()
    return [name for name in PARTS if values[name] is not None and is_object_text(values[name])]


def build_initial_model(model: AnyModelConfig, parts: UserParts, config: TrainConfig) -> AnyModel:
    """Build the model of a run."""
    if config.masks_patches:
        return build_masked_model(config, model)
    if parts.model is not None:
        return parts.model.build(model, config.run.seed)
    assert not isinstance(model, CustomConfig)
    return build_model(model)


def build_run_loss(
    config: TrainConfig, parts: UserParts, labels: Tensor, multi_label: bool, classes: int, device: torch.device | str
) -> Loss:
    """Return the loss of a run, for training images with these labels."""
    if config.masks_patches:
        return patch_loss(config)
    if parts.loss is None:
        return build_loss(config.objective, labels, classes, device)
    return build_user_loss(
        parts.loss, short_import_path(str(config.objective.loss)), labels, classes, multi_label, device
    )


def build_run_optimisers(
    model: AnyModel, options: Optimiser, parts: UserParts, fused: bool | None = None
) -> Optimisers:
    """Freeze parameters, and return the optimisers of the others."""
    if parts.optimiser is None:
        return build_optimisers(model, options, fused)
    return build_user_optimiser(parts.optimiser, short_import_path(str(options.optimiser)), model, options)


def user_augment(config: TrainConfig, parts: UserParts) -> UserAugment | None:
    if parts.augment is None:
        return None
    return UserAugment(parts.augment, short_import_path(str(config.augmentation.augment)))


def inner_module(model: nn.Module) -> nn.Module:
    """The module with the parameter names that the user knows."""
    return model.module if isinstance(model, CustomModel) else model
