"""What images are, in a few bytes: to tell whether something that was made of them is still of these."""

import os
from collections.abc import Iterable
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np

from vitreous.data.encoded import Files
from vitreous.data.shards import Shards
from vitreous.data.sources import Source, Subset


def fingerprint(source: Source) -> str:
    """Of the labels, and of the images: those in memory by their bytes, files by name, size and date of change.

    Of any other kind, such as Parquet, by the bytes of every image.
    """
    digest = blake2b(source.labels.contiguous().numpy().tobytes(), digest_size=16)
    for part in _parts(source):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(source: Source) -> Iterable[bytes]:
    if isinstance(source, Subset):
        return [fingerprint(source.source).encode(), source.indices.numpy().tobytes()]
    if source.array is not None:
        return [str(source.array.shape).encode(), np.ascontiguousarray(source.array).tobytes()]
    if isinstance(source, Files):
        dates = [_date(source.name(index)) for index in range(len(source))]
        return [os.fsencode("\n".join(source.names)), *dates]
    if isinstance(source, Shards):
        return [
            os.fsencode("\n".join(source.names)),
            *(_date(path) for path in source.paths),
            *(array.tobytes() for array in (source.shards, source.offsets)),
        ]
    names = os.fsencode("\n".join(map(source.name, range(len(source)))))
    return chain([names], map(source.content, range(len(source))))


def _date(path: str) -> bytes:
    try:
        status = Path(path).stat()
    except OSError:
        return b"gone"
    return f"{status.st_size} {status.st_mtime_ns}".encode()
