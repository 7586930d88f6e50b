"""`evaluate`: run a model on every image of a data set once, and score its predictions."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.data.loading import EvalLoader
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.matching import ClassMapping
from vitreous.evaluation.metrics import Result, Scores
from vitreous.evaluation.progress_bar import Tick
from vitreous.evaluation.real_labels import RealResult, RealScores
from vitreous.preprocessing import Preprocessing
from vitreous.utils.torch_settings import default_modes


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
    """Add the loader's images to the scores. `model` is in eval mode; `loss` returns one value per image."""
    normalise = loader.transform.preprocessing.normalise
    for pixels, labels, indices in loader:
        logits = model(normalise(pixels)).float()
        losses = loss(logits, labels)
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

    @property
    def images_per_second(self) -> float:
        return self.result.images / self.seconds


@default_modes()
def evaluate(
    evaluated: EvaluatedModel,
    source: Source,
    mapping: ClassMapping,
    preprocessing: Preprocessing,
    options: InferenceOptions,
    real: Tensor | None = None,
    tick: Tick = lambda images: None,
) -> Evaluation:
    """Score every image of the source once. `mapping` maps the labels of the data to the classes of the model.

    `real`: all correct classes of each image (`read_real_labels`).
    """
    model, classes = evaluated.model, evaluated.model.config.num_classes
    check_head(evaluated)
    multi_label = source.labels.ndim == 2
    sigmoid = multi_label or model.multi_label
    unreadable: dict[int, str] = {}
    loader = options.loader(mapping.relabelled(source, classes), preprocessing, unreadable)
    scores = Scores(classes, multi_label, options.device, sigmoid)
    observer = None if real is None else RealScores(real, options.device)
    started = time.perf_counter()
    run = options.logits_function(model)
    score(run, loader, binary_losses if sigmoid else softmax_losses, scores, observer, tick)
    if unreadable and len(unreadable) == len(source):
        raise VitreousError(f"no image can be read: {next(iter(unreadable.values()))}")
    result = scores.result()
    size = preprocessing.size
    assert isinstance(size, tuple)
    seconds = time.perf_counter() - started
    return Evaluation(size, result, seconds, unreadable, None if observer is None else observer.result())


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
