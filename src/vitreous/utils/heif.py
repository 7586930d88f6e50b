"""HEIC and HEIF images, the format of iPhone photos, through the optional package pillow-heif.

The package is imported when the first such image is decoded, in the process that decodes it. It is not registered with
Pillow, since that would change `Image.open` for the whole program.
"""

import re
from functools import cache
from importlib import import_module
from typing import Any, BinaryIO

from vitreous.errors import VitreousError

HEIF_SUFFIXES = (".heic", ".heif", ".hif")
INSTALL = "pip install pillow-heif (or vitreous[heif])"
MIN_VERSION = (1, 8)  # older versions decode more pixels than the header of a hostile file declares
START_BYTES = 64  # enough for the brands at the start of a file
HEIF_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1"})
AVIF_BRANDS = frozenset({b"avif", b"avis"})
VIDEO_BRANDS = frozenset({b"isom", b"iso2", b"iso4", b"iso5", b"iso6", b"mp41", b"mp42", b"avc1", b"qt  ", b"M4V "})


def container_kind(start: bytes) -> str | None:
    """ "heif", "avif" or "video" from the first bytes of a file in an ISO container; None for any other file."""
    if start[4:8] != b"ftyp":
        return None
    size = min(len(start), max(16, int.from_bytes(start[:4], "big")))
    major, *compatible = (start[at : at + 4] for at in (8, *range(16, size, 4)))
    if major in AVIF_BRANDS or (major in (b"mif1", b"msf1") and AVIF_BRANDS & set(compatible)):
        return "avif"
    if major in HEIF_BRANDS:
        return "heif"
    return "video" if major in VIDEO_BRANDS or major.startswith(b"3gp") else None


@cache
def _pillow_heif() -> Any:
    try:
        return import_module("pillow_heif")
    except ImportError:
        return None


def can_read_heif() -> bool:
    """Whether pillow-heif is installed."""
    return _pillow_heif() is not None


def open_heif(stream: BinaryIO | bytes) -> Any:
    """The primary image of a HEIF file, not yet decoded: it has `size` and `to_pillow()`.

    Its size and its pixels are upright: rotations that the container stores are applied while decoding. An orientation
    in the EXIF data repeats that rotation and has to be ignored, as the standard requires. libheif refuses to decode
    more pixels than the header declares.
    """
    if (library := _pillow_heif()) is None:
        raise VitreousError(f"is a HEIC/HEIF image, which needs the package pillow-heif: {INSTALL}")
    version = tuple(int(part) for part in re.findall(r"[0-9]+", library.__version__)[:2])
    if version < MIN_VERSION:
        raise VitreousError(
            f"is a HEIC/HEIF image, and pillow-heif {library.__version__} is too old to read it safely:"
            " pip install --upgrade pillow-heif"
        )
    return library.open_heif(stream, convert_hdr_to_8bit=True)
