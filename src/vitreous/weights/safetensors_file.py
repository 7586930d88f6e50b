"""Read and write `.safetensors` files: 8 bytes of header length, a JSON header, then the bytes of the tensors.

This module implements the format and does not use the `safetensors` package, for these reasons. The package's reader
cannot return the pages of a single tensor to the system (`SafetensorsFile.release`). Its writer converts all tensors to
bytes at once, aligns the data to 8 bytes instead of 64, and writes metadata in arbitrary order, so two files of the
same tensors may differ. The tests compare both directions with the package.
"""

import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError, one_line
from vitreous.utils.regular_files import open_regular
from vitreous.weights.tensors import Tensors

MAX_HEADER_BYTES = 25_000_000
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class SafetensorsFile(Tensors):
    """A `.safetensors` file mapped into memory. Its tensors are views of the mapping: bytes are read when used."""

    container = "safetensors"
    entries: dict[str, tuple[torch.dtype, tuple[int, ...], int, int]]  # dtype, shape, start and end in the data

    def __init__(self, path: Path):
        super().__init__()
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little") if size >= 8 else size
            if not 2 <= length <= size - 8:
                raise VitreousError(
                    f"not a readable .safetensors file (its header should have {length} bytes, the file has {size})"
                )
            if length > MAX_HEADER_BYTES:
                raise VitreousError(
                    f"not a readable .safetensors file (its header has {length:,} bytes, and the limit is"
                    f" {MAX_HEADER_BYTES:,})"
                )
            try:
                header = json.loads(file.read(length).decode())
                self.metadata = header.pop("__metadata__", {})
                self.entries = {name: self._entry(value) for name, value in header.items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise VitreousError(f"not a readable .safetensors file (its header: {one_line(error)})") from error
            self.data_start = 8 + length
            if not isinstance(self.metadata, dict):
                raise VitreousError("not a readable .safetensors file (its metadata is not an object)")
            self._check_offsets(size - self.data_start)
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def _check_offsets(self, data_size: int) -> None:
        """Check that the tensors fill the data section without gaps or overlaps, as the format requires."""
        spans = sorted(entry[2:] for entry in self.entries.values())
        end = max((stop for _, stop in spans), default=0)
        if end > data_size:
            raise VitreousError(
                f"the file is truncated: {end - data_size:,} of its {self.data_start + end:,} bytes are missing"
            )
        gaps = any(start != stop for (start, _), (_, stop) in zip(spans, [(0, 0), *spans], strict=False))
        if end < data_size or gaps:
            raise VitreousError("not a readable .safetensors file (its tensors overlap, or leave gaps)")

    @staticmethod
    def _entry(value: dict[str, Any]) -> tuple[torch.dtype, tuple[int, ...], int, int]:
        """Parse one tensor of the header: dtype, shape, start and end offset in the data section."""
        if value["dtype"] not in DTYPES:
            raise ValueError(f"a tensor has the unknown dtype {value['dtype']}")
        dtype, shape, (start, stop) = DTYPES[value["dtype"]], tuple(value["shape"]), value["data_offsets"]
        integers = all(type(n) is int and n >= 0 for n in (*shape, start, stop))
        # `n or 1`, because torch cannot represent a shape such as 0 x 2**70 either.
        valid = integers and len(shape) <= 64 and math.prod(n or 1 for n in shape) < 2**60
        if not valid or math.prod(shape) * dtype.itemsize != stop - start:
            raise ValueError(f"a tensor of shape {shape} at the bytes from {start} to {stop}")
        return dtype, shape, start, stop

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape, start, stop = self.entries[name]
        if start == stop:
            return torch.empty(shape, dtype=dtype)
        offset = self.data_start + start
        if offset % dtype.itemsize:  # the format does not guarantee alignment
            return torch.frombuffer(bytearray(self.map[offset : self.data_start + stop]), dtype=dtype).view(shape)
        return torch.frombuffer(self.map, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name][1]

    def release(self, name: str) -> None:
        """Return the tensor's pages to the system. A later access reads them from the file again."""
        *_, start, stop = self.entries[name]
        first = math.ceil((self.data_start + start) / mmap.PAGESIZE) * mmap.PAGESIZE
        length = (self.data_start + stop) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0 and hasattr(self.map, "madvise"):
            self.map.madvise(mmap.MADV_DONTNEED, first, length)


def write_safetensors(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a `.safetensors` file with one tensor in memory at a time, deterministically. The data starts at a multiple
    of 64 bytes, so a mapped file is aligned like allocated memory."""
    codes = {dtype: code for code, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    # Tensors of a multiple of 64 bytes come first, then those with the widest types, so that all stay aligned.
    ordered = sorted(state.items(), key=lambda item: (item[1].nbytes % 64 > 0, -item[1].dtype.itemsize, item[0]))
    start = 0
    for name, tensor in ordered:
        if tensor.dtype not in codes:
            raise VitreousError(f"{name} holds {tensor.dtype}, which .safetensors has no name for")
        stop = start + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": codes[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
