"""How fast images come: decoded from files by one core and by all, and varied on the device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.benchmark.machine import Times, speed, timed
from vitreous.data.dataset import DataSet
from vitreous.data.device_cache import CachedImages
from vitreous.data.loading import BatchCropper, TrainLoader
from vitreous.data.open_data import open_data
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import CACHE_SCALE, RandomResizedCrop
from vitreous.models.checks import Size, pair
from vitreous.training.config import Objective, TrainConfig
from vitreous.training.defaults import Facts, choose_defaults, collect_facts
from vitreous.training.engine import MIN_PIXELS_TO_COMPILE, BatchPreparation
from vitreous.training.graphs import RecordedPass
from vitreous.training.optim import losses
from vitreous.training.recipes import recipe
from vitreous.utils import random_keys

UNKNOWN = Facts(images=50_000, classes=10, channels=3, side=224, shape=None, multi_label=False)  # without data
HELD = 2048  # random images that augmentation chooses from


@dataclass(frozen=True)
class Decoding:
    """Images a second through the loader of training: read, decoded, cropped, resized, flipped."""

    data: str
    one: float  # by this process alone
    all: float
    workers: int


@dataclass(frozen=True)
class Pipeline:
    """What was measured of the way from files to the model."""

    recipe: str
    size: tuple[int, int]
    batch_size: int
    device: str
    path: str  # of augmentation
    augmenting: Times
    decoding: Decoding | None
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def images_per_second(self) -> float:
        """Of augmentation."""
        return self.batch_size / self.augmenting.median

    def to_json(self) -> dict[str, Any]:
        times = self.augmenting
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
            "decoding": None if self.decoding is None else vars(self.decoding),
        }

    def facts(self) -> list[tuple[str, str]]:
        rows = [
            ("recipe", f"{self.recipe} at {self.size[0]} x {self.size[1]}, batches of {self.batch_size:,}"),
            ("augmentation", f"{speed(self.images_per_second)} on {self.origin['hardware']}: {self.augmenting}"),
            ("path", self.path),
        ]
        if self.decoding is None:
            return [*rows, ("decoding", "not measured: --data names images to decode")]
        found = self.decoding
        rows.append(("decoding", f"{speed(found.one)} by one core, from {found.data}"))
        return [*rows, ("", f"{speed(found.all)} by {found.workers} processes")]


def measure_pipeline(
    name: str,
    data: str | os.PathLike[str] | None,
    size: Size | None,
    batch_size: int | None,
    workers: int | None,
    device: torch.device,
    seconds: float,
) -> Pipeline:
    """Augmentation of a recipe, from random images that are held on the device; and decoding, if there is data."""
    config = recipe(name)
    config = config if size is None else config.with_(image_size=size)
    opened = None if data is None else open_data(data, config.reading)
    config, _ = choose_defaults(config, UNKNOWN if opened is None else collect_facts(opened))
    assert config.architecture.image_size is not None
    shown = pair(config.architecture.image_size)
    count = batch_size or config.schedule.batch_size or 1
    channels = 3 if opened is None else opened.channels
    path, times = _augment(config, RandomResizedCrop(shown, channels, config.augmentation), count, device, seconds)
    decoding = None if opened is None else _decode(opened, config, shown, count, workers, seconds)
    return Pipeline(name, shown, count, str(device), path, times, decoding)


def _augment(
    config: TrainConfig, crop: RandomResizedCrop, count: int, device: torch.device, seconds: float
) -> tuple[str, Times]:
    """As a step of training does it: small batches as they are, large ones compiled, all of them recorded on a GPU."""
    spare = 1.0 if crop.options.crop == 1 else CACHE_SCALE  # as large as a run holds them
    height, width = (round(side * spare) for side in crop.size)
    pixels = np.random.default_rng(0).integers(0, 256, (HELD, height, width, crop.channels), dtype=np.uint8)
    held = CachedImages.from_array(pixels, crop.channels, device)
    loss = losses.build_loss(Objective(loss="softmax", label_smoothing=0.0), torch.zeros(1).long(), 10, device)
    half = torch.full((crop.channels, 1, 1), 0.5, device=device)
    prepare: Callable[..., tuple[Tensor, Tensor]] = BatchPreparation(
        BatchCropper(held, crop), config.augmentation, half, half, loss
    )
    rows, labels = (torch.randint(top, (count,), device=device) for top in (HELD, 10))
    keys = random_keys.keys(0, torch.arange(count)).to(device)
    path = "as it is"
    if device.type == "cuda":
        large = count * crop.channels * crop.size[0] * crop.size[1] >= MIN_PIXELS_TO_COMPILE
        prepare = torch.compile(prepare, dynamic=False) if large else prepare
        prepare = RecordedPass(prepare, (rows, labels, keys), [])
        path = f"{'compiled, ' if large else ''}recorded as a CUDA graph"
    return path, timed(lambda: prepare(rows, labels, keys), device, seconds=seconds)


def _decode(
    data: DataSet, config: TrainConfig, size: tuple[int, int], count: int, workers: int | None, seconds: float
) -> Decoding:
    """Through the loader, to the host's memory."""
    many = min(16, os.cpu_count() or 1) if workers is None else workers
    found = {}
    for processes in dict.fromkeys((0, many)):
        crop = RandomResizedCrop(size, data.channels, config.augmentation)
        stream = TrainingSampler(len(data.train), 0)
        loader = TrainLoader(data.train, stream, ScanResult({}), crop, count, 0, processes, torch.device("cpu"))
        found[processes] = _rate(loader, seconds)
    return Decoding(data.name, found[0], found[many], many)


def _rate(loader: TrainLoader, seconds: float) -> float:
    """From the first batch on, when all processes are at work."""
    batches = loader.batches(0, 1 << 40)
    next(batches)
    began, images = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < seconds or not images:
        images += len(next(batches))
    return images / taken
