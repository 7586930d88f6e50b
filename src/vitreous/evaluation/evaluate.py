"""Show a model every image once, and add up what it says."""

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
from vitreous.evaluation.matching import Match
from vitreous.evaluation.metrics import Result, Scores
from vitreous.evaluation.real_labels import RealResult, RealScores
from vitreous.evaluation.subject import Loading, Subject, Tick
from vitreous.preprocessing import Preprocessing
from vitreous.utils.torch_settings import default_modes


class Watcher(Protocol):
    """What else looks at every batch: logits, labels, losses and the numbers of the images."""

    def add(self, logits: Tensor, targets: Tensor, losses: Tensor, indices: Tensor, /) -> None: ...


@torch.no_grad()
def score(
    model: Callable[[Tensor], Tensor],
    loader: EvalLoader,
    loss: Callable[[Tensor, Tensor], Tensor],
    scores: Scores,
    watcher: Watcher | None = None,
    tick: Tick = lambda images: None,
) -> None:
    """Add the loader's images to the scores. `model` is in evaluation mode; `loss` gives one number for each image."""
    normalise = loader.transform.preprocessing.normalise
    for pixels, labels, indices in loader:
        logits = model(normalise(pixels)).float()
        losses = loss(logits, labels)
        scores.add(logits, labels, losses)
        if watcher is not None:
            watcher.add(logits, labels, losses, indices)
        tick(len(pixels))


@dataclass(frozen=True)
class Evaluation:
    """A model on a split, at one size."""

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
    subject: Subject,
    source: Source,
    matched: Match,
    preprocessing: Preprocessing,
    loading: Loading,
    real: Tensor | None = None,
    tick: Tick = lambda images: None,
) -> Evaluation:
    """Every image of the source once. Its labels are the data's; `matched` says which of the model's they are.

    `real`: the right answers of each image, where it may have several (`read_real`).
    """
    model, classes = subject.model, subject.model.config.num_classes
    check_head(subject)
    several = source.labels.ndim == 2
    sigmoid = several or model.multi_label
    unreadable: dict[int, str] = {}
    loader = loading.loader(matched.relabelled(source, classes), preprocessing, unreadable)
    scores = Scores(classes, several, loading.device, sigmoid)
    watcher = None if real is None else RealScores(real, loading.device)
    started = time.perf_counter()
    run = loading.running(model)
    score(run, loader, binary_losses if sigmoid else softmax_losses, scores, watcher, tick)
    if unreadable and len(unreadable) == len(source):
        raise VitreousError(f"no image can be read: {next(iter(unreadable.values()))}")
    result = scores.result()
    size = preprocessing.size
    assert isinstance(size, tuple)
    seconds = time.perf_counter() - started
    return Evaluation(size, result, seconds, unreadable, None if watcher is None else watcher.result())


def check_head(subject: Subject) -> None:
    """Answers come from a head that was trained."""
    model = subject.model
    if not model.config.num_classes:
        raise VitreousError(
            f"{subject.name} has no head, so it has no answers to score; --with fewshot knn probe measures its features"
        )
    if getattr(model.config, "pool", None) == "none":
        raise VitreousError(f"{subject.name} answers for every token, not for the image (pool='none')")


def softmax_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each image."""
    return F.cross_entropy(logits, labels, reduction="none")


def binary_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of each class, summed over the classes."""
    targets = labels if labels.ndim == 2 else F.one_hot(labels, logits.shape[1])
    return F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").sum(1)
