"""Statistics of a data set: counts, image sizes, unreadable images and duplicates."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import combinations
from statistics import median_low
from typing import Any

from vitreous.data.dataset import DataSet, Source, Subset
from vitreous.data.encoded import EncodedSource
from vitreous.errors import SystemFaultError, VitreousError
from vitreous.utils.images import decode, upright_size

BATCH = 1024  # images submitted to the threads at a time, to bound memory


@dataclass(frozen=True)
class Sizes:
    """(height, width) of the readable images."""

    smallest: tuple[int, int]  # minimum height and minimum width, which may come from different images
    median: tuple[int, int]
    largest: tuple[int, int]
    common: tuple[int, int]  # the most frequent size
    common_share: float


@dataclass(frozen=True)
class Unreadable:
    split: str
    name: str
    reason: str


@dataclass(frozen=True)
class Copies:
    """Images with identical bytes."""

    places: tuple[tuple[str, str], ...]  # (split, name) of each image
    classes_differ: bool  # whether their labels differ


@dataclass(frozen=True)
class Description:
    """Statistics of a data set. The field names are keys of `vitreous data --json`."""

    name: str
    classes: tuple[str, ...]
    multi_label: bool
    channels: int
    split: str
    counts: dict[str, int]
    class_counts: dict[str, tuple[int, ...]]  # for each split, in the order of the classes
    sizes: Sizes | None  # None: no image is readable
    grey: float  # fraction of grey images
    unreadable: tuple[Unreadable, ...]
    copies: tuple[Copies, ...]
    notes: tuple[str, ...]

    @property
    def balance(self) -> float:
        """Training images of the largest class over those of the smallest class that has any."""
        counts = [count for count in self.class_counts["train"] if count]
        return max(counts) / min(counts)

    @property
    def repeated(self) -> dict[str, int]:
        """For each split, the number of images that duplicate another image of the split."""
        duplicates: Counter[str] = Counter()
        for copies in self.copies:
            for split, count in Counter(split for split, _ in copies.places).items():
                duplicates[split] += count - 1
        return {split: duplicates[split] for split in self.counts}

    @property
    def leaks(self) -> dict[str, int]:
        """For each pair of splits, such as "train-val", the images of the second split that are also in the first."""
        leaks = {}
        for first, second in combinations(self.counts, 2):
            counts = [Counter(split for split, _ in copies.places) for copies in self.copies]
            leaks[f"{first}-{second}"] = sum(count[second] for count in counts if count[first])
        return leaks

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {**fields, "balance": self.balance, "repeated": self.repeated, "leaks": self.leaks}


@dataclass(frozen=True)
class _ImageStatistics:
    size: tuple[int, int] = (0, 0)
    grey: bool = False
    digest: bytes = b""
    error: str = ""


def describe(data: DataSet, *, progress: Callable[[], None] | None = None, threads: int | None = None) -> Description:
    """Decode every image and compute the statistics. `progress` is called after each image, in this thread.

    JPEGs are decoded at an eighth of their size, which is enough to detect damaged ones.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    unreadable: list[Unreadable] = []
    by_digest: dict[bytes, list[tuple[str, int]]] = {}
    grey = 0
    for split, index, image in _all_images(data, threads or os.cpu_count() or 1):
        if image.error:
            unreadable.append(Unreadable(split, data.splits[split].name(index), image.error))
        else:
            sizes[image.size] += 1
            grey += image.grey
        if image.digest:
            by_digest.setdefault(image.digest, []).append((split, index))
        if progress is not None:
            progress()
    return Description(
        name=data.name,
        classes=data.classes,
        multi_label=data.multi_label,
        channels=data.channels,
        split=data.split,
        counts={split: len(source) for split, source in data.splits.items()},
        class_counts={split: class_counts(source, len(data.classes)) for split, source in data.splits.items()},
        sizes=_size_statistics(sizes) if sizes else None,
        grey=grey / max(1, sizes.total()),
        unreadable=tuple(unreadable),
        copies=tuple(_copies(data, group) for group in by_digest.values() if len(group) > 1),
        notes=tuple(data.notes),
    )


def class_counts(source: Source, classes: int) -> tuple[int, ...]:
    """Number of images of each class."""
    labels = source.labels
    counts = labels.sum(0) if labels.ndim == 2 else labels.bincount(minlength=classes)
    return tuple(counts.tolist())


def _all_images(data: DataSet, threads: int) -> Iterator[tuple[str, int, _ImageStatistics]]:
    """Statistics of every image of every split, in order, computed in threads: decoding releases the GIL."""
    sources = data.splits
    places = [(split, index) for split, source in sources.items() for index in range(len(source))]
    pool = ThreadPoolExecutor(threads)
    try:
        for start in range(0, len(places), BATCH):
            part = places[start : start + BATCH]
            results = pool.map(lambda place: _image_statistics(sources[place[0]], place[1]), part)
            for (split, index), result in zip(part, results, strict=True):
                yield split, index, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _image_statistics(source: Source, index: int) -> _ImageStatistics:
    while isinstance(source, Subset):
        index = int(source.indices[index])
        source = source.source
    digest = b""
    try:
        content = source.content(index)
        digest = blake2b(content, digest_size=16).digest()
        if isinstance(source, EncodedSource):
            image, size = decode(content, (1, 1), source.max_pixels), upright_size(content)
        else:
            image = source.image(index)
            size = image.height, image.width
        return _ImageStatistics(size, image.mode == "L", digest)
    except SystemFaultError:
        raise
    except VitreousError as error:
        return _ImageStatistics(digest=digest, error=str(error).removeprefix(f"{source.name(index)}: "))


def _copies(data: DataSet, group: list[tuple[str, int]]) -> Copies:
    sources = data.splits
    labels = {str(sources[split].labels[index].tolist()) for split, index in group}
    return Copies(tuple((split, sources[split].name(index)) for split, index in group), len(labels) > 1)


def _size_statistics(sizes: Counter[tuple[int, int]]) -> Sizes:
    heights, widths = (sorted(Counter(size[side] for size in sizes.elements()).elements()) for side in (0, 1))
    common, count = sizes.most_common(1)[0]
    return Sizes(
        smallest=(heights[0], widths[0]),
        median=(median_low(heights), median_low(widths)),
        largest=(heights[-1], widths[-1]),
        common=common,
        common_share=count / sizes.total(),
    )
