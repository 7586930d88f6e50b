"""Which models a fast path may run: those that it is known to compute exactly, and no others.

A fast path does not call the model's own `forward`, so that it would ignore a hook, a replaced module or a setting it
does not know. Eligibility is therefore opt-in. The model must have exactly the modules that its config describes
(`vitreous.models.standard`), every field of the config must have a value from the path's table, and the parameters a
dtype and a device that the path takes. A field that a table does not name makes the model ineligible. Everything else
is run by the model itself.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from vitreous.models.standard import Kind, difference
from vitreous.models.vit import VisionTransformer, ViTConfig


@dataclass(frozen=True)
class Where:
    """A condition on a field and its neighbours, for fields that have too many values to list."""

    holds: Callable[[ViTConfig], bool]
    requirement: str  # in words: what the field must be


Rule = Where | tuple[Any, ...]  # a condition, or the values that are allowed

ANY = Where(lambda c: True, "any value")


def multiple(field: str, of: int) -> Where:
    return Where(lambda c: (getattr(c, field) or 0) % of == 0, f"must be a multiple of {of}")


@dataclass(frozen=True)
class Path:
    """One way to run models, and which it can run."""

    table: Mapping[str, Rule]  # what each field of ViTConfig may be
    dtypes: Collection[torch.dtype]  # of the parameters, all of them the same
    device: str | None = None  # type of their device; None: the caller checks that
    compiled: bool = True  # whether modules may be compiled in place: that does not change what they compute
    recomputes: bool = True  # whether `checkpoint_activations` may be set


# Any value: sizes, what the model's own code does for the fast paths (`resample`; in training `backbone`), initial
# values (`head_bias`, `layer_scale`), and for inference what acts in training alone (dropout, stochastic depth).
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
# Matrix products on a GPU want sizes that are multiples of 8, in fp8 of 16.
BF16_TABLE: dict[str, Rule] = {
    **CPU_TABLE,
    "width": multiple("width", 8),
    "heads": Where(lambda c: c.width // c.heads % 8 == 0, "a head must be a multiple of 8 wide"),
    "mlp_dim": multiple("mlp_dim", 8),
    "position_at": ("stem",),
    "mlp": ("gelu",),
}
FP8_TABLE: dict[str, Rule] = {**BF16_TABLE, "width": multiple("width", 16), "mlp_dim": multiple("mlp_dim", 16)}
TRAINING_TABLE: dict[str, Rule] = {
    **BF16_TABLE,
    "depth": Where(lambda c: c.depth > 1, "must be 2 or more"),
    "pool": ("token", "gap", "map"),
    "final_norm": Where(lambda c: c.final_norm == "before-pool" or c.pool == "token", "must be 'before-pool'"),
    "layer_scale": (None,),
    "dropout": (0.0,),
    "attention_dropout": (0.0,),
    "backbone": ANY,
}

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CPU = Path(CPU_TABLE, (torch.float32,), "cpu")
BF16 = Path(BF16_TABLE, FLOATS)
FP8 = Path(FP8_TABLE, FLOATS)
TRAINING = Path(TRAINING_TABLE, (torch.float32,), compiled=False, recomputes=False)


def why_not(model: nn.Module, path: Path) -> str | None:
    """Why a model cannot be run by a fast path, in words; None: it can."""
    if type(model) is not VisionTransformer:
        return f"it is a {type(model).__name__}, not a VisionTransformer"
    allowed: tuple[Kind, ...] = ("compiled",) if path.compiled else ()
    reason = _unsupported(model.config, path.table) or difference(model, allowed) or _parameters(model, path)
    if reason is None and model.checkpoint_activations and not path.recomputes:
        return "checkpoint_activations is set"
    return reason


def _unsupported(config: ViTConfig, table: Mapping[str, Rule]) -> str | None:
    """The first field whose value the table does not allow."""
    for field in fields(config):
        value, rule = getattr(config, field.name), table.get(field.name)
        if rule is None:
            return f"{field.name} = {value!r}: it does not know this setting"
        if isinstance(rule, Where):
            if not rule.holds(config):
                return f"{field.name} = {value!r}: {rule.requirement}"
        elif value not in rule:
            return f"{field.name} = {value!r} is not supported"
    return None


def _parameters(model: nn.Module, path: Path) -> str | None:
    first = next(model.parameters())
    for name, p in model.named_parameters():
        if p.dtype not in path.dtypes or path.device not in (None, p.device.type):
            return f"{name} is {p.dtype} on {p.device.type}"
        if p.dtype != first.dtype or p.device != first.device:
            return f"{name} is {p.dtype} on {p.device}, and other parameters are {first.dtype} on {first.device}"
        # Convolutions may have their channels last: their weights are copied to rows first.
        if p.layout is not torch.strided or not (p.is_contiguous() or p.ndim == 4):
            return f"{name} is not contiguous in memory"
    return None
