"""`evaluate_source`: run a model on every image of a data set once, and score its predictions."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.data.loading import EvalLoader
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.image_results import MAX_PROBABILITIES, ImageResultCollector, ImageResults
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.matching import ClassMapping
from vitreous.evaluation.metrics import Result, Scores
from vitreous.evaluation.progress_bar import Tick
from vitreous.evaluation.real_labels import RealResult, RealScores
from vitreous.models.calibration import Calibration
from vitreous.models.custom import AnyModel
from vitreous.preprocessing import Preprocessing
from vitreous.utils.torch_settings import default_modes
from vitreous.weights.model_info import preprocessing_of


class BatchObserver(Protocol):
    """Receives logits, labels, losses and image indices of every batch, besides `Scores`."""

    def add(self, logits: Tensor, targets: Tensor, losses: Tensor, indices: Tensor, /) -> None: ...


@torch.no_grad()
def score(
    model: Callable[[Tensor], Tensor],
    loader: EvalLoader,
    loss: Callable[[Tensor, Tensor], Tensor],
    scores: Scores,
    observer: BatchObserver | None = None,
    tick: Tick = lambda images: None,
) -> None:
    """Add the loader's images to the scores. `model` is in eval mode; `loss` returns one value per image.

    For the loss and for probabilities, logits are divided by the temperature of the scores.
    """
    normalise = loader.transform.preprocessing.normalise
    for pixels, labels, indices in loader:
        logits = model(normalise(pixels)).float().to(labels.device)  # the CPU, for a model on MPS
        losses = loss(logits / scores.temperature, labels)
        scores.add(logits, labels, losses)
        if observer is not None:
            observer.add(logits, labels, losses, indices)
        tick(len(pixels))


@dataclass(frozen=True)
class Evaluation:
    """The result of a model on a split, at one image size."""

    size: tuple[int, int]
    result: Result
    seconds: float
    unreadable: dict[int, str]
    real: RealResult | None = None
    images: ImageResults | None = None  # the results of single images
    calibration_note: str = ""  # why the model's calibration was not applied

    @property
    def images_per_second(self) -> float:
        return self.result.images / self.seconds


@default_modes()
def evaluate_source(
    evaluated: EvaluatedModel,
    source: Source,
    mapping: ClassMapping,
    preprocessing: Preprocessing,
    options: InferenceOptions,
    real: Tensor | None = None,
    tick: Tick = lambda images: None,
    keep_probabilities: bool = False,
) -> Evaluation:
    """Score every image of the source once. `mapping` maps the labels of the data to the classes of the model.

    `real`: all correct classes of each image (`read_real_labels`). `keep_probabilities`: keep those of all classes, for
    precision-recall curves, unless there are too many.
    """
    model, classes = evaluated.model, evaluated.model.config.num_classes
    check_head(evaluated)
    multi_label = source.labels.ndim == 2
    sigmoid = multi_label or model.multi_label
    unreadable: dict[int, str] = {}
    loader = options.loader(mapping.relabelled(source, classes), preprocessing, unreadable)
    calibration, note = applicable_calibration(model, preprocessing, sigmoid)
    scores = Scores(classes, multi_label, options.device, sigmoid, calibration.temperature if calibration else 1.0)
    real_scores = None if real is None else RealScores(real, options.device)
    keep = keep_probabilities and len(source) * classes <= MAX_PROBABILITIES
    collector = ImageResultCollector(multi_label, sigmoid, calibration, keep)
    observer = _ObserverList([collector] if real_scores is None else [collector, real_scores])
    started = time.perf_counter()
    run = options.logits_function(model)
    score(run, loader, binary_losses if sigmoid else softmax_losses, scores, observer, tick)
    if unreadable and len(unreadable) == len(source):
        raise VitreousError(f"no image can be read: {next(iter(unreadable.values()))}")
    result = scores.result()
    size = preprocessing.size
    assert isinstance(size, tuple)
    seconds = time.perf_counter() - started
    found = None if real_scores is None else real_scores.result()
    return Evaluation(size, result, seconds, unreadable, found, collector.result(), note)


class _ObserverList:
    def __init__(self, observers: Sequence[BatchObserver]):
        self.observers = observers

    def add(self, logits: Tensor, targets: Tensor, losses: Tensor, indices: Tensor, /) -> None:
        for observer in self.observers:
            observer.add(logits, targets, losses, indices)


def applicable_calibration(
    model: AnyModel, preprocessing: Preprocessing, sigmoid: bool
) -> tuple[Calibration | None, str]:
    """Return the model's calibration, or None and the reason why it does not hold for these probabilities."""
    if model.calibration is None:
        return None, ""
    if preprocessing != preprocessing_of(model):
        return None, "not applied: it was fitted at another image size or with other preprocessing"
    if sigmoid != model.multi_label:
        return None, "not applied: it was fitted to one label per image"
    return model.calibration, ""


def check_head(evaluated: EvaluatedModel) -> None:
    """Raise an error if the model does not classify images."""
    model = evaluated.model
    if not model.config.num_classes:
        raise VitreousError(
            f"{evaluated.name} has no head, so its accuracy cannot be measured; --with fewshot knn probe measures its"
            " features"
        )
    if getattr(model.config, "pool", None) == "none":
        raise VitreousError(f"{evaluated.name} returns logits for every token, not for the image (pool='none')")


def softmax_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each image."""
    return F.cross_entropy(logits, labels, reduction="none")


def binary_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy of each image, summed over the classes."""
    targets = labels if labels.ndim == 2 else F.one_hot(labels, logits.shape[1])
    return F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").sum(1)
