"""Facts about the data of a run, which default settings depend on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import torch

from vitreous.data.dataset import DataSet, Source
from vitreous.data.statistics import class_counts
from vitreous.errors import SystemFaultError, VitreousError
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.user_parts import UserParts

SAMPLED_IMAGES = 64  # images whose size is read
TINY_SIDE = 12  # px
FEW_IMAGES = 5_000  # training images: with fewer, models are smaller and augmentation is weaker
NO_PARTS = UserParts()


@dataclass(frozen=True)
class Facts:
    """What the choices depend on: properties of the training images, and the initial weights."""

    images: int
    classes: int
    channels: int
    side: int  # median of the short sides, in pixels
    shape: tuple[int, int] | None  # (height, width), if all images have the same
    multi_label: bool
    start: InitialWeights | None = None
    decode_seconds: float = field(default=0.0, compare=False)  # of one image
    imbalance: float = 1.0  # images of the largest class, divided by those of the smallest
    parts: UserParts = field(default_factory=UserParts, compare=False)  # of the user's own

    @property
    def tiny(self) -> bool:
        return self.side <= TINY_SIDE

    @property
    def may_be_text(self) -> bool:
        """Whether images are small and grey, such as letters and digits, which flips and crops would change."""
        return self.channels == 1 and self.side <= 64


def collect_facts(data: DataSet, start: InitialWeights | None = None, parts: UserParts = NO_PARTS) -> Facts:
    started = time.perf_counter()
    sizes = list(_sample_sizes(data.train))
    decode_seconds = 0.0 if data.train.array is not None else (time.perf_counter() - started) / len(sizes)
    counts = [count for count in class_counts(data.train, len(data.classes)) if count]
    return Facts(
        len(data.train),
        len(data.classes),
        data.channels,
        int(median(min(size) for size in sizes)),
        sizes[0] if len(set(sizes)) == 1 else None,
        data.multi_label,
        start,
        decode_seconds,
        max(counts) / min(counts) if counts else 1.0,
        parts,
    )


def _sample_sizes(source: Source) -> Iterator[tuple[int, int]]:
    if source.array is not None:
        yield (source.array.shape[1], source.array.shape[2])
        return
    readable = 0
    indices = torch.linspace(0, len(source) - 1, min(SAMPLED_IMAGES, len(source))).long().tolist()
    for index in indices:
        try:
            image = source.image(index)
        except SystemFaultError:
            raise
        except VitreousError as error:
            problem = str(error)
            continue
        readable += 1
        yield (image.height, image.width)
    if not readable:
        raise VitreousError(f"none of the {len(indices)} images that were tried can be read; the last error: {problem}")


def count_reason(facts: Facts, limit: int) -> str:
    return f"{limit:,} images or more" if facts.images >= limit else f"fewer than {limit:,} images"
