"""Decode and transform images in worker processes, in chunks whose order does not depend on the number of workers."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitreous.data.dataset import Source
from vitreous.data.digests import image_digest
from vitreous.data.shared_memory import available_workers, pack_arrays, unpack_tensor
from vitreous.data.transforms import ImageTransform
from vitreous.data.workers import iterate_loader, start_worker
from vitreous.errors import SystemFaultError, VitreousError
from vitreous.utils.regular_files import is_system_fault, system_fault

CHUNK_SIZE = 64  # images that a worker transfers at a time


@dataclass(frozen=True)
class ImageChunk:
    """Transformed images in one flat buffer. Only the buffer is a tensor, since each tensor from a worker costs a file
    descriptor."""

    flat: Tensor | NDArray[Any]  # an array while it is sent through a pipe, a tensor in the main process
    sizes: NDArray[np.int64]  # (n, 2), heights and widths
    indices: NDArray[np.int64]  # indices of the images; they differ from the requested ones if some were unreadable
    bad: tuple[tuple[int, str], ...]  # index and error of each unreadable image
    digests: NDArray[np.int64]  # content digests of the requested images; empty if they were not requested
    fault: str = ""  # a failure of the system, which is raised in the main process

    @property
    def pixels(self) -> Tensor:
        assert isinstance(self.flat, Tensor)
        return self.flat


class _ChunkDataset(Dataset[ImageChunk]):
    def __init__(self, source: Source, transform: ImageTransform, replace_bad: bool, digest: bool):
        self.source, self.transform, self.replace_bad, self.digest = source, transform, replace_bad, digest
        self.replacements: dict[int, int] = {}  # unreadable image -> the image that replaces it

    def __getitem__(self, task: tuple[NDArray[np.int64], NDArray[np.int64]]) -> ImageChunk:
        try:
            return self._chunk(*map(torch.from_numpy, task))
        except (SystemFaultError, OSError, MemoryError) as error:
            if not is_system_fault(error):
                raise
            empty = np.empty(0, np.int64)
            return ImageChunk(np.empty(0, np.uint8), empty.reshape(0, 2), empty, (), empty, str(system_fault(error)))

    def _chunk(self, indices: Tensor, keys: Tensor) -> ImageChunk:
        arrays, used = [], []
        bad: list[tuple[int, str]] = []
        for requested, parameters in zip(indices.tolist(), self.transform.draw_parameters(keys), strict=True):
            if (result := self._read(requested, parameters, bad)) is not None:
                arrays.append(result[0])
                used.append(result[1])
        sizes = np.array([array.shape[:2] for array in arrays], np.int64).reshape(-1, 2)
        digests = [image_digest(self.source, index) for index in indices.tolist()] if self.digest else []
        return ImageChunk(pack_arrays(arrays), sizes, np.array(used, np.int64), tuple(bad), np.array(digests, np.int64))

    def _read(self, requested: int, parameters: Any, bad: list[tuple[int, str]]) -> tuple[NDArray[Any], int] | None:
        """The image and its index. If it is unreadable: with `replace_bad` the next readable image, otherwise None."""
        index, skipped = self.replacements.get(requested, requested), []
        for _ in range(len(self.source) if self.replace_bad else 1):
            try:
                array = self.transform(self.source, index, parameters)
            except SystemFaultError:
                raise
            except VitreousError as error:
                bad.append((index, str(error)))
                skipped.append(index)
                index = (index + 1) % len(self.source)
                index = self.replacements.get(index, index)
                continue
            self.replacements |= dict.fromkeys(skipped, index)
            return array, index
        return None


def _start_method() -> str:
    """The start method of processes: the caller's, or Python's default. If it is not passed explicitly, torch sets the
    default for the whole program."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def decode_chunks(
    source: Source,
    transform: ImageTransform,
    tasks: Iterable[tuple[Tensor, Tensor]],
    workers: int,
    replace_bad: bool,
    digest: bool = False,
) -> Iterator[ImageChunk]:
    """The transformed images of tasks (indices, keys), in order; with `digest`, also their content digests."""
    options: dict[str, Any] = {}
    if workers := available_workers(workers, _start_method()):
        options = {"prefetch_factor": 4, "worker_init_fn": start_worker, "multiprocessing_context": _start_method()}
    with warnings.catch_warnings():  # torch warns of more workers than cores, which the user may choose
        warnings.simplefilter("ignore")
        loader: DataLoader[ImageChunk] = DataLoader(
            _ChunkDataset(source, transform, replace_bad, digest),
            batch_size=None,
            sampler=((indices.numpy(), keys.numpy()) for indices, keys in tasks),  # tensors would use shared memory
            num_workers=workers,
            generator=torch.Generator(),  # DataLoader draws a number, which must not come from the global generator
            **options,
        )
    for chunk in iterate_loader(loader):
        if chunk.fault:
            raise SystemFaultError(chunk.fault)
        yield replace(chunk, flat=unpack_tensor(chunk.flat, from_worker=workers > 0))


def split_into_chunks(indices: Tensor, keys: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Tasks of up to `CHUNK_SIZE` images for `decode_chunks`."""
    yield from zip(indices.split(CHUNK_SIZE), (indices if keys is None else keys).split(CHUNK_SIZE), strict=True)
