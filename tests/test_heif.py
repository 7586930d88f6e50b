"""HEIC images, as iPhones write them: upright, within the limits, and a clear error without pillow-heif."""

import io
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from limits import limited
from pictures import heic
from vitreous.errors import VitreousError
from vitreous.utils import heif
from vitreous.utils.heif import container_kind
from vitreous.utils.images import decode, decode_array, upright_size

pillow_heif = pytest.importorskip("pillow_heif")


def quarters(size: tuple[int, int] = (128, 64)) -> Image.Image:
    """Return an image of four colours: all its rotations and flips differ."""
    image = Image.new("RGB", size, "white")
    (width, height) = size
    for column, row, colour in ((0, 0, "red"), (1, 0, "lime"), (0, 1, "blue")):
        left, top = column * width // 2, row * height // 2
        image.paste(colour, (left, top, left + width // 2, top + height // 2))
    return image


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_applied_once(orientation: int) -> None:
    data = heic(quarters(), orientation)
    assert data.count(b"irot") + data.count(b"imir") > 0 or orientation == 1
    expected = quarters()
    expected.getexif()[0x0112] = orientation
    expected = ImageOps.exif_transpose(expected)
    image = decode(data)
    assert (image.mode, image.size, upright_size(data)) == ("RGB", expected.size, expected.size[::-1])
    assert np.abs(np.asarray(image, int) - np.asarray(expected)).mean() < 2
    assert image.getexif().get(0x0112) is None
    np.testing.assert_array_equal(decode_array(data), np.asarray(image))


@pytest.mark.parametrize(
    ("mode", "fill", "expected"),
    [("L", 100, ("L", 100)), ("RGBA", (9, 9, 9, 0), ("RGB", (255, 255, 255))), ("I;16", 30_000, ("L", 117))],
)
def test_grey_transparent_and_ten_bit_images(mode: str, fill: object, expected: tuple[str, object]) -> None:
    image = decode(heic(Image.new(mode, (32, 16), fill)))  # type: ignore[arg-type]
    assert (image.mode, image.getpixel((3, 3))) == expected


def test_the_plugin_is_not_registered(tmp_path: Path) -> None:
    """`Image.open` of the calling program does not change, and pillow-heif is imported only for a HEIC image."""
    path = tmp_path / "photo.HEIC"
    path.write_bytes(heic(quarters()))
    code = f"""
import sys
from PIL import Image
from vitreous.utils.images import decode
assert "pillow_heif" not in sys.modules
assert decode({str(path)!r}).size == (128, 64)
assert "pillow_heif" in sys.modules and "HEIF" not in Image.OPEN and ".heic" not in Image.registered_extensions()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pixels_are_limited_before_decoding() -> None:
    data = heic(Image.new("RGB", (2048, 1024)), quality=10)
    with pytest.raises(VitreousError, match=r"has 2,097,152 pixels \(1,024 x 2,048\), and max_pixels, the limit"):
        decode(data, max_pixels=2_000_000)
    # The header declares fewer pixels than the image has: libheif does not decode more than the header says.
    size = b"ispe" + struct.pack(">III", 0, 2048, 1024)
    assert size in data
    bomb = data.replace(size, b"ispe" + struct.pack(">III", 0, 64, 64))

    def error() -> str:
        with pytest.raises(VitreousError) as caught:
            decode(bomb, max_pixels=10_000)
        return str(caught.value)

    assert "cannot be decoded" in limited(error, seconds=5, memory=1 << 28)


def test_damaged_files() -> None:
    data = heic(quarters())
    for damaged in (data[:40], data[:200], data[: len(data) // 2], data[:300] + bytes(len(data) - 300)):
        with pytest.raises(VitreousError):
            decode(damaged)
        with pytest.raises(VitreousError):
            decode_array(damaged)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "IMG_1.jpg"  # phones and programs that copy photos write wrong suffixes, too
    path.write_bytes(heic(quarters()))
    monkeypatch.setattr(heif, "_pillow_heif", lambda: None)
    with pytest.raises(VitreousError, match=r"IMG_1.jpg: is a HEIC/HEIF image.*pip install pillow-heif"):
        decode(path)
    with pytest.raises(VitreousError, match="pip install pillow-heif"):
        upright_size(path.read_bytes())


def test_old_versions_of_the_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They decode as many pixels as the image has, whatever its header declares."""
    monkeypatch.setattr(pillow_heif, "__version__", "1.1.0")
    with pytest.raises(VitreousError, match="pip install --upgrade pillow-heif"):
        decode(heic(quarters()))


def test_kinds_of_containers() -> None:
    def start(major: bytes, *compatible: bytes) -> bytes:
        brands = major + bytes(4) + b"".join(compatible)
        return struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands + b"\0\0\0\x20meta"

    assert container_kind(start(b"heic", b"mif1", b"heic")) == "heif"
    assert container_kind(start(b"mif1", b"mif1", b"heic")) == "heif"
    assert container_kind(start(b"mif1", b"mif1", b"avif", b"miaf")) == "avif"
    assert container_kind(start(b"avif")) == "avif"
    assert container_kind(start(b"qt  ")) == container_kind(start(b"mp42", b"isom")) == "video"
    assert container_kind(start(b"jpx ")) is None
    assert container_kind(b"") is container_kind(b"\xff\xd8\xff\xe0") is None
    stream = io.BytesIO()
    quarters().save(stream, "AVIF")
    assert container_kind(stream.getvalue()[:64]) == "avif"
    with pytest.raises(VitreousError, match="is a video, not an image"):
        decode(start(b"qt  ") + bytes(100))
