"""A model to evaluate, with the images of its training run and how its weights were selected."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from vitreous.errors import VitreousError
from vitreous.evaluation.training_images import (
    SeenImages,
    changed_user_code,
    describe_selection,
    training_images_of,
    user_model_of,
)
from vitreous.models import zoo
from vitreous.models.custom import CustomModel
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing, default_preprocessing
from vitreous.utils.sizes import pair
from vitreous.utils.torch_settings import default_modes
from vitreous.weights import shipped
from vitreous.weights.checkpoint_files import WEIGHT_FILES
from vitreous.weights.load import load
from vitreous.weights.load_report import LoadReport
from vitreous.weights.model_info import content_hash, preprocessing_of

RANDOM_PREFIX = "random:"


@dataclass(frozen=True)
class EvaluatedModel:
    name: str
    model: VisionTransformer | BiT | CustomModel
    notes: tuple[str, ...] = ()
    seen: SeenImages | None = None  # the images of its training run, if known
    selection: str = "random: the model was not trained"  # how its weights were selected
    training_images_unknown: bool = False  # whether it may have been trained here, on images that are not recorded

    @cached_property
    def digest(self) -> str:
        """The content hash of the weights."""
        return content_hash(self.model)

    @property
    def built_in_model(self) -> VisionTransformer | BiT:
        """The model, which must not be one of the user's own."""
        if isinstance(self.model, CustomModel):
            raise VitreousError(f"{self.name} is a model of your own: only a ViT or BiT of Vitreous can be used here")
        return self.model

    def preprocessing(self, size: int | tuple[int, int] | None = None) -> Preprocessing:
        """Return the model's preprocessing, for another image size if one is given. Raise an error if the patch size
        does not divide it."""
        preprocessing = preprocessing_of(self.model)
        if size is None:
            return preprocessing
        config = self.model.config
        try:
            if isinstance(config, ViTConfig):
                config.grid_at(pair(size))
            return preprocessing.at(size)
        except VitreousError as error:
            raise VitreousError(f"{self.name} at size {size}: {error}") from error


def open_model(
    source: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    trust_code: bool = False,
) -> EvaluatedModel:
    """Open anything that `load` accepts, or `random:NAME`: a model of the zoo with random weights from a fixed seed.

    `trust_code`: import and run the user's code that a run directory names, if its model is one of the user's own.
    """
    text = os.fsdecode(source)
    if trust_code and (code := user_model_of(source)) is not None:
        for name, value in (("heads", heads), ("preprocessing", preprocessing)):
            if value is not None:
                raise VitreousError(f"{name}: cannot be given for a model of your own, as {text} is")
        custom = load(source, model=code, device=device)
        seen, selection = training_images_of(source), describe_selection(source)
        notes = changed_user_code(source)  # after the import: modules are known then
        return EvaluatedModel(display_name(text), custom, notes, seen, selection, seen is None)
    if not text.startswith(RANDOM_PREFIX):
        model = load(source, heads=heads, device=device, preprocessing=preprocessing)
        notes = tuple(model.report.notes) if model.report else ()
        seen, selection = training_images_of(source), describe_selection(source)
        return EvaluatedModel(display_name(text), model, notes, seen, selection, is_own_file(model, text))
    with torch.random.fork_rng(devices=[]), default_modes():
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed every GPU too
        model = zoo.create(text.removeprefix(RANDOM_PREFIX)).to(device)
    model.preprocessing = default_preprocessing(model.config.image_size, model.config.channels)
    return EvaluatedModel(text, model.eval())


def is_own_file(model: VisionTransformer | BiT, source: str) -> bool:
    """Return whether weights were written by Vitreous: they may come from a run on the images to evaluate."""
    report = model.report
    if not isinstance(report, LoadReport) or report.dialect != "native" or source in shipped.NAMES:
        return False
    return bool(report.origin.get("dialect", "native") == "native")


def display_name(source: str) -> str:
    """Return the name of a run directory, or a file name without its suffix."""
    path = Path(source)
    if path.name in WEIGHT_FILES and path.parent.name:
        return path.parent.name
    return path.name.removesuffix(path.suffix) if path.suffix in (".safetensors", ".npz", ".pth", ".pt") else path.name
