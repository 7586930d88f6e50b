"""The data loaders of a run. All images are read once before training: to find unreadable ones, and to cache them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.data.dataset import DataSet, Source, Subset
from vitreous.data.device_cache import CachedImages
from vitreous.data.digests import image_digests
from vitreous.data.loading import EvalLoader, TrainLoader
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult, scan_images
from vitreous.data.statistics import class_counts
from vitreous.data.transforms import (
    CACHE_SCALE,
    DecodeCheck,
    EvalTransform,
    ImageTransform,
    RandomResizedCrop,
    ResizeForCache,
)
from vitreous.errors import VitreousError, brief, format_count
from vitreous.preprocessing import default_preprocessing
from vitreous.training.distributed import World
from vitreous.training.plan import Plan
from vitreous.utils.device import float64_device
from vitreous.utils.memory import free_memory
from vitreous.utils.progress import ProgressReporter

CACHE_FRACTION = 0.3  # of the free memory, at most, for cached images
MIN_UNREADABLE = 5  # unreadable images that are always accepted: 1% of a small folder would be less than one image
MEAN_ASPECT = 1.4  # of photographs, to estimate the size of the cache


@dataclass(frozen=True)
class RunLoaders:
    """The loaders of a run, and what reading all images has shown."""

    train: TrainLoader
    val: EvalLoader | None
    test: EvalLoader | None
    unreadable: tuple[str, ...]  # one line per image: split, tab, error
    digests: dict[str, Tensor]  # of the content of each image, by split

    @property
    def cached(self) -> bool:
        return self.train.scan.cached is not None


def build_loaders(data: DataSet, plan: Plan, world: World, reporter: ProgressReporter) -> RunLoaders:
    """Read all images and return the loaders. Too many unreadable images are an error."""
    channels, size, workers = plan.model.channels, plan.size, count_workers(plan, data)
    options = plan.config.augmentation
    transform = EvalTransform(plan.preprocessing)
    uncropped = EvalTransform(default_preprocessing(size, channels)) if options.crop == 1 else None
    total = sum(len(source) for source in data.splits.values())
    with reporter.bar("reading images", total) as advance:
        scans = {
            "train": _scan_split(data.train, uncropped or ResizeForCache(size, channels), plan, workers, advance),
        }
        for name in ("val", "test"):
            if (source := data.splits.get(name)) is not None:  # test images are used only once
                scans[name] = _scan_split(source, transform, plan, workers, advance, may_cache=name == "val")
    unreadable = tuple(f"{name}\t{reason}" for name, scan in scans.items() for _, reason in sorted(scan.bad.items()))
    _check_unreadable(unreadable, total, plan.config.reading.max_bad, data, scans)
    sampler = TrainingSampler(
        len(data.train), plan.config.run.seed, data.train.labels if plan.config.reading.balanced else None
    )
    common: dict[str, Any] = {"rank": world.rank, "ranks": world.size, "workers": workers}
    train = TrainLoader(
        data.train,
        sampler,
        scans["train"],
        RandomResizedCrop(size, channels, options),
        plan.batch_size,
        plan.config.run.seed,
        device=float64_device(plan.device),
        **common,
    )
    loaders = {
        name: EvalLoader(source, scans[name], transform, min(plan.micro_batch, 512), device=plan.device, **common)
        for name, source in data.splits.items()
        if name != "train"
    }
    digests = {name: scan.digests for name, scan in scans.items() if scan.digests is not None}
    return RunLoaders(train, loaders.get("val"), loaders.get("test"), unreadable, digests)


def count_workers(plan: Plan, data: DataSet) -> int:
    """Return the number of decoding processes: `workers`, or 0 for arrays, or one per CPU core up to 16."""
    given = plan.config.reading.workers
    if given is not None:
        return given
    return 0 if data.train.array is not None else min(16, os.cpu_count() or 1)


def _scan_split(
    source: Source,
    transform: ImageTransform,
    plan: Plan,
    workers: int,
    advance: Callable[[int], None],
    may_cache: bool = True,
) -> ScanResult:
    """Read all images of a split; cache them on the device if that is requested or they fit."""
    array, channels = source.array, plan.model.channels
    cache = may_cache and _should_cache(source, transform, plan)
    if array is not None:
        height, width = array.shape[1:3]
        if not cache:
            return ScanResult({}, None, image_digests(source, advance))
        if isinstance(transform, EvalTransform):
            needs_no_resize = (height, width) == plan.size
        else:
            needs_no_resize = height <= CACHE_SCALE * plan.size[0] and width <= CACHE_SCALE * plan.size[1]
        if needs_no_resize:
            cached = CachedImages.from_array(array, channels, float64_device(plan.device))
            return ScanResult({}, cached, image_digests(source, advance))
    device = float64_device(plan.device)
    return scan_images(source, transform if cache else DecodeCheck(), channels, workers, device, advance)


def _should_cache(source: Source, transform: ImageTransform, plan: Plan) -> bool:
    requested = plan.config.reading.cache
    if requested != "auto":
        return requested == "always"
    pixels = plan.size[0] * plan.size[1] * plan.model.channels
    image_bytes = pixels if isinstance(transform, EvalTransform) else pixels * CACHE_SCALE**2 * MEAN_ASPECT
    return len(source) * image_bytes < CACHE_FRACTION * free_memory(float64_device(plan.device))


def _check_unreadable(
    unreadable: tuple[str, ...], total: int, max_bad: float, data: DataSet, scans: dict[str, ScanResult]
) -> None:
    """Raise an error if a split or a class has no readable image left, or if too many images are unreadable."""
    for name, scan in scans.items():
        if len(scan.bad) == len(data.splits[name]):
            raise VitreousError(f"{data.name}: no image of {name} can be read: {next(iter(scan.bad.values()))}")
    _check_classes_remain(data, scans["train"].bad)
    if len(unreadable) <= allowed_unreadable(total, max_bad):
        return
    first = "; ".join(line.split("\t", 1)[1] for line in unreadable[:3])
    more = f" and {len(unreadable) - 3:,} more" if len(unreadable) > 3 else ""
    least = f", but always {MIN_UNREADABLE}" if max_bad else ""
    raise VitreousError(
        f"{data.name}: {len(unreadable):,} of {total:,} images cannot be read, and"
        f" {allowed_unreadable(total, max_bad):,} are accepted (max_bad = {max_bad:g} of the images{least}):"
        f" {first}{more}; `vitreous data` lists all; --max-bad changes the limit"
    )


def allowed_unreadable(images: int, max_bad: float) -> int:
    """Return the number of unreadable images with which a run starts: 0 for `max_bad` 0, otherwise at least 5."""
    return max(MIN_UNREADABLE, int(max_bad * images)) if max_bad else 0


def _check_classes_remain(data: DataSet, bad: dict[int, str]) -> None:
    """Raise an error if no training image of a class can be read."""
    if not bad:
        return
    labels, readable = data.train.labels, torch.ones(len(data.train), dtype=torch.bool)
    readable[list(bad)] = False
    remaining = Subset(data.train, readable.nonzero().flatten())
    before, after = (class_counts(source, len(data.classes)) for source in (data.train, remaining))
    for number, name in enumerate(data.classes):
        if before[number] and not after[number]:
            members = labels[:, number] > 0 if labels.ndim == 2 else labels == number
            first = next(reason for index, reason in sorted(bad.items()) if members[index])
            raise VitreousError(
                f"{data.name}: none of the {format_count(before[number], 'training image')} of class {brief(name)}"
                f" can be read: {first}"
            )
