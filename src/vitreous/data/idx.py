"""MNIST and Fashion-MNIST in their original format: idx files, with or without gzip."""

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError, one_line
from vitreous.utils.npz import ALWAYS_ALLOWED, MAX_EXPANSION
from vitreous.utils.regular_files import is_system_fault, open_regular, system_fault

PREFIXES = {"train": "train", "test": "t10k"}


def has_idx(folder: Path) -> bool:
    """Whether a folder contains the training images of MNIST or Fashion-MNIST."""
    return _find_file(folder, "train", "images", 3) is not None


def read_idx_folder(folder: Path) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """(images, labels) of train, and of test if its files exist."""
    parts = {}
    for split, prefix in PREFIXES.items():
        images, labels = _find_file(folder, prefix, "images", 3), _find_file(folder, prefix, "labels", 1)
        if images is None and labels is None and split != "train":
            continue
        if images is None or labels is None:
            kind, dimensions = ("images", 3) if images is None else ("labels", 1)
            raise VitreousError(f"{folder}: there is no {prefix}-{kind}-idx{dimensions}-ubyte or .gz in it")
        parts[split] = _read_idx(images, 3), _read_idx(labels, 1)
        if len(parts[split][0]) != len(parts[split][1]):
            raise VitreousError(f"{folder}: {images.name} and {labels.name} have different lengths")
    return parts


def _read_idx(path: Path, dimensions: int) -> NDArray[Any]:
    try:
        with open_regular(path) as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            size = os.fstat(file.fileno()).st_size
            return _parse_idx(gzip.GzipFile(fileobj=file) if compressed else file, dimensions, size, compressed)
    except VitreousError as error:
        raise error.at(path) from error
    except (OSError, EOFError, zlib.error) as error:
        if is_system_fault(error):
            raise system_fault(error, path) from error
        raise VitreousError(f"{path}: cannot be read, or is truncated ({one_line(error)})") from error


def _parse_idx(file: Any, dimensions: int, size: int, compressed: bool) -> NDArray[Any]:
    """Two zeros, the type (8: uint8), the number of dimensions, each dimension in 4 bytes, then the values."""
    start = 4 + 4 * dimensions
    header = file.read(start)
    if header[:4] != bytes([0, 0, 8, dimensions]) or len(header) < start:
        raise VitreousError(f"not an idx file of uint8 with {dimensions} dimensions")
    shape = tuple(np.frombuffer(header, ">u4", dimensions, 4).tolist())
    expected = math.prod(shape)
    if expected > (max(ALWAYS_ALLOWED, MAX_EXPANSION * size) if compressed else size):
        raise VitreousError(f"expected {expected:,} bytes of values, but the file has {size:,}: is it truncated?")
    data = file.read(expected + 1)
    if len(data) != expected:
        actual = f"{len(data):,}" if len(data) < expected else "more"
        raise VitreousError(f"expected {expected:,} bytes of values, got {actual}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _find_file(folder: Path, prefix: str, kind: str, dimensions: int) -> Path | None:
    for mark in "-.":  # some tools write a dot instead of the last dash when unpacking
        for suffix in ("", ".gz"):
            path = folder / f"{prefix}-{kind}{mark}idx{dimensions}-ubyte{suffix}"
            if path.is_file():
                return path
    return None
