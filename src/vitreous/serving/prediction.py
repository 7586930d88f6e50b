"""`predict`: the most probable classes of images, with decoding in parallel to the model."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import SystemFaultError, VitreousError, brief
from vitreous.evaluation.image_results import DEFAULT_THRESHOLD
from vitreous.evaluation.thresholds import accepted_predictions
from vitreous.fast.accelerate import Precision, accelerate_if_faster
from vitreous.models.base import Model
from vitreous.preprocessing import ImageLike, Preprocessing
from vitreous.utils.images import MAX_PIXELS, as_image
from vitreous.utils.limits import check_count
from vitreous.weights.model_info import labels_of, preprocessing_of

MIN_ACCELERATED = 8  # images from which preparing a faster path is worth its time
THREADS = min(8, (os.cpu_count() or 1) + 1)  # decoding threads


@dataclass(frozen=True)
class ClassProbability:
    index: int  # of the class
    label: str | None  # name of the class, if known
    probability: float


@dataclass(frozen=True, repr=False)
class Prediction:
    image: ImageLike
    top: tuple[ClassProbability, ...]  # the most probable first
    error: str | None = None  # why there is no prediction
    # The most probable class, or all probable classes of a multi-label model; empty if the prediction is rejected.
    predicted: tuple[ClassProbability, ...] = ()
    rejected: bool | None = None  # whether no class reaches its threshold; None: the model has no thresholds
    threshold: float | None = None  # of the most probable class; None: there is none, or it is always rejected

    @property
    def label(self) -> str | None:
        """Name of the most probable class, also of a rejected prediction; None: unknown, or the image is unreadable."""
        return self.top[0].label if self.top else None

    @property
    def probability(self) -> float | None:
        """Probability of the most probable class; None: the image is unreadable."""
        return self.top[0].probability if self.top else None

    def __repr__(self) -> str:
        """Return one line, without the pixels of an image in memory."""
        image = str(self.image) if isinstance(self.image, str | Path) else brief(self.image)
        classes = ", ".join(f"{_class_name(one)} {one.probability:.1%}" for one in self.top)
        return f"Prediction({image}: {self.error or self.rejection or classes})"

    @property
    def rejection(self) -> str:
        """Why the prediction is rejected, as text; empty if it is not."""
        if not self.rejected or not self.top:
            return ""
        best = self.top[0]
        name = _class_name(best)
        if self.threshold is None:
            guess = f"{name} {best.probability:.0%}"
            return f"rejected: no threshold reaches the requested precision for the best guess, {guess}"
        numbers = f"{name} {_below(best.probability, self.threshold)}, threshold {self.threshold:.0%}"
        return f"rejected: not sure enough (best guess {numbers})"


def _class_name(one: ClassProbability) -> str:
    return f"class {one.index}" if one.label is None else one.label


def _below(probability: float, threshold: float) -> str:
    """Return a probability that is below a threshold as text that differs from the text of the threshold."""
    text = f"{probability:.0%}"
    return text if text != f"{threshold:.0%}" else f"below {threshold:.0%}"


def predict_images(
    model: Model,
    images: Iterable[ImageLike],
    *,
    top: int = 5,
    batch_size: int = 32,
    precision: Precision = "fp32",
    max_pixels: int = MAX_PIXELS,
) -> Iterator[Prediction]:
    """Yield the `top` classes of each image, in order, batch by batch. The model is put into eval mode.

    An image is a path or anything else that `Preprocessing` accepts. Threads decode at most two batches ahead of the
    model. An image that is unreadable or has more than `max_pixels` pixels yields a prediction with an error. The
    temperature and the thresholds of `model.calibration` are applied.
    """
    one = images.ndim != 4 if isinstance(images, np.ndarray | Tensor) else isinstance(images, str | bytes | os.PathLike)
    if one or not isinstance(images, Iterable):
        raise VitreousError(f"images: expected several, such as a list of paths, got one {type(images).__name__}")
    for name, value in (("top", top), ("batch_size", batch_size), ("max_pixels", max_pixels)):
        check_count(name, value)
    config: Any = model.config
    if config.num_classes == 0:
        raise VitreousError("the model has no head: it returns features, not classes")
    if model.calibration is not None:
        model.calibration.check_classes(config.num_classes)
    classifier = _Classifier(model, preprocessing_of(model), labels_of(model), top, precision)
    return _predictions(classifier, images, batch_size, max_pixels)


def _predictions(
    classifier: "_Classifier", images: Iterable[ImageLike], batch_size: int, max_pixels: int
) -> Iterator[Prediction]:
    def decode(image: ImageLike) -> Tensor | str:
        try:
            is_file = isinstance(image, str | bytes | os.PathLike)
            pixels = classifier.preprocessing.pixels(as_image(image, max_pixels) if is_file else image)
            return pixels if pixels.ndim == 3 else "expected one image, got several"
        except SystemFaultError:
            raise
        except VitreousError as error:
            return str(error).removeprefix(f"{image}: ") if isinstance(image, str | Path) else str(error)

    remaining = iter(images)
    ahead: deque[tuple[ImageLike, Future[Tensor | str]]] = deque()
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")
    try:
        while True:
            ahead.extend(
                (image, pool.submit(decode, image)) for image in islice(remaining, 2 * batch_size - len(ahead))
            )
            if not ahead:
                return
            classifier.expect(len(ahead))
            batch = [ahead.popleft() for _ in range(min(batch_size, len(ahead)))]
            decoded = [(image, future.result()) for image, future in batch]
            pixels = [result for _, result in decoded if isinstance(result, Tensor)]
            tops = iter(classifier(pixels) if pixels else ())
            for image, result in decoded:
                yield Prediction(image, (), result) if isinstance(result, str) else next(tops).of(image)
    finally:
        pool.shutdown(cancel_futures=True)


class _Classifier:
    """Returns the `top` classes and the predicted classes of a batch of images."""

    def __init__(
        self,
        model: Model,
        preprocessing: Preprocessing,
        labels: tuple[str, ...] | None,
        top: int,
        precision: Precision,
    ):
        self.model, self.preprocessing, self.labels, self.top = model.eval(), preprocessing, labels, top
        self.precision = precision
        self.thresholds = None if model.calibration is None else model.calibration.thresholds
        self.run: Callable[[Tensor], Tensor] | None = (
            None if precision == "fp32" else accelerate_if_faster(model, precision)
        )

    def expect(self, images: int) -> None:
        """Prepare a faster path if enough images follow to be worth it."""
        if self.run is None and images >= MIN_ACCELERATED:
            self.run = accelerate_if_faster(self.model)

    @torch.inference_mode()
    def __call__(self, pixels: list[Tensor]) -> list["_Classes"]:
        parameter = next(self.model.parameters())
        batch = torch.stack(pixels).to(parameter.device, non_blocking=True)  # uint8: less to transfer than floats
        logits = (self.run or self.model)(self.preprocessing.normalise(batch).to(parameter.dtype))
        if logits.ndim != 2:
            raise VitreousError("the model returns logits for every token, not for the image (pool='none')")
        probabilities = self.model.probabilities(logits).cpu().double()
        best = probabilities.topk(min(self.top, logits.shape[-1]))
        columns = (best.indices.tolist(), best.values.tolist(), self._predicted(probabilities))
        return [
            _Classes(
                tuple(self._class(i, p) for i, p in zip(indices, values, strict=True)),
                tuple(self._class(int(i), row[i].item()) for i in predicted),
                self.thresholds,
            )
            for indices, values, predicted, row in zip(*columns, probabilities, strict=True)
        ]

    def _class(self, index: int, probability: float) -> ClassProbability:
        return ClassProbability(index, self.labels[index] if self.labels else None, probability)

    def _predicted(self, probabilities: Tensor) -> list[Tensor]:
        """Return the predicted classes of each image: those that reach their threshold."""
        if self.thresholds is not None:
            passed = accepted_predictions(probabilities, self.thresholds)
        else:
            passed = probabilities >= (DEFAULT_THRESHOLD if self.model.multi_label else 0)
        if not self.model.multi_label:
            best = torch.zeros_like(passed).scatter_(1, probabilities.argmax(1, keepdim=True), True)
            passed &= best
        return [row.nonzero()[:, 0] for row in passed]


@dataclass(frozen=True)
class _Classes:
    """The result of the classifier for one image."""

    top: tuple[ClassProbability, ...]
    predicted: tuple[ClassProbability, ...]
    thresholds: tuple[float | None, ...] | None

    def of(self, image: ImageLike) -> Prediction:
        if any(one.probability != one.probability for one in self.top):  # NaN
            return Prediction(image, (), "the model returned NaN; check its weights and the precision")
        if self.thresholds is None:
            return Prediction(image, self.top, None, self.predicted)
        threshold = self.thresholds[self.top[0].index]
        return Prediction(image, self.top, None, self.predicted, not self.predicted, threshold)
