"""Read and write checkpoints in `.npz` files. Sizes are checked before anything is decompressed."""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import VitreousError, one_line, summarize_names
from vitreous.utils.memory import require_memory, size_text
from vitreous.weights.tensors import InMemoryTensors

MAX_EXPANSION = 16  # ratio of unpacked to packed size; weights are almost incompressible
ALWAYS_ALLOWED = 64 * 2**20  # unpacked bytes that a file of any size may have: a model of zeros compresses well


def open_npz_checkpoint(path: Path) -> InMemoryTensors:
    """Return all arrays of an `.npz` file. Pickled objects are not loaded."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive.infolist(), path.stat().st_size)
            for member in archive.infolist():
                if member.filename.endswith(".npy"):
                    _check_array(archive, member)
        with np.load(path, allow_pickle=False) as arrays:
            members = {name: arrays[name] for name in arrays.files}
    except VitreousError:
        raise
    except Exception as error:  # numpy and zipfile raise exceptions of any type for damaged files
        raise VitreousError(f"not a readable .npz file ({one_line(error)})") from error
    tensors = InMemoryTensors(
        {name: array for name, array in members.items() if isinstance(array, np.ndarray)}, container="npz"
    )
    tensors.ignored = {name: "not an array" for name in members if name not in tensors}
    return tensors


def _check_sizes(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse an archive whose declared size is implausible for a checkpoint, or exceeds the free memory."""
    total = sum(member.file_size for member in members)
    if total > MAX_EXPANSION * size + ALWAYS_ALLOWED:
        raise VitreousError(
            f"refused: the archive expands from {size_text(size)} to {size_text(total)}, which no real checkpoint does"
        )
    if odd := [m.filename for m in members if m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]:
        raise VitreousError(
            f"a zip archive with a compression method that .npz files do not use: {summarize_names(odd)}"
        )
    require_memory(total, "its arrays")


def _check_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Check that the shape in an array's header matches the number of bytes in the archive."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:  # 3.0 is for structured arrays with Unicode field names
            raise VitreousError(f"{member.filename} is an array in the format {version}, which weights do not use")
        shape, _, dtype = readers[version](file)
        declared = math.prod(shape) * dtype.itemsize
        if any(n >= 2**60 for n in shape) or (not dtype.hasobject and file.tell() + declared != member.file_size):
            raise VitreousError(
                f"{member.filename} should hold {declared:,} bytes, for the shape {shape}, and has"
                f" {max(0, member.file_size - file.tell()):,}: the file is damaged"
            )


def write_npz(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write tensors to an uncompressed `.npz` file."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: _to_array(tensor, name) for name, tensor in state.items()})


def _to_array(tensor: Tensor, name: str) -> NDArray[Any]:
    if tensor.dtype.itemsize == 1:
        raise VitreousError(f"{name} holds {tensor.dtype}, and .npz files cannot hold 8-bit floating-point numbers")
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # numpy has no bfloat16: the bits are stored as raw bytes
        return tensor.view(torch.uint16).numpy().view("V2")
    return tensor.numpy()
