"""Content digests of images: 64 bits of a hash of each image's stored bytes.

A run records the digests of its training, validation and test images. So an image is recognised after its folder was
moved or renamed, and an image that was replaced under the same name is detected.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import torch
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.errors import SystemFaultError, VitreousError

UNREADABLE = 0  # the digest of an unreadable image; it never equals the digest of a readable one
BATCH = 1024


def image_digest(source: Source, index: int) -> int:
    """The digest of one image; `UNREADABLE` if its bytes cannot be read."""
    try:
        content = source.content(index)
    except SystemFaultError:
        raise
    except VitreousError:
        return UNREADABLE
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)


def image_digests(source: Source, tick: Callable[[int], None] = lambda images: None) -> Tensor:
    """The digests of all images, in order, (N,) int64. `tick` is called with the number of images just finished."""
    result: list[int] = []
    with ThreadPoolExecutor(8) as pool:  # hashing and reading release the GIL
        for start in range(0, len(source), BATCH):
            part = range(start, min(start + BATCH, len(source)))
            result += pool.map(lambda index: image_digest(source, index), part)
            tick(len(part))
    return torch.tensor(result, dtype=torch.int64)
