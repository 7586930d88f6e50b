"""Image decoding: any image file or array as an upright 8-bit image, grey or RGB.

The command line, data sets and `Preprocessing` all decode images here, so that a model gets the same pixels everywhere.

Memory is bounded: an image with more than `max_pixels` pixels, or with a side of more than `MAX_SIDE`, is refused
before it is decoded, and conversions are done in strips.
"""

import io
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from vitreous.errors import VitreousError
from vitreous.utils.file_kinds import refuse_other_kinds
from vitreous.utils.heif import HEIF_SUFFIXES, START_BYTES, container_kind, open_heif
from vitreous.utils.regular_files import is_system_fault, open_regular, read_regular, system_fault

# Supported formats by Pillow's name, with their suffixes. EPS is excluded, since Pillow runs Ghostscript on it.
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
IMAGE_SUFFIXES = frozenset((*HEIF_SUFFIXES, *(suffix for suffixes in FORMATS.values() for suffix in suffixes)))

MAX_PIXELS = 70_000_000  # default limit, enough for cameras with 64 megapixels
MAX_SIDE = 1 << 18  # pixels; resizing a long thin image takes memory for its long side times the new short side
STRIP = 1 << 20  # pixels that are converted at a time
BYTES_PER_PIXEL = 16  # limits the file size to this times max_pixels
ORIENTATION = 0x0112  # the EXIF tag
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SWAPS_SIDES = [TRANSPOSE[orientation] for orientation in (5, 6, 7, 8)]  # these swap height and width


def decode(
    file: str | Path | bytes | BinaryIO, at_least: tuple[int, int] | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode an image from a file, bytes or an open stream: mode "L" if it is grey, otherwise "RGB".

    The EXIF orientation is applied, transparent pixels become white, and of an animation the first frame is decoded.
    16-bit grey is scaled to 8 bits. Grey images in floating point or with more than 16 bits have no defined range: if
    all values are in 0..1 (floats) or 0..65535 (integers), this range is scaled to 0..255, otherwise the range from the
    minimum to the maximum is.

    `at_least`: minimum (height, width) of the upright image. A JPEG is then decoded at the smallest of 1/8, 1/4 and 1/2
    of its size that is not below it, which is faster. Other formats are decoded in full.
    `max_pixels`: images with more pixels are refused.
    """
    try:
        with _open_stream(file, max_pixels) as stream, _silence_pillow(max_pixels):
            image = _decode_stream(stream, at_least, max_pixels)
    except Exception as error:  # a damaged file can raise any exception in Pillow
        translated = _translate_error(error)
        raise (translated.at(file) if isinstance(file, str | Path) else translated) from error
    return _strip_metadata(image)


def _decode_stream(stream: BinaryIO, at_least: tuple[int, int] | None, max_pixels: int) -> Image.Image:
    if _container_kind(stream) == "heif":
        heif = open_heif(stream)
        _check_size(heif, max_pixels)
        return _to_eight_bit(heif.to_pillow())
    with Image.open(stream, formats=_formats()) as stored:
        _check_size(stored, max_pixels)
        if at_least is not None:
            _set_jpeg_scale(stored, at_least if _transpose(stored) in SWAPS_SIDES else at_least[::-1])
        return _load_upright(stored, max_pixels)


def _container_kind(stream: BinaryIO) -> str | None:
    """As `container_kind`, for a stream. Videos, and AVIF without support in Pillow, are errors."""
    stream.seek(0)
    kind = container_kind(stream.read(START_BYTES))
    stream.seek(0)
    if kind == "video":
        raise VitreousError("is a video, not an image")
    if kind == "avif" and "AVIF" not in _formats():
        raise VitreousError("is an AVIF image, which needs Pillow 11.3 or newer: pip install --upgrade Pillow")
    return kind


def upright(image: Image.Image) -> Image.Image:
    """A Pillow image converted as in `decode`; of an animation, the current frame.

    An EXIF orientation of the image is applied, since `Image.open` and `convert` do not apply it. The argument is not
    modified; it is returned if it needs no conversion. Its size is not limited.
    """
    try:
        with _silence_pillow():
            converted = _load_upright(image, None)
    except Exception as error:  # as above
        translated, name = _translate_error(error), getattr(image, "filename", "")
        raise (translated.at(name) if name else translated) from error
    return image if converted is image else _strip_metadata(converted)


def _translate_error(error: Exception) -> VitreousError:
    """A VitreousError for any exception of Pillow; a SystemFaultError for a failure of the system."""
    if isinstance(error, VitreousError):
        return error
    return system_fault(error) if is_system_fault(error) else VitreousError(describe_read_error(error))


def as_image(image: object, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Convert an image as in `decode`: a path, the bytes of a file, a PIL image, or a uint8 array (height, width) or
    (height, width, channels) with 1, 3 or 4 channels (grey, RGB or RGBA)."""
    if isinstance(image, Image.Image):
        return upright(image)
    if isinstance(image, str | bytes):
        return decode(image, max_pixels=max_pixels)
    if isinstance(image, os.PathLike):
        return decode(Path(image), max_pixels=max_pixels)
    if isinstance(image, np.ndarray):
        return upright(_from_array(image))
    kind = "None" if image is None else type(image).__name__
    raise VitreousError(f"expected an image (a path, the bytes of a file, a PIL image, an array, a tensor), got {kind}")


def _from_array(array: NDArray[Any]) -> Image.Image:
    if array.dtype != np.uint8:
        advice = "for values in 0..1, use (x * 255).round().astype('uint8')"
        raise VitreousError(f"an array of {array.dtype}: expected uint8, from 0 to 255; {advice}")
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if not fits or 0 in array.shape:
        raise VitreousError(
            f"an array of shape {array.shape}: expected (height, width), or (height, width, channels) with 1, 3 or 4"
            " channels"
        )
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array))


def read_image_file(path: str | Path, max_pixels: int = MAX_PIXELS) -> bytes:
    """Read the bytes of an image file. It must be a regular file, and small enough for an image of `max_pixels`."""
    refuse_other_kinds(path)
    return read_regular(path, *_file_limit(max_pixels))


def check_file_size(size: int, max_pixels: int) -> None:
    """The size check of `read_image_file`, for an image inside another file."""
    limit, explanation = _file_limit(max_pixels)
    if size > limit:
        raise VitreousError(f"has {size:,} bytes, and the limit is {limit:,}{explanation}")


def _file_limit(max_pixels: int) -> tuple[int, str]:
    return max(1 << 30, BYTES_PER_PIXEL * max_pixels), f" for an image ({BYTES_PER_PIXEL} for each of max_pixels)"


def _check_size(image: Any, max_pixels: int | None) -> None:
    width, height = image.size
    if not width or not height:
        raise VitreousError(f"has no pixels: its size is {height:,} x {width:,} (height x width)")
    if max_pixels is None:
        return
    if width * height > max_pixels:
        raise VitreousError(
            f"has {width * height:,} pixels ({height:,} x {width:,}), and max_pixels, the limit, is {max_pixels:,}"
        )
    if max(width, height) > MAX_SIDE:
        raise VitreousError(f"is {height:,} x {width:,} pixels, and no side may have more than {MAX_SIDE:,}")


def _load_upright(image: Image.Image, max_pixels: int | None) -> Image.Image:
    image.load()
    _check_size(image, max_pixels)  # again, since the size of an icon is known only now
    method = _transpose(image)  # after loading: TIFF applies it while loading, PNG may store it at the end of the file
    return _to_eight_bit(image if method is None else image.transpose(method))


def _strip_metadata(image: Image.Image) -> Image.Image:
    """Remove metadata, so that the orientation is not applied a second time."""
    image.info = {}
    image.getexif().clear()
    return image


def decode_array(
    data: bytes, at_least: tuple[int, int] | None = None, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """The pixels of `decode`, (height, width, 1 or 3). The array may be read-only.

    If simplejpeg is installed, it decodes intact upright JPEGs, grey or in colour. It uses libjpeg-turbo like Pillow
    and gives the same pixels in two thirds of the time.
    """
    if (pixels := _decode_with_simplejpeg(data, at_least, max_pixels)) is not None:
        return pixels
    image = decode(data, at_least, max_pixels)
    return np.asarray(image).reshape(image.height, image.width, -1)


def upright_size(data: bytes) -> tuple[int, int]:
    """(height, width) of an encoded image with its orientation applied, from its header."""
    try:
        if _container_kind(io.BytesIO(data)) == "heif":
            width, height = open_heif(data).size
            return height, width
        with _silence_pillow(), Image.open(io.BytesIO(data), formats=_formats()) as stored:
            width, height = stored.size
            return (width, height) if _transpose(stored) in SWAPS_SIDES else (height, width)
    except Exception as error:  # as above
        raise _translate_error(error) from error


def has_frames(data: bytes) -> bool:
    """Whether an encoded image has several frames or pages, of which `decode` uses the first. False if unreadable."""
    try:
        with _silence_pillow(), Image.open(io.BytesIO(data), formats=_formats()) as stored:
            return bool(getattr(stored, "is_animated", False))
    except Exception:  # `decode` raises the error
        return False


@contextmanager
def _open_stream(file: str | Path | bytes | BinaryIO, max_pixels: int) -> Iterator[BinaryIO]:
    """A seekable stream of the file. A stream that the caller opened stays open."""
    if isinstance(file, str | Path):
        refuse_other_kinds(file)
        with open_regular(file, *_file_limit(max_pixels)) as stream:
            yield _rewind(stream)
    else:
        yield _rewind(io.BytesIO(file) if isinstance(file, bytes) else file)


def _rewind(stream: BinaryIO) -> BinaryIO:
    if not stream.seekable():
        stream = io.BytesIO(stream.read())
    stream.seek(0)
    if not stream.read(1):
        raise VitreousError("the file is empty")
    return stream


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # older versions of Pillow support fewer


def _transpose(image: Image.Image) -> Image.Transpose | None:
    """The transposition that makes an image upright, from its EXIF orientation. None: it is upright."""
    try:
        return TRANSPOSE.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # an image with damaged EXIF data is still readable
        return None


def _set_jpeg_scale(image: Image.Image, at_least: tuple[int, int]) -> None:
    """Decode a JPEG at the smallest scale whose stored (width, height) is not below `at_least`."""
    if not isinstance(image, JpegImageFile):  # draft modes of other formats have different rules
        return
    if (scale := _jpeg_scale(image.size, at_least)) > 1:
        # Pillow rounds sides down when it selects the scale, but libjpeg rounds up: request a size that selects it.
        image.draft(None, (max(1, image.width // scale), max(1, image.height // scale)))


def _jpeg_scale(sides: tuple[int, int], at_least: tuple[int, int]) -> int:
    """The divisor of the sides at which a JPEG can be decoded: 8, 4, 2 or 1."""
    for scale in (8, 4, 2):
        if all(-(-side // scale) >= minimum for side, minimum in zip(sides, at_least, strict=True)):
            return scale
    return 1


@cache
def _simplejpeg() -> Any:
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None


JPEG_COLOURS = {"Gray": "GRAY", "YCbCr": "RGB", "RGB": "RGB"}  # simplejpeg's stored and decoded colour spaces


def _decode_with_simplejpeg(data: bytes, at_least: tuple[int, int] | None, max_pixels: int) -> NDArray[np.uint8] | None:
    """The pixels of a JPEG. None: use Pillow, which supports more files and has better error messages."""
    library = _simplejpeg()
    if library is None or not data.startswith(b"\xff\xd8\xff") or _may_be_rotated(data):
        return None
    try:
        height, width, colours, _ = library.decode_jpeg_header(data)
        if colours not in JPEG_COLOURS or height * width > min(max_pixels, Image.MAX_IMAGE_PIXELS or max_pixels):
            return None
        if min(height, width) < 8:  # several scales give the same size, so simplejpeg may select another scale
            return None
        scale = 1 if at_least is None else _jpeg_scale((height, width), at_least)
        sides = {"min_height": -(-height // scale), "min_width": -(-width // scale)}
        pixels: NDArray[np.uint8] = library.decode_jpeg(data, JPEG_COLOURS[colours], **sides)
        return pixels
    except Exception:  # including problems for which libjpeg only prints a warning
        return None


def _may_be_rotated(data: bytes) -> bool:
    if b"Exif" not in data and b"adobe.com/xap" not in data:  # either may contain an orientation
        return False
    try:
        with _silence_pillow(), Image.open(io.BytesIO(data), formats=_formats()) as stored:
            return _transpose(stored) is not None
    except Exception:  # `decode` raises the error
        return True


def _to_eight_bit(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _scale_to_eight_bit(image)
    if image.mode in ("La", "RGBa"):  # premultiplied alpha: Pillow converts it only to LA or RGBA
        image = image.convert(image.mode.upper())
    grey = image.mode in ("1", "L", "LA")
    if not image.has_transparency_data:
        mode = "L" if grey else "RGB"
        plain = type(image) in (Image.Image, JpegImageFile)  # other types may keep frames and palettes in memory
        return image if plain and image.mode == mode else image.convert(mode)  # convert copies even if not needed
    canvas = Image.new("L" if grey else "RGB", image.size, "white")
    for box in _strips(image):
        part = image.crop(box).convert("LA" if grey else "RGBA")
        canvas.paste(part.convert(canvas.mode), box, mask=part.getchannel("A"))
    return canvas


def _strips(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """Boxes (left, top, right, bottom) of a few rows each that cover an image."""
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        yield (0, top, image.width, min(top + rows, image.height))


def _float_values(image: Image.Image, box: tuple[int, int, int, int]) -> NDArray[np.float64]:
    part = np.asarray(image.crop(box), dtype=np.float64)
    return np.nan_to_num(part, copy=False, nan=0, posinf=0, neginf=0)


def _scale_to_eight_bit(image: Image.Image) -> Image.Image:
    low, high = 0.0, 1.0 if image.mode == "F" else 65535.0
    ranges = [
        (float(values.min()), float(values.max())) for values in (_float_values(image, box) for box in _strips(image))
    ]
    minimum, maximum = min(pair[0] for pair in ranges), max(pair[1] for pair in ranges)
    if minimum < low or maximum > high:
        low, high = minimum, maximum
    transparent = image.info.get("transparency")
    scaled = np.empty((image.height, image.width), np.uint8)
    for box in _strips(image):
        values = _float_values(image, box)
        if transparent is not None:
            values = np.where(values == transparent, high, values)
        scaled[box[1] : box[3]] = np.rint((values - low) * (255 / (high - low or 1)))
    return Image.fromarray(scaled)


REASONS = {
    FileNotFoundError: "there is no such file",
    IsADirectoryError: "is a folder, not a file",
    PermissionError: "cannot be read (permission denied)",
    UnidentifiedImageError: "not an image, or not a supported format",
    Image.DecompressionBombError: "has too many pixels: more than max_pixels, the limit",
    EOFError: "the file is truncated",
}


def describe_read_error(error: Exception) -> str:
    """The message for an error in reading or decoding an image file."""
    for kind, reason in REASONS.items():
        if isinstance(error, kind):
            return reason
    if "truncated" in str(error).lower():
        return REASONS[EOFError]
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    return f"cannot be decoded ({' '.join(str(error).split())[:200] or type(error).__name__})"


# warnings.catch_warnings is not thread-safe: overlapping uses restore each other's filters. So the first thread
# installs the filter, and the last one removes it.
_lock = threading.Lock()
_active = 0
_warnings = warnings.catch_warnings()
_pillow_limit: int | None = None
_LOG_HANDLER = logging.NullHandler()  # without a handler, Python prints Pillow's log messages about damaged files


@contextmanager
def _silence_pillow(max_pixels: int = 0) -> Iterator[None]:
    """Suppress Pillow's warnings (invalid EXIF, large images) and log messages.

    Pillow refuses images with more than twice its own pixel limit, so this limit is raised if `max_pixels` is larger
    than the default.
    """
    global _active, _warnings, _pillow_limit  # noqa: PLW0603
    with _lock:
        _active += 1
        if _active == 1:
            _warnings = warnings.catch_warnings()
            _warnings.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.|vitreous\.utils\.images")
            logging.getLogger("PIL").addHandler(_LOG_HANDLER)
            _pillow_limit = Image.MAX_IMAGE_PIXELS
        if Image.MAX_IMAGE_PIXELS is not None and max_pixels > MAX_PIXELS:
            Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, max_pixels)
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if _active == 0:
                Image.MAX_IMAGE_PIXELS = _pillow_limit
                logging.getLogger("PIL").removeHandler(_LOG_HANDLER)
                _warnings.__exit__(None, None, None)
