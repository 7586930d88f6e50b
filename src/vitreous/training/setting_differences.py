"""Settings that differ between runs: full configs are compared, with the values that were chosen automatically."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.errors import VitreousError, brief
from vitreous.training.config import DURATION_FIELDS, TrainConfig
from vitreous.training.initial_weights import source_name
from vitreous.training.legs import length_change, read_legs
from vitreous.training.resume_checks import CHANGEABLE_FIELDS

# The name of the output, and fields that do not change the weights; `start` is compared by the content of the file.
IGNORED_FIELDS = frozenset((*CHANGEABLE_FIELDS, "out", "start"))
MAX_TEXT = 60  # characters of a value
SCALARS = (str, int, float, bool)
RANDOM_WEIGHTS = "random weights"


def settings_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that determine its weights, by name, from its config.json.

    `initial_weights` is the name of the checkpoint. A field that the version of the run did not have has its default.
    """
    defaults = json.loads(json.dumps(TrainConfig().flat()))
    config = {**defaults, **description["config"]}
    settings = {name: _value(name, config[name]) for name in config if name not in IGNORED_FIELDS}
    if change := length_change(read_legs(dict(description))):
        settings["duration"] = f"{settings['duration']}, {change}"
    return {"initial_weights": initial_weights_name(description), **settings}


def initial_weights_name(description: Mapping[str, Any]) -> str:
    """The name of the checkpoint that a run started from, or "random weights"."""
    start = description.get("start")
    source = start.get("source") if isinstance(start, dict) else None
    return source_name(source) if isinstance(source, str) else RANDOM_WEIGHTS


def differing_settings(descriptions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each run, the settings that are not equal in all of them. All runs have the same keys."""
    runs = [settings_of(description) for description in descriptions]
    names = list(dict.fromkeys(name for settings in runs for name in settings))
    digests = {_start_digest(description) for description in descriptions}
    different = [name for name in names if len({_key(settings.get(name)) for settings in runs}) > 1]
    if len(digests) > 1 and "initial_weights" not in different:  # different files of the same name
        different.insert(0, "initial_weights")
        for settings, description in zip(runs, descriptions, strict=True):
            if digest := _start_digest(description):
                settings["initial_weights"] += f" ({digest[:8]})"
    return [{name: settings.get(name) for name in different} for settings in runs]


def setting_text(value: Any) -> str:
    """A value as text: "-" for None, floats with four digits, sizes as "16 x 24", other lists with spaces."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        sizes = len(value) == 2 and all(type(part) is int for part in value)
        text = (" x " if sizes else " ").join(map(setting_text, value)) or "none"
    else:
        text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def _value(name: str, value: Any) -> Any:
    """A value of config.json: a scalar or a list of scalars. Durations are written in one way."""
    if isinstance(value, list) and not any(isinstance(part, list) for part in value):
        return [_value(name, part) for part in value]
    if value is not None and not isinstance(value, SCALARS):
        raise VitreousError(f"config.json: {brief(name)} has a value that is not one of a setting")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN
    if name in DURATION_FIELDS and isinstance(value, str):
        number = value.rstrip("%abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
        unit = value[len(number) :].strip()
        return f"{number}{unit}" if unit in ("", "%") else f"{number} {unit}"
    return value


def _key(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**53 else value  # 1 and 1.0 are equal
    return json.dumps(value, sort_keys=True, default=str)


def _start_digest(description: Mapping[str, Any]) -> str:
    start = description.get("start")
    return str(start.get("digest") or "") if isinstance(start, dict) else ""
