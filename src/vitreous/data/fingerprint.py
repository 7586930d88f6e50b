"""Short hashes of a source or a data set, to detect whether stored results still belong to its images and labels."""

import os
from collections.abc import Iterable
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np

from vitreous.data.dataset import DataSet, Source, Subset
from vitreous.data.encoded import FileSource
from vitreous.data.shards import TarSource
from vitreous.data.zip_archive import ZipSource


def source_fingerprint(source: Source) -> str:
    """A hash of the labels and images of a source.

    Arrays are hashed by their bytes, image files and tar shards by name, size and modification time, images in a zip
    archive by their checksums, and images of other sources, such as Parquet files, by their encoded bytes.
    """
    digest = blake2b(source.labels.contiguous().numpy().tobytes(), digest_size=16)
    for part in _parts(source):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def dataset_fingerprint(data: DataSet) -> str:
    """A hash of the classes, splits, labels and image names of a data set: all that defines the training stream.

    Arrays are hashed by their bytes. Of a file only the last two parts of the path count, so that the folder may move;
    its content is not hashed.
    """
    digest = blake2b(repr(data.classes).encode(), digest_size=16)
    for name, source in data.splits.items():
        digest.update(name.encode())
        digest.update(source.labels.numpy().tobytes())
        if source.array is not None:
            digest.update(np.ascontiguousarray(source.array).data)
        else:
            names = ("/".join(Path(source.name(index)).parts[-2:]) for index in range(len(source)))
            digest.update("\n".join(names).encode(errors="surrogateescape"))
    return digest.hexdigest()


def _parts(source: Source) -> Iterable[bytes]:
    if isinstance(source, Subset):
        return [source_fingerprint(source.source).encode(), source.indices.numpy().tobytes()]
    if source.array is not None:
        return [str(source.array.shape).encode(), np.ascontiguousarray(source.array).tobytes()]
    if isinstance(source, FileSource):
        stamps = [_size_and_time(source.name(index)) for index in range(len(source))]
        return [os.fsencode("\n".join(source.names)), *stamps]
    if isinstance(source, TarSource):
        return [
            os.fsencode("\n".join(source.names)),
            *(_size_and_time(path) for path in source.paths),
            *(array.tobytes() for array in (source.shards, source.offsets)),
        ]
    if isinstance(source, ZipSource):
        return [os.fsencode("\n".join(source.names)), source.sizes.tobytes(), source.checksums.tobytes()]
    names = os.fsencode("\n".join(map(source.name, range(len(source)))))
    return chain([names], map(source.content, range(len(source))))


def _size_and_time(path: str) -> bytes:
    try:
        status = Path(path).stat()
    except OSError:
        return b"gone"
    return f"{status.st_size} {status.st_mtime_ns}".encode()
