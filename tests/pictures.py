"""Small images for the tests of data: each number gives another image, in any format."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def pixels(number: int, height: int = 12, width: int = 10, channels: int = 3) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def encoded(number: int, kind: str = "PNG", **shape: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(number, **shape)).save(stream, kind)
    return stream.getvalue()


def write(path: Path, number: int = 0, **shape: int) -> Path:
    """Write an image file in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}.get(path.suffix.lower(), "PNG")
    path.write_bytes(encoded(number, kind, **shape))
    return path


def classes(root: Path, counts: Mapping[str, int], **shape: int) -> Path:
    """Write a folder for each class with this many images. All images differ."""
    for place, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            write(root / name / f"{i:03}.png", place * 1000 + i, **shape)
    return root


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def same(image: Image.Image, number: int, **shape: Any) -> bool:
    return np.array_equal(np.asarray(image), pixels(number, **shape))


def heic(image: Image.Image, orientation: int = 1, quality: int = 100) -> bytes:
    """Encode an image as an iPhone does: not rotated, with the rotation in the container and in EXIF."""
    from pillow_heif.as_plugin import _save_heif

    exif = Image.Exif()
    exif[0x0112] = orientation
    image, stream = image.copy(), io.BytesIO()
    image.encoderinfo = {"exif": exif.tobytes(), "quality": quality, "chroma": 444}  # type: ignore[attr-defined]
    _save_heif(image, stream, "")
    return stream.getvalue()
