"""Copy images into one folder per predicted class."""

from __future__ import annotations

import io
import re
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from vitreous.errors import VitreousError
from vitreous.preprocessing import ImageLike
from vitreous.serving.prediction import Prediction
from vitreous.utils.atomic import atomic_folder
from vitreous.utils.console import printable
from vitreous.utils.heif import HEIF_SUFFIXES
from vitreous.utils.images import FORMATS

REJECTED = "rejected"  # folder of images without an accepted class
MAX_BYTES = 200  # of a folder or file name in UTF-8; file systems allow 255
UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\<>:"|?*]')  # not allowed in names on Linux, macOS or Windows
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # devices on Windows


@contextmanager
def sorted_images(folder: Path, names: Sequence[str]) -> Iterator[ImageSorter]:
    """Yield an `ImageSorter` for a new or empty folder. The folder appears when all images are copied, or not at all.

    `names`: of the model's classes.
    """
    with atomic_folder(folder, overwrite=False, replaceable=lambda folder: ()) as temporary:
        yield ImageSorter(temporary, names)


class ImageSorter:
    """Copies images to FOLDER/CLASS/NAME. Images are never moved, and no file is overwritten."""

    def __init__(self, folder: Path, names: Sequence[str]):
        self.folder, self.folders = folder, class_folders(names)
        self.used: dict[str, dict[str, int]] = {}  # by folder: file names (name_key), and how often each was requested
        self.counts: dict[str, int] = {}  # copied images in each folder

    def add(self, found: Prediction, content: Path | bytes | None = None) -> None:
        """Copy the image of a prediction to the folder of each predicted class, or to `rejected` if there is none.

        `content`: path or bytes of the image, if `found.image` is only its name. An unreadable image is not copied.
        """
        if found.error is not None:
            return
        source = content if content is not None else found.image
        for folder in [self.folders[one.index] for one in found.predicted] or [REJECTED]:
            (self.folder / folder).mkdir(exist_ok=True)
            name = _file_name(source, str(found.image))
            target = self.folder / folder / self._unused(folder, name)
            _copy(source, target)
            self.counts[folder] = self.counts.get(folder, 0) + 1

    def _unused(self, folder: str, name: str) -> str:
        """Return the name, or `name (2)`, `name (3)`... if an image of that name was copied to the folder before."""
        used = self.used.setdefault(folder, {})
        stem, suffix = Path(name).stem, Path(name).suffix
        candidate, number = name, used.get(name_key(name), 0)
        while name_key(candidate) in used:
            number += 1
            candidate = f"{stem} ({number}){suffix}"
        used[name_key(name)] = max(number, 1)
        used.setdefault(name_key(candidate), 1)
        return candidate


def _copy(source: ImageLike, target: Path) -> None:
    if isinstance(source, bytes):
        target.write_bytes(source)
        return
    try:
        shutil.copyfile(str(source), target)
    except OSError as error:
        raise VitreousError(f"{source} cannot be copied ({error.strerror or error})") from error
    with suppress(OSError):  # times and permissions are not supported everywhere
        shutil.copystat(str(source), target)


def class_folders(names: Sequence[str]) -> list[str]:
    """Return a safe and distinct folder name for each class. Characters that a path cannot contain become `_`."""
    used, folders = {REJECTED}, []
    for index, name in enumerate(names):
        safe = folder = safe_name(name)
        number = index
        while name_key(folder) in used:
            folder = f"{shorten(safe, MAX_BYTES - 20)} (class {number})"
            number += len(names)  # if another class has this name
        used.add(name_key(folder))
        folders.append(folder)
    return folders


def name_key(name: str) -> str:
    """Equal for names that are the same file on some system: Windows and macOS ignore case, macOS also how accents are
    encoded."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def safe_name(name: str) -> str:
    """Return a name that is one component of a path on every system: never "..", never hidden, never a device."""
    safe = printable(UNSAFE.sub("_", name)).strip(" ").rstrip(". ")
    safe = shorten(safe, MAX_BYTES).rstrip(". ")
    if not safe or safe.startswith(".") or RESERVED.fullmatch(safe):
        safe = f"_{safe}"
    return safe


def shorten(text: str, most: int) -> str:
    """Return the start of a text that takes at most `most` bytes in UTF-8."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _file_name(source: object, name: str) -> str:
    if not isinstance(source, bytes):
        path = Path(str(source))
        return path.name if len(path.name.encode("utf-8", "replace")) < MAX_BYTES else _shortened(path)
    try:
        with Image.open(io.BytesIO(source)) as image:
            return "stdin" + FORMATS.get(image.format or "", FORMATS["JPEG"])[0]  # MPO is a kind of JPEG
    except UnidentifiedImageError:  # the prediction has decoded it, and Pillow does not read HEIC
        return "stdin" + HEIF_SUFFIXES[0]


def _shortened(path: Path) -> str:
    suffix = path.suffix if len(path.suffix) < 20 else ""
    return shorten(path.stem, MAX_BYTES - 40) + suffix
