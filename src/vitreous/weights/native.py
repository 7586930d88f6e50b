"""The native dialect: one `.safetensors` file whose metadata holds config, preprocessing and labels as JSON."""

import json
from dataclasses import asdict, fields
from typing import Any

from vitreous import __version__
from vitreous.errors import VitreousError, brief, one_line, summarize_names
from vitreous.models.calibration import Calibration
from vitreous.models.custom import CustomConfig
from vitreous.models.resnet import BiTConfig, ResNetConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.weights.checkpoint import Checkpoint, Config, Labels, parameter_shapes
from vitreous.weights.dialect import ANY_MODEL, Dialect, Hints, ParsedCheckpoint, WritePlan
from vitreous.weights.load_report import Remarks, guess_lines, read_guesses
from vitreous.weights.tensor_map import DialectTensor
from vitreous.weights.tensors import Tensors

CONFIG_CLASSES: dict[str, Any] = {"vit": ViTConfig, "bit": BiTConfig}
EXTRAS = ("mask_token", "patch_head.weight", "patch_head.bias")
CUSTOM = "custom"  # kind of a model of the user's own, see custom.py


def _matches(tensors: Tensors, config_json: dict[str, Any]) -> bool:
    return "vitreous" in tensors.metadata


def _read(tensors: Tensors, hints: Hints) -> ParsedCheckpoint:
    try:
        metadata = json.loads(tensors.metadata["vitreous"])
    except (ValueError, TypeError, RecursionError) as error:
        raise VitreousError(f"its metadata is not JSON ({one_line(error)})") from error
    if not isinstance(metadata, dict) or not isinstance(metadata.get("config"), dict):
        raise VitreousError("its metadata has no config")
    if metadata.get("model") == CUSTOM:
        raise VitreousError(
            f"it holds the weights of a model of your own, {brief(metadata['config'].get('code'))}; loading it runs"
            " that code: vitreous.load(FILE, model=...), or predict, evaluate and features of its run directory with"
            " --trust-code"
        )
    config = config_from_json(metadata.get("model"), metadata["config"])
    layers = config.depth if isinstance(config, ViTConfig) else sum(config.blocks)
    if layers > len(tensors):  # checked before the model is built
        raise VitreousError(f"its config has {layers:,} layers, and the file has {len(tensors):,} tensors")
    if hints.heads is not None and isinstance(config, ViTConfig) and hints.heads != config.heads:
        raise VitreousError(f"heads = {hints.heads}, but the file says {config.heads}")
    labels, origin, guesses = metadata.get("labels"), metadata.get("origin") or {}, metadata.get("guesses") or []
    if not isinstance(origin, dict) or not isinstance(guesses, list):
        raise VitreousError("in its metadata, origin is not an object, or guesses is not a list")
    if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise VitreousError("in its metadata, labels is not a list of names")
    return ParsedCheckpoint(
        dialect=NATIVE.name,
        config=config,
        tensor_map={name: DialectTensor((name,)) for name in parameter_shapes(config)},
        preprocessing=Preprocessing.from_json(metadata.get("preprocessing", {})),
        labels=check_labels(labels, config),
        multi_label=metadata.get("multi_label") is True,
        calibration=_read_calibration(metadata.get("calibration"), config),
        extras={name: DialectTensor((name,)) for name in EXTRAS if name in tensors},
        ignored={name: "for pre-training only" for name in EXTRAS if name in tensors},
        origin=origin,
        remarks=Remarks(guesses=read_guesses(guesses)),
    )


def _write(checkpoint: Checkpoint, config: Config) -> WritePlan:
    tensor_map = {name: DialectTensor((name,)) for name in [*checkpoint.state, *checkpoint.extras]}
    return WritePlan(tensor_map, stores_labels=True, stores_multi_label=True, stores_calibration=True)


def native_metadata(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the metadata of a native `.safetensors` file."""
    metadata: dict[str, Any] = {
        "version": __version__,
        "model": "vit" if isinstance(checkpoint.config, ViTConfig) else "bit",
        "config": asdict(checkpoint.config),
        "preprocessing": checkpoint.preprocessing.to_json(),
        "labels": checkpoint.labels,
        "multi_label": checkpoint.multi_label,
        "origin": checkpoint.report.origin,
        "guesses": guess_lines(checkpoint.report.guesses),
    }
    if checkpoint.calibration is not None:  # earlier versions ignore it: they compute the same logits
        metadata["calibration"] = checkpoint.calibration.to_json()
    return {"format": "pt", "vitreous": json.dumps(metadata)}


def _read_calibration(values: Any, config: Config) -> Calibration | None:
    if values is None:
        return None
    try:
        calibration = Calibration.from_json(values)
        calibration.check_classes(config.num_classes)
    except VitreousError as error:
        raise VitreousError(f"in its metadata, {error}") from error
    return calibration


def config_from_json(kind: Any, values: dict[str, Any]) -> Config:
    """Return the config of a model; `kind` is "vit" or "bit"."""
    if not isinstance(kind, str) or kind not in CONFIG_CLASSES:
        known = ", ".join(CONFIG_CLASSES)
        raise VitreousError(f"it holds a model of the unknown kind {kind!r}; this version supports {known}")
    values = dict(values)
    if isinstance(values.get("backbone"), dict):
        values["backbone"] = _build(ResNetConfig, values["backbone"])
    config: Config = _build(CONFIG_CLASSES[kind], values)
    return config


def _build(config_class: Any, values: dict[str, Any]) -> Any:
    known = {field.name for field in fields(config_class)}
    if unknown := sorted(set(values) - known):
        raise VitreousError(
            f"its config has fields that this version ({__version__}) does not support: {summarize_names(unknown)};"
            " a newer vitreous may have written it"
        )
    return config_class(**values)


def check_labels(labels: Any, config: Config | CustomConfig) -> Labels:
    """Return the labels as a tuple; raise an error if their number differs from the number of classes."""
    if labels is None:
        return None
    if len(labels) != config.num_classes:
        raise VitreousError(f"{len(labels)} labels for {config.num_classes} classes")
    return tuple(labels)


NATIVE = Dialect("native", _matches, _read, _write, (".safetensors",), ANY_MODEL)
