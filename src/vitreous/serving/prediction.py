"""What a model sees in images: its most probable classes, by name."""

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

from vitreous.errors import SystemFaultError, VitreousError
from vitreous.fast.accelerate import Precision, at_work
from vitreous.models.base import Model
from vitreous.preprocessing import ImageLike, Preprocessing
from vitreous.utils.images import MAX_PIXELS, as_image
from vitreous.utils.limits import check_count
from vitreous.weights.model_info import labels_of, preprocessing_of

SEVERAL = 8  # images
THREADS = min(8, (os.cpu_count() or 1) + 1)  # that decode while the model runs


@dataclass(frozen=True)
class Answer:
    index: int  # of the class
    label: str | None  # its name, if it has one
    probability: float


@dataclass(frozen=True)
class Prediction:
    image: ImageLike
    top: tuple[Answer, ...]  # the most probable first
    error: str | None = None  # why there is no answer


def predict(
    model: Model,
    images: Iterable[ImageLike],
    *,
    top: int = 5,
    batch_size: int = 32,
    precision: Precision = "fp32",
    max_pixels: int = MAX_PIXELS,
) -> Iterator[Prediction]:
    """The `top` classes of each image, in order and as they come. The model is put into evaluation mode.

    An image is a path or anything else that `Preprocessing` takes. A few threads decode ahead of the model, never more
    than two batches. An image that cannot be read, or has more than `max_pixels` pixels, yields a prediction that says
    so.
    """
    one = images.ndim != 4 if isinstance(images, np.ndarray | Tensor) else isinstance(images, str | bytes | os.PathLike)
    if one or not isinstance(images, Iterable):
        raise VitreousError(f"images: expected several, such as a list of paths, got one {type(images).__name__}")
    for name, value in (("top", top), ("batch_size", batch_size), ("max_pixels", max_pixels)):
        check_count(name, value)
    config: Any = model.config
    if config.num_classes == 0:
        raise VitreousError("the model has no head: it gives features, not classes to predict")
    answering = _Answering(model, preprocessing_of(model), labels_of(model), top, precision)
    return _predictions(answering, images, batch_size, max_pixels)


def _predictions(
    answering: "_Answering", images: Iterable[ImageLike], batch_size: int, max_pixels: int
) -> Iterator[Prediction]:
    def read(image: ImageLike) -> Tensor | str:
        try:
            of_file = isinstance(image, str | bytes | os.PathLike)
            pixels = answering.preprocessing.pixels(as_image(image, max_pixels) if of_file else image)
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
            ahead.extend((image, pool.submit(read, image)) for image in islice(remaining, 2 * batch_size - len(ahead)))
            if not ahead:
                return
            answering.expect(len(ahead))
            batch = [ahead.popleft() for _ in range(min(batch_size, len(ahead)))]
            read_ones = [(image, future.result()) for image, future in batch]
            pixels = [found for _, found in read_ones if isinstance(found, Tensor)]
            answers = iter(answering(pixels) if pixels else ())
            for image, found in read_ones:
                yield Prediction(image, (), found) if isinstance(found, str) else _checked(image, next(answers))
    finally:
        pool.shutdown(cancel_futures=True)


class _Answering:
    """A model asked for its `top` classes."""

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
        self.run: Callable[[Tensor], Tensor] | None = None if precision == "fp32" else at_work(model, precision)

    def expect(self, images: int) -> None:
        """So many are to come: with a few, getting the faster way ready takes longer than it saves."""
        if self.run is None and images >= SEVERAL:
            self.run = at_work(self.model)

    @torch.inference_mode()
    def __call__(self, pixels: list[Tensor]) -> list[tuple[Answer, ...]]:
        parameter, labels = next(self.model.parameters()), self.labels
        batch = torch.stack(pixels).to(parameter.device, non_blocking=True)  # whole numbers travel light
        logits = (self.run or self.model)(self.preprocessing.normalise(batch).to(parameter.dtype))
        if logits.ndim != 2:
            raise VitreousError("the model answers for every token, not for the image: pool='none' cannot predict")
        probabilities = logits.float().sigmoid() if self.model.multi_label else logits.float().softmax(-1)
        best = probabilities.topk(min(self.top, logits.shape[-1]))
        return [
            tuple(Answer(i, labels[i] if labels else None, p) for i, p in zip(indices, probabilities, strict=True))
            for indices, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def _checked(image: ImageLike, answers: tuple[Answer, ...]) -> Prediction:
    if all(answer.probability == answer.probability for answer in answers):
        return Prediction(image, answers)
    return Prediction(image, (), "the model's answer is not a number; its weights or its precision may be at fault")
