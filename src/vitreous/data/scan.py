"""Read every image of a split once: detect unreadable images, compute digests, and fill the device cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.data.device_cache import CachedImages
from vitreous.data.digests import UNREADABLE
from vitreous.data.parallel_decoding import CHUNK_SIZE, decode_chunks, split_into_chunks
from vitreous.data.transforms import DecodeCheck, ImageTransform


@dataclass(frozen=True)
class ScanResult:
    """Unreadable images of a split, and its cached images if it is cached."""

    bad: dict[int, str]  # error message by index
    cached: CachedImages | None = None
    digests: Tensor | None = None  # content digest of every image; None: not computed


def scan_images(
    source: Source,
    transform: ImageTransform,
    channels: int,
    workers: int,
    device: torch.device,
    tick: Callable[[int], None],
) -> ScanResult:
    """Read every image, and cache the transformed images unless the transform is a `DecodeCheck`.

    An unreadable image is replaced in the cache by the next readable one. `tick` is called with the number of images
    just finished.
    """
    bad: dict[int, str] = {}
    parts, sizes, digests, cache = [], [], [], not isinstance(transform, DecodeCheck)
    tasks = split_into_chunks(torch.arange(len(source)))
    for chunk in decode_chunks(source, transform, tasks, workers, replace_bad=cache, digest=True):
        bad |= dict(chunk.bad)
        digests.append(torch.from_numpy(chunk.digests))
        parts.append(chunk.pixels.clone())  # a worker's tensor keeps a file descriptor open
        sizes.append(torch.from_numpy(chunk.sizes))
        tick(min(CHUNK_SIZE, len(source) - CHUNK_SIZE * (len(parts) - 1)))
    cached = None
    if cache and len(bad) < len(source):
        cached = CachedImages.from_parts(parts, torch.cat(sizes), channels, device)
    all_digests = torch.cat(digests)
    all_digests[list(bad)] = UNREADABLE
    return ScanResult(bad, cached, all_digests)


def replacement_indices(count: int, bad: Iterable[int]) -> Tensor:
    """For each image, the index of the image to use: itself, or the next readable one."""
    unreadable = torch.zeros(count, dtype=torch.bool)
    unreadable[list(bad)] = True
    good = (~unreadable).nonzero()[:, 0]
    return good[torch.searchsorted(good, torch.arange(count)) % len(good)]
