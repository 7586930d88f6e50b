"""The data of a run, looked at once and ready to be loaded: checked, and held on the device if it fits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from vitreous.data.dataset import DataSet, Source
from vitreous.data.device_cache import CachedImages
from vitreous.data.digests import image_digests
from vitreous.data.loading import EvalLoader, TrainLoader
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult, scan_images
from vitreous.data.transforms import (
    CACHE_SCALE,
    DecodeCheck,
    EvalTransform,
    ImageTransform,
    RandomResizedCrop,
    ResizeForCache,
)
from vitreous.errors import VitreousError
from vitreous.preprocessing import default_preprocessing
from vitreous.training.distributed import World
from vitreous.training.plan import Plan
from vitreous.utils.memory import free_memory
from vitreous.utils.progress import ProgressReporter

SHARE = 0.3  # of the free memory that images may take


@dataclass(frozen=True)
class RunLoaders:
    train: TrainLoader
    val: EvalLoader | None
    test: EvalLoader | None
    bad: tuple[str, ...]  # a line for each image that cannot be read
    digests: dict[str, Tensor]  # of the images of each split, by content

    @property
    def cached(self) -> bool:
        return self.train.scan.cached is not None


def build_loaders(data: DataSet, plan: Plan, world: World, reporter: ProgressReporter) -> RunLoaders:
    """Read every image once. Too many bad ones stop the run here."""
    channels, size, workers = plan.model.channels, plan.size, count_workers(plan, data)
    options = plan.config.augmentation
    prepare = EvalTransform(plan.preprocessing)
    whole = EvalTransform(default_preprocessing(size, channels)) if options.crop == 1 else None
    total = sum(len(source) for source in data.splits.values())
    with reporter.bar("reading images", total) as tell:
        surveys = {
            "train": _look(data.train, whole or ResizeForCache(size, channels), plan, workers, tell),
        }
        for name in ("val", "test"):
            if (source := data.splits.get(name)) is not None:
                surveys[name] = _look(source, prepare, plan, workers, tell, hold=name == "val")
    bad = tuple(f"{name}\t{reason}" for name, found in surveys.items() for _, reason in sorted(found.bad.items()))
    _refuse(bad, total, plan.config.reading.max_bad, data, surveys)
    stream = TrainingSampler(
        len(data.train), plan.config.run.seed, data.train.labels if plan.config.reading.balanced else None
    )
    common = {"device": plan.device, "rank": world.rank, "ranks": world.size, "workers": workers}
    train = TrainLoader(
        data.train,
        stream,
        surveys["train"],
        RandomResizedCrop(size, channels, options),
        plan.batch_size,
        plan.config.run.seed,
        **common,  # type: ignore[arg-type]
    )
    loaders = {
        name: EvalLoader(source, surveys[name], prepare, min(plan.micro_batch, 512), **common)  # type: ignore[arg-type]
        for name, source in data.splits.items()
        if name != "train"
    }
    found = {name: one.digests for name, one in surveys.items() if one.digests is not None}
    return RunLoaders(train, loaders.get("val"), loaders.get("test"), bad, found)


def count_workers(plan: Plan, data: DataSet) -> int:
    given = plan.config.reading.workers
    if given is not None:
        return given
    return 0 if data.train.array is not None else min(16, os.cpu_count() or 1)


def _look(
    source: Source, read: ImageTransform, plan: Plan, workers: int, tick: Callable[[int], None], hold: bool = True
) -> ScanResult:
    array, channels = source.array, plan.model.channels
    exact = isinstance(read, EvalTransform)
    hold = hold and _fits(source, read, plan)
    if array is not None:
        height, width = array.shape[1:3]
        if not hold:
            return ScanResult({}, None, image_digests(source, tick))
        near = height <= CACHE_SCALE * plan.size[0] and width <= CACHE_SCALE * plan.size[1]
        fitting = (height, width) == plan.size if exact else near
        if fitting:
            return ScanResult({}, CachedImages.from_array(array, channels, plan.device), image_digests(source, tick))
    return scan_images(source, read if hold else DecodeCheck(), channels, workers, plan.device, tick)


def _fits(source: Source, read: ImageTransform, plan: Plan) -> bool:
    wish = plan.config.reading.cache
    if wish != "auto":
        return wish == "always"
    pixels = plan.size[0] * plan.size[1] * plan.model.channels
    each = (
        pixels if isinstance(read, EvalTransform) else pixels * CACHE_SCALE**2 * 1.4
    )  # photographs are longer than wide
    return len(source) * each < SHARE * free_memory(plan.device)


def _refuse(bad: tuple[str, ...], total: int, max_bad: float, data: DataSet, surveys: dict[str, ScanResult]) -> None:
    for name, found in surveys.items():
        if len(found.bad) == len(data.splits[name]):
            raise VitreousError(f"{data.name}: no image of {name} can be read: {bad[0].split(chr(9), 1)[1]}")
    if len(bad) > max_bad * total:
        shown = "; ".join(line.split("\t", 1)[1] for line in bad[:3])
        more = f" and {len(bad) - 3:,} more" if len(bad) > 3 else ""
        raise VitreousError(
            f"{data.name}: {len(bad):,} of {total:,} images cannot be read, more than max_bad = {max_bad:g} allows:"
            f" {shown}{more} (`vitreous data` names all)"
        )
