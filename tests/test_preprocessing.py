"""`Preprocessing`, compared with simple reference code; tests/peers compares it with other libraries."""

import json
import math
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps

from limits import limited
from vitreous.errors import VitreousError
from vitreous.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitreous.utils.images import decode, upright


def noise(height: int, width: int, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def rows_and_columns(height: int, width: int) -> Image.Image:
    """A grey image with pixel values 10 x row + column."""
    return Image.fromarray((10 * np.arange(height)[:, None] + np.arange(width)).astype(np.uint8))


def grey(**settings: Any) -> Preprocessing:
    return Preprocessing(mean=(0.5,), std=(0.5,), **settings)


def test_default_is_to_squash_to_the_size() -> None:
    image = noise(37, 50)
    pixels = Preprocessing(size=(16, 24)).pixels(image)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (3, 16, 24)
    assert pixels.is_contiguous()
    np.testing.assert_array_equal(
        pixels.permute(1, 2, 0), np.asarray(image.resize((24, 16), Image.Resampling.BILINEAR))
    )


@pytest.mark.parametrize(("height", "width"), [(33, 47), (47, 33), (200, 21), (20, 20), (5, 90)])
@pytest.mark.parametrize("crop", ["round", "down"])
def test_resize_short_side_then_centre_crop(height: int, width: int, crop: Any) -> None:
    pixels = Preprocessing(size=16, resize=20, interpolation="bicubic", crop=crop).pixels(noise(height, width))
    assert pixels.shape == (3, 16, 16)
    assert pixels.float().std() > 20  # no black padding


@pytest.mark.parametrize(
    ("crop", "spare", "first"), [("round", 1, 0), ("round", 3, 2), ("round", 5, 2), ("down", 1, 0), ("down", 3, 1)]
)
def test_rounding_of_an_odd_margin(crop: Any, spare: int, first: int) -> None:
    image = rows_and_columns(4 + spare, 4)
    pixels = grey(size=4, resize=4, crop=crop).pixels(image)  # the short side is 4 already: not resampled
    assert pixels[0, :, 0].tolist() == [10 * (first + i) for i in range(4)]


@pytest.mark.parametrize(("crop", "before"), [("round", 1), ("down", 2)])
@pytest.mark.parametrize("antialias", [True, False])
def test_small_images_are_padded_with_black(crop: Any, before: int, antialias: bool) -> None:
    image = Image.new("L", (5, 8), 200)
    pixels = grey(size=8, resize=5, crop=crop, antialias=antialias).pixels(image)
    assert pixels.shape == (1, 8, 8)
    assert (pixels[0, 4] > 0).tolist() == [before <= i < before + 5 for i in range(8)]
    assert (pixels[0, :, 4] == 200).all()


def half_pixel_bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """tf.image.resize(image, (height, width)), pixel by pixel."""
    out = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            y = (i + 0.5) * image.shape[0] / height - 0.5
            x = (j + 0.5) * image.shape[1] / width - 0.5
            for dy in (0, 1):
                for dx in (0, 1):
                    row, column = math.floor(y) + dy, math.floor(x) + dx
                    weight = (1 - abs(y - row)) * (1 - abs(x - column))
                    row, column = min(max(row, 0), image.shape[0] - 1), min(max(column, 0), image.shape[1] - 1)
                    out[i, j] += weight * image[row, column]
    return out


@pytest.mark.parametrize("size", [(7, 5), (40, 61), (31, 23), (1, 1)])
def test_bilinear_without_antialiasing_equals_tensorflow(size: tuple[int, int]) -> None:
    image = noise(31, 23, "L")
    pixels = grey(size=size, antialias=False).pixels(image)
    assert pixels.dtype == torch.float32
    np.testing.assert_allclose(pixels[0], half_pixel_bilinear(np.asarray(image), *size), atol=1e-4)


def test_nearest_and_bicubic_without_antialiasing() -> None:
    image = noise(31, 23)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
    nearest = Preprocessing(size=(12, 40), interpolation="nearest", antialias=False).pixels(image)
    assert torch.equal(nearest, F.interpolate(x, (12, 40), mode="nearest-exact")[0])
    # Keys' cubic, a = -0.5, which antialiasing uses too and upsampling does not stretch; edges are renormalised alike.
    bicubic = Preprocessing(size=(64, 64), interpolation="bicubic", antialias=False).pixels(image)
    reference = F.interpolate(x, (64, 64), mode="bicubic", align_corners=False, antialias=True)[0]
    torch.testing.assert_close(bicubic, reference, atol=1e-3, rtol=0)


def test_normalise() -> None:
    preprocessing = Preprocessing(size=4, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    x = preprocessing(Image.new("RGB", (4, 4), (255, 0, 51)))
    assert x.dtype == torch.float32
    expected = [(v - m) / s for v, m, s in zip((1, 0, 0.2), IMAGENET_MEAN, IMAGENET_STD, strict=True)]
    torch.testing.assert_close(x[:, 0, 0], torch.tensor(expected))
    pixels = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    before = pixels.clone()
    batch = preprocessing.normalise(pixels)
    assert torch.equal(batch[1], preprocessing.normalise(pixels[1]))
    assert torch.equal(pixels, before)
    floats = pixels.float()
    assert torch.equal(preprocessing.normalise(floats), batch)
    assert torch.equal(floats, before.float())
    with pytest.raises(VitreousError, match="3 x height x width, got \\(1, 4, 4\\)"):
        preprocessing.normalise(torch.zeros(1, 4, 4))


def test_number_of_channels_is_that_of_mean() -> None:
    assert grey(size=8).pixels(noise(9, 9)).shape == (1, 8, 8)
    pixels = Preprocessing(size=8).pixels(noise(9, 9, "L"))
    assert pixels.shape == (3, 8, 8)
    assert torch.equal(pixels[0], pixels[2])
    with pytest.raises(VitreousError, match="for 4 channels"):
        Preprocessing(mean=(0.5,) * 4, std=(0.5,) * 4).pixels(noise(9, 9))


def test_at_another_size() -> None:
    assert Preprocessing(size=224, resize=256).at(384) == Preprocessing(size=384, resize=439)
    assert Preprocessing(size=224).at((96, 160)) == Preprocessing(size=(96, 160))
    assert Preprocessing(size=(100, 200), resize=(110, 220)).at((200, 100)).resize == (220, 110)
    assert Preprocessing(size=224, resize=1).at(16).resize == 1
    kept = Preprocessing(crop="down", mean=IMAGENET_MEAN, std=IMAGENET_STD, interpolation="box").at(32)
    assert (kept.crop, kept.mean, kept.std, kept.interpolation) == ("down", IMAGENET_MEAN, IMAGENET_STD, "box")


@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(),
        Preprocessing(size=(32, 48), resize=64, interpolation="bicubic", antialias=False, crop="down"),
        Preprocessing(size=8, resize=(9, 10), mean=(0.1,), std=(0.3,)),
    ],
)
def test_json_round_trip(preprocessing: Preprocessing) -> None:
    assert Preprocessing.from_json(json.loads(json.dumps(preprocessing.to_json()))) == preprocessing
    assert hash(preprocessing) == hash(Preprocessing.from_json(preprocessing.to_json()))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected an object with fields"),
        ({"sise": 224, "size": 224}, "unknown fields 'sise'; expected 'size'"),
        ({"size": "224"}, "size = '224'"),
        ({"size": [224]}, r"size = \[224\]"),
        ({"size": 0}, "size = 0"),
        ({"size": True}, "size = True"),
        ({"resize": 2.5}, "resize = 2.5"),
        ({"resize": [256, -1]}, "resize = "),
        ({"interpolation": "cubic"}, "interpolation = 'cubic': expected one of 'nearest', 'bilinear'"),
        ({"interpolation": ["bilinear"]}, "interpolation = "),
        ({"interpolation": "lanczos", "antialias": False}, "without antialiasing, expected one of 'nearest'"),
        ({"antialias": "no"}, "antialias = 'no'"),
        ({"antialias": 1}, "antialias = 1"),
        ({"crop": "up"}, "crop = 'up'"),
        ({"mean": 0.5}, "mean = 0.5"),
        ({"mean": []}, r"mean = \[\]"),
        ({"mean": [0.5, 0.5, "x"]}, "mean = "),
        ({"std": [0.5, 0.5, 0]}, "std = .*must be positive"),
        ({"std": [0.5, 0.5, math.nan]}, "std = "),
        ({"std": [0.5]}, "as many values as in mean, 3"),
    ],
)
def test_errors_name_the_wrong_field(data: Any, message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        Preprocessing.from_json(data)


def test_very_long_thin_images_are_refused() -> None:
    with pytest.raises(VitreousError, match="1 x 60000 pixels: too long and thin for a short side of 256"):
        Preprocessing(resize=256).pixels(Image.new("RGB", (60000, 1)))
    assert Preprocessing().pixels(Image.new("RGB", (60000, 1))).shape == (3, 224, 224)


def save_image(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def quarters(mode: str = "RGB") -> Image.Image:
    """An image with four different quarters and a gradient: all rotations and flips differ."""
    pixels = np.full((16, 32, 3), 255, np.uint8)
    pixels[:8, :16], pixels[:8, 16:], pixels[8:, :16] = (250, 20, 20), (20, 250, 20), (20, 20, 250)
    pixels[..., 0] -= np.arange(16, dtype=np.uint8)[:, None] // 2
    return Image.fromarray(pixels).convert(mode)


def oriented(folder: Path, orientation: int, suffix: str = "jpg") -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return save_image(folder / f"turned-{orientation}.{suffix}", quarters(), exif=exif)


def deep_grey(folder: Path) -> Path:
    ramp = np.linspace(0, 65535, 16 * 32).reshape(16, 32).astype(np.uint16)
    return save_image(folder / "deep.png", Image.fromarray(ramp))


def deep_colour(folder: Path) -> Path:
    """Pillow reads 16-bit RGB but cannot write it."""
    rows = np.random.default_rng(0).integers(0, 65536, (16, 32, 3)).astype(">u2")
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 32, 16, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    ]
    packed = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in chunks]
    (folder / "colour16.png").write_bytes(b"".join([b"\x89PNG\r\n\x1a\n", *packed]))
    return folder / "colour16.png"


def transparent(folder: Path) -> Path:
    image = quarters("RGBA")
    image.putalpha(Image.linear_gradient("L").resize((32, 16)))
    return save_image(folder / "clear.png", image)


def transparent_palette(folder: Path) -> Path:
    return save_image(folder / "palette.png", quarters().quantize(4), transparency=bytes([255, 0, 128, 255]))


def animated(folder: Path) -> Path:
    return save_image(
        folder / "moving.gif", quarters(), save_all=True, append_images=[Image.new("RGB", (32, 16), "black")]
    )


FILES: dict[str, Callable[[Path], Path]] = {
    **{f"EXIF {n}": partial(oriented, orientation=n) for n in range(1, 9)},
    **{f"EXIF 6, {suffix}": partial(oriented, orientation=6, suffix=suffix) for suffix in ("png", "webp", "tiff")},
    "16-bit grey": deep_grey,
    "16-bit RGB": deep_colour,
    "RGBA": transparent,
    "LA": lambda folder: save_image(folder / "la.png", quarters("LA")),
    "palette": transparent_palette,
    "GIF": animated,
    "CMYK": lambda folder: save_image(folder / "cmyk.jpg", quarters("CMYK")),
    "grey": lambda folder: save_image(folder / "grey.jpg", quarters("L")),
    "1 bit": lambda folder: save_image(folder / "bit.png", quarters("1")),
    "floats": lambda folder: save_image(
        folder / "float.tiff", Image.fromarray(np.random.default_rng(0).random((16, 32)) - 1)
    ),
}


@pytest.mark.parametrize("write", FILES.values(), ids=FILES)
@pytest.mark.parametrize(
    "preprocessing", [Preprocessing(24, 26, "bicubic"), grey(size=24, antialias=False)], ids=["RGB", "grey"]
)
def test_paths_bytes_and_opened_images_are_equal(
    write: Callable[[Path], Path], preprocessing: Preprocessing, tmp_path: Path
) -> None:
    """Paths, bytes, images opened by Pillow and copies of them are decoded as in the commands."""
    file = write(tmp_path)
    expected = preprocessing(decode(file))  # as `vitreous predict` and data sets do
    assert torch.equal(preprocessing(file), expected)
    assert torch.equal(preprocessing(str(file)), expected)
    assert torch.equal(preprocessing(file.read_bytes()), expected)
    with Image.open(file) as image:
        assert torch.equal(preprocessing(image), expected)
        assert torch.equal(preprocessing(image), expected)  # the image is not changed
        assert torch.equal(preprocessing(image.copy()), expected)
        assert torch.equal(preprocessing(upright(image)), expected)  # the rotation is not applied twice
        assert torch.equal(preprocessing.pixels([file, image]), torch.stack([preprocessing.pixels(file)] * 2))


def test_exif_rotation_and_16_bit_grey(tmp_path: Path) -> None:
    with Image.open(oriented(tmp_path, 6)) as image:
        stored = image.info["exif"]
        pixels = Preprocessing(size=(32, 16)).pixels(image)
        assert pixels[:, 4, 12].tolist() == pytest.approx([250, 20, 20], abs=30)  # rotated from top left to top right
        assert image.info["exif"] == stored
        assert image.size == (32, 16)
        turned = ImageOps.exif_transpose(image)
        assert torch.equal(Preprocessing(size=(32, 16)).pixels(turned), pixels)
    with Image.open(deep_grey(tmp_path)) as image:
        pixels = grey(size=(16, 32)).pixels(image)
    assert pixels.flatten().tolist() == pytest.approx(np.linspace(0, 255, 16 * 32), abs=1)


def test_arrays_and_tensors() -> None:
    colour, preprocessing = np.asarray(quarters()), Preprocessing(24)
    expected = preprocessing(quarters())
    assert torch.equal(preprocessing(colour), expected)
    planes = torch.from_numpy(colour.transpose(2, 0, 1).copy())
    assert torch.equal(preprocessing(planes), expected)
    assert torch.equal(preprocessing(colour[:, ::-1][:, ::-1]), expected)  # any memory layout
    plain = preprocessing(quarters("L"))
    for value in (colour[..., 0] * 0 + np.asarray(quarters("L")), np.asarray(quarters("L"))[..., None]):
        assert torch.equal(preprocessing(value), plain)
        assert torch.equal(preprocessing(torch.from_numpy(value.copy().squeeze())), plain)
    clear = quarters("RGBA")
    clear.putalpha(99)
    assert torch.equal(preprocessing(np.asarray(clear)), preprocessing(clear))
    assert torch.equal(preprocessing(torch.from_numpy(np.array(clear)).permute(2, 0, 1)), preprocessing(clear))
    batch = [quarters(), planes, colour]
    assert torch.equal(preprocessing(batch), torch.stack([expected] * 3))
    assert torch.equal(preprocessing(tuple(batch)), preprocessing(batch))
    assert torch.equal(preprocessing(np.stack([colour, colour])), torch.stack([expected] * 2))
    assert torch.equal(preprocessing(torch.stack([planes, planes])), torch.stack([expected] * 2))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "expected an image .*, got None"),
        (3, "got int"),
        ([], "no images"),
        (np.zeros((0, 8, 8, 3), np.uint8), "no images"),
        ([quarters(), None], "image 1: expected an image .*, got None"),
        ([[quarters()]], "image 0: expected one image, got several"),
        ((quarters() for _ in range(2)), "got generator"),
        ("gone.png", "^gone.png: there is no such file"),
        (["gone.png"], "^image 0: gone.png: there is no such file"),
        (Path(__file__), "test_preprocessing.py: not an image"),
        (b"", "the file is empty"),
        (np.zeros((8, 8)), "an array of float64: expected uint8, from 0 to 255; for values in 0..1"),
        (np.zeros((8, 8), np.uint16), "an array of uint16: expected uint8"),
        (
            np.zeros((3, 8, 9), np.uint8),
            r"an array of shape \(3, 8, 9\): expected \(height, width\), or \(height, width, c",
        ),
        (np.zeros((8, 8, 2), np.uint8), "with 1, 3 or 4 channels"),
        (np.zeros((0, 8), np.uint8), "an array of shape"),
        (np.zeros(8, np.uint8), "an array of shape"),
        (torch.zeros(3, 8, 8), r"a tensor of float32: expected uint8, from 0 to 255; for values in 0..1, \(x \* 255\)"),
        (
            torch.zeros(8, 9, 3, dtype=torch.uint8),
            r"a tensor of shape \(8, 9, 3\): expected .* \(channels, height, width",
        ),
        (torch.zeros(2, 3, 8, 8), "image 0: a tensor of float32"),
        (Image.new("RGB", (0, 5)), "has no pixels: its size is 5 x 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_wrong_images_are_an_error(value: Any, message: str) -> None:
    for preprocess in (Preprocessing(8), Preprocessing(8).pixels):
        with pytest.raises(VitreousError, match=message):
            preprocess(value)


def test_errors_name_truncated_and_unsuitable_files(tmp_path: Path) -> None:
    path = save_image(tmp_path / "cut.png", noise(64, 64))
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as image:
        for value in (path, image):
            with pytest.raises(VitreousError, match=r"cut\.png: the file is truncated"):
                Preprocessing(8)(value)
    long = save_image(tmp_path / "long.png", Image.new("RGB", (60000, 1)))
    with pytest.raises(VitreousError, match=r"long\.png: 1 x 60000 pixels: too long and thin"):
        Preprocessing(resize=256)(long)


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 1_000_000},
        {"size": (1, 10**9)},
        {"resize": 10**6},
        {"resize": (10**5, 10**5)},
        {"size": 10**5000},
        {"size": -(10**5000)},
    ],
    ids=["size", "wide", "short side", "squashed", "huge", "huge and negative"],
)
def test_huge_sizes_are_refused(fields: dict[str, Any]) -> None:
    message = r"Preprocessing\.(size|resize) = .*(more than 67,108,864 pixels|positive|1,048,576 pixels or less)"
    with pytest.raises(VitreousError, match=message):
        Preprocessing(**fields)
    with pytest.raises(VitreousError, match=r"Preprocessing\."):
        Preprocessing.from_json(fields)
    if "size" in fields:
        with pytest.raises(VitreousError, match=r"Preprocessing\.size"):
            Preprocessing(224, 256).at(fields["size"])


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("shape", [(250_000, 4), (4, 250_000)])
def test_long_thin_images_take_little_memory(antialias: bool, shape: tuple[int, int]) -> None:
    image = Image.fromarray(np.zeros((*shape, 3), np.uint8))
    shape_out = limited(lambda: Preprocessing(224, antialias=antialias).pixels(image).shape, memory=600 << 20)
    assert tuple(shape_out) == (3, 224, 224)
    with pytest.raises(VitreousError, match="too long and thin"):
        Preprocessing(1024, antialias=antialias).pixels(Image.fromarray(np.zeros((250_000, 4), np.uint8)))
