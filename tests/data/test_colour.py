import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy.ndimage import gaussian_filter
from torch import Tensor

from vitreous.data import colour

SIZES = [(8, 8), (9, 31), (96, 130), (1, 1), (2, 5), (3, 3)]


def noise(height: int, width: int, mode: str, low: int = 0, high: int = 256) -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(low, high, shape, dtype=np.uint8))


def batch(image: Image.Image) -> Tensor:
    array = np.array(image)
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(array))[None].float()


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (colour.brightness, ImageEnhance.Brightness),
        (colour.contrast, ImageEnhance.Contrast),
        (colour.saturation, ImageEnhance.Color),
        (colour.sharpness, ImageEnhance.Sharpness),
    ],
)
def test_enhancements_equal_pillow(ours, theirs, height: int, width: int, mode: str) -> None:  # type: ignore[no-untyped-def]
    image = noise(height, width, mode)
    factors = torch.tensor([0.0, 0.1, 0.73, 1.0, 1.9])
    enhanced = ours(batch(image).expand(5, -1, -1, -1), factors)
    for factor, pixels in zip(factors.tolist(), enhanced, strict=True):
        expected = batch(theirs(image).enhance(factor))[0]
        assert (pixels - expected).abs().max() < 2  # Pillow truncates at each step
    torch.testing.assert_close(enhanced[3], batch(image)[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(("height", "width"), [*SIZES, (16, 17)])
@pytest.mark.parametrize(("low", "high"), [(0, 256), (40, 180), (7, 8), (100, 102), (250, 256)])
def test_equalise_and_autocontrast_equal_pillow(height: int, width: int, mode: str, low: int, high: int) -> None:
    image = noise(height, width, mode, low, high)
    levels = colour.to_levels(batch(image))
    equalised = colour.apply_tables(colour.equalise_tables(levels), levels)
    assert torch.equal(equalised, batch(ImageOps.equalize(image)))
    stretched = colour.apply_tables(colour.autocontrast_tables(levels), levels)
    assert (stretched - batch(ImageOps.autocontrast(image))).abs().max() < 1.01


def test_solarise_and_posterise_at_every_level() -> None:
    every = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    for threshold in (0, 26, 128, 255, 256):
        assert torch.equal(colour.solarise(batch(every), threshold), batch(ImageOps.solarize(every, threshold)))
    for bits in range(1, 9):
        assert torch.equal(colour.posterise(batch(every), bits), batch(ImageOps.posterize(every, bits)))


def test_grey() -> None:
    image = noise(20, 30, "RGB")
    assert (colour.grey(batch(image)) - batch(image.convert("L"))).abs().max() < 0.51
    assert torch.equal(colour.grey(batch(image.convert("L"))), batch(image.convert("L")))


@pytest.mark.parametrize(("height", "width"), [(8, 8), (31, 20), (1, 9), (50, 2)])
def test_blur_equals_scipy(height: int, width: int) -> None:
    images = torch.rand(4, 3, height, width) * 255
    sigmas = [0.1, 0.5, 1.3, 2.0]
    blurred = colour.blur(images, torch.tensor(sigmas), radius=6)
    for sigma, image, pixels in zip(sigmas, images.double(), blurred, strict=True):
        expected = gaussian_filter(image.numpy(), sigma, mode="nearest", axes=(1, 2), radius=6)
        np.testing.assert_allclose(pixels, expected, atol=0.01)
    assert torch.equal(colour.blur(images, torch.zeros(4), radius=6), images)


def test_levels_are_rounded_and_clipped() -> None:
    assert colour.to_levels(torch.tensor([-3.0, 0.4, 0.6, 254.7, 300.0])).tolist() == [0, 0, 1, 255, 255]
