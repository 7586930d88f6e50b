"""Weights to start from: the model of a checkpoint, with a new head for the classes of the data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import VitreousError
from vitreous.models import zoo
from vitreous.models.checks import pair
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.training.config import Architecture, TrainConfig
from vitreous.weights import hub, shipped
from vitreous.weights.checkpoint_files import WEIGHT_FILES
from vitreous.weights.load import read_checkpoint
from vitreous.weights.model_info import tensors_digest
from vitreous.weights.native import config_from_json
from vitreous.weights.tensor_map import State

STRUCTURE = ("patch_size", "width", "depth", "heads", "mlp_dim", "pool", "position", "registers", "qk_norm")
REST = ("layer_scale", "representation_size", "head_bias")  # no name says those; a new head is a plain one
BODY = ("blocks", "width_factor", "activation", "backbone", "mlp")  # what a name can say beside those
DROPS = ("dropout", "stochastic_depth")


@dataclass(frozen=True)
class InitialWeights:
    """The model that a run starts from, without its weights: enough to resume the run when their file is gone."""

    source: str  # a name, or an absolute path
    model: ViTConfig | BiTConfig
    preprocessing: Preprocessing
    digest: str  # of the weights
    guesses: tuple[str, ...] = ()  # what the file did not say

    @property
    def name(self) -> str:
        return source_name(self.source)

    def to_json(self) -> dict[str, Any]:
        kind = "vit" if isinstance(self.model, ViTConfig) else "bit"
        described = {"model": kind, "config": asdict(self.model), "preprocessing": self.preprocessing.to_json()}
        return {"source": self.source, **described, "digest": self.digest, "guesses": self.guesses}

    @classmethod
    def from_json(cls, values: Any) -> InitialWeights:
        """What `to_json` gave."""
        try:
            model = config_from_json(values["model"], values["config"])
            shown = Preprocessing.from_json(values["preprocessing"])
            return cls(values["source"], model, shown, values["digest"], tuple(values["guesses"]))
        except (KeyError, TypeError) as error:
            raise VitreousError(f"it does not say which weights the run started from ({error})") from error


def absolute_source(source: str) -> str:
    """Names as they are, paths made absolute, so that they are found from any folder."""
    return source if source in shipped.NAMES or source.startswith(hub.SCHEME) else str(Path(source).absolute())


def source_name(source: str) -> str:
    """For messages: a name, or the last part of a path that tells checkpoints apart."""
    if source in shipped.NAMES or source.startswith(hub.SCHEME):
        return source
    path = Path(source)
    return path.parent.name if path.name in WEIGHT_FILES and path.parent.name else path.name


def load_initial_weights(config: TrainConfig, classes: int) -> tuple[InitialWeights, State]:
    """The model of `config.architecture.start` with a new head of zeros, at the size that is asked for or its own."""
    asked, source = config.architecture, config.architecture.start or ""
    if not source.strip():
        raise VitreousError("start is empty: give a checkpoint, a run directory, vitreous-mini or hf://owner/name")
    try:
        found = read_checkpoint(
            source,
            num_classes=classes,
            image_size=asked.image_size,
            heads=asked.heads,
            preprocessing=asked.preprocessing,
            dtype=torch.float32,
        )
        _check(found.config)
    except VitreousError as error:
        raise VitreousError(f"the weights to start from cannot be used: {error}") from error
    _agree(asked, found.config, source_name(source))
    guesses = (f"{source_name(source)}: {found.report.guessed}",) if found.report.guessed else ()
    return InitialWeights(
        absolute_source(source), found.config, found.preprocessing, tensors_digest(found.state), guesses
    ), found.state


def reload_initial_weights(start: InitialWeights, config: TrainConfig) -> State:
    """The same weights again, for a run that ended before its first state was saved."""
    again, weights = load_initial_weights(config, start.model.num_classes)
    if again.digest != start.digest:
        raise VitreousError(f"{start.source}: these are not the weights that the run started from")
    return weights


def finetuned_config(start: InitialWeights, asked: Architecture) -> ViTConfig | BiTConfig:
    """The config of the model in this run: dropout and stochastic depth are the run's own."""
    own = [name for name in DROPS if getattr(asked, name) is not None and hasattr(start.model, name)]
    drops: dict[str, Any] = {name: getattr(asked, name) for name in own}
    return replace(start.model, **drops)


def _check(model: ViTConfig | BiTConfig) -> None:
    if model.channels not in (1, 3):
        raise VitreousError(f"the model takes {model.channels} channels; only 1 (grey) and 3 (RGB) can be trained")
    if isinstance(model, ViTConfig) and model.pool == "none":
        raise VitreousError("the model has no pooling (pool = 'none'), so it cannot have a head")


def _agree(asked: Architecture, model: ViTConfig | BiTConfig, name: str) -> None:
    """Refuse fields that would change the architecture of the weights."""
    given = {field: value for field, value in vars(asked).items() if value is not None}
    wrong = [f for f in (*STRUCTURE, *REST) if f in given and not _same(given[f], getattr(model, f, None))]
    wrong += [field for field in DROPS if given.get(field) and not hasattr(model, field)]
    theirs = [field for field in wrong if hasattr(model, field)]
    if asked.model is not None:
        named = zoo.config(asked.model)
        says = [f for f in (*STRUCTURE, *BODY) if f in zoo.ZOO[asked.model][1] and hasattr(model, f)]
        differs = [field for field in says if getattr(named, field) != getattr(model, field)]
        if differs or type(named) is not type(model):
            wrong, theirs = [*wrong, "model"], [*theirs, *differs]
    if wrong:
        asks = ", ".join(f"{field} = {given[field]!r}" for field in wrong)
        kind = "a ViT" if isinstance(model, ViTConfig) else "a BiT"
        has = ", ".join(f"{field} = {_plain(getattr(model, field))!r}" for field in dict.fromkeys(theirs))
        what = f"{kind} of {has}" if has else kind
        raise VitreousError(f"{asks}: the run starts from {name}, which is {what}; leave out what differs")


def _same(value: Any, theirs: Any) -> bool:
    return bool(theirs == value or (isinstance(theirs, tuple) and theirs == pair(value)))


def _plain(value: Any) -> Any:
    """A square by its side."""
    return value[0] if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1] else value
