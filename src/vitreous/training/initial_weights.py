"""`--from`: the model of a checkpoint as the start of a run, with a new head for the classes of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import VitreousError
from vitreous.models import zoo
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.training.config import Architecture, TrainConfig
from vitreous.training.masked_patches import fitting_patch_tensors, patch_targets
from vitreous.utils.sizes import pair
from vitreous.weights.checkpoint_files import WEIGHT_FILES, is_name
from vitreous.weights.load import read_checkpoint
from vitreous.weights.load_report import LoadReport
from vitreous.weights.model_info import tensors_digest
from vitreous.weights.native import config_from_json
from vitreous.weights.resize import resize
from vitreous.weights.tensor_map import State

STRUCTURE = ("patch_size", "width", "depth", "heads", "mlp_dim", "pool", "position", "registers", "qk_norm")
# Not part of a model name. The new head has no pre-logits.
OTHER_FIELDS = ("layer_scale", "representation_size", "position_at", "attention", "stem", "width_factor")
NAMED_FIELDS = ("blocks", "width_factor", "activation", "backbone", "mlp")  # further fields that a model name sets
DROP_RATES = ("dropout", "stochastic_depth")


@dataclass(frozen=True)
class InitialWeights:
    """The model that a run starts from, without its tensors: enough to resume the run when the file is gone."""

    source: str  # a name, or an absolute path
    model: ViTConfig | BiTConfig
    preprocessing: Preprocessing
    digest: str  # of the tensors
    guesses: tuple[str, ...] = ()  # settings that the file does not contain
    origin: Mapping[str, Any] = field(default_factory=dict)  # where the weights come from: address, licence

    @property
    def name(self) -> str:
        return source_name(self.source)

    def to_json(self) -> dict[str, Any]:
        kind = "vit" if isinstance(self.model, ViTConfig) else "bit"
        described = {"model": kind, "config": asdict(self.model), "preprocessing": self.preprocessing.to_json()}
        return {
            "source": self.source,
            **described,
            "digest": self.digest,
            "guesses": self.guesses,
            "origin": dict(self.origin),
        }

    @classmethod
    def from_json(cls, values: Any) -> InitialWeights:
        """Read the result of `to_json`."""
        try:
            model = config_from_json(values["model"], values["config"])
            preprocessing = Preprocessing.from_json(values["preprocessing"])
            guesses, origin = tuple(values["guesses"]), dict(values.get("origin") or {})  # 0.1 stored no origin
            return cls(values["source"], model, preprocessing, values["digest"], guesses, origin)
        except (KeyError, TypeError) as error:
            raise VitreousError(f"it does not say which weights the run started from ({error})") from error


def absolute_source(source: str) -> str:
    """Return a name unchanged, and a path made absolute, so that a run can be resumed from any folder."""
    return source if is_name(source) else str(Path(source).absolute())


def source_name(source: str) -> str:
    """Return a short name for messages: the name, or the last part of the path that distinguishes checkpoints."""
    if is_name(source):
        return source
    path = Path(source)
    return path.parent.name if path.name in WEIGHT_FILES and path.parent.name else path.name


def load_initial_weights(config: TrainConfig, classes: int) -> tuple[InitialWeights, State]:
    """Load the model of `config.architecture.start` with a new head of zeros, resized to `image_size` if given. For
    masked-patch pre-training (0 classes), with the mask token and the layer that predicts patches, if it has them."""
    requested, source = config.architecture, config.architecture.start or ""
    if not source.strip():
        raise VitreousError(
            "start is empty: give a checkpoint, a run directory, a name such as deit-tiny, or hf://owner/name"
        )
    try:
        loaded = read_checkpoint(
            source,
            num_classes=classes,
            image_size=requested.image_size,
            heads=requested.heads,
            preprocessing=requested.preprocessing,
            dtype=torch.float32,
        )
        _check_trainable(loaded.config)
        targets = patch_targets(config, loaded.config) if config.masks_patches else None
    except VitreousError as error:
        raise VitreousError(f"the weights to start from cannot be used: {error}") from error
    name, report = source_name(source), loaded.report
    _check_same_architecture(requested, loaded.config, name)
    model, state = loaded.config, loaded.state
    if requested.image_size is None:
        model, state = _at_preprocessing_size(model, state, loaded.preprocessing)
    notes = [*report.about("source", "preprocessing"), *([report.guessed] if report.guessed else [])]
    if targets is not None:
        own = fitting_patch_tensors(loaded.extras, targets, model)
        state |= own
        notes += [] if "patch_head.bias" in own else ["a new layer that predicts masked patches is trained"]
    guesses = tuple(f"{name}: {note}" for note in notes)
    digest = tensors_digest(state)
    origin = {**report.origin, "source": name}
    return InitialWeights(absolute_source(source), model, loaded.preprocessing, digest, guesses, origin), state


def _at_preprocessing_size(
    model: ViTConfig | BiTConfig, state: State, preprocessing: Preprocessing
) -> tuple[ViTConfig | BiTConfig, State]:
    """Resample the positions to the size that the weights are used at. DINOv2 has positions for 518 px, which is slow
    to train, and its preprocessing crops to 224 px."""
    if isinstance(model, BiTConfig) or pair(model.image_size) == pair(preprocessing.size):
        return model, state
    try:
        return resize(model, state, preprocessing.size)
    except VitreousError:  # the patch size does not divide that size
        return model, state


def origin_report(start: InitialWeights | None, model: ViTConfig | BiTConfig) -> LoadReport | None:
    """Return the report of a run's model: its checkpoints record the initial weights, with their licence."""
    if start is None or not start.origin:
        return None
    origin = {"initial_weights": dict(start.origin)}
    return LoadReport(start.source, "memory", "native", model, origin=origin)


def reload_initial_weights(start: InitialWeights, config: TrainConfig) -> State:
    """Load the same weights again, for a run that was interrupted before its first state was saved."""
    again, weights = load_initial_weights(config, start.model.num_classes)
    if again.digest != start.digest:
        raise VitreousError(f"{start.source}: these are not the weights that the run started from")
    return weights


def finetuned_config(start: InitialWeights, requested: Architecture) -> ViTConfig | BiTConfig:
    """Return the model config of the run: that of the initial weights, with the run's dropout and stochastic depth."""
    given = [name for name in DROP_RATES if getattr(requested, name) is not None and hasattr(start.model, name)]
    rates: dict[str, Any] = {name: getattr(requested, name) for name in given}
    size = start.model.image_size if requested.image_size is None else requested.image_size
    return replace(start.model, image_size=size, **rates)


def _check_trainable(model: ViTConfig | BiTConfig) -> None:
    if model.channels not in (1, 3):
        raise VitreousError(f"the model takes {model.channels} channels; only 1 (grey) and 3 (RGB) can be trained")
    if isinstance(model, ViTConfig) and model.pool == "none":
        raise VitreousError("the model has no pooling (pool = 'none'), so it cannot have a head")


def _check_same_architecture(requested: Architecture, model: ViTConfig | BiTConfig, name: str) -> None:
    """Raise an error if a given field differs from the architecture of the weights."""
    given = {field: value for field, value in vars(requested).items() if value is not None}
    wrong = [f for f in (*STRUCTURE, *OTHER_FIELDS) if f in given and not _same(given[f], getattr(model, f, None))]
    wrong += [field for field in DROP_RATES if given.get(field) and not hasattr(model, field)]
    wrong += ["head_bias"] if given.get("head_bias") else []  # the new head is zero
    different = [field for field in wrong if hasattr(model, field)]
    if requested.model is not None:
        named = zoo.config(requested.model)
        set_by_name = [f for f in (*STRUCTURE, *NAMED_FIELDS) if f in zoo.ZOO[requested.model][1] and hasattr(model, f)]
        differs = [field for field in set_by_name if getattr(named, field) != getattr(model, field)]
        if differs or type(named) is not type(model):
            wrong, different = [*wrong, "model"], [*different, *differs]
    if wrong:
        asks = ", ".join(f"{field} = {given[field]!r}" for field in wrong)
        kind = "a ViT" if isinstance(model, ViTConfig) else "a BiT"
        values = ", ".join(f"{field} = {_plain(getattr(model, field))!r}" for field in dict.fromkeys(different))
        what = f"{kind} with {values}" if values else kind
        raise VitreousError(f"{asks}: the run starts from {name}, which is {what}; remove the options that differ")


def _same(value: Any, theirs: Any) -> bool:
    return bool(theirs == value or (isinstance(theirs, tuple) and theirs == pair(value)))


def _plain(value: Any) -> Any:
    """Return a square size as one number."""
    return value[0] if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1] else value
