"""Checkpoints of models of the user's own: weights, preprocessing and labels, and the import path of the code.

Opening such a file runs no code: `load_custom` is given the class, function or module.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous import __version__
from vitreous.errors import VitreousError, brief, one_line, summarize_names
from vitreous.models.custom import CustomConfig, CustomModel, build_custom_module
from vitreous.preprocessing import Preprocessing
from vitreous.utils.import_path import (
    import_object,
    import_path_of,
    is_import_path,
    object_text,
    short_import_path,
    source_digest,
)
from vitreous.weights.checkpoint_files import open_checkpoint
from vitreous.weights.containers import write_tensors
from vitreous.weights.native import CUSTOM, check_labels
from vitreous.weights.tensors import Tensors


def save_custom(model: CustomModel, path: Path) -> None:
    """Write a model of the user's own. The tensors have the names of its own state_dict."""
    state = {name: tensor.detach().contiguous() for name, tensor in model.module.state_dict().items()}
    for name, tensor in state.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise VitreousError(f"{path}: {name} has values that are NaN or infinite; nothing was written")
    preprocessing = model.preprocessing
    metadata: dict[str, Any] = {
        "version": __version__,
        "model": CUSTOM,
        "config": asdict(model.config),
        "preprocessing": None if preprocessing is None else preprocessing.to_json(),
        "labels": model.labels,
        "multi_label": model.multi_label,
    }
    write_tensors(path, state, {"format": "pt", "vitreous": json.dumps(metadata)})


def load_custom(source: str | os.PathLike[str], model: object, device: torch.device | str = "cpu") -> CustomModel:
    """Load a model of the user's own, in eval mode. `model`: the class or function that builds it, its import path, or
    a module, which is copied."""
    name = os.fsdecode(source)
    try:
        tensors = open_checkpoint(source).tensors
        metadata = custom_metadata(tensors)
        if metadata is None:
            raise VitreousError("model: this file does not hold a model of your own; load it without `model`")
        config, preprocessing, labels = _read_metadata(metadata)
        if isinstance(model, str):
            if not is_import_path(model):
                raise VitreousError(f"model = {brief(model)}: expected a class, function or module, or file.py:NAME")
            model = import_object(model)
        path = import_path_of(model)
        code = short_import_path(path or object_text(model))
        module = build_custom_module(model, code, config.num_classes, config.channels, config.image_size)
        _load_tensors(module, {name: tensors[name] for name in tensors}, code)
    except VitreousError as error:
        raise VitreousError(f"{name}: {error}") from error
    loaded = CustomModel(module, config)
    loaded.preprocessing, loaded.labels = preprocessing, labels
    loaded.code_digest = None if path is None else source_digest(path)
    loaded.multi_label = metadata.get("multi_label") is True
    return loaded.to(device).eval()


def custom_metadata(tensors: Tensors) -> dict[str, Any] | None:
    """Return what a file says about a model of the user's own. None: it holds another model."""
    try:
        metadata = json.loads(tensors.metadata.get("vitreous", "null"))
    except (ValueError, TypeError, RecursionError) as error:
        raise VitreousError(f"its metadata is not JSON ({one_line(error)})") from error
    return metadata if isinstance(metadata, dict) and metadata.get("model") == CUSTOM else None


def _read_metadata(metadata: dict[str, Any]) -> tuple[CustomConfig, Preprocessing | None, tuple[str, ...] | None]:
    values, preprocessing, labels = metadata.get("config"), metadata.get("preprocessing"), metadata.get("labels")
    if not isinstance(values, dict) or values.keys() != {"code", "num_classes", "channels", "image_size"}:
        raise VitreousError("its metadata has no config")
    if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise VitreousError("in its metadata, labels is not a list of names")
    size = values["image_size"]
    config = CustomConfig(**{**values, "image_size": tuple(size) if isinstance(size, list) else size})
    read = None if preprocessing is None else Preprocessing.from_json(preprocessing)
    return config, read, check_labels(labels, config)


def _load_tensors(module: torch.nn.Module, state: dict[str, Tensor], code: str) -> None:
    own = module.state_dict()
    missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or unexpected:
        texts = [
            f"{what}: {summarize_names(some)}"
            for what, some in (("not in the file", missing), ("not in the model", unexpected))
            if some
        ]
        raise VitreousError(f"model {code}: its tensors are not those of the file; {'; '.join(texts)}")
    for name, value in state.items():
        if own[name].shape != value.shape:
            raise VitreousError(
                f"model {code}: {name} is {tuple(own[name].shape)}, and {tuple(value.shape)} in the file"
            )
    module.load_state_dict(state)
