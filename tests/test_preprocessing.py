"""Sizes, crops and numbers, beside references written by hand; tests/peers holds the live ones."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vitreous.errors import VitreousError
from vitreous.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


def noise(height: int, width: int, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def rows_and_columns(height: int, width: int) -> Image.Image:
    """A grey image whose pixels say where they are: 10 x row + column."""
    return Image.fromarray((10 * np.arange(height)[:, None] + np.arange(width)).astype(np.uint8))


def grey(**settings: Any) -> Preprocessing:
    return Preprocessing(mean=(0.5,), std=(0.5,), **settings)


def test_squashed_to_the_size_when_nothing_is_said() -> None:
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
def test_the_short_side_then_the_centre(height: int, width: int, crop: Any) -> None:
    pixels = Preprocessing(size=16, resize=20, interpolation="bicubic", crop=crop).pixels(noise(height, width))
    assert pixels.shape == (3, 16, 16)
    assert pixels.float().std() > 20  # no black edges: the crop lies inside


@pytest.mark.parametrize(
    ("crop", "spare", "first"), [("round", 1, 0), ("round", 3, 2), ("round", 5, 2), ("down", 1, 0), ("down", 3, 1)]
)
def test_where_an_odd_pixel_goes(crop: Any, spare: int, first: int) -> None:
    image = rows_and_columns(4 + spare, 4)
    pixels = grey(size=4, resize=4, crop=crop).pixels(image)  # the short side is 4 already: not resampled
    assert pixels[0, :, 0].tolist() == [10 * (first + i) for i in range(4)]


@pytest.mark.parametrize(("crop", "before"), [("round", 1), ("down", 2)])
@pytest.mark.parametrize("antialias", [True, False])
def test_an_image_smaller_than_the_crop_gets_black_edges(crop: Any, before: int, antialias: bool) -> None:
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
def test_without_antialiasing_as_tensorflow(size: tuple[int, int]) -> None:
    image = noise(31, 23, "L")
    pixels = grey(size=size, antialias=False).pixels(image)
    assert pixels.dtype == torch.float32
    np.testing.assert_allclose(pixels[0], half_pixel_bilinear(np.asarray(image), *size), atol=1e-4)


def test_without_antialiasing_nearest_and_bicubic() -> None:
    image = noise(31, 23)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
    nearest = Preprocessing(size=(12, 40), interpolation="nearest", antialias=False).pixels(image)
    assert torch.equal(nearest, F.interpolate(x, (12, 40), mode="nearest-exact")[0])
    # Keys' cubic, a = -0.5, which antialiasing uses too and upsampling does not stretch; edges are renormalised alike.
    bicubic = Preprocessing(size=(64, 64), interpolation="bicubic", antialias=False).pixels(image)
    reference = F.interpolate(x, (64, 64), mode="bicubic", align_corners=False, antialias=True)[0]
    torch.testing.assert_close(bicubic, reference, atol=1e-3, rtol=0)


def test_normalised() -> None:
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


def test_channels_follow_the_mean() -> None:
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
def test_json_and_back(preprocessing: Preprocessing) -> None:
    assert Preprocessing.from_json(json.loads(json.dumps(preprocessing.to_json()))) == preprocessing
    assert hash(preprocessing) == hash(Preprocessing.from_json(preprocessing.to_json()))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected an object with fields"),
        ({"sise": 224, "size": 224}, "'sise' not known; the fields are 'size'"),
        ({"size": "224"}, "size = '224'"),
        ({"size": [224]}, r"size = \[224\]"),
        ({"size": 0}, "size = 0"),
        ({"size": True}, "size = True"),
        ({"resize": 2.5}, "resize = 2.5"),
        ({"resize": [256, -1]}, "resize = "),
        ({"interpolation": "cubic"}, "interpolation = 'cubic': expected one of 'nearest', 'bilinear'"),
        ({"interpolation": ["bilinear"]}, "interpolation = "),
        ({"interpolation": "lanczos", "antialias": False}, "without antialiasing there are 'nearest'"),
        ({"antialias": "no"}, "antialias = 'no'"),
        ({"antialias": 1}, "antialias = 1"),
        ({"crop": "up"}, "crop = 'up'"),
        ({"mean": 0.5}, "mean = 0.5"),
        ({"mean": []}, r"mean = \[\]"),
        ({"mean": [0.5, 0.5, "x"]}, "mean = "),
        ({"std": [0.5, 0.5, 0]}, "std = .*must be positive"),
        ({"std": [0.5, 0.5, math.nan]}, "std = "),
        ({"std": [0.5]}, "as many as in mean, 3"),
    ],
)
def test_a_wrong_field_is_named(data: Any, message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        Preprocessing.from_json(data)


def test_a_thread_of_an_image_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(VitreousError, match="1 x 60000 pixels: too long and thin for a short side of 256"):
        Preprocessing(resize=256).pixels(Image.new("RGB", (60000, 1)))
    assert Preprocessing().pixels(Image.new("RGB", (60000, 1))).shape == (3, 224, 224)
