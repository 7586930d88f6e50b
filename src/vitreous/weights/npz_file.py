"""Read and write checkpoints in `.npz` files. Sizes are checked before anything is decompressed."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import VitreousError, summarize_names
from vitreous.utils.memory import size_text
from vitreous.utils.npz import read_npz
from vitreous.weights.tensors import InMemoryTensors

MAX_EXPANSION = 16  # ratio of unpacked to packed size; weights are almost incompressible
ALWAYS_ALLOWED = 64 * 2**20  # unpacked bytes that a file of any size may have: a model of zeros compresses well


def open_npz_checkpoint(path: Path, members: list[zipfile.ZipInfo]) -> InMemoryTensors:
    """Return all arrays of an `.npz` file with these members. Pickled objects are refused."""
    if odd := [m.filename for m in members if m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]:
        raise VitreousError(
            f"a zip archive with a compression method that .npz files do not use: {summarize_names(odd)}"
        )
    tensors = InMemoryTensors(read_npz(path, _check_expansion), container="npz")
    tensors.ignored = {m.filename: "not an array" for m in members if not m.filename.endswith(".npy")}
    return tensors


def _check_expansion(unpacked: int, packed: int) -> None:
    if unpacked > MAX_EXPANSION * packed + ALWAYS_ALLOWED:
        raise VitreousError(
            f"refused: the archive expands from {size_text(packed)} to {size_text(unpacked)}, which no real checkpoint"
            " does"
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
