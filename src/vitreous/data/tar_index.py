"""The index of a tar file: offset and size of each image, built once from the headers and saved next to the tar."""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from vitreous.data.image_files import is_image
from vitreous.errors import SystemFaultError, VitreousError, brief, one_line
from vitreous.utils.regular_files import is_system_fault, open_regular, read_regular, system_fault
from vitreous.utils.temporary_files import remove_matching

VERSION = 2
LABEL_SUFFIXES = (".cls", ".json", ".txt")  # files next to an image that may contain its label
MAX_LABEL_FILE = 1 << 16  # bytes
MAX_HEADER = 1 << 24  # bytes; far more than a name or the map of a sparse file needs
MAX_INDEX_RATIO = 8  # size of an index relative to its tar: JSON takes up to 6 bytes for a byte of a name or label
TEMPORARY_PREFIX = ".vitreous-index-"  # of the name of an index while it is being written


@dataclass(frozen=True)
class TarIndex:
    """The images of a tar, and the contents of the label files. Other members are only counted."""

    names: list[str]
    offsets: list[int]
    sizes: list[int]
    texts: dict[str, str]
    others: int
    # Stored parts of sparse files, by image number as text: (position in the file, length), stored consecutively.
    sparse: dict[str, list[tuple[int, int]]]


def index_tar(path: Path) -> TarIndex:
    """The index of a tar: loaded if a saved one matches its size and modification time, otherwise built and saved."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            key = {"version": VERSION, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
            locations = _index_locations(path)
            for location in locations:
                if (index := _load_index(location, key)) is not None:
                    return index
            index = _build_index(_HeaderReader(file, status.st_size))
    except VitreousError as error:
        raise error.at(path) from error
    except (OSError, MemoryError) as error:
        if is_system_fault(error):
            raise system_fault(error, path) from error
        raise VitreousError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from error
    for location in locations:
        if _save_index(location, {**key, **asdict(index)}):
            break
    return index


def _index_locations(path: Path) -> list[Path]:
    """Where the index may be saved: next to the tar, or in the user's cache folder if the tar's is not writable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitreous"
    digest = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
    return [path.with_name(f".{path.name}.vitreous-index.json"), cache / f"{digest}.index.json"]


def _load_index(location: Path, key: dict[str, int]) -> TarIndex | None:
    """The saved index. None: there is none, it belongs to another version of the tar, or it is damaged."""
    try:
        fields: dict[str, Any] = json.loads(read_regular(location, MAX_INDEX_RATIO * key["size"]))
        if any(fields.pop(name) != value for name, value in key.items()):
            return None
        index = TarIndex(**fields)
        spans = zip(index.names, index.offsets, index.sizes, strict=True)
        sparse = {int(number): index.sparse[number] for number in index.sparse}
        fits = all(
            _is_inside(offset, size, sparse.get(number), key["size"]) for number, (_, offset, size) in enumerate(spans)
        )
        texts = all(type(text) is str for text in (*index.names, *index.texts, *index.texts.values()))
        return index if fits and texts and type(index.others) is int else None
    except SystemFaultError:
        raise
    except Exception as error:  # any damage: the index is rebuilt
        if is_system_fault(error):
            raise
        return None


def _is_inside(offset: Any, size: Any, sparse: Any, end: int) -> bool:
    """Whether a member is inside the tar, and the parts of a sparse member are inside the member."""
    numbers = (offset, size) if sparse is None else (offset, size, *(number for span in sparse for number in span))
    if not all(type(number) is int and number >= 0 for number in numbers):
        return False
    if sparse is None:
        return bool(offset + size <= end)
    return bool(offset + sum(n for _, n in sparse) <= end and all(position + n <= size for position, n in sparse))


def _save_index(location: Path, fields: dict[str, Any]) -> bool:
    """Write an index atomically and remove temporary files of killed processes. False: the folder is not writable."""
    try:
        location.parent.mkdir(parents=True, exist_ok=True)
        remove_matching(location.parent, f"{TEMPORARY_PREFIX}*.tmp")
        handle, temporary = tempfile.mkstemp(dir=location.parent, prefix=TEMPORARY_PREFIX, suffix=f".{os.getpid()}.tmp")
    except OSError:
        return False
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            json.dump(fields, file)  # escapes, so that names which are not UTF-8 are preserved
        Path(temporary).chmod(0o644)
        Path(temporary).replace(location)
    except OSError:
        with suppress(OSError):
            Path(temporary).unlink()
        return False
    return True


class _HeaderReader(io.RawIOBase):
    """A file object for the tarfile module that limits the size of each read."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.length = file, size

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER:
            raise VitreousError(f"the tar is damaged: a header has {size:,} bytes")
        return self.file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0 and not 0 <= offset <= self.length:
            raise VitreousError("the tar is truncated")
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()


def _build_index(file: _HeaderReader) -> TarIndex:
    index, others, before = TarIndex([], [], [], {}, 0, {}), 0, -1
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if member.offset <= before:  # tarfile can loop endlessly in a damaged tar
                    raise VitreousError(f"the tar is damaged at byte {before:,}")
                before = member.offset
                if not _is_inside(member.offset_data, member.size, _sparse_spans(member), file.length):
                    raise VitreousError(f"the tar is truncated in {brief(member.name)}")
                hidden = PurePosixPath(member.name).name.startswith(".")
                if not member.isdir() and not hidden and not _add_member(index, tar, member):
                    others += 1
                tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them in memory
            _check_end(file, tar.offset)
    except VitreousError:
        raise
    except Exception as error:  # a damaged header can raise any exception
        if is_system_fault(error):
            raise
        raise VitreousError(f"not a tar, or truncated ({one_line(error)})") from error
    return replace(index, others=others)


def _add_member(index: TarIndex, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    """Add an image or a label file to the index. False: the member is neither."""
    name = member.name.removeprefix("./")
    if member.isreg() and is_image(PurePosixPath(name).name):
        if (spans := _sparse_spans(member)) is not None:
            index.sparse[str(len(index.names))] = spans
        index.names.append(name)
        index.offsets.append(member.offset_data)
        index.sizes.append(member.size)
    elif member.isreg() and name.lower().endswith(LABEL_SUFFIXES) and member.size <= MAX_LABEL_FILE:
        text = tar.extractfile(member)
        index.texts[name] = text.read().decode("utf-8", "replace") if text else ""
    else:
        return False
    return True


def _sparse_spans(member: tarfile.TarInfo) -> list[tuple[int, int]] | None:
    """The stored parts of a sparse file, (position, length). None: the file is not sparse."""
    sparse: list[tuple[int, int]] | None = getattr(member, "sparse", None)
    return None if sparse is None else [(position, length) for position, length in sparse if length]


def _check_end(file: _HeaderReader, offset: int) -> None:
    """Raise an error if the tar does not end with zeros: tarfile silently stops at a header that it cannot read."""
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise VitreousError("the tar is truncated: its end marker is missing")
    if any(block):
        raise VitreousError(f"the tar is damaged at byte {offset:,}")
