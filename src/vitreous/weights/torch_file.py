"""Read PyTorch files (`.pth`, `.pt`, `.bin`) without running code of the file, and find the state dict in them.

torch.load is called with `weights_only=True`. Before that, `pickle_check` compares the sizes that the pickle declares
with the bytes in the file.
"""

import argparse
import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief, one_line, summarize_names
from vitreous.utils.memory import size_text
from vitreous.utils.regular_files import open_regular
from vitreous.weights.pickle_check import check_pickle
from vitreous.weights.tensors import InMemoryTensors

# Training scripts save their settings (argparse.Namespace) and numpy scalars together with the weights.
_NUMPY_SCALAR = np.float64(0).__reduce__()[0]
_SAFE_GLOBALS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *(type(np.dtype(name)) for name in ("float64", "float32", "int64", "int32", "bool")),
    *((_NUMPY_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),  # old and new module name
]
# Keys under which training scripts save a state dict, in order of preference.
_STATE_DICT_KEYS = (
    "teacher",
    "state_dict_ema",
    "model_ema",
    "ema",
    "model",
    "state_dict",
    "model_state_dict",
    "module",
    "student",
)
_MAX_NESTING = 8  # levels of nested dicts; a pickled dict may contain itself
_MAX_SHARING = 4  # how many times over tensors may share memory: tied layers, or a model and its EMA copy
_ALWAYS_ALLOWED = 64 * 2**20  # bytes of tensors that may share any amount of memory


def open_torch_file(path: Path, members: list[zipfile.ZipInfo] | None = None) -> InMemoryTensors:
    """Return the state dict of a PyTorch file. `members`: the entries of the zip archive; None for the legacy format,
    which PyTorch used before version 1.6."""
    try:
        with open_regular(path) as file:
            _check_legacy(file) if members is None else _check_archive(file, members)
        with torch.serialization.safe_globals(_SAFE_GLOBALS):
            content = _torch_load(path)
    except VitreousError:
        raise
    except Exception as error:  # torch raises exceptions of any type for damaged files
        raise VitreousError(f"a PyTorch file that cannot be read: truncated or damaged ({one_line(error)})") from error
    return _extract_state_dict(content)


def _check_archive(file: BinaryIO, members: list[zipfile.ZipInfo]) -> None:
    """Check the zip archive. torch.save puts all entries into one folder and compresses none of them."""
    size = os.fstat(file.fileno()).st_size
    folder = members[0].filename.partition("/")[0]
    for member in members:
        stored = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
        if not stored or member.file_size != member.compress_size:
            raise VitreousError(f"refused: {member.filename[:200]} is compressed, which torch.save does not do")
        if not member.filename.startswith(f"{folder}/"):
            names = summarize_names([m.filename for m in members])
            raise VitreousError(f"an archive of several folders, not a PyTorch file: {names}")
    if (total := sum(member.file_size for member in members)) > size:
        raise VitreousError(f"the file is damaged: its parts have {total:,} bytes together, and the file {size:,}")
    prefix = f"{folder}/data/"
    stored_bytes = {m.filename.removeprefix(prefix): m.file_size for m in members if m.filename.startswith(prefix)}
    with zipfile.ZipFile(file) as archive, archive.open(f"{folder}/data.pkl") as pickle:
        check_pickle(io.BytesIO(pickle.read()), stored_bytes)


def _check_legacy(file: BinaryIO) -> None:
    """Check the legacy format: five pickles (magic number, version, system, content, storage names), then the
    storages."""
    storages = [check_pickle(file) for _ in range(5)][3]
    declared = sum(storage.items * storage.item_size for storage in storages.values())
    remaining = os.fstat(file.fileno()).st_size - file.tell()
    if declared > remaining:
        raise ValueError(f"tensors of {declared:,} bytes, of which the file has {remaining:,}")


def _torch_load(path: Path) -> Any:
    if path.suffix != ".safetensors":  # torch.load would parse a path with this suffix as safetensors
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, ValueError) as error:
            if "mmap" not in str(error):
                raise
    with open_regular(path) as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def _extract_state_dict(content: Any) -> InMemoryTensors:
    """Return the state dict in the object that a training script saved."""
    notes: list[str] = []
    ignored: dict[str, str] = {}
    keys: list[str] = []
    while isinstance(content, dict):
        key = next((key for key in _STATE_DICT_KEYS if isinstance(content.get(key), dict)), None)
        if key is None:
            break
        if len(keys) == _MAX_NESTING:
            raise VitreousError(f"the weights are nested more than {_MAX_NESTING} dicts deep: {'.'.join(keys)}")
        others = [_key_text(other) for other in content if other != key]
        if others:
            notes.append(f"loaded the weights under {key!r}; other keys in the file: {summarize_names(others)}")
            ignored |= {".".join((*keys, other)): f"not under {key!r}" for other in others}
        keys.append(key)
        content = content[key]
    if not isinstance(content, dict):
        raise VitreousError(f"holds a {type(content).__name__}, not a state dict: names and tensors")
    tensors = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        keys_text = summarize_names([_key_text(key) for key in content]) or "nothing"
        raise VitreousError(f"no state dict in the file: it contains {keys_text}")
    _check_plain_tensors(tensors)
    result = InMemoryTensors({name: tensor.detach() for name, tensor in tensors.items()}, "PyTorch")
    result.notes = notes
    result.ignored = ignored | {_key_text(name): "not a tensor" for name in content if name not in tensors}
    return result


def _key_text(key: Any) -> str:
    """Return a short text for a dict key, which may be any hashable object."""
    return key[:200] if isinstance(key, str) else brief(key)


def _check_plain_tensors(tensors: Mapping[str, Tensor]) -> None:
    """Check that each tensor has memory for all its values. An expanded tensor can claim terabytes with a few bytes."""
    for name, tensor in tensors.items():
        if problem := _not_plain(tensor):
            raise VitreousError(f"{name[:200]} is {problem}, not a plain tensor: save it as one")
        if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise VitreousError(
                f"{name[:200]} has {tensor.numel():,} values and memory for fewer (it was expanded): save a copy of it,"
                " `tensor.clone()`"
            )
    claimed = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
    memory = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors.values()}
    if claimed > _MAX_SHARING * sum(memory.values()) + _ALWAYS_ALLOWED:
        raise VitreousError(
            f"its tensors have {size_text(claimed)}, but share {size_text(sum(memory.values()))} of memory: save copies"
            " of them, `tensor.clone()`"
        )


def _not_plain(tensor: Tensor) -> str | None:
    """Return the kind of tensor if it is not a plain dense tensor with values in memory, else None."""
    if tensor.is_nested:
        return "a nested tensor"
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__}"
    if tensor.layout != torch.strided:
        return f"a {str(tensor.layout).removeprefix('torch.').replace('_coo', '')} tensor"
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.is_meta:
        return "on the meta device, without values"
    return None
