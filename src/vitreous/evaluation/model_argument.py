"""The argument `model` of the public functions: a model in memory, or anything that `vitreous.load` accepts."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, brief
from vitreous.evaluation.evaluated_model import EvaluatedModel, display_name, is_own_file, open_model
from vitreous.evaluation.training_images import describe_selection, training_images_of
from vitreous.models.base import Model
from vitreous.models.standard import unwrapped_model
from vitreous.preprocessing import Preprocessing
from vitreous.utils.device import pick_device
from vitreous.weights.load import read_checkpoint
from vitreous.weights.load_report import LoadReport
from vitreous.weights.model_info import preprocessing_of

ModelSource = nn.Module | str | os.PathLike[str]


def model_argument(
    model: ModelSource,
    what: str,
    *,
    device: str | torch.device = "auto",
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    training_images: bool = False,
    trust_code: bool = False,
) -> EvaluatedModel:
    """Open a checkpoint on a device, or take a model in memory as it is, on its own device. `what` names the caller.

    `training_images`: find out on which images a model in memory was trained. This reads its file again, to check that
    the weights are still those of the file. `trust_code`: as in `open_model`.
    """
    if not isinstance(model, nn.Module):
        if not isinstance(model, str | os.PathLike):
            raise VitreousError(f"{what}: expected a model, or a path or name of one, got {brief(model)}")
        return open_model(model, model_device(model, device), heads, preprocessing, trust_code)
    found = unwrapped_model(model, what)
    for name, value in (("heads", heads), ("preprocessing", preprocessing)):
        if value is not None:
            raise VitreousError(
                f"{name} = {brief(value)}: for files that do not contain it; a model in memory has"
                f" model.{'config.heads' if name == 'heads' else name}"
            )
    model_device(found, device)
    source = found.report.source if isinstance(found.report, LoadReport) else None
    name = "model in memory" if source is None else f"{display_name(source)} (in memory)"
    notes = (*(found.report.notes if found.report else ()), *_assumptions(found))
    any_model: Any = found
    if not training_images:
        return EvaluatedModel(name, any_model, notes, selection="unknown")
    if source is None or not has_weights_of_its_file(found):
        reason = "was not loaded from a file" if source is None else f"differs from {source}, which it was loaded from"
        selection = f"unknown: the model in memory {reason}"
        return EvaluatedModel(name, any_model, notes, None, selection, training_images_unknown=True)
    seen, selection = training_images_of(source), describe_selection(source)
    return EvaluatedModel(name, any_model, notes, seen, selection, is_own_file(any_model, source))


def file_of(model: object) -> object:
    """Return the path or name that a model in memory was loaded from, if any; a path or name is returned unchanged."""
    report = getattr(model, "report", None) if isinstance(model, nn.Module) else None
    return report.source if isinstance(report, LoadReport) else model


def has_weights_of_its_file(model: Model) -> bool:
    """Return whether the parameters of a model are still those of the file that it was loaded from."""
    assert isinstance(model.report, LoadReport)
    try:
        stored = read_checkpoint(model.report.source).state
    except VitreousError:  # the file was moved, or needs options
        return False
    parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    return parameters.keys() == stored.keys() and all(
        p.shape == stored[name].shape and torch.equal(p.detach().cpu(), stored[name].to(p.dtype))
        for name, p in parameters.items()
    )


def model_device(model: object, device: str | torch.device) -> torch.device:
    """Return the device to run on: that of a model in memory, otherwise the requested one."""
    if not isinstance(model, nn.Module):
        return pick_device(device) if isinstance(device, str) else device
    own = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if own.type == "meta":
        raise VitreousError("the model is on the meta device and has no weights")
    if device != "auto" and (pick_device(device) if isinstance(device, str) else device) != own:
        raise VitreousError(f"device = {brief(str(device))}: the model is on {own}; move it with model.to(...)")
    return own


def _assumptions(model: Model) -> list[str]:
    """Return notes on what a model in memory does not contain."""
    notes = []
    if model.preprocessing is None:
        notes.append(f"the model has no preprocessing (model.preprocessing); assumed: {preprocessing_of(model)}")
    if (dtype := next(model.parameters()).dtype) != torch.float32:
        notes.append(f"the weights of the model are {str(dtype).removeprefix('torch.')}, and it runs in this precision")
    return notes
