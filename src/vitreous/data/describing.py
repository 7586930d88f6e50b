"""What there is to know of a data set before it is learnt from: how much, how large, what is broken, what is twice."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import combinations
from statistics import median_low
from typing import Any

from vitreous.data.decoding import decode, upright_size
from vitreous.data.encoded import Encoded
from vitreous.data.sources import DataSet, Source, Subset
from vitreous.errors import VitreousError

AHEAD = 1024  # images that are waiting or done: enough for every thread, and no burden on memory


@dataclass(frozen=True)
class Sizes:
    """(height, width) of the images that can be read."""

    smallest: tuple[int, int]  # each side by itself, as for the two below
    median: tuple[int, int]
    largest: tuple[int, int]
    common: tuple[int, int]  # the pair that occurs most
    common_share: float


@dataclass(frozen=True)
class Unreadable:
    split: str
    name: str
    reason: str


@dataclass(frozen=True)
class Copies:
    """Images of the very same bytes."""

    places: tuple[tuple[str, str], ...]  # (split, name) of each
    classes_differ: bool  # the same image, and not the same labels


@dataclass(frozen=True)
class Description:
    name: str
    classes: tuple[str, ...]
    multi_label: bool
    channels: int
    split: str
    counts: dict[str, int]
    class_counts: dict[str, tuple[int, ...]]  # for each split, in the order of the classes
    sizes: Sizes | None  # None: no image can be read
    grey: float  # the share of images that are grey
    unreadable: tuple[Unreadable, ...]
    copies: tuple[Copies, ...]
    notes: tuple[str, ...]

    @property
    def balance(self) -> float:
        """How many times as many training images the largest class has as the smallest that has any."""
        counts = [count for count in self.class_counts["train"] if count]
        return max(counts) / min(counts)

    @property
    def repeated(self) -> dict[str, int]:
        """For each split, the images in it that are copies of another one in it."""
        spare: Counter[str] = Counter()
        for copies in self.copies:
            for split, times in Counter(split for split, _ in copies.places).items():
                spare[split] += times - 1
        return {split: spare[split] for split in self.counts}

    @property
    def leaks(self) -> dict[str, int]:
        """For each pair of splits, as in "train-val", the images of the second that are also in the first."""
        found = {}
        for first, second in combinations(self.counts, 2):
            times = [Counter(split for split, _ in copies.places) for copies in self.copies]
            found[f"{first}-{second}"] = sum(count[second] for count in times if count[first])
        return found

    def to_json(self) -> dict[str, Any]:
        held = asdict(self)
        return {**held, "balance": self.balance, "repeated": self.repeated, "leaks": self.leaks}


@dataclass(frozen=True)
class _Look:
    """What was seen of one image."""

    size: tuple[int, int] = (0, 0)
    grey: bool = False
    digest: bytes = b""
    error: str = ""


def describe(data: DataSet, *, progress: Callable[[], None] | None = None, threads: int | None = None) -> Description:
    """Decode every image and say what there is. `progress` is called once for each image, in this thread.

    JPEGs are decoded at an eighth of their size, which is enough to find the broken ones.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    unreadable: list[Unreadable] = []
    places: dict[bytes, list[tuple[str, int]]] = {}
    grey = 0
    for split, index, look in _looks(data, threads or os.cpu_count() or 1):
        if look.error:
            unreadable.append(Unreadable(split, data.splits[split].name(index), look.error))
        else:
            sizes[look.size] += 1
            grey += look.grey
        if look.digest:
            places.setdefault(look.digest, []).append((split, index))
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
        sizes=_summary(sizes) if sizes else None,
        grey=grey / max(1, sizes.total()),
        unreadable=tuple(unreadable),
        copies=tuple(_copies(data, group) for group in places.values() if len(group) > 1),
        notes=tuple(data.notes),
    )


def class_counts(source: Source, classes: int) -> tuple[int, ...]:
    labels = source.labels
    counts = labels.sum(0) if labels.ndim == 2 else labels.bincount(minlength=classes)
    return tuple(counts.tolist())


def _looks(data: DataSet, threads: int) -> Iterator[tuple[str, int, _Look]]:
    """Every image of every split, in order, looked at in threads: decoding lets go of Python's lock."""
    whole = [(split, index) for split, source in data.splits.items() for index in range(len(source))]
    sources = data.splits
    pool = ThreadPoolExecutor(threads)
    try:
        for start in range(0, len(whole), AHEAD):
            part = whole[start : start + AHEAD]
            looks = pool.map(lambda place: _look(sources[place[0]], place[1]), part)
            for (split, index), look in zip(part, looks, strict=True):
                yield split, index, look
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _look(source: Source, index: int) -> _Look:
    while isinstance(source, Subset):
        index = int(source.indices[index])
        source = source.source
    digest = b""
    try:
        content = source.content(index)
        digest = blake2b(content, digest_size=16).digest()
        if isinstance(source, Encoded):
            image, size = decode(content, (1, 1)), upright_size(content)
        else:
            image = source.image(index)
            size = image.height, image.width
        return _Look(size, image.mode == "L", digest)
    except VitreousError as error:
        return _Look(digest=digest, error=str(error).removeprefix(f"{source.name(index)}: "))


def _copies(data: DataSet, group: list[tuple[str, int]]) -> Copies:
    sources = data.splits
    labels = {str(sources[split].labels[index].tolist()) for split, index in group}
    return Copies(tuple((split, sources[split].name(index)) for split, index in group), len(labels) > 1)


def _summary(sizes: Counter[tuple[int, int]]) -> Sizes:
    heights, widths = (sorted(Counter(size[side] for size in sizes.elements()).elements()) for side in (0, 1))
    common, times = sizes.most_common(1)[0]
    return Sizes(
        smallest=(heights[0], widths[0]),
        median=(median_low(heights), median_low(widths)),
        largest=(heights[-1], widths[-1]),
        common=common,
        common_share=times / sizes.total(),
    )
