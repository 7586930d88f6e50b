"""Turn a model in memory into a checkpoint, after checking that a file can represent it.

A file holds a config and tensors, and loading it builds the model of that config. Therefore a model that was changed in
a way that its config does not describe is refused, with an error that names the change.
"""

import copy
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, VitreousWarning, brief, format_count, summarize_names
from vitreous.models.calibration import Calibration
from vitreous.models.resnet import BiT
from vitreous.models.standard import differences, unwrapped, vitreous_model
from vitreous.models.vit import VisionTransformer
from vitreous.preprocessing import Preprocessing, default_preprocessing
from vitreous.utils.sizes import pair
from vitreous.weights.checkpoint import Checkpoint, Config, parameter_shapes
from vitreous.weights.load_report import LoadReport
from vitreous.weights.native import EXTRAS, check_labels
from vitreous.weights.safetensors_file import DTYPES
from vitreous.weights.tensor_map import State

ALLOWED_DIFFERENCES = ("compiled", "shared")  # they do not affect the file: compiled in place, tied parameters
MAX_CHANGES = 8  # changes that a message lists


def snapshot(model: nn.Module, force: bool) -> Checkpoint:
    """Return the checkpoint of a model. A new linear head is accepted. `force`: warn about changes that do not affect
    names and shapes of tensors (a hook, another activation): the loaded file will compute without them.
    """
    if not isinstance(model, nn.Module):
        raise VitreousError(f"save: expected a model from vitreous.load or vitreous.create, got {brief(model)}")
    inner = vitreous_model(_without_wrappers(model), "save")
    assert isinstance(inner, VisionTransformer | BiT)
    inner = _with_head_classes(inner)
    changes = [str(difference) for difference in differences(inner) if difference.kind not in ALLOWED_DIFFERENCES]
    state = _state(inner, changes)
    if changes and not force:
        raise VitreousError(
            f"the model is not the one that its config describes, so the saved file would compute other outputs:"
            f" {_join_changes(changes)}. Undo the change, or save the weights without it: force=True"
        )
    if changes:
        text = f"the file does not contain these changes of the model: {_join_changes(changes)}"
        warnings.warn(text, VitreousWarning, stacklevel=4)
    return Checkpoint(
        inner.config,
        state,
        _preprocessing(inner.preprocessing, inner.config),
        _labels(inner.labels, inner.config),
        _report(inner),
        _extras(inner.extras or {}),
        _multi_label(inner.multi_label),
        _calibration(inner.calibration, inner.config),
    )


def _report(model: VisionTransformer | BiT) -> LoadReport:
    """Return the report of the file that the model was loaded from, or one for a model that was never in a file."""
    if isinstance(model.report, LoadReport):
        return model.report
    return LoadReport("a model in memory", "memory", "native", model.config)


def _without_wrappers(module: nn.Module, seen: dict[int, nn.Module] | None = None) -> nn.Module:
    """Return the module without the wrappers of torch.compile and distributed training, also around submodules. The
    original is not changed: modules that contain a wrapped submodule are shallow copies."""
    seen = {} if seen is None else seen
    if id(module) not in seen:
        inner = unwrapped(module)
        submodules = inner._modules.items()
        children = {name: None if child is None else _without_wrappers(child, seen) for name, child in submodules}
        if any(child is not inner._modules[name] for name, child in children.items()):
            inner = copy.copy(inner)
            inner.__dict__["_modules"] = children
        seen[id(module)] = inner
    return seen[id(module)]


def _with_head_classes(model: VisionTransformer | BiT) -> VisionTransformer | BiT:
    """Return the model with `config.num_classes` of its current head, which may have been replaced or removed."""
    head, config = model.head, model.config
    classes = config.num_classes
    if type(head) is nn.Linear and head.bias is not None and head.weight.shape[1] == config.head_width:
        classes = len(head.weight)
    elif type(head) is nn.Identity:
        classes = 0
    if classes == config.num_classes:
        return model
    changed = copy.copy(model)
    changed.config = replace(config, num_classes=classes)
    if model.calibration is not None:
        changed.calibration = None
        warnings.warn("the head was replaced: the calibration is not saved", VitreousWarning, stacklevel=5)
    if model.labels is not None and len(model.labels) == config.num_classes:  # names of the classes of the old head
        changed.labels = None
        text = f"the head was replaced by one for {format_count(classes, 'class')}: the old class names are not saved"
        warnings.warn(f"{text}; set model.labels to the new ones", VitreousWarning, stacklevel=5)
    return changed


def _state(model: VisionTransformer | BiT, changes: list[str]) -> State:
    """Return the state dict, with tied parameters under each of their names, after checking that `load` accepts it."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    expected = parameter_shapes(model.config)
    if {name: tuple(p.shape) for name, p in parameters.items()} != dict(expected):
        odd = sorted(parameters.keys() ^ expected.keys()) or [n for n in expected if parameters[n].shape != expected[n]]
        reason = _join_changes(changes) if changes else f"it has other tensors: {summarize_names(odd)}"
        raise VitreousError(
            f"the model is not the one that its config describes, and it cannot be saved: {reason}."
            " To replace the head: model.reset_head(K), or a Linear with the same input width and a bias"
        )
    for name, parameter in parameters.items():
        _check_tensor(parameter, name)
    return {name: p.detach() for name, p in parameters.items()}


def _check_tensor(tensor: Tensor, name: str) -> None:
    if type(tensor) not in (nn.Parameter, Tensor) or tensor.layout != torch.strided:
        kind = type(tensor).__name__ if tensor.layout == torch.strided else str(tensor.layout)
        raise VitreousError(f"{name} is a {kind}, not a plain tensor: it cannot be saved")
    if tensor.is_meta:
        raise VitreousError(f"{name} is on the meta device and has no values to save")
    if not tensor.is_floating_point() or tensor.dtype not in DTYPES.values():
        raise VitreousError(f"{name} holds {str(tensor.dtype)[6:]}, not floating-point numbers: it cannot be loaded")
    wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch has no isfinite for 8-bit types
    bad = int((~torch.isfinite(wide)).sum())
    if bad:
        raise VitreousError(f"{name} holds {bad:,} of {tensor.numel():,} values that are not numbers (NaN or infinite)")


def _preprocessing(value: Any, config: Config) -> Preprocessing:
    size = pair(config.image_size)
    if value is None:
        return default_preprocessing(size, config.channels)
    if not isinstance(value, Preprocessing):
        raise VitreousError(f"model.preprocessing: expected a Preprocessing, got {type(value).__name__}")
    if len(value.mean) != config.channels:
        raise VitreousError(
            f"model.preprocessing is for {len(value.mean)} channels, the model takes {config.channels}: set one that"
            f" fits, such as model.preprocessing.for_channels({config.channels}), or None"
        )
    try:
        config.grid_at(pair(value.size))
    except VitreousError as error:
        raise VitreousError(
            f"model.preprocessing has a size that the model does not take: {error}; set one that fits, such as"
            f" model.preprocessing.at({size}), or None"
        ) from error
    return value


def _labels(labels: Any, config: Config) -> tuple[str, ...] | None:
    if labels is None:
        return None
    if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
        raise VitreousError("model.labels: expected a list of names, or None")
    try:
        return check_labels(labels, config)
    except VitreousError as error:
        raise VitreousError(
            f"{error}: set model.labels to the names of the model's classes, or to None, as model.reset_head does"
        ) from error


def _extras(extras: Any) -> State:
    """Return `model.extras`. `load` would refuse other tensors than those in EXTRAS as unexpected."""
    if not isinstance(extras, dict) or not extras.keys() <= set(EXTRAS):
        raise VitreousError(f"model.extras: expected a dict of tensors with no other names than {', '.join(EXTRAS)}")
    for name, tensor in extras.items():
        if not isinstance(tensor, Tensor):
            raise VitreousError(f"model.extras: {name} is a {type(tensor).__name__}, not a tensor")
        _check_tensor(tensor, name)
    return {name: tensor.detach() for name, tensor in extras.items()}


def _multi_label(value: Any) -> bool:
    if not isinstance(value, bool):
        raise VitreousError(f"model.multi_label = {value!r}: expected True or False")
    return value


def _calibration(value: Any, config: Config) -> Calibration | None:
    if value is not None and not isinstance(value, Calibration):
        raise VitreousError(f"model.calibration = {brief(value)}: expected a Calibration, or None")
    if value is not None:
        value.check_classes(config.num_classes)
    return value


def _join_changes(changes: list[str]) -> str:
    more = f" and {len(changes) - MAX_CHANGES} more" if len(changes) > MAX_CHANGES else ""
    return "; ".join(changes[:MAX_CHANGES]) + more
