"""Device, batch size, workers and precision of an evaluation, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from vitreous.data.dataset import Source, Subset
from vitreous.data.loading import EvalLoader
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import EvalTransform
from vitreous.errors import VitreousError
from vitreous.fast.accelerate import Precision, accelerate_if_faster
from vitreous.models.custom import AnyModel
from vitreous.preprocessing import Preprocessing
from vitreous.utils.device import pick_precision
from vitreous.utils.limits import MAX_WORKERS, check_count


@dataclass(frozen=True)
class InferenceOptions:
    """How a model is run on many images."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # device of the model
    batch_size: int = 64  # images per forward pass
    workers: int | None = None  # decoding processes; None: chosen from the data and the number of CPU cores
    precision: Precision = "fp32"  # as in `vitreous.accelerate`

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.workers is not None:
            check_count("workers", self.workers, 0, MAX_WORKERS)

    def loader(self, source: Source, preprocessing: Preprocessing, unreadable: dict[int, str]) -> EvalLoader:
        """Return a loader of every image once. Unreadable images are skipped and added to `unreadable`."""
        prepare = EvalTransform(preprocessing)
        return EvalLoader(
            source, ScanResult({}), prepare, self.batch_size, self._workers(source), self.device, unreadable=unreadable
        )

    def logits_function(self, model: AnyModel) -> Callable[[Tensor], Tensor]:
        """Return the fastest function from images to the model's logits in this precision."""
        if self.precision == "bf16" and self.device.type == "cpu":
            return self._autocast_function(model.eval())
        dtype = next(model.parameters()).dtype
        if self.precision == "fp32" and dtype != torch.float32:  # no faster path, and the model casts nothing itself
            plain = model.eval()
            return lambda images: plain(images.to(dtype))
        return accelerate_if_faster(model, self.precision)

    def _autocast_function(self, model: AnyModel) -> Callable[[Tensor], Tensor]:
        def call(images: Tensor) -> Tensor:
            with self.autocast():
                logits: Tensor = model(images)
                return logits

        return call

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Run the plain model in this precision, as for features. The plain model does not support fp8."""
        if self.precision == "fp8":
            raise VitreousError("precision = 'fp8': only predictions support fp8; use fp32 or bf16 for features")
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            yield

    def _workers(self, source: Source) -> int:
        if self.workers is not None:
            return self.workers
        few = len(source) <= 2 * self.batch_size
        while isinstance(source, Subset):
            source = source.source
        in_memory = source.array is not None and self.device.type == "cpu"
        return 0 if few or in_memory else min(16, os.cpu_count() or 1)


def choose_inference_options(
    device: torch.device, batch_size: int, workers: int | None, precision: str, note: Callable[[str], object]
) -> InferenceOptions:
    """Return the options with a precision that the device supports. `note` is called with a text if it is another one
    than requested."""
    chosen, text = pick_precision(precision, device)
    if text:
        note(text)
    return InferenceOptions(device, batch_size, workers, cast(Precision, chosen))
