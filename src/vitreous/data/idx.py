"""MNIST and Fashion-MNIST as they are published: idx files, gzipped or not."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError

FILES = {"train": "train", "test": "t10k"}


def has_idx(folder: Path) -> bool:
    return _file(folder, "train", "images", 3) is not None


def read_idx_folder(folder: Path) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """(images, labels) of each split that is there."""
    parts = {}
    for split, prefix in FILES.items():
        images, labels = _file(folder, prefix, "images", 3), _file(folder, prefix, "labels", 1)
        if images is None and labels is None and split != "train":
            continue
        if images is None or labels is None:
            kind, dimensions = ("images", 3) if images is None else ("labels", 1)
            raise VitreousError(f"{folder}: there is no {prefix}-{kind}-idx{dimensions}-ubyte or .gz in it")
        parts[split] = read_idx(images, 3), read_idx(labels, 1)
        if len(parts[split][0]) != len(parts[split][1]):
            raise VitreousError(f"{folder}: {images.name} and {labels.name} are of different lengths")
    return parts


def read_idx(path: Path, dimensions: int) -> NDArray[Any]:
    """Two zeros, the type (8: uint8), the number of dimensions, each as 4 bytes, then the values."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise VitreousError(f"{path}: cannot be read, or is cut short ({error})") from error
    start = 4 + 4 * dimensions
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) < start:
        raise VitreousError(f"{path}: not an idx file of {dimensions} dimensions in uint8")
    shape = tuple(np.frombuffer(data, ">u4", dimensions, 4).tolist())
    if math.prod(shape) != len(data) - start:
        raise VitreousError(f"{path}: expected {math.prod(shape):,} bytes of values, got {len(data) - start:,}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _file(folder: Path, prefix: str, kind: str, dimensions: int) -> Path | None:
    for mark in "-.":  # some unpackers write the last dash as a dot
        for suffix in ("", ".gz"):
            path = folder / f"{prefix}-{kind}{mark}idx{dimensions}-ubyte{suffix}"
            if path.is_file():
                return path
    return None
