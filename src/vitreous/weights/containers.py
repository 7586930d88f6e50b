"""Open and write checkpoint files of any container format: safetensors, npz, PyTorch, or a sharded index of these.

The format is detected from the first bytes, not from the file name. Opening a file never runs code that it contains.
"""

import os
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vitreous.errors import VitreousError, one_line, summarize_names
from vitreous.utils.atomic import atomic_file
from vitreous.utils.json_files import read_json
from vitreous.utils.regular_files import open_regular
from vitreous.weights.npz_file import open_npz_checkpoint, write_npz
from vitreous.weights.safetensors_file import SafetensorsFile, write_safetensors
from vitreous.weights.tensors import Tensors
from vitreous.weights.torch_file import open_torch_file

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")


# ---------------------------------------------------------------- reading


def open_tensors(path: Path) -> Tensors:
    """Open a file of tensors. The format is detected from its first bytes."""
    try:
        with open_regular(path) as file:
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
            return SafetensorsFile(path)
        if start[:1] == b"\x80" or b"ustar" in _bytes_at(path, 257, 8):
            return open_torch_file(path)
    except OSError as error:
        raise VitreousError(f"cannot be read ({error.strerror or error})") from error
    if start[:6] == b"\x93NUMPY":
        raise VitreousError("a single array, not an .npz archive")
    if start.lstrip()[:1] == b"{" and path.name.endswith(".index.json"):
        return ShardedTensors(path)
    if start.startswith(b"version https://g"):
        raise VitreousError("a Git LFS pointer, not the file itself: download it with `git lfs pull`")
    content = "text" if _is_text(_bytes_at(path, 0, 512)) else "something else"
    raise VitreousError(f"neither .safetensors, .npz nor a PyTorch file: it contains {content}")


def _bytes_at(path: Path, offset: int, count: int) -> bytes:
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(count)


def _is_text(start: bytes) -> bool:
    try:
        return start.decode().replace("\n", " ").replace("\r", " ").replace("\t", " ").isprintable()
    except UnicodeDecodeError:
        return False


def _open_zip(path: Path) -> Tensors:
    """Open a zip archive: a PyTorch file if it contains data.pkl, otherwise an `.npz` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile raises exceptions of any type for damaged files
        raise VitreousError(f"a zip archive that cannot be read: truncated or damaged ({one_line(error)})") from error
    repeated = [name for name, count in Counter(member.filename.casefold() for member in members).items() if count > 1]
    if repeated:  # readers disagree about which of them counts
        raise VitreousError(f"a zip archive that has the same name twice: {summarize_names(repeated)}")
    if any(member.filename.rsplit("/", 1)[-1] == "data.pkl" for member in members):
        return open_torch_file(path, members)
    return open_npz_checkpoint(path, members)


class ShardedTensors(Tensors):
    """A checkpoint in several files, listed by an index: {"weight_map": {tensor name: file name}}."""

    entries: dict[str, Tensors]  # the part that holds each tensor

    def __init__(self, index: Path):
        super().__init__()
        weight_map = read_json(index).get("weight_map")
        valid = isinstance(weight_map, dict) and all(isinstance(file, str) for file in weight_map.values())
        if not isinstance(weight_map, dict) or not valid:
            raise VitreousError("its index has no weight_map of file names")
        files = sorted(set(weight_map.values()))
        if outside := [name for name in files if Path(name).name != name or name == ".."]:
            raise VitreousError(f"its index names files in other folders: {summarize_names(outside)}")
        if not_weights := [name for name in files if name.endswith(".json")]:
            raise VitreousError(f"its index names files that are not weights: {summarize_names(not_weights)}")
        if missing := [name for name in files if not os.path.isfile(index.parent / name)]:  # noqa: PTH113 (never raises)
            raise VitreousError(f"{len(missing)} of {len(files)} parts are missing: {summarize_names(missing)}")
        parts = {name: _open_part(index.parent / name) for name in files}
        if absent := [name for name, file in weight_map.items() if name not in parts[file]]:
            raise VitreousError(
                f"{len(absent)} tensors are not in the part that the index names: {summarize_names(absent)}"
            )
        if unlisted := [name for part in parts.values() for name in part if name not in weight_map]:
            raise VitreousError(
                f"{len(unlisted)} tensors of its parts are not in the index: {summarize_names(unlisted)}"
            )
        self.entries = {name: parts[file] for name, file in weight_map.items()}
        formats = {part.container for part in parts.values()}
        self.container = f"{' and '.join(sorted(formats))} in {len(parts)} parts"
        self.metadata = {k: v for part in parts.values() for k, v in part.metadata.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.entries[name][name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name].shape(name)

    def release(self, name: str) -> None:
        self.entries[name].release(name)


def _open_part(path: Path) -> Tensors:
    """Open a file that an index names. `.npz` files are refused: all parts would be decompressed at once."""
    try:
        part = open_tensors(path)
        if part.container not in ("safetensors", "PyTorch"):
            raise VitreousError(f"the parts of an index must be .safetensors or PyTorch files, not {part.container}")
    except VitreousError as error:
        raise VitreousError(f"{path.name}: {error}") from error
    return part


# ---------------------------------------------------------------- prefixes of wrapper modules

_WRAPPER_PREFIXES = ("module.", "_orig_mod.")  # of DataParallel, AveragedModel and torch.compile
_WRAPPER_COUNTERS = ("n_averaged",)  # of torch.optim.swa_utils.AveragedModel
_MAX_WRAPPERS = 8


class _WithoutPrefix(Tensors):
    """The same tensors with a prefix removed from every name."""

    entries: dict[str, str]  # the name in the file

    def __init__(self, tensors: Tensors, prefix: str):
        super().__init__()
        self.tensors, self.prefix, self.container = tensors, prefix, tensors.container
        self.metadata, self.notes = tensors.metadata, tensors.notes
        self.entries = {name.removeprefix(prefix): name for name in tensors if name.startswith(prefix)}
        counters = {name: "a counter of the wrapper" for name in tensors if name in _WRAPPER_COUNTERS}
        self.ignored = tensors.ignored | counters

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.entries[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors.shape(self.entries[name])

    def release(self, name: str) -> None:
        self.tensors.release(self.entries[name])


def strip_wrapper_prefixes(tensors: Tensors) -> Tensors:
    """Remove the prefixes that DataParallel, torch.compile and AveragedModel add to every tensor name."""
    names = [name for name in tensors if name not in _WRAPPER_COUNTERS]
    prefix = ""
    for _ in range(_MAX_WRAPPERS if names else 0):
        candidates = (f"{prefix}{wrapper}" for wrapper in _WRAPPER_PREFIXES)
        longer = next(
            (candidate for candidate in candidates if all(name.startswith(candidate) for name in names)), None
        )
        if longer is None:
            break
        prefix = longer
    return _WithoutPrefix(tensors, prefix) if prefix else tensors


# ---------------------------------------------------------------- writing


def write_tensors(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors atomically, in the format of the file name's suffix."""
    with atomic_file(path) as temporary:
        if path.suffix == ".npz":
            write_npz(temporary, state)
        elif path.suffix == ".safetensors":
            write_safetensors(temporary, state, metadata or {"format": "pt"})
        else:
            with temporary.open("wb") as file:  # torch.save would store a file name in the archive
                torch.save({name: tensor.cpu() for name, tensor in state.items()}, file)
