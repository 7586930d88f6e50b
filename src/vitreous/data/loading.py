"""Batches on the device, for training and evaluation: from the device cache, or decoded by worker processes.

A batch depends on the seed and on its position in the training stream, not on the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.augmentation import crop_boxes, flip_mask
from vitreous.data.dataset import Source
from vitreous.data.device_cache import CachedImages
from vitreous.data.parallel_decoding import CHUNK_SIZE, decode_chunks, split_into_chunks
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult, replacement_indices
from vitreous.data.transforms import EvalTransform, RandomResizedCrop
from vitreous.errors import VitreousError
from vitreous.utils import random_keys
from vitreous.utils.device import float64_device


@dataclass(frozen=True)
class Batch:
    """The part of a training batch that one process gets, on the device."""

    rows: Tensor  # input of `BatchCropper`: indices of cached images, or cropped pixels
    keys: Tensor
    labels: Tensor
    bad: tuple[tuple[int, str], ...] = ()  # index and error of each unreadable image

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class BatchCropper:
    """The pixels of a batch: random crops of cached images, made on the device, or the crops that workers made."""

    cached: CachedImages | None
    crop: RandomResizedCrop

    def __call__(self, rows: Tensor, keys: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """Pixels (B, C, H, W) for `rows` of a batch. `size`: resize to it instead of the size of `crop`."""
        cached, full_size, options = self.cached, self.crop.size, self.crop.options
        if cached is None:
            return resize_batch(rows, size or full_size)
        if options.crop == 1:  # cached at full_size
            pixels = cached.full_images(rows, full_size)
            pixels = torch.where(flip_mask(keys, options)[:, None, None, None], pixels.flip(3), pixels)
            return resize_batch(pixels, size or full_size)
        sizes, size = cached.sizes[rows], size or full_size
        boxes = crop_boxes(keys, sizes[:, 0], sizes[:, 1], size[1] / size[0], options)
        return cached.crops(rows, boxes, flip_mask(keys, options), size)


def resize_batch(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (B, C, H, W) resized with antialiasing; unchanged if they have this size."""
    if tuple(pixels.shape[2:]) == size:
        return pixels
    return F.interpolate(pixels.float(), size, mode="bilinear", antialias=True, align_corners=False)


@dataclass(frozen=True)
class TrainLoader:
    """The training batches of a run. Process `rank` of `ranks` gets its part of each batch."""

    source: Source
    sampler: TrainingSampler
    scan: ScanResult
    crop: RandomResizedCrop
    batch_size: int
    seed: int
    workers: int
    device: torch.device
    rank: int = 0
    ranks: int = 1

    @property
    def cropper(self) -> BatchCropper:
        return BatchCropper(self.scan.cached, self.crop)

    @property
    def replacements(self) -> Tensor:
        """For each image, the index of the image to use: itself, or the next readable one."""
        return replacement_indices(len(self.source), self.scan.bad)

    def positions(self, step: int) -> tuple[int, int]:
        """First and last-plus-one position in the training stream of this process's part of a step."""
        share = self.batch_size // self.ranks
        start = step * self.batch_size + self.rank * share
        return start, start + share

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps from `first` to before `last`."""
        return self._cached_batches(first, last) if self.scan.cached is not None else self._decoded_batches(first, last)

    def _order(self, step: int) -> tuple[Tensor, Tensor]:
        start, stop = self.positions(step)
        return self.sampler.indices(start, stop), random_keys.keys(self.seed, torch.arange(start, stop))

    def _cached_batches(self, first: int, last: int) -> Iterator[Batch]:
        labels = self.source.labels.to(self.device)
        replacements = self.replacements.to(self.device)
        for step in range(first, last):
            indices, keys = (_to_device(tensor, self.device) for tensor in self._order(step))
            yield Batch(indices, keys, labels[replacements[indices]])

    def _decoded_batches(self, first: int, last: int) -> Iterator[Batch]:
        replacements = self.replacements
        tasks = (
            (replacements[indices], keys)
            for step in range(first, last)
            for indices, keys in split_into_chunks(*self._order(step))
        )
        chunks = decode_chunks(self.source, self.crop, tasks, self.workers, replace_bad=True)
        count = -(-(self.batch_size // self.ranks) // CHUNK_SIZE)
        for step in range(first, last):
            parts = [next(chunks) for _ in range(count)]
            pixels = _to_device(_concatenate_pinned([part.pixels for part in parts], self.device), self.device)
            pixels = pixels.view(-1, *self.crop.size, self.crop.channels)
            pixels = pixels.permute(0, 3, 1, 2).contiguous()  # contiguous channels make all later operations faster
            labels = self.source.labels[np.concatenate([part.indices for part in parts])]
            _, keys = self._order(step)
            bad = tuple(item for part in parts for item in part.bad)
            yield Batch(pixels, _to_device(keys, self.device), _to_device(labels, self.device), bad)


def _concatenate_pinned(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """One tensor, in pinned memory if the device is a GPU."""
    result = parts[0].new_empty(sum(map(len, parts)), pin_memory=device.type == "cuda")
    return torch.cat(list(parts), out=result)


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # pin_memory returns a pinned tensor unchanged


@dataclass(frozen=True)
class EvalLoader:
    """Every readable image once, with the preprocessing of evaluation."""

    source: Source
    scan: ScanResult
    transform: EvalTransform
    batch_size: int
    workers: int
    device: torch.device
    rank: int = 0
    ranks: int = 1
    unreadable: dict[int, str] | None = None  # filled during iteration, for images that were not scanned before
    keep: Tensor | None = None  # which images to use, (N,) bool; None: all

    @property
    def indices(self) -> Tensor:
        """The indices of this process's part of the images."""
        good = torch.ones(len(self.source), dtype=torch.bool) if self.keep is None else self.keep.clone()
        good[list(self.scan.bad)] = False
        return good.nonzero()[self.rank :: self.ranks, 0]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches of pixels (B, C, H, W) in uint8, labels, and image indices, the latter two on `float64_device`."""
        size = self.transform.preprocessing.size
        assert isinstance(size, tuple)
        home = float64_device(self.device)
        if (cached := self.scan.cached) is not None:
            labels = self.source.labels.to(home)
            for indices in self.indices.to(home).split(self.batch_size):
                yield cached.full_images(indices, size).to(self.device), labels[indices], indices
            return
        if not len(self.indices):
            return
        tasks = ((indices, indices) for indices in self.indices.split(self.batch_size))
        for chunk in decode_chunks(self.source, self.transform, tasks, self.workers, replace_bad=False):
            if self.unreadable is not None:
                self.unreadable.update(chunk.bad)
            elif chunk.bad:
                raise VitreousError(f"{chunk.bad[0][1]}; it was readable when the data was checked")
            if not len(chunk.sizes):
                continue
            pixels = chunk.pixels.view(len(chunk.sizes), *size, -1)
            used = torch.from_numpy(chunk.indices)
            indices, labels = (_to_device(x, home) for x in (used, self.source.labels[used]))
            yield _to_device(pixels, self.device).permute(0, 3, 1, 2), labels, indices
