"""The folder of cells: its lock, and hashes of the data that the results in it depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vitreous.data.dataset import DataSet
from vitreous.data.fingerprint import dataset_fingerprint, source_fingerprint
from vitreous.errors import VitreousError
from vitreous.utils.file_locks import lock_file

CELLS = "cells"  # name of the folder in the output folder


def content_fingerprint(data: DataSet) -> str:
    """Return a hash of labels, splits and images. Of image files it contains size and modification time, so that a
    changed file is noticed."""
    parts = [dataset_fingerprint(data)]  # contains the pixels of arrays
    parts += [source_fingerprint(source) for source in data.stored_splits.values() if source.array is None]
    return "-".join(parts)


@contextmanager
def locked_cells(out: Path) -> Iterator[None]:
    """Lock the output folder, so that no other process runs the same cells."""
    try:
        (out / CELLS).mkdir(parents=True, exist_ok=True)
        file: IO[Any] = (out / CELLS / ".lock").open("a")
    except OSError as error:
        raise VitreousError(f"{out} cannot be written ({error.strerror})") from error
    with file:
        try:
            lock_file(file)
        except OSError:
            raise VitreousError(f"{out}: another process is running experiments there; give another --out") from None
        yield
