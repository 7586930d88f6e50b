"""Throughput of the input pipeline: decoding by one process and by many, and augmentation on the device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.benchmark.machine import StepTimes, throughput_text, time_steps
from vitreous.data.dataset import DataSet
from vitreous.data.device_cache import CachedImages
from vitreous.data.loading import BatchCropper, TrainLoader
from vitreous.data.open_data import open_data
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import CACHE_SCALE, RandomResizedCrop
from vitreous.training.captured_pass import CapturedPass
from vitreous.training.config import Objective, TrainConfig
from vitreous.training.defaults import choose_defaults
from vitreous.training.engine import MIN_PIXELS_TO_COMPILE, BatchPreparation
from vitreous.training.facts import Facts, collect_facts
from vitreous.training.optim import losses
from vitreous.training.recipes import recipe
from vitreous.utils import random_keys
from vitreous.utils.sizes import Size, pair

# If no data is given.
DEFAULT_FACTS = Facts(images=50_000, classes=10, channels=3, side=224, shape=None, multi_label=False)
CACHED_IMAGES = 2048  # random images for augmentation


@dataclass(frozen=True)
class DecodingResult:
    """Images per second of the training loader: reading, decoding, cropping, resizing, flipping."""

    data: str
    one_process: float
    all_workers: float
    workers: int

    def to_json(self) -> dict[str, Any]:
        return {"data": self.data, "one": self.one_process, "all": self.all_workers, "workers": self.workers}


@dataclass(frozen=True)
class PipelineResult:
    """Measurements of the input pipeline."""

    recipe: str  # recipe whose augmentation is measured
    size: tuple[int, int]  # (height, width) of the images
    batch_size: int  # images per batch
    device: str  # device of the augmentation
    path: str  # path of the augmentation
    augmentation: StepTimes  # seconds of each batch
    decoding: DecodingResult | None  # throughput of decoding, if data was given
    origin: dict[str, Any] = field(default_factory=dict)  # date, command, versions, hardware

    @property
    def images_per_second(self) -> float:
        """Throughput of augmentation."""
        return self.batch_size / self.augmentation.median

    def to_json(self) -> dict[str, Any]:
        """Return what `vitreous bench --mode data --json` prints."""
        times = self.augmentation
        return {
            **self.origin,
            "mode": "data",
            "recipe": self.recipe,
            "size": list(self.size),
            "batch_size": self.batch_size,
            "device": self.device,
            "augmentation": {
                "path": self.path,
                "images_per_second": self.images_per_second,
                "batch_ms": times.to_json(),
                "repeats": len(times.seconds),
            },
            "decoding": None if self.decoding is None else self.decoding.to_json(),
        }

    def facts(self) -> list[tuple[str, str]]:
        """Return the rows of the printed table."""
        rows = [
            ("recipe", f"{self.recipe} at {self.size[0]} x {self.size[1]}, batches of {self.batch_size:,}"),
            (
                "augmentation",
                f"{throughput_text(self.images_per_second)} on {self.origin['hardware']}: {self.augmentation}",
            ),
            ("path", self.path),
        ]
        if self.decoding is None:
            return [*rows, ("decoding", "not measured: set --data to images to decode")]
        decoding = self.decoding
        rows.append(("decoding", f"{throughput_text(decoding.one_process)} with one process, from {decoding.data}"))
        return [*rows, ("", f"{throughput_text(decoding.all_workers)} with {decoding.workers} worker processes")]


def measure_pipeline(
    name: str,
    data: str | os.PathLike[str] | None,
    size: Size | None,
    batch_size: int | None,
    workers: int | None,
    device: torch.device,
    seconds: float,
) -> PipelineResult:
    """Measure the augmentation of a recipe on random images cached on the device, and decoding if there is data."""
    config = recipe(name)
    config = config if size is None else config.with_(image_size=size)
    opened = None if data is None else open_data(data, config.reading)
    config, _ = choose_defaults(config, DEFAULT_FACTS if opened is None else collect_facts(opened))
    assert config.architecture.image_size is not None
    image_size = pair(config.architecture.image_size)
    count = batch_size or config.schedule.batch_size or 1
    channels = 3 if opened is None else opened.channels
    crop = RandomResizedCrop(image_size, channels, config.augmentation)
    path, times = _measure_augmentation(config, crop, count, device, seconds)
    decoding = None if opened is None else _measure_decoding(opened, config, image_size, count, workers, seconds)
    return PipelineResult(name, image_size, count, str(device), path, times, decoding)


def _measure_augmentation(
    config: TrainConfig, crop: RandomResizedCrop, count: int, device: torch.device, seconds: float
) -> tuple[str, StepTimes]:
    """Time augmentation as in a training step: large batches are compiled, and on a GPU all are captured as a graph."""
    scale = 1.0 if crop.options.crop == 1 else CACHE_SCALE  # size of the cached images of a run
    height, width = (round(side * scale) for side in crop.size)
    pixels = np.random.default_rng(0).integers(0, 256, (CACHED_IMAGES, height, width, crop.channels), dtype=np.uint8)
    cached = CachedImages.from_array(pixels, crop.channels, device)
    loss = losses.build_loss(Objective(loss="softmax", label_smoothing=0.0), torch.zeros(1).long(), 10, device)
    half = torch.full((crop.channels, 1, 1), 0.5, device=device)
    prepare: Callable[..., tuple[Tensor, Tensor]] = BatchPreparation(
        BatchCropper(cached, crop), config.augmentation, half, half, loss
    )
    rows, labels = (torch.randint(high, (count,), device=device) for high in (CACHED_IMAGES, 10))
    keys = random_keys.keys(0, torch.arange(count)).to(device)
    path = "eager"
    if device.type == "cuda":
        large = count * crop.channels * crop.size[0] * crop.size[1] >= MIN_PIXELS_TO_COMPILE
        prepare = torch.compile(prepare, dynamic=False) if large else prepare
        prepare = CapturedPass(prepare, (rows, labels, keys), [])
        path = f"{'compiled, ' if large else ''}captured as a CUDA graph"
    return path, time_steps(lambda: prepare(rows, labels, keys), device, seconds=seconds)


def _measure_decoding(
    data: DataSet, config: TrainConfig, size: tuple[int, int], count: int, workers: int | None, seconds: float
) -> DecodingResult:
    """Time the training loader, into host memory."""
    workers = min(16, os.cpu_count() or 1) if workers is None else workers
    throughput = {}
    for processes in dict.fromkeys((0, workers)):
        crop = RandomResizedCrop(size, data.channels, config.augmentation)
        sampler = TrainingSampler(len(data.train), 0)
        loader = TrainLoader(data.train, sampler, ScanResult({}), crop, count, 0, processes, torch.device("cpu"))
        throughput[processes] = _loader_throughput(loader, seconds)
    return DecodingResult(data.name, throughput[0], throughput[workers], workers)


def _loader_throughput(loader: TrainLoader, seconds: float) -> float:
    """Return images per second, after the first batch, when all processes have started."""
    batches = loader.batches(0, 1 << 40)
    next(batches)
    start, images = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not images:
        images += len(next(batches))
    return images / elapsed
