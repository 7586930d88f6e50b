"""Our own dialect: one `.safetensors` file whose metadata holds everything but the weights, as JSON."""

import json
from dataclasses import asdict, fields
from typing import Any

from vitreous import __version__
from vitreous.errors import VitreousError
from vitreous.models.resnet import BiTConfig, ResNetConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.weights.checkpoint import Checkpoint, Config, Form, Found, Hints, Labels, parameter_shapes
from vitreous.weights.files import Tensors
from vitreous.weights.places import Place

NAME = "native"
KINDS: dict[str, Any] = {"vit": ViTConfig, "bit": BiTConfig}
EXTRAS = ("mask_token",)


def claims(tensors: Tensors, settings: dict[str, Any]) -> bool:
    return "vitreous" in tensors.metadata


def read(tensors: Tensors, hints: Hints) -> Found:
    try:
        card = json.loads(tensors.metadata["vitreous"])
    except (ValueError, TypeError, RecursionError) as error:
        raise VitreousError(f"its description is not JSON ({error})") from error
    if not isinstance(card, dict) or not isinstance(card.get("config"), dict):
        raise VitreousError("its description lacks a config")
    config = config_from_json(card.get("model"), card["config"])
    layers = config.depth if isinstance(config, ViTConfig) else sum(config.blocks)
    if layers > len(tensors):  # before a million of them are built
        raise VitreousError(f"its description has {layers:,} layers, the file {len(tensors):,} tensors")
    if hints.heads is not None and isinstance(config, ViTConfig) and hints.heads != config.heads:
        raise VitreousError(f"heads = {hints.heads}, but the file says {config.heads}")
    labels, origin, guesses = card.get("labels"), card.get("origin") or {}, card.get("guesses") or []
    if not isinstance(origin, dict) or not isinstance(guesses, list):
        raise VitreousError("its origin is not an object, or its guesses are not a list")
    if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise VitreousError("its labels are not a list of names")
    return Found(
        dialect=NAME,
        config=config,
        places={name: Place((name,)) for name in parameter_shapes(config)},
        preprocessing=Preprocessing.from_json(card.get("preprocessing", {})),
        labels=check_labels(labels, config),
        multi_label=card.get("multi_label") is True,
        extras={name: Place((name,)) for name in EXTRAS if name in tensors},
        ignored={name: "for pre-training only" for name in EXTRAS if name in tensors},
        origin=origin,
        notes=[str(guess) for guess in guesses],
    )


def write(checkpoint: Checkpoint, config: Config) -> Form:
    places = {name: Place((name,)) for name in [*checkpoint.state, *checkpoint.extras]}
    return Form(places, objections=[], carries_labels=True)


def metadata(checkpoint: Checkpoint) -> dict[str, str]:
    card = {
        "version": __version__,
        "model": "vit" if isinstance(checkpoint.config, ViTConfig) else "bit",
        "config": asdict(checkpoint.config),
        "preprocessing": checkpoint.preprocessing.to_json(),
        "labels": checkpoint.labels,
        "multi_label": checkpoint.multi_label,
        "origin": checkpoint.report.origin,
        "guesses": checkpoint.report.guesses,
    }
    return {"format": "pt", "vitreous": json.dumps(card)}


def config_from_json(kind: Any, values: dict[str, Any]) -> Config:
    if not isinstance(kind, str) or kind not in KINDS:
        raise VitreousError(f"it holds a model of the kind {kind!r}; this version knows {', '.join(KINDS)}")
    values = dict(values)
    if isinstance(values.get("backbone"), dict):
        values["backbone"] = _build(ResNetConfig, values["backbone"])
    config: Config = _build(KINDS[kind], values)
    return config


def _build(kind: Any, values: dict[str, Any]) -> Any:
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise VitreousError(
            f"its config has fields that this version ({__version__}) does not know: {', '.join(unknown)};"
            " a newer vitreous may have written it"
        )
    return kind(**values)


def check_labels(labels: Any, config: Config) -> Labels:
    if labels is None:
        return None
    if len(labels) != config.num_classes:
        raise VitreousError(f"{len(labels)} labels for {config.num_classes} classes")
    return tuple(labels)
