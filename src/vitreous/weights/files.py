"""Containers of tensors, opened without running anything they hold, and written so that a failure leaves no trace.

A `.safetensors` file is mapped into memory and its tensors are views of it: nothing is read before it is used, and
nothing twice. What is then copied anyway (parts that are joined, another dtype, another device) can be let go of.
"""

import argparse
import json
import math
import mmap
import os
import re
import stat
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.weights.report import listed

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
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")


class Tensors(Mapping[str, Tensor]):
    """The tensors of a file by name, and what stands beside them."""

    container = ""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.notes: list[str] = []
        self.ignored: dict[str, str] = {}  # what the file holds besides tensors of the model -> the rule

    @abstractmethod
    def __contains__(self, name: object) -> bool: ...  # without opening the tensor

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]: ...

    def release(self, name: str) -> None:
        """This tensor was copied: the file's own is not needed any more."""


class Held(Tensors):
    """Tensors in memory. Arrays become tensors when they are asked for."""

    def __init__(self, tensors: Mapping[str, Any], container: str):
        super().__init__()
        self.tensors = dict(tensors)
        self.container = container

    def __getitem__(self, name: str) -> Tensor:
        value = self.tensors[name]
        return value if isinstance(value, Tensor) else from_array(value, name)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def release(self, name: str) -> None:
        value = self.tensors[name]
        self.tensors[name] = torch.empty(value.shape, device="meta")


class Mapped(Tensors):
    """A `.safetensors` file in memory: 8 bytes of length, a header in JSON, then the tensors' bytes."""

    container = "safetensors"

    def __init__(self, path: Path):
        super().__init__()
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little") if size >= 8 else size
            if not 2 <= length <= size - 8:
                raise VitreousError(f"not a readable .safetensors file (its header should be {length} bytes of {size})")
            try:
                header = json.loads(file.read(length).decode())
                self.metadata = header.pop("__metadata__", {})
                self.entries = {name: self._entry(value) for name, value in header.items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise VitreousError(f"not a readable .safetensors file (its header: {_short(error)})") from error
            self.start = 8 + length
            if not isinstance(self.metadata, dict):
                raise VitreousError("not a readable .safetensors file (its metadata)")
            self._check_spans(size - self.start)
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def _check_spans(self, space: int) -> None:
        """One tensor behind the other, from the first byte to the last: the format wants it so, and its library too."""
        spans = sorted(entry[2:] for entry in self.entries.values())
        end = max((stop for _, stop in spans), default=0)
        if end > space:
            raise VitreousError(f"the file is cut short: {end - space:,} of its {self.start + end:,} bytes are missing")
        if end < space or any(start != stop for (start, _), (_, stop) in zip(spans, [(0, 0), *spans], strict=False)):
            raise VitreousError("not a readable .safetensors file (its tensors overlap, or leave gaps)")

    @staticmethod
    def _entry(value: dict[str, Any]) -> tuple[torch.dtype, tuple[int, ...], int, int]:
        if value["dtype"] not in DTYPES:
            raise ValueError(f"a tensor of {value['dtype']}, which is not known here")
        dtype, shape, (start, stop) = DTYPES[value["dtype"]], tuple(value["shape"]), value["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, start, stop))
        countable = whole and len(shape) <= 64 and math.prod(n or 1 for n in shape) < 2**60  # 0 x 2**70 is no shape
        if not countable or math.prod(shape) * dtype.itemsize != stop - start:
            raise ValueError(f"a tensor of shape {shape} at the bytes from {start} to {stop}")
        return dtype, shape, start, stop

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape, start, stop = self.entries[name]
        if start == stop:
            return torch.empty(shape, dtype=dtype)
        offset = self.start + start
        if offset % dtype.itemsize:  # the format does not promise it
            return torch.frombuffer(bytearray(self.map[offset : self.start + stop]), dtype=dtype).view(shape)
        return torch.frombuffer(self.map, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name][1]

    def release(self, name: str) -> None:
        """Hand its pages back. They are the file's, unchanged: who looks again, reads again."""
        *_, start, stop = self.entries[name]
        first = math.ceil((self.start + start) / mmap.PAGESIZE) * mmap.PAGESIZE
        length = (self.start + stop) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0 and hasattr(self.map, "madvise"):
            self.map.madvise(mmap.MADV_DONTNEED, first, length)


class Sharded(Tensors):
    """Several files that are one, by an index: {"weight_map": {tensor: file}}."""

    def __init__(self, index: Path):
        super().__init__()
        weight_map = read_json(index).get("weight_map")
        texts = isinstance(weight_map, dict) and all(isinstance(file, str) for file in weight_map.values())
        if not isinstance(weight_map, dict) or not texts:
            raise VitreousError("its index has no weight_map of file names")
        names = sorted(set(weight_map.values()))
        if outside := [name for name in names if Path(name).name != name or name == ".."]:
            raise VitreousError(f"its index names files elsewhere: {listed(outside)}")
        if wrong := [name for name in names if name.endswith(".json")]:
            raise VitreousError(f"its index names no weights but {listed(wrong)}")
        if lacking := [name for name in names if not os.path.isfile(index.parent / name)]:  # noqa: PTH113 (never raises)
            raise VitreousError(f"{len(lacking)} of {len(names)} parts are missing: {listed(lacking)}")
        parts = {name: _open_part(index.parent / name) for name in names}
        if absent := [name for name, file in weight_map.items() if name not in parts[file]]:
            raise VitreousError(f"{len(absent)} tensors are not in the part that the index names: {listed(absent)}")
        if unlisted := [name for part in parts.values() for name in part if name not in weight_map]:
            raise VitreousError(f"{len(unlisted)} tensors of its parts are not in the index: {listed(unlisted)}")
        self.home = {name: parts[file] for name, file in weight_map.items()}
        kinds = {part.container for part in parts.values()}
        self.container = f"{' and '.join(sorted(kinds))} in {len(parts)} parts"
        self.metadata = {k: v for part in parts.values() for k, v in part.metadata.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.home[name][name]

    def __contains__(self, name: object) -> bool:
        return name in self.home

    def __iter__(self) -> Iterator[str]:
        return iter(self.home)

    def __len__(self) -> int:
        return len(self.home)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.home[name].shape(name)

    def release(self, name: str) -> None:
        self.home[name].release(name)


class Unwrapped(Tensors):
    """The same tensors without what a wrapper put before every name."""

    def __init__(self, tensors: Tensors, prefix: str):
        super().__init__()
        self.tensors, self.prefix, self.container = tensors, prefix, tensors.container
        self.metadata, self.notes = tensors.metadata, tensors.notes
        self.names = {name.removeprefix(prefix): name for name in tensors if name.startswith(prefix)}
        self.ignored = tensors.ignored | {name: "a counter of the wrapper" for name in tensors if name in COUNTERS}

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors.shape(self.names[name])

    def release(self, name: str) -> None:
        self.tensors.release(self.names[name])


COUNTERS = ("n_averaged",)


def unwrapped(tensors: Tensors) -> Tensors:
    """DataParallel, torch.compile and averaging each put a word before every name."""
    for prefix in ("module.", "_orig_mod."):
        if len(tensors) and all(name.startswith(prefix) or name in COUNTERS for name in tensors):
            return unwrapped(Unwrapped(tensors, prefix))
    return tensors


# ---------------------------------------------------------------- reading


def _open_part(path: Path) -> Tensors:
    try:
        return open_file(path)
    except VitreousError as error:
        raise VitreousError(f"{path.name}: {error}") from error


def open_file(path: Path) -> Tensors:
    """A container of tensors, told by its first bytes and not by its name."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise VitreousError(f"{'a folder' if path.is_dir() else 'a device or a pipe'}, not a file")
        with path.open("rb") as file:
            start = file.read(32)
    except FileNotFoundError as error:
        raise VitreousError("no such file") from error
    except OSError as error:
        raise VitreousError(f"cannot be read ({error.strerror or error})") from error
    if not start:
        raise VitreousError("the file is empty")
    try:
        if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            return _open_zip(path)
        if start[8:9] == b"{":
            return Mapped(path)
        if start[:1] == b"\x80" or b"ustar" in _bytes_at(path, 257, 8):
            return _open_pickle(path)
    except OSError as error:
        raise VitreousError(f"cannot be read ({error.strerror or error})") from error
    if start[:6] == b"\x93NUMPY":
        raise VitreousError("a single array, not an .npz archive")
    if start.lstrip()[:1] == b"{" and path.name.endswith(".index.json"):
        return Sharded(path)
    if start.startswith(b"version https://g"):
        raise VitreousError("a Git LFS pointer, not the file itself: `git lfs pull` fetches it")
    looks = "text" if _is_text(_bytes_at(path, 0, 512)) else "something else"
    raise VitreousError(f"neither .safetensors, .npz nor a PyTorch file: it holds {looks}")


def _bytes_at(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)


def _is_text(start: bytes) -> bool:
    try:
        return start.decode().replace("\n", " ").replace("\r", " ").replace("\t", " ").isprintable()
    except UnicodeDecodeError:
        return False


def _open_zip(path: Path) -> Tensors:
    """PyTorch's files are zip archives too: they hold a pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except Exception as error:  # zipfile lets through whatever a broken directory leads to
        raise VitreousError(f"a zip archive that cannot be read: cut short or damaged ({error})") from error
    if any(name.rsplit("/", 1)[-1] == "data.pkl" for name in members):
        return _open_pickle(path)
    return open_npz(path)


def open_npz(path: Path) -> Held:
    """All arrays of an `.npz` file. Nothing in it is executed."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files}
    except Exception as error:  # on broken files numpy lets through whatever its parsers raise
        raise VitreousError(f"not a readable .npz file ({_short(error)})") from error
    held = Held({name: array for name, array in members.items() if isinstance(array, np.ndarray)}, "npz")
    held.ignored = {name: "not an array" for name in members if name not in held}
    return held


def from_array(array: NDArray[Any], name: str) -> Tensor:
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:  # numpy's idea of a saved bfloat16
        return torch.from_numpy(np.ascontiguousarray(array).view(np.uint16)).view(torch.bfloat16)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise VitreousError(f"{name} holds {array.dtype}, not floating-point numbers of 16 to 64 bits")
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    return torch.from_numpy(native if native.flags.writeable else native.copy())


# What training scripts save beside the weights: their settings, in a plain holder of attributes, and numpy's numbers.
NUMBER = np.float64(0).__reduce__()[0]
HARMLESS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *(type(np.dtype(name)) for name in ("float64", "float32", "int64", "int32", "bool")),
    *((NUMBER, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),  # by its old and its new name
]


def _open_pickle(path: Path) -> Held:
    """A PyTorch file, by torch's own unpickler of weights: it builds tensors and plain values and calls nothing."""
    try:
        with torch.serialization.safe_globals(HARMLESS):
            content = _torch_load(path)
    except Exception as error:  # on broken files torch lets through whatever its parsers raise
        text = str(error)
        if wanted := re.search(r"(?:GLOBAL|global:?|function) (?:`)?([\w.]+\.[\w.]+)", text):
            raise VitreousError(
                f"a pickle that wants to run code ({wanted[1]}): refused. Save its tensors alone (torch.save of a"
                " state dict, or safetensors) where you trust it"
            ) from error
        if "eights only load failed" in text or "weights_only" in text:
            raise VitreousError("a pickle that holds more than tensors: refused, for it could run code") from error
        raise VitreousError(f"a PyTorch file that cannot be read: cut short or damaged ({_short(error)})") from error
    return unwrap(content)


def _torch_load(path: Path) -> Any:
    if path.suffix != ".safetensors":  # by that name torch would take it for one
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, ValueError) as error:
            if "mmap" not in str(error):
                raise
    with path.open("rb") as file:
        return torch.load(file, map_location="cpu", weights_only=True)


WRAPPERS = (
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


def unwrap(content: Any) -> Held:
    """The state dict in what a training script saved."""
    notes: list[str] = []
    ignored: dict[str, str] = {}
    path = ""
    while isinstance(content, dict):
        key = next((key for key in WRAPPERS if isinstance(content.get(key), dict)), None)
        if key is None:
            break
        path += f"{key}."
        others = [str(other) for other in content if other != key]
        if others:
            notes.append(f"took the weights under {key!r}; beside them: {listed(others)}")
            ignored |= {f"{path[: -len(key) - 1]}{other}": f"beside {key!r}" for other in others}
        content = content[key]
    if not isinstance(content, dict):
        raise VitreousError(f"holds a {type(content).__name__}, not a state dict: names and tensors")
    tensors = {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}
    if odd := [name for name, tensor in tensors.items() if not _is_plain(tensor)]:
        raise VitreousError(f"sparse, empty or repeated memory in place of plain tensors: {listed(odd)}")
    if not tensors:
        what = listed([str(key) for key in content]) or "nothing"
        raise VitreousError(f"no state dict in it: it holds {what}")
    held = Held(tensors, "PyTorch")
    held.notes = notes
    held.ignored = ignored | {str(name): "not a tensor" for name in content if str(name) not in tensors}
    return held


def _is_plain(tensor: Tensor) -> bool:
    """It has memory of its own for every number: a few bytes may otherwise claim to be terabytes."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.itemsize <= tensor.untyped_storage().nbytes()


def read_json(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""  # a pipe would be waited for
        value = json.loads(text)
    except OSError as error:
        raise VitreousError(f"{path.name} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise VitreousError(f"{path.name} is not JSON ({_short(error)})") from error
    if not isinstance(value, dict):
        raise VitreousError(f"{path.name} holds a {type(value).__name__}, not an object")
    return value


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


# ---------------------------------------------------------------- writing


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to. What was written takes the place of `path` at the end, whole; on failure nothing changes."""
    try:
        path = Path(os.path.realpath(path))
        mode = path.stat().st_mode if path.exists() else None
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero in it
        raise VitreousError(f"{path} cannot be written ({getattr(error, 'strerror', None) or error})") from error
    if mode is not None and not stat.S_ISREG(mode):
        raise VitreousError(
            f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}: give the name of a file"
        )
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if mode is not None:  # who could not read the old file cannot read the new one
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(path)
        with suppress(OSError):  # so that the new name outlives a power cut; not every file system can
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if failure := _write_failure(error):
            kept = "; the file that was there is untouched" if path.exists() else ""
            raise VitreousError(f"{path} cannot be written ({failure}){kept}") from error
        raise


def write_tensors(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """A container of tensors of the kind that its name ends in."""
    with replacing(path) as temporary:
        if path.suffix == ".npz":
            with temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **{name: to_array(tensor, name) for name, tensor in state.items()})
        elif path.suffix == ".safetensors":
            write_safetensors(temporary, state, metadata or {"format": "pt"})
        else:
            with temporary.open("wb") as file:  # given a name, torch would write that into the file
                torch.save({name: tensor.cpu() for name, tensor in state.items()}, file)


def write_safetensors(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """By hand, in 20 lines: one tensor in memory at a time, the same bytes every time, and the data starts at a
    multiple of 64 bytes, so that a mapped file is as good as allocated memory."""
    codes = {dtype: code for code, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    # All that are multiples of 64 bytes come first, then the wide types, so that all stay aligned.
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


def to_array(tensor: Tensor, name: str) -> NDArray[Any]:
    if tensor.dtype.itemsize == 1:
        raise VitreousError(f"{name} holds {tensor.dtype}, and an .npz file has no numbers of 8 bits")
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # numpy keeps the bits and forgets the name
        return tensor.view(torch.uint16).numpy().view("V2")
    return tensor.numpy()


def dump_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_failure(error: BaseException) -> str | None:
    """What the system said, also where a library went on to stumble over it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
        cause = cause.__cause__ or cause.__context__ if isinstance(error, RuntimeError) else None
    return None
