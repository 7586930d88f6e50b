"""One pass over the images of a data set: size, content digest and a small grey copy of each, and unreadable images."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.dataset import Source, Subset
from vitreous.data.digests import UNREADABLE
from vitreous.data.encoded import EncodedSource
from vitreous.errors import SystemFaultError, VitreousError
from vitreous.utils.images import decode, upright_size

SIDE = 48  # of the grey copies
BATCH = 1024  # images submitted to the threads at a time, to bound memory


@dataclass(frozen=True)
class ImageSignatures:
    """Facts about N images, in their order. Unreadable images have size 0 x 0 and a black copy."""

    sizes: Tensor  # (N, 2) int64: height and width
    digests: Tensor  # (N,) int64: of the stored bytes; `UNREADABLE` if they cannot be read
    grey: Tensor  # (N, SIDE, SIDE) uint8: the whole image, squeezed to a square
    unreadable: dict[int, str]  # error message by index

    @classmethod
    def concatenate(cls, parts: list[ImageSignatures]) -> ImageSignatures:
        unreadable: dict[int, str] = {}
        start = 0
        for part in parts:
            unreadable |= {start + index: reason for index, reason in part.unreadable.items()}
            start += len(part.sizes)
        sizes, digests, grey = (
            torch.cat(list(one)) for one in zip(*((p.sizes, p.digests, p.grey) for p in parts), strict=True)
        )
        return cls(sizes, digests, grey, unreadable)


def read_signatures(source: Source, tick: Callable[[int], None] = lambda images: None) -> ImageSignatures:
    """Read all images of a source. JPEGs are decoded at a reduced size. `tick` is called for each image."""
    count = len(source)
    sizes, digests = torch.zeros(count, 2, dtype=torch.int64), torch.full((count,), UNREADABLE)
    grey = torch.zeros(count, SIDE, SIDE, dtype=torch.uint8)
    unreadable: dict[int, str] = {}
    pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1))  # decoding releases the GIL
    try:
        for start in range(0, count, BATCH):
            part = range(start, min(start + BATCH, count))
            for index, (digest, result) in zip(part, pool.map(lambda i: _read(source, i), part), strict=True):
                digests[index] = digest
                if isinstance(result, str):
                    unreadable[index] = result
                else:
                    sizes[index], grey[index] = torch.tensor(result[0]), torch.from_numpy(result[1])
                tick(1)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return ImageSignatures(sizes, digests, grey, unreadable)


def _read(source: Source, index: int) -> tuple[int, str | tuple[tuple[int, int], NDArray[np.uint8]]]:
    """Return the digest, and the size and grey copy, or the reason why the image is unreadable."""
    while isinstance(source, Subset):
        index, source = int(source.indices[index]), source.source
    digest = UNREADABLE
    try:
        content = source.content(index)
        digest = int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)
        if isinstance(source, EncodedSource):
            image, size = decode(content, (SIDE, SIDE), source.max_pixels), upright_size(content)
        else:
            image = source.image(index)
            size = image.height, image.width
        small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
        return digest, (size, np.array(small))
    except SystemFaultError:
        raise
    except VitreousError as error:
        return digest, str(error).removeprefix(f"{source.name(index)}: ")
