"""Compare a model with the one that its config describes.

Code that does not call the `forward` of a model (fast paths, exporters, file writers, cost formulas) supports only
models as `build_model(config)` makes them. A user may have changed a model: replaced a module, wrapped or compiled a
block, registered a hook, added an adapter. `differences` lists such changes. It compares with a newly built model and
accepts only what is equal, so that unforeseen changes are listed too.
"""

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache, partialmethod
from types import FunctionType
from typing import Any, Literal

import torch
import torch.utils._contextlib
from torch import nn
from torch.nn.modules import module as torch_module

from vitreous.errors import VitreousError
from vitreous.models.base import Model
from vitreous.models.custom import CustomModel
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.models.zoo import build_model

Kind = Literal["type", "module", "attribute", "parameter", "shared", "hook", "compiled", "override"]

CALL_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CALL_METHODS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "__getattr__", "__getattribute__")
HOOKS = (*CALL_HOOKS, "_state_dict_hooks", "_state_dict_pre_hooks")
# Attributes that do not change the outputs: torch's internal ones, those stored with the weights, and those that
# `keyed_drops` sets for a batch.
TORCH = frozenset(vars(nn.Module()))
FREE = frozenset(
    {
        "checkpoint_activations",
        "preprocessing",
        "labels",
        "multi_label",
        "calibration",
        "extras",
        "report",
        "keys",
        "branch_scale",
    }
)


# Wrapper classes of torch, and the attribute that holds the model.
WRAPPERS = {
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
}


@dataclass(frozen=True)
class Difference:
    """One difference between a model and the one that its config describes."""

    kind: Kind
    name: str  # of the module or parameter; "": the model itself
    text: str

    def __str__(self) -> str:
        return self.text


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of torch.compile and distributed training. A wrapper with hooks or
    with another `forward` may compute something else and is returned unchanged."""
    while (attribute := _wraps(model)) is not None and not has_hooks(model):
        if attribute == "module" and "forward" in vars(model):  # torch.compile sets `forward`, the others do not
            break
        model = getattr(model, attribute)
    return model


def vitreous_model(model: nn.Module, what: str) -> Model:
    """Return the ViT or BiT without torch's wrappers. Raise for any other object; `what` names the caller."""
    found = unwrapped_model(model, what)
    if isinstance(found, CustomModel):
        raise VitreousError(f"{what}: is for ViTs and BiTs of Vitreous, and {found.config.code} is a model of your own")
    return found


def unwrapped_model(model: nn.Module, what: str) -> Model:
    """Return the model without torch's wrappers: a ViT, a BiT, or one of the user's own that a run has trained."""
    found = unwrapped(model)
    if isinstance(found, Model):
        return found
    given = type(found).__name__
    if _wraps(found) is not None:
        raise VitreousError(f"{what}: {given} has hooks or a forward of its own: change the model inside it instead")
    raise VitreousError(f"{what}: expected a model from vitreous.load or vitreous.create, got {given}")


def _wraps(model: nn.Module) -> str | None:
    # By name: importing torch's compiler takes seconds.
    return WRAPPERS.get(f"{type(model).__module__}.{type(model).__qualname__}")


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module was compiled: `module.compile()` or `torch.compile(module)`."""
    return module._compiled_call_impl is not None or _wraps(module) == "_orig_mod"


def has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, hooks, None) for hooks in HOOKS)


def differences(model: nn.Module) -> Iterator[Difference]:
    """Yield all differences between a model and `build_model(model.config)`, except for the values, dtype, device and
    requires_grad of parameters."""
    if type(model) not in (VisionTransformer, BiT):
        yield Difference("type", "", f"it is of type {type(model).__name__}, not VisionTransformer or BiT")
        return
    yield from _global_hooks()
    standard = _standard(model.config)
    found = dict(model.named_modules(remove_duplicate=False))
    yield from _patched(standard)
    for name in found:
        if name not in standard and not _below_a_difference(name, found, standard):
            yield Difference("module", name, f"{name} is not part of a model with its config")
    for name, expected in standard.items():
        if name not in found:
            if not _below_a_difference(name, found, standard):
                yield Difference("module", name, f"{name} is missing")
        elif type(found[name]) is not type(expected):
            actual, usual = type(found[name]).__name__, type(expected).__name__
            yield Difference("type", name, f"{name} is of type {actual}, not {usual}")
        else:
            yield from _module_differences(name, found[name], expected)
    yield from _shared(model)


def difference(model: nn.Module, allowed: Collection[Kind] = ()) -> str | None:
    """Return the text of the first difference that is not of an allowed kind, or None."""
    return next((str(found) for found in differences(model) if found.kind not in allowed), None)


def hooked(model: nn.Module) -> str | None:
    """Return a text that names the first module with hooks, or None."""
    if found := next(_global_hooks(), None):
        return str(found)
    names = (name for name, module in model.named_modules() if has_hooks(module))
    return next((f"{name or 'the model'} has hooks" for name in names), None)


class Structure:
    """Records the modules, parameters and hooks of a model, to detect later changes. A check takes about 0.1 ms, which
    is cheap enough for every step. Of other attributes, only a `forward` set on an instance is detected."""

    def __init__(self, model: nn.Module):
        self.modules = list(model.modules())
        self.attributes = [vars(module) for module in self.modules]
        self.parts: list[dict[str, Any]] = [
            held for module in self.modules for held in (module._modules, module._parameters) if held
        ]
        self.hooks = [getattr(module, hooks) for module in self.modules for hooks in CALL_HOOKS]
        self.before = self._state()

    def _state(self) -> list[object]:
        kinds, own = list(map(type, self.modules)), ["forward" in held for held in self.attributes]
        parts = [list(map(id, held.values())) for held in self.parts]
        return [kinds, own, parts, sum(map(len, self.hooks))]

    def changed(self) -> bool:
        return self._state() != self.before


@lru_cache(maxsize=16)
def _standard(config: ViTConfig | BiTConfig) -> dict[str, nn.Module]:
    with torch.device("meta"):
        return dict(build_model(config).named_modules(remove_duplicate=False))


def _global_hooks() -> Iterator[Difference]:
    for hooks in CALL_HOOKS:
        if getattr(torch_module, f"_global{hooks}", None):
            yield Difference("hook", "", "torch has global module hooks")


def _patched(standard: dict[str, nn.Module]) -> Iterator[Difference]:
    """Yield methods that were replaced on a class, which new instances have too. Of torch's classes, only the methods
    that a call of a module goes through are compared."""
    kinds = {kind: None for module in standard.values() for kind in type(module).__mro__ if issubclass(kind, nn.Module)}
    for kind in kinds:
        own = kind.__module__.startswith("vitreous.")
        for name, member in vars(kind).items():
            if kind is nn.Module and name == "forward":  # a function outside of the class, which raises
                continue
            method = callable(member) or isinstance(member, property | partialmethod | classmethod | staticmethod)
            if method and (own or name in CALL_METHODS) and not _is_defined_in(member, kind):
                yield Difference("override", "", f"{kind.__name__}.{name} is replaced")


def _is_defined_in(member: object, kind: type) -> bool:
    """Return whether a member of a class is written in its class statement. Names are not compared, because
    `functools.wraps` copies them to a wrapper."""
    functions = [member.fget, member.fset] if isinstance(member, property) else [member]
    return all(function is None or _is_in_module_of(function, kind) for function in functions)


def _is_in_module_of(function: object, kind: type) -> bool:
    if not isinstance(function, FunctionType):
        return False
    if function.__globals__ is vars(torch.utils._contextlib):  # @torch.no_grad()
        return _is_in_module_of(getattr(function, "__wrapped__", None), kind)
    place = function.__code__.co_qualname.rpartition(".")[0]
    return function.__globals__ is vars(sys.modules[kind.__module__]) and place == kind.__qualname__


def _below_a_difference(name: str, found: dict[str, nn.Module], standard: dict[str, nn.Module]) -> bool:
    """Return whether a parent module differs already. Only the parent is reported then."""
    parts = name.split(".")
    for length in range(1, len(parts)):
        above = ".".join(parts[:length])
        if type(found.get(above)) is not type(standard.get(above)):
            return True
    return False


def _module_differences(name: str, module: nn.Module, expected: nn.Module) -> Iterator[Difference]:
    label = name or "the model"
    if has_hooks(module):
        yield Difference("hook", name, f"{label} has hooks")
    for attribute, value in vars(module).items():
        if attribute in TORCH or attribute in FREE:
            continue
        if attribute == "_compiled_call_impl":
            if value is not None:
                yield Difference("compiled", name, f"{label} is compiled")
        elif attribute in vars(expected):
            wanted = vars(expected)[attribute]
            if type(value) is not type(wanted) or value != wanted:
                yield Difference("attribute", name, f"{_joined(name, attribute)} is {value!r}, not {wanted!r}")
        elif hasattr(type(module), attribute) or attribute in (expected._modules | expected._parameters):
            # The attribute hides a method or class attribute, a module or a parameter.
            yield Difference("override", name, f"{_joined(name, attribute)} is replaced on the instance")
    for attribute in vars(expected):
        if attribute not in vars(module) and attribute not in TORCH | FREE:
            yield Difference("attribute", name, f"{_joined(name, attribute)} is missing")
    order, usual = list(module._modules), list(expected._modules)
    if order != usual and sorted(order) == sorted(usual):
        yield Difference("module", name, f"the modules in {label} are in another order")
    yield from _parameter_differences(name, module, expected)


def _parameter_differences(name: str, module: nn.Module, expected: nn.Module) -> Iterator[Difference]:
    if module._buffers:
        yield Difference("parameter", name, f"{name or 'the model'} has buffers: {', '.join(module._buffers)}")
    for attribute in {**module._parameters, **expected._parameters}:
        actual, usual = module._parameters.get(attribute), expected._parameters.get(attribute)
        full = _joined(name, attribute)
        if actual is None and usual is None:
            continue
        if actual is None:
            yield Difference("parameter", full, f"{full} is missing")
        elif usual is None:
            yield Difference("parameter", full, f"{full} is not part of a model with its config")
        elif type(actual) is not nn.Parameter:
            yield Difference("parameter", full, f"{full} is a {type(actual).__name__}, not a plain parameter")
        elif actual.shape != usual.shape:
            yield Difference("parameter", full, f"{full} is {tuple(actual.shape)}, not {tuple(usual.shape)}")


def _shared(model: nn.Module) -> Iterator[Difference]:
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if (other := first.setdefault(id(parameter), name)) != name:
            yield Difference("shared", name, f"{name} is shared with {other}")
            return


def _joined(name: str, attribute: Any) -> str:
    return f"{name}.{attribute}" if name else str(attribute)
