"""Read .npz files safely: without unpickling, and without allocating more memory than the arrays fill.

Three sizes must agree: the header of an array, the directory of the archive, and the number of bytes. They are compared
before memory is allocated. A small file that unpacks to a very large one is refused.
"""

import math
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitreous.errors import VitreousError, one_line
from vitreous.utils.memory import require_memory, size_text
from vitreous.utils.regular_files import is_system_fault, open_regular, system_fault

ALWAYS_ALLOWED = 1 << 30  # unpacked bytes that a file of any size may have
MAX_EXPANSION = 100  # above that, limit of the ratio of unpacked to packed size: images compress 2x, masks 10x
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def check_expansion(unpacked: int, packed: int) -> None:
    """Refuse a data set that unpacks to far more than its size."""
    if unpacked > max(ALWAYS_ALLOWED, MAX_EXPANSION * packed):
        raise VitreousError(
            f"refused: {packed:,} bytes expand to {size_text(unpacked)}, more than {MAX_EXPANSION} times as much; if"
            " that is correct, save it without compression, with np.savez"
        )


def read_npz(path: str | Path, check: Callable[[int, int], None] = check_expansion) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name. Pickled objects are refused; entries that are not arrays are omitted.

    `check` is called with the unpacked and the packed size before anything is unpacked.
    """
    try:
        with open_regular(path) as file:
            return _read_arrays(file, check)
    except VitreousError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise exceptions of any type for damaged files
        if isinstance(error, OSError) and is_system_fault(error):
            raise system_fault(error) from error
        raise VitreousError(f"not a readable .npz file ({one_line(error)})") from error


def _read_arrays(file: BinaryIO, check: Callable[[int, int], None]) -> dict[str, NDArray[Any]]:
    start = file.read(len(npy.MAGIC_PREFIX))
    if start == npy.MAGIC_PREFIX:
        raise VitreousError("a single array: save images and labels together with np.savez")
    with zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        unpacked = sum(member.file_size for member in members)
        check(unpacked, os.fstat(file.fileno()).st_size)
        require_memory(unpacked, "its arrays")
        names = [member.filename.removesuffix(".npy") for member in members]
        if len(set(names)) < len(names):
            raise VitreousError("not a readable .npz file (several arrays have the same name)")
        return {name: _read_array(archive, member, name) for name, member in zip(names, members, strict=True)}


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        if version not in HEADERS:  # 3.0 is for structured arrays with Unicode field names
            raise VitreousError(f"{name}: an array of the unsupported format {version[0]}.{version[1]}")
        shape, fortran_order, dtype = HEADERS[version](stream)
        if dtype.hasobject:
            raise VitreousError(f"{name} holds Python objects, which are not loaded")
        stored = member.file_size - stream.tell()
        valid = all(type(n) is int and n >= 0 for n in shape) and math.prod(n or 1 for n in shape) < 2**60
        if not valid or not dtype.itemsize or math.prod(shape) * dtype.itemsize != stored:
            raise VitreousError(
                f"{name}: an array of {dtype} and shape {shape} does not fit its {stored:,} bytes: the file is damaged"
            )
        values = np.empty(stored, np.uint8)
        if _read_into(stream, values) < stored:
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
