"""Which models a fast path may run, by allow-list.

A fast path does not call the model's own `forward`. It would ignore a hook, a replaced module or a setting that it does
not implement. Therefore a model is eligible only if all of these hold:

- it has exactly the modules that its config describes (`vitreous.models.standard`);
- every field of the config has a value that the table of the path allows; a field that is not in the table makes the
  model ineligible;
- its parameters have a dtype and a device that the path supports.

All other models run by their own code.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from vitreous.models.standard import Kind, difference
from vitreous.models.vit import VisionTransformer, ViTConfig


@dataclass(frozen=True)
class Condition:
    """A condition on a config field that has too many allowed values to list."""

    holds: Callable[[ViTConfig], bool]
    requirement: str  # for the message: what the field must be


Rule = Condition | tuple[Any, ...]  # a condition, or the allowed values

ANY = Condition(lambda c: True, "any value")


def multiple_of(divisor: int, field: str) -> Condition:
    return Condition(lambda c: getattr(c, field) % divisor == 0, f"must be a multiple of {divisor}")


@dataclass(frozen=True)
class FastPath:
    """The models that one fast path supports."""

    table: Mapping[str, Rule]  # allowed values of each field of ViTConfig
    dtypes: Collection[torch.dtype]  # allowed dtypes of the parameters; all parameters must have the same one
    device: str | None = None  # required device type of the parameters; None: the caller checks it
    compiled: bool = True  # whether modules may be compiled in place, which does not change their results
    recomputes: bool = True  # whether `checkpoint_activations` may be set


# Fields with any value: sizes, settings that the model's own code implements for the fast paths (`resample`; `backbone`
# in training), initial values (`head_bias`, `layer_scale`), and for inference those of training (dropout, stochastic
# depth).
CPU_TABLE: dict[str, Rule] = {
    "image_size": ANY,
    "patch_size": ANY,
    "channels": ANY,
    "width": ANY,
    "depth": ANY,
    "heads": ANY,
    "mlp_dim": ANY,
    "pool": ("token", "gap", "map", "none"),
    "class_token": (True, False),
    "registers": ANY,
    "final_norm": ("before-pool", "after-pool"),
    "representation_size": ANY,
    "num_classes": ANY,
    "head_bias": ANY,
    "position": ("learned-1d", "learned-2d", "sincos-1d", "sincos-2d", "none"),
    "position_at": ("stem", "every-layer", "every-layer-shared"),
    "position_slots": ("patches", "class", "all"),
    "resample": ANY,
    "attention": ("full",),
    "mlp": ("gelu", "swiglu"),
    "gelu": ("tanh", "erf"),
    "norm_eps": ANY,
    "qkv_bias": (True, False),
    "qk_norm": (False,),
    "layer_scale": ANY,
    "dropout": ANY,
    "attention_dropout": ANY,
    "stochastic_depth": ANY,
    "backbone": (None,),
    "remainder": ("error", "crop"),
}
# Matmuls on a GPU need sizes that are multiples of 8, in fp8 of 16.
BF16_TABLE: dict[str, Rule] = {
    **CPU_TABLE,
    "width": multiple_of(8, "width"),
    "heads": Condition(lambda c: c.width // c.heads % 8 == 0, "the width of a head must be a multiple of 8"),
    "mlp_dim": multiple_of(8, "mlp_dim"),
    "position_at": ("stem",),
    "mlp": ("gelu",),
}
FP8_TABLE: dict[str, Rule] = {**BF16_TABLE, "width": multiple_of(16, "width"), "mlp_dim": multiple_of(16, "mlp_dim")}
TRAINING_TABLE: dict[str, Rule] = {
    **BF16_TABLE,
    "depth": Condition(lambda c: c.depth > 1, "must be 2 or more"),
    "pool": ("token", "gap", "map"),
    "final_norm": Condition(lambda c: c.final_norm == "before-pool" or c.pool == "token", "must be 'before-pool'"),
    "layer_scale": (None,),
    "dropout": (0.0,),
    "attention_dropout": (0.0,),
    "backbone": ANY,
}

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CPU = FastPath(CPU_TABLE, (torch.float32,), "cpu")
BF16 = FastPath(BF16_TABLE, FLOATS)
FP8 = FastPath(FP8_TABLE, FLOATS)
TRAINING = FastPath(TRAINING_TABLE, (torch.float32,), compiled=False, recomputes=False)


def ineligibility_reason(model: nn.Module, path: FastPath) -> str | None:
    """Return why a fast path cannot run a model, or None if it can."""
    if type(model) is not VisionTransformer:
        return f"the model is a {type(model).__name__}, not a VisionTransformer"
    allowed: tuple[Kind, ...] = ("compiled",) if path.compiled else ()
    reason = (
        _unsupported_field(model.config, path.table)
        or difference(model, allowed)
        or _unsupported_parameter(model, path)
    )
    if reason is None and model.checkpoint_activations and not path.recomputes:
        return "checkpoint_activations is set"
    return reason


def _unsupported_field(config: ViTConfig, table: Mapping[str, Rule]) -> str | None:
    """Describe the first field whose value the table does not allow."""
    for field in fields(config):
        value, rule = getattr(config, field.name), table.get(field.name)
        if rule is None:
            return f"{field.name} = {value!r}: the fast path does not implement this field"
        if isinstance(rule, Condition):
            if not rule.holds(config):
                return f"{field.name} = {value!r}: {rule.requirement}"
        elif value not in rule:
            return f"{field.name} = {value!r} is not supported"
    return None


def _unsupported_parameter(model: nn.Module, path: FastPath) -> str | None:
    """Describe the first parameter with an unsupported dtype, device or memory layout."""
    first = next(model.parameters())
    for name, p in model.named_parameters():
        if p.dtype not in path.dtypes or path.device not in (None, p.device.type):
            return f"{name} is {p.dtype} on {p.device.type}"
        if p.dtype != first.dtype or p.device != first.device:
            return f"{name} is {p.dtype} on {p.device}, and other parameters are {first.dtype} on {first.device}"
        # Convolution weights may be in channels-last format: they are copied to contiguous rows first.
        if p.layout is not torch.strided or not (p.is_contiguous() or p.ndim == 4):
            return f"{name} is not contiguous in memory"
    return None
