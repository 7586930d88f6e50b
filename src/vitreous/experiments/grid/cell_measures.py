"""What can be measured on the weights of a cell. A new measure is a frozen dataclass with a method `measure`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from vitreous.data.dataset import Subset
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError
from vitreous.evaluation.cache import FeatureCache
from vitreous.evaluation.evaluated_model import EvaluatedModel, open_model
from vitreous.evaluation.evaluation_images import TrainTestImages, train_and_test_images
from vitreous.evaluation.fewshot import draw_shots
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.measures import MeasureSettings
from vitreous.evaluation.training_images import SeenImages
from vitreous.models.cost import cost
from vitreous.training.outcome import Outcome
from vitreous.training.run_directory import RunDirectory


@dataclass(frozen=True)
class TrainedCell:
    """The weights of a cell, ready to be measured."""

    weights: str | None  # a checkpoint; None: the cell has no weights
    outcome: Outcome | None  # of its training run
    device: torch.device
    folder: Path  # for features and other temporary files; it is removed afterwards

    @cached_property
    def opened(self) -> EvaluatedModel:
        if self.weights is None:
            raise VitreousError("this cell has no weights to measure")
        return open_model(self.weights, self.device)


class CellMeasure(ABC):
    """A measure. Its fields are part of the key under which results are cached."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The data sets that it is measured on."""
        return ()

    @abstractmethod
    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        """Return values by name. They are stored as JSON."""

    def to_json(self) -> dict[str, Any]:
        return {"measure": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class ValidationAccuracy(CellMeasure):
    """Top-1 accuracy (%) of the last weights on the validation (or test) images of the run."""

    value: str = "val"

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        result = cell.outcome.result if cell.outcome else None
        if cell.outcome is None or result is None or result.top1 is None or cell.outcome.split == "train":
            raise VitreousError("the data has no validation images: pre-training needs a validation split")
        return {self.value: 100 * result.top1, f"{self.value}_images": result.images}


@dataclass(frozen=True)
class BestValidationAccuracy(CellMeasure):
    """Top-1 accuracy (%) of best.safetensors on the validation images that selected it, and its step."""

    value: str = "best val"

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        best = None if cell.outcome is None else RunDirectory(cell.outcome.run).result().get("best")
        if best is None:
            raise VitreousError("the data has no validation images, which select the weights")
        return {self.value: 100 * best["value"], f"{self.value} step": best["step"]}


@dataclass(frozen=True)
class SelectedRate(CellMeasure):
    """The learning rate that the run has selected among its candidates, on a development split."""

    value: ClassVar[str] = "learning rate"

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        rate = None if cell.outcome is None else RunDirectory(cell.outcome.run).config().optimiser.lr
        if rate is None:
            raise VitreousError("this cell has selected no learning rate")
        return {self.value: rate}


@dataclass(frozen=True)
class TrainingCompute(CellMeasure):
    """The FLOPs of the run by `vitreous.cost`: 3 x forward x images seen, without a search of the learning rate."""

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        if cell.outcome is None:
            raise VitreousError("this cell trains nothing, so it has no compute")
        run = RunDirectory(cell.outcome.run)
        seen = cell.outcome.steps * (run.config().schedule.batch_size or 0)
        exaflops = cost(cell.opened.built_in_model.config).training_flops * seen / 1e18
        images = SeenImages.read(run.path)
        known = {} if images is None else {"training images": len(images.train)}
        return {"exaFLOPs": exaflops, "images seen": seen, "steps": cell.outcome.steps, **known}


@dataclass(frozen=True)
class FewShotAccuracy(CellMeasure):
    """Few-shot linear accuracy (%) as in the paper: ridge regression on frozen features, the mean over random draws.

    The shots are drawn from up to `pool` training images per class, and all test images are classified.
    """

    source: str
    title: str  # "unseen", or the name of a transfer data set
    classes: tuple[str, ...] = ()
    shots: int = 5
    draws: int = 10
    pool: int = 100

    @property
    def value(self) -> str:
        return f"{self.title} {self.shots}-shot"

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        images = fewshot_images(self.source, self.classes, self.shots, self.pool)
        settings = MeasureSettings(shots=(self.shots,), seeds=self.draws)
        workers = 0 if images.train.array is not None else None
        options = InferenceOptions(cell.device, 256, workers)
        preprocessing = cell.opened.preprocessing()
        found = FeatureCache(cell.folder).measures(cell.opened, images, ("fewshot",), settings, preprocessing, options)
        return {self.value: 100 * found.measures[0].mean, f"{self.value} images": len(images.test)}


@lru_cache(maxsize=4)
def fewshot_images(source: str, classes: tuple[str, ...], shots: int, pool: int) -> TrainTestImages:
    """Return the images to draw shots from, and the test images."""
    images = train_and_test_images(open_data(source, Reading(only_classes=classes)))
    smallest = int(images.train.labels.bincount(minlength=len(images.classes)).min())
    if smallest < shots:
        raise VitreousError(
            f"{images.name}: {shots}-shot classification needs {shots} training images per class; one class has"
            f" {smallest}"
        )
    chosen = draw_shots(images.train.labels, min(pool, smallest), seed=0)
    return replace(images, train=Subset(images.train, chosen.sort().values))
