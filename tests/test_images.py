"""Image files of every format, written by Pillow and decoded: the pixels are those that a viewer shows."""

import io
import os
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from PIL import Image, ImageOps

from limits import limited
from vitreous.data.options import Reading
from vitreous.errors import VitreousError
from vitreous.utils import images
from vitreous.utils.heif import HEIF_SUFFIXES
from vitreous.utils.images import IMAGE_SUFFIXES, decode, decode_array, read_image_file, upright_size

ORANGE = (200, 100, 50)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def quarters() -> Image.Image:
    """Return an image of four colours, 32 wide and 16 high: all its rotations and flips differ."""
    image = Image.new("RGB", (32, 16), "white")
    for box, colour in (((0, 0, 16, 8), "red"), ((16, 0, 32, 8), "lime"), ((0, 8, 16, 16), "blue")):
        image.paste(colour, box)
    return image


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "PPM", "ICO", "TGA"])
def test_formats(kind: str) -> None:
    image = decode(encoded(Image.new("RGB", (16, 16), ORANGE), kind))
    assert (image.mode, image.size) == ("RGB", (16, 16))
    assert np.abs(np.asarray(image, dtype=int) - ORANGE).max() <= 3


def test_a_path_a_string_bytes_and_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "ü [1].PNG"
    quarters().save(path)
    with path.open("rb") as stream:
        for file in (path, str(path), path.read_bytes(), stream):
            np.testing.assert_array_equal(np.asarray(decode(file)), np.asarray(quarters()))
        assert not stream.closed  # the caller closes it
    read, write = os.pipe()
    with os.fdopen(write, "wb") as sink:
        sink.write(path.read_bytes())
    with os.fdopen(read, "rb") as source:
        assert decode(source).size == (32, 16)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_upright(orientation: int, kind: str) -> None:
    stored = Image.new("RGB", (32, 16))
    stored.paste(quarters())
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    data = encoded(stored, kind, exif=exif, **options)
    with Image.open(io.BytesIO(data)) as reference:
        expected = ImageOps.exif_transpose(reference)
    image = decode(data)
    assert image.size == ((16, 32) if orientation >= 5 else (32, 16))
    np.testing.assert_array_equal(np.asarray(image), np.asarray(expected))
    assert image.getexif().get(0x0112) is None  # it is not rotated twice


def test_a_portrait_from_a_camera_held_sideways() -> None:
    portrait = Image.new("L", (20, 40), 0)
    portrait.paste(255, (0, 0, 20, 20))  # the sky is at the top
    exif = Image.Exif()
    exif[0x0112] = 6
    image = decode(encoded(portrait.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif))
    assert (image.mode, image.size) == ("L", (20, 40))
    assert image.getpixel((10, 5)) > 250
    assert image.getpixel((10, 35)) < 5


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
@pytest.mark.parametrize("size", [(640, 480), (481, 333), (127, 8), (9, 9), (1, 300)])
@pytest.mark.parametrize("at_least", [(1, 1), (60, 80), (61, 80), (60, 81), (120, 20), (240, 320), (241, 1), (5000, 1)])
def test_a_jpeg_is_decoded_at_a_reduced_size(
    orientation: int, size: tuple[int, int], at_least: tuple[int, int]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.new("RGB", size, ORANGE), "JPEG", exif=exif)
    whole, image = decode(data), decode(data, at_least)
    assert upright_size(data) == (whole.height, whole.width)
    possible = [(-(-whole.height // scale), -(-whole.width // scale)) for scale in (1, 2, 4, 8)]
    enough = [size for size in possible if size[0] >= at_least[0] and size[1] >= at_least[1]]
    smallest = min(enough, default=possible[0])
    if min(size) >= 8:  # for tiny images Pillow may keep more pixels
        assert (image.height, image.width) == smallest
    assert image.height >= min(at_least[0], whole.height)
    assert image.width >= min(at_least[1], whole.width)
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image, dtype=int) - ORANGE).max() <= 3


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_reduced_jpeg_is_the_same_image(mode: str) -> None:
    smooth = Image.linear_gradient("L").resize((320, 320)).convert("RGB").convert(mode)
    data = encoded(smooth, "JPEG", quality=95)
    image, whole = decode(data, (70, 70)), decode(data)
    assert (image.size, image.mode) == ((80, 80), whole.mode)
    assert np.abs(np.asarray(image, dtype=int) - np.asarray(whole.reduce(4), dtype=int)).max() <= 3


def photograph(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Return smooth shapes with noise, so that all JPEG coefficients are used."""
    random = np.random.default_rng(width * height)
    coarse = Image.fromarray(random.integers(0, 256, (5, 4, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(coarse) + random.normal(0, 12, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode)


def by_pillow(data: bytes, at_least: tuple[int, int] | None = None) -> np.ndarray:
    image = decode(data, at_least)
    return np.asarray(image).reshape(image.height, image.width, -1)


JPEGS = [
    ("L", {}),
    ("L", {"progressive": True}),
    ("RGB", {"subsampling": "4:4:4"}),
    ("RGB", {"subsampling": "4:2:2", "quality": 45}),
    ("RGB", {"subsampling": "4:2:0"}),
    ("RGB", {"subsampling": "4:2:0", "quality": 45, "progressive": True}),
    ("RGB", {"keep_rgb": True}),
]


@pytest.mark.parametrize(("mode", "options"), JPEGS, ids=str)
def test_simplejpeg_gives_the_same_pixels(mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    enough = (None, (1, 1), (20, 20), (50, 120), (300, 100))
    files = [encoded(photograph(*size, mode), "JPEG", **options) for size in ((9, 8), (64, 48), (161, 213), (640, 427))]
    expected = {(data, at_least): by_pillow(data, at_least) for data in files for at_least in enough}
    monkeypatch.setattr(images, "decode", None)  # Pillow is not used
    for (data, at_least), pixels in expected.items():
        np.testing.assert_array_equal(decode_array(data, at_least), pixels)


def test_images_that_only_pillow_decodes() -> None:
    """Rotated images, other colour spaces, other formats, and very small images."""
    exif = Image.Exif()
    for orientation in (1, 3, 6):
        exif[0x0112] = orientation
        data = encoded(photograph(90, 60), "JPEG", exif=exif)
        np.testing.assert_array_equal(decode_array(data, (25, 25)), by_pillow(data, (25, 25)))
    broken = encoded(photograph(90, 60), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    cmyk = encoded(photograph(90, 60).convert("CMYK"), "JPEG")
    several = encoded(photograph(90, 60), "MPO", save_all=True, append_images=[quarters()])
    for data in (broken, cmyk, several, encoded(photograph(3, 5), "JPEG"), encoded(photograph(9, 9), "PNG")):
        np.testing.assert_array_equal(decode_array(data, (2, 2)), by_pillow(data, (2, 2)))


def outcome(read: Any, data: bytes) -> Any:
    """Return the pixels, or the error."""
    try:
        return read(data).tolist()
    except VitreousError as error:
        return str(error)


def test_simplejpeg_has_the_same_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encoded(photograph(90, 60), "JPEG")
    half = len(whole) // 2
    changed = whole[:half] + b"\xff\xd9\xff\xc4\xff\xd9\xff\xc4" + whole[half + 8 :]
    for data in (whole[:300], whole[:half], whole[:-2], changed, whole + b"more", b"\xff\xd8\xff", b""):
        assert outcome(decode_array, data) == outcome(by_pillow, data)
    assert outcome(decode_array, whole[:half]) == "the file is truncated"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # 5,400 pixels are more than twice the limit
    assert outcome(decode_array, whole) == outcome(by_pillow, whole)
    assert str(outcome(decode_array, whole)).startswith("has too many pixels")


def test_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_simplejpeg", lambda: None)
    for mode, channels in (("L", 1), ("RGB", 3)):
        data = encoded(photograph(90, 60, mode), "JPEG")
        pixels = decode_array(data, (20, 20))
        assert pixels.shape == (30, 45, channels)
        np.testing.assert_array_equal(pixels, by_pillow(data, (20, 20)))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "TIFF", "BMP", "ICO"])
def test_other_formats_are_decoded_at_full_size(kind: str) -> None:
    data = encoded(Image.new("RGB", (128, 128), ORANGE), kind)
    assert decode(data, (10, 10)).size == (128, 128)
    assert upright_size(data) == (128, 128)


def test_a_damaged_jpeg_is_detected_at_any_scale() -> None:
    data = encoded(Image.effect_noise((256, 256), 50), "JPEG")
    with pytest.raises(VitreousError, match="the file is truncated"):
        decode(data[: len(data) // 2], (1, 1))
    with pytest.raises(VitreousError, match="not an image"):
        upright_size(b"text")


def test_an_image_with_damaged_exif_is_decoded() -> None:
    for exif in (b"Exif\0\0", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 40):
        assert decode(encoded(quarters(), "JPEG", exif=exif)).size == (32, 16)


def test_grey_stays_grey() -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    image = decode(encoded(Image.fromarray(ramp), "PNG"))
    assert image.mode == "L"
    np.testing.assert_array_equal(np.asarray(image), ramp)
    bilevel = decode(encoded(Image.fromarray(ramp > 99), "PNG"))
    assert bilevel.mode == "L"
    np.testing.assert_array_equal(np.asarray(bilevel), np.where(ramp > 99, 255, 0))


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2"), ("PPM", "<u2")])
def test_sixteen_bits_are_scaled(kind: str, dtype: str) -> None:
    ramp = np.tile(np.arange(0, 65536, 257), (4, 1)).astype(dtype)
    image = decode(encoded(Image.fromarray(ramp), kind))
    assert image.mode == "L"
    np.testing.assert_array_equal(np.asarray(image)[0], np.arange(256))


def test_32_bit_integers_and_floats() -> None:
    def read(values: Any, dtype: str) -> list[int]:
        return np.asarray(decode(encoded(Image.fromarray(np.array([values], dtype=dtype)), "TIFF")))[0].tolist()

    assert read([0, 257, 65535], "int32") == [0, 1, 255]
    assert read([-100, 0, 155], "int32") == [0, 100, 255]  # scaled to the range of values
    assert read([70000, 70000], "int32") == [0, 0]
    assert read([0.0, 0.2, 0.6], "float32") == [0, 51, 153]
    assert read([-1.0, 0.0, 4.0], "float32") == [0, 51, 255]
    assert read([0.0, np.nan, 1.0], "float32") == [0, 0, 255]


def test_cmyk_and_ycbcr() -> None:
    for mode, kind in (("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "TIFF")):
        image = decode(encoded(Image.new("RGB", (16, 16), ORANGE).convert(mode), kind))
        assert image.mode == "RGB"
        assert np.abs(np.asarray(image, dtype=int) - ORANGE).max() <= 2


def transparent(mode: str) -> Image.Image:
    """Return an image with an opaque colour, the same colour at alpha 102, and transparent black."""
    image = Image.new("RGBA", (3, 1), (*ORANGE, 255))
    image.putpixel((1, 0), (*ORANGE, 102))
    image.putpixel((2, 0), (0, 0, 0, 0))
    return image.convert(mode)


@pytest.mark.parametrize(("mode", "kind"), [("RGBA", "PNG"), ("RGBA", "TIFF"), ("LA", "PNG")])
def test_transparency_becomes_white(mode: str, kind: str) -> None:
    image = decode(encoded(transparent(mode), kind))
    assert image.mode == ("L" if mode == "LA" else "RGB")
    colour = np.array(ORANGE if mode == "RGBA" else 124)
    expected = np.stack([colour, np.rint(255 + (colour - 255) * 0.4), np.full_like(colour, 255)])
    assert np.abs(np.asarray(image, dtype=int)[0] - expected).max() <= 1


def test_transparent_palettes_and_single_transparent_colours() -> None:
    palette = Image.new("P", (3, 1))
    palette.putpalette([*ORANGE, 0, 0, 255, 0, 0, 0])
    for x in range(3):
        palette.putpixel((x, 0), x)
    plain = [ORANGE, (0, 0, 255), (0, 0, 0)]

    def pixels(data: bytes) -> list[Any]:
        image = decode(data)
        return [image.getpixel((x, 0)) for x in range(image.width)]

    assert pixels(encoded(palette, "PNG")) == plain
    assert pixels(encoded(palette, "PNG", transparency=1)) == [ORANGE, (255, 255, 255), (0, 0, 0)]
    assert pixels(encoded(palette, "GIF", transparency=1)) == [ORANGE, (255, 255, 255), (0, 0, 0)]
    assert pixels(encoded(palette, "PNG", transparency=bytes([255, 102, 0])))[1:] == [(153, 153, 255), (255, 255, 255)]
    colours = palette.convert("RGB")
    assert pixels(encoded(colours, "PNG", transparency=ORANGE)) == [(255, 255, 255), (0, 0, 255), (0, 0, 0)]
    grey = Image.fromarray(np.array([[0, 100, 200]], dtype=np.uint8))
    assert pixels(encoded(grey, "PNG", transparency=100)) == [0, 255, 200]
    deep = Image.fromarray(np.array([[0, 100 * 257, 200 * 257]], dtype=np.uint16))
    assert pixels(encoded(deep, "PNG", transparency=100 * 257)) == [0, 255, 200]


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    image = decode(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert image.getpixel((3, 3)) == (255, 0, 0)


def test_undecodable_files_give_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encoded(Image.effect_noise((64, 64), 50), "PNG")
    reasons = {
        "empty.jpg": (b"", "the file is empty"),
        "text.jpg": (b"<!DOCTYPE html><html>404</html>", "not an image, or not a supported format"),
        "cut.png": (whole[: len(whole) // 2], "the file is truncated"),
        "cut.jpg": (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:900], "the file is truncated"),
        "figure.png": (encoded(quarters(), "EPS"), "not an image, or not a supported format"),
        "bomb.png": (png_header(30000, 30000), "has too many pixels"),
    }
    for name, (data, reason) in reasons.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(VitreousError) as caught:
            decode(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        assert reason in str(caught.value)
        with pytest.raises(VitreousError) as caught:
            decode(data)
        assert reason in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(VitreousError, match=r"gone\.jpg: there is no such file"):
        decode(tmp_path / "gone.jpg")
    with pytest.raises(VitreousError, match=f"{tmp_path}: is a folder, not a file"):
        decode(tmp_path)
    with pytest.raises(VitreousError, match=r"cannot be decoded \(embedded null"):
        decode("a\0b.jpg")

    def forbid(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", forbid)
    with pytest.raises(VitreousError, match=r"secret.jpg: cannot be read \(permission denied\)"):
        decode("secret.jpg")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("clip.MOV", "is a video, not an image: extract images from it"),
        ("IMG_1.CR2", "is a RAW photo, not an image: convert it to JPEG or TIFF"),  # Pillow reads only a thumbnail
        ("page.pdf", "is a document, not an image: export its pages"),
        ("photos.zip", "is an archive, not an image: extract it"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(encoded(quarters(), "TIFF"))
    for read in (decode, read_image_file):
        with pytest.raises(VitreousError, match=reason):
            read(tmp_path / name)
    with pytest.raises(VitreousError, match="there is no such file"):
        decode(tmp_path / f"missing-{name}")
    with pytest.raises(VitreousError, match=r"https://example\.com/1\.jpg: is a URL, not a file on this machine"):
        decode("https://example.com/1.jpg")


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that declares a size and ends there."""
    chunks = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", b"")
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data)) for kind, data in chunks
    ]
    return b"".join([b"\x89PNG\r\n\x1a\n", *packed])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux lists them")
def test_no_file_is_left_open(tmp_path: Path) -> None:
    quarters().save(tmp_path / "fine.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "fine.png").read_bytes()[:60])
    kept, before = [], os.listdir("/proc/self/fd")  # noqa: PTH208
    kept.append(decode(tmp_path / "fine.png"))
    with pytest.raises(VitreousError) as caught:
        decode(tmp_path / "cut.png")
    assert len(os.listdir("/proc/self/fd")) == len(before), caught  # noqa: PTH208


def test_warnings_are_suppressed_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.new("L", (60, 60)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # 3,600 pixels: Pillow warns, and would refuse 4,001
    with pytest.raises(Image.DecompressionBombWarning), Image.open(io.BytesIO(data)):
        pass
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        assert all(image.size == (60, 60) for image in pool.map(decode, [data] * 200))
    assert list(warnings.filters) == before


def test_pillow_supports_all_suffixes() -> None:
    Image.init()
    assert set(Image.registered_extensions()) >= IMAGE_SUFFIXES - set(HEIF_SUFFIXES)
    assert {".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".bmp"} <= IMAGE_SUFFIXES


def test_the_limit_of_pixels(tmp_path: Path) -> None:
    assert Reading().max_pixels == images.MAX_PIXELS
    message = r"has 81,000,000 pixels \(9,000 x 9,000\), and max_pixels, the limit, is 70,000,000"
    with pytest.raises(VitreousError, match=message):
        decode(png_header(9000, 9000))
    with pytest.raises(VitreousError, match="truncated"):  # beyond the limit, and beyond Pillow's own
        decode(png_header(30000, 30000), max_pixels=10**9)
    with pytest.raises(VitreousError, match="is 1 x 300,000 pixels, and no side may have more than 262,144"):
        decode(png_header(300_000, 1))
    for kind in ("PNG", "JPEG"):
        data = encoded(photograph(90, 60), kind)
        for by in (decode, decode_array):
            assert by(data, max_pixels=5400) is not None
            with pytest.raises(VitreousError, match="has 5,400 pixels"):
                by(data, max_pixels=5399)


@pytest.mark.parametrize("mode", ["I;16", "I", "F", "RGBA", "P"])
def test_large_images_are_converted_with_little_memory(mode: str) -> None:
    """Four megapixels: a copy in float64 would take 32 MiB."""
    values = np.add.outer(np.arange(2000), np.arange(2048))
    image = Image.fromarray((values % 256).astype(np.uint8))
    bytes_per_pixel = {"I;16": 2, "I": 4, "F": 4, "P": 1}.get(mode, 4)
    if mode == "RGBA":
        image = Image.merge("RGBA", [image] * 4)
        data = encoded(image, "PNG", compress_level=1)
    elif mode == "P":
        data = encoded(image.convert("P"), "PNG", compress_level=1, transparency=7)
    else:
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        data = encoded(Image.fromarray(values.astype(kind)), "TIFF", compression="tiff_lzw")
    expected = decode(data)
    room = (bytes_per_pixel + 4) * values.size + (28 << 20)
    found = limited(lambda: decode(data).tobytes(), memory=room + 3 * values.size)
    assert found == expected.tobytes()


@pytest.mark.parametrize(("kind", "zero"), [("GIF", b"\x05\x00"), ("BMP", b"\x05\x00\x00\x00"), ("TIFF", b"\x05\x00")])
def test_an_image_without_pixels(kind: str, zero: bytes) -> None:
    """Replace every 5, the width, by 0 in the file."""
    data = encoded(Image.new("L", (5, 7)), kind)
    for at in range(len(data) - len(zero)):
        if data[at : at + len(zero)] == zero:
            changed = data[:at] + bytes(len(zero)) + data[at + len(zero) :]
            for by in (decode, decode_array):
                with suppress(VitreousError):
                    assert 0 not in np.asarray(by(changed)).shape
    with pytest.raises(VitreousError, match="has no pixels: its size is 5 x 0"):
        images.upright(Image.new("I;16", (0, 5)))
    with pytest.raises(VitreousError, match="has no pixels"):
        images.as_image(Image.new("RGBA", (5, 0)))
