"""Read .npz files of data sets safely: without unpickling, and without allocating more memory than the arrays fill.

Three sizes must agree: the header of an array, the directory of the archive, and the number of bytes. They are compared
before memory is allocated. A small file that unpacks to a very large one is refused.
"""

import math
import os
import sys
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitreous.errors import VitreousError
from vitreous.utils.memory import free_memory
from vitreous.utils.regular_files import is_system_fault, open_regular, system_fault

ALWAYS_ALLOWED = 1 << 30  # unpacked bytes that a file of any size may have
MAX_EXPANSION = 100  # above that, limit of the ratio of unpacked to packed size: images compress 2x, masks 10x
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name. Pickled objects are refused; entries that are not arrays are omitted."""
    try:
        with open_regular(path) as file:
            return _arrays(file)
    except VitreousError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise exceptions of any type for damaged files
        if isinstance(error, OSError) and is_system_fault(error):
            raise system_fault(error) from error
        raise VitreousError(f"not a readable .npz file ({str(error)[:200] or type(error).__name__})") from error


def _arrays(file: BinaryIO) -> dict[str, NDArray[Any]]:
    start = file.read(len(npy.MAGIC_PREFIX))
    if start == npy.MAGIC_PREFIX:
        raise VitreousError("a single array: save images and labels together with np.savez")
    with zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        _check_total(sum(member.file_size for member in members), os.fstat(file.fileno()).st_size)
        names = [member.filename.removesuffix(".npy") for member in members]
        if len(set(names)) < len(names):
            raise VitreousError("not a readable .npz file (several arrays have the same name)")
        return {name: _array(archive, member, name) for name, member in zip(names, members, strict=True)}


def _check_total(total: int, packed: int) -> None:
    size = f"{total / 2**30:,.1f} GiB"
    if total > max(ALWAYS_ALLOWED, MAX_EXPANSION * packed):
        raise VitreousError(
            f"refused: {packed:,} bytes expand to {size}, more than {MAX_EXPANSION} times as much; if that is correct,"
            " save it without compression, with np.savez"
        )
    if total > (free := free_memory(torch.device("cpu"))):
        raise VitreousError(f"its arrays take {size} of memory, and {free / 2**30:,.1f} GiB are free")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        if version not in HEADERS:
            raise VitreousError(f"{name}: an array of the unsupported format {version[0]}.{version[1]}")
        shape, fortran_order, dtype = HEADERS[version](stream)
        if dtype.hasobject:
            raise VitreousError(f"{name} holds Python objects, which are not loaded")
        expected = member.file_size - stream.tell()
        valid = all(type(n) is int and n >= 0 for n in shape) and math.prod(n or 1 for n in shape) < 2**60
        if not valid or not dtype.itemsize or math.prod(shape) * dtype.itemsize != expected:
            raise VitreousError(f"{name}: an array of {dtype} and shape {shape} in {expected:,} bytes")
        values = np.empty(expected, np.uint8)
        if _read_into(stream, values) < expected:
            raise VitreousError(f"{name}: the file is truncated")
        stream.read(1)  # zipfile verifies the checksum when it reaches the end
        _check_characters(values, dtype, name)
        return values.view(dtype).reshape(shape, order="F" if fortran_order else "C")


def _check_characters(values: NDArray[np.uint8], dtype: np.dtype[Any], name: str) -> None:
    """Refuse text arrays with invalid characters. numpy accepts any 4 bytes, but Python fails to convert them."""
    if dtype.kind != "U":
        return
    characters = values.view(np.dtype(np.uint32).newbyteorder(dtype.byteorder))
    if characters.max(initial=0) > sys.maxunicode:
        raise VitreousError(f"{name}: texts with invalid characters: the file is damaged")


def _read_into(stream: Any, values: NDArray[np.uint8]) -> int:
    """Fill `values` from a stream. Returns the number of bytes read."""
    filled = 0
    while filled < len(values) and (part := stream.read(min(1 << 20, len(values) - filled))):
        values[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
        filled += len(part)
    return filled
