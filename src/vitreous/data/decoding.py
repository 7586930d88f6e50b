"""Any image file, as the upright 8-bit picture a person would see."""

import io
import logging
import os
import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from glob import escape, glob, has_magic
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from vitreous.errors import VitreousError

# What people keep pictures in, by Pillow's name. EPS is not among them: Pillow would run Ghostscript on it.
FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp", ".dib"),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2", ".j2k", ".jpx"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
    "QOI": (".qoi",),
    "ICO": (".ico",),
    "PSD": (".psd",),
    "TGA": (".tga",),
}
IMAGE_SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)

logging.getLogger("PIL").addHandler(logging.NullHandler())  # or Python prints its complaints about broken files

ORIENTATION = 0x0112  # the EXIF tag: how the camera was held
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = [UPRIGHT[orientation] for orientation in (5, 6, 7, 8)]  # turns that swap height and width


def decode(file: str | Path | bytes | BinaryIO, at_least: tuple[int, int] | None = None) -> Image.Image:
    """The image in a file, in its bytes or in an open stream: "L" if it is grey, otherwise "RGB".

    It is turned upright by its EXIF orientation; what is transparent becomes white; of an animation it is the first
    frame. 16-bit grey is scaled to 8 bits. Grey in floating point, or in more than 16 bits, has no white of its own:
    if it lies in 0..1 (floats) or 0..65535 (integers) that is the range, otherwise it is stretched from its least to
    its greatest value.

    `at_least`: (height, width) that is enough. A JPEG is then decoded at a half, a quarter or an eighth of its size,
    the smallest that is not below it once the image is upright, which is faster. Other kinds come whole.
    """
    name = f"{file}: " if isinstance(file, str | Path) else ""
    try:
        with _opened(file) as stream, _quiet(), Image.open(stream, formats=_formats()) as stored:
            if at_least is not None:
                _shrink(stored, at_least if _turn(stored) in SIDEWAYS else at_least[::-1])
            stored.load()
            turn = _turn(stored)  # now: a TIFF turns itself while it loads, a PNG may tell only at its end
            image = _eight_bit(stored if turn is None else stored.transpose(turn))
    except VitreousError as error:
        raise VitreousError(f"{name}{error}") from None
    except Exception as error:  # Pillow's readers raise whatever a broken file leads them to
        raise VitreousError(f"{name}{reason(error)}") from error
    image.info = {}  # no orientation is left to be applied a second time
    image.getexif().clear()
    return image


def decode_array(data: bytes, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """The pixels of `decode`, (height, width, 1 or 3), maybe read-only.

    Where simplejpeg is installed, it decodes those JPEGs that are upright, in grey or in colour, and in order. It is
    made of the same libjpeg-turbo as Pillow and gives the same pixels in two thirds of the time.
    """
    if (pixels := _by_simplejpeg(data, at_least)) is not None:
        return pixels
    image = decode(data, at_least)
    return np.asarray(image).reshape(image.height, image.width, -1)


def upright_size(data: bytes) -> tuple[int, int]:
    """(height, width) of the image in these bytes, from its header alone."""
    try:
        with _quiet(), Image.open(io.BytesIO(data), formats=_formats()) as stored:
            width, height = stored.size
            return (width, height) if _turn(stored) in SIDEWAYS else (height, width)
    except Exception as error:  # as above
        raise VitreousError(reason(error)) from error


def find_images(patterns: Sequence[str | Path]) -> list[Path]:
    """The image files meant by names of files, of folders (searched throughout, hidden ones left out) and by patterns.

    A file that is named is taken whatever its suffix; in a folder, and by a pattern, only the suffixes of images are.
    """
    found: dict[tuple[str, str], Path] = {}
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        for path in _matches(Path(pattern)):
            found.setdefault((os.path.realpath(path.parent), path.name), path)
    if not found:
        raise VitreousError("no images were named")
    return list(found.values())


def _matches(pattern: Path) -> list[Path]:
    if pattern.is_dir():
        if images := _in_folder(pattern):
            return images
        raise VitreousError(f"{pattern}: no image in this folder")
    if os.path.lexists(pattern):  # also a name with a [ in it, or a link that leads nowhere: decoding will say so
        return [pattern]
    if not has_magic(str(pattern)):
        raise VitreousError(f"{pattern}: there is no such file or folder")
    images = []
    for match in sorted(_expand(pattern)):
        if match.is_dir():
            images += _in_folder(match)
        elif is_image(match.name):
            images.append(match)
    if not images:
        raise VitreousError(f"{pattern}: no image matches")
    return images


def _expand(pattern: Path) -> Iterator[Path]:
    """Glob, but ** does not go round in circles where a link leads back up."""
    parts = pattern.parts
    if "**" not in parts:
        yield from map(Path, glob(str(pattern)))  # noqa: PTH207 (that one takes no absolute pattern)
        return
    at = parts.index("**")
    for root in _expand(Path(*parts[:at])):
        for folder, _ in walk(root) if root.is_dir() else ():
            yield from _expand(Path(escape(folder), *(parts[at + 1 :] or ["*"])))


def _in_folder(folder: Path) -> list[Path]:
    return sorted(Path(name, file) for name, files in walk(folder) for file in files if is_image(file))


def is_image(name: str) -> bool:
    """Whether a file is one by its name; hidden ones are not."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")  # noqa: PTH122 (fast)


def walk(root: str | Path, beyond: Collection[tuple[int, int]] = ()) -> Iterator[tuple[str, list[str]]]:
    """Each folder below and the names of its files. Links are followed; a folder that was seen, or is one of those
    `beyond` (by `identity`), is not entered."""

    def refuse(error: OSError) -> None:
        raise VitreousError(f"{error.filename}: this folder cannot be read ({error.strerror})")

    seen = set(beyond)
    for name, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        if (this := identity(name)) in seen:
            folders.clear()
            continue
        seen.add(this)
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        yield name, files


def identity(folder: str | Path) -> tuple[int, int]:
    """The same for every path that leads to this folder."""
    status = Path(folder).stat()
    return status.st_dev, status.st_ino


@contextmanager
def _opened(file: str | Path | bytes | BinaryIO) -> Iterator[BinaryIO]:
    """The file as a stream that can go back to its start. One that the caller opened stays open."""
    if isinstance(file, str | Path):
        with Path(file).open("rb") as stream:
            yield _rewound(stream)
    else:
        yield _rewound(io.BytesIO(file) if isinstance(file, bytes) else file)


def _rewound(stream: BinaryIO) -> BinaryIO:
    if not stream.seekable():
        stream = io.BytesIO(stream.read())
    stream.seek(0)
    if not stream.read(1):
        raise VitreousError("the file is empty")
    return stream


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # older Pillows know fewer


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # what is wrong in its EXIF does not make a picture unreadable
        return None


def _shrink(image: Image.Image, at_least: tuple[int, int]) -> None:
    """Have a JPEG decoded at the smallest scale that leaves (width, height), as it is stored, at this or above."""
    if not isinstance(image, JpegImageFile):  # other kinds may have a draft mode with rules of its own
        return
    if (scale := _scale(image.size, at_least)) > 1:
        # Pillow rounds sides down when it chooses, though libjpeg rounds up: ask for what leads it to this scale.
        image.draft(None, (max(1, image.width // scale), max(1, image.height // scale)))


def _scale(sides: tuple[int, int], at_least: tuple[int, int]) -> int:
    """How many times smaller a JPEG can be decoded."""
    for scale in (8, 4, 2):
        if all(-(-side // scale) >= wanted for side, wanted in zip(sides, at_least, strict=True)):
            return scale
    return 1


@cache
def _simplejpeg() -> Any:
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None


COLOURS = {"Gray": "GRAY", "YCbCr": "RGB", "RGB": "RGB"}  # of a JPEG, by simplejpeg's name: what to decode it to


def _by_simplejpeg(data: bytes, at_least: tuple[int, int] | None) -> NDArray[np.uint8] | None:
    """None: Pillow knows better what to do with it, or what to say of it."""
    library = _simplejpeg()
    if library is None or not data.startswith(b"\xff\xd8\xff") or _may_be_turned(data):
        return None
    try:
        height, width, colours, _ = library.decode_jpeg_header(data)
        large = Image.MAX_IMAGE_PIXELS is not None and height * width > Image.MAX_IMAGE_PIXELS
        if colours not in COLOURS or large or min(height, width) < 8:  # of fewer than 8 the scales are not told apart
            return None
        scale = 1 if at_least is None else _scale((height, width), at_least)
        sides = {"min_height": -(-height // scale), "min_width": -(-width // scale)}
        pixels: NDArray[np.uint8] = library.decode_jpeg(data, COLOURS[colours], **sides)
        return pixels
    except ValueError:  # also what libjpeg would only warn of
        return None


def _may_be_turned(data: bytes) -> bool:
    if b"Exif" not in data and b"adobe.com/xap" not in data:  # either may hold an orientation
        return False
    try:
        with _quiet(), Image.open(io.BytesIO(data), formats=_formats()) as stored:
            return _turn(stored) is not None
    except Exception:  # Pillow will say what it is
        return True


def _eight_bit(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _scaled(image)
    if image.mode in ("La", "RGBa"):  # multiplied by alpha already; Pillow undoes that only by this way
        image = image.convert(image.mode.upper())
    grey = image.mode in ("1", "L", "LA")
    if not image.has_transparency_data:
        mode = "L" if grey else "RGB"
        own = type(image) in (Image.Image, JpegImageFile)  # others may have frames and a palette, and hold on to them
        return image if own and image.mode == mode else image.convert(mode)  # which copies what is right already
    image = image.convert("LA" if grey else "RGBA")
    canvas = Image.new("L" if grey else "RGB", image.size, "white")
    canvas.paste(image.convert(canvas.mode), mask=image.getchannel("A"))
    return canvas


def _scaled(image: Image.Image) -> Image.Image:
    floats = image.mode == "F"
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), nan=0, posinf=0, neginf=0)
    low, high = 0.0, 1.0 if floats else 65535.0
    if values.min() < low or values.max() > high:
        low, high = values.min(), values.max()
    if (clear := image.info.get("transparency")) is not None:
        values = np.where(values == clear, high, values)
    return Image.fromarray(np.rint((values - low) * (255 / (high - low or 1))).astype(np.uint8))


REASONS = {
    FileNotFoundError: "there is no such file",
    IsADirectoryError: "is a folder, not a file",
    PermissionError: "may not be read (permission denied)",
    UnidentifiedImageError: "not an image, or not of a kind that can be read",
    Image.DecompressionBombError: "has too many pixels to be decoded safely",
    EOFError: "the file is cut short",
}


def reason(error: Exception) -> str:
    """What is wrong with a file, in words."""
    for kind, reason in REASONS.items():
        if isinstance(error, kind):
            return reason
    if "truncated" in str(error).lower():
        return REASONS[EOFError]
    return f"cannot be decoded ({str(error) or type(error).__name__})"


# warnings.catch_warnings is not made for threads: two that overlap leave each other's filters behind. So the first one
# in installs the filter, and the last one out takes it away.
_lock = threading.Lock()
_inside = 0
_caught = warnings.catch_warnings()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Pillow's warnings (odd EXIF, large images) from a caller who can do nothing about them."""
    global _inside, _caught  # noqa: PLW0603
    with _lock:
        _inside += 1
        if _inside == 1:
            _caught = warnings.catch_warnings()
            _caught.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.|vitreous\.data\.")
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _caught.__exit__(None, None, None)
