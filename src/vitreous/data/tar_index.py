"""Where each file lies in a tar: found once by reading its headers, then kept in a small file beside it."""

import hashlib
import json
import os
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitreous.data.decoding import is_image
from vitreous.errors import VitreousError

VERSION = 1
NOTES = (".cls", ".json", ".txt")  # what stands beside an image and may tell its class
LONGEST_NOTE = 1 << 16


@dataclass(frozen=True)
class TarIndex:
    """The images of a tar, and the short texts beside them. Other members are counted."""

    names: list[str]
    offsets: list[int]
    sizes: list[int]
    texts: dict[str, str]
    others: int


def index_tar(path: Path) -> TarIndex:
    """The index of a tar, from where it is kept if it is of this very file, otherwise made anew and kept."""
    try:
        status = path.stat()
    except OSError as error:
        raise VitreousError(f"{path}: cannot be read ({error.strerror})") from error
    key = {"version": VERSION, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    places = _places(path)
    for place in places:
        if (index := _kept(place, key)) is not None:
            return index
    index = _made(path, status.st_size)
    for place in places:
        if _keep(place, {**key, **asdict(index)}):
            break
    return index


def _places(path: Path) -> list[Path]:
    """Beside the tar; or, where nothing may be written there, in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitreous"
    full = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
    return [path.with_name(f".{path.name}.vitreous-index.json"), cache / f"{full}.index.json"]


def _kept(place: Path, key: dict[str, int]) -> TarIndex | None:
    try:
        held: dict[str, Any] = json.loads(place.read_bytes())
        if any(held.pop(name) != value for name, value in key.items()):
            return None
        index = TarIndex(**held)
        spans = zip(index.names, index.offsets, index.sizes, strict=True)
        fits = all(type(o) is int and type(s) is int and 0 <= o <= o + s <= key["size"] for _, o, s in spans)
        texts = all(type(text) is str for text in (*index.names, *index.texts, *index.texts.values()))
        return index if fits and texts and type(index.others) is int else None
    except Exception:  # whatever is wrong with it: it is made anew
        return None


def _keep(place: Path, held: dict[str, Any]) -> bool:
    """Written under another name first: nobody finds half of it."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=place.parent, prefix=".vitreous-")
    except OSError:
        return False
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(held, file)  # ASCII, so that names which are not UTF-8 come through
        Path(draft).chmod(0o644)
        Path(draft).replace(place)
    except OSError:
        with suppress(OSError):
            Path(draft).unlink()
        return False
    return True


def _made(path: Path, size: int) -> TarIndex:
    index = TarIndex([], [], [], {}, 0)
    others = 0
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if member.offset_data + member.size > size:
                    raise VitreousError(f"{path}: the tar is cut short, in {name}")
                if member.isdir() or Path(name).name.startswith("."):
                    continue
                if not member.isreg() or member.issparse():
                    others += 1
                elif is_image(Path(name).name):
                    index.names.append(name)
                    index.offsets.append(member.offset_data)
                    index.sizes.append(member.size)
                elif name.lower().endswith(NOTES) and member.size <= LONGEST_NOTE:
                    text = tar.extractfile(member)
                    index.texts[name] = text.read().decode("utf-8", "replace") if text else ""
                else:
                    others += 1
                tar.members = []  # type: ignore[attr-defined]  # or it would keep every one of them
            _check_end(path, tar.offset)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if isinstance(error, VitreousError):
            raise
        raise VitreousError(f"{path}: not a tar, or cut short ({error})") from error
    return TarIndex(index.names, index.offsets, index.sizes, index.texts, others)


def _check_end(path: Path, offset: int) -> None:
    """tarfile stops without a word at a header it cannot read; a whole tar ends with blocks of zeros."""
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise VitreousError(f"{path}: the tar is cut short: its end mark is missing")
    if any(block):
        raise VitreousError(f"{path}: the tar is damaged at byte {offset:,}")
