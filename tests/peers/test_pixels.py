"""Preprocessing gives the same pixels as torchvision, timm and transformers, for images of unusual sizes."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from transformers import ViTImageProcessorPil

from vitreous.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

SIZES = [(333, 500), (501, 251), (97, 101), (64, 301), (57, 57), (256, 341), (80, 80)]


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def image(request: pytest.FixtureRequest) -> Image.Image:
    height, width = request.param
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 7) * np.cos(y / 5), np.sin((x + y) / 11), np.cos(x * y / 997)]
    noise = np.random.default_rng(0).normal(0, 20, (height, width, 3))
    return Image.fromarray((np.stack(waves, -1) * 90 + 128 + noise).clip(0, 255).astype(np.uint8))


IMAGENET: Any = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"])
@pytest.mark.parametrize("sizes", [(73, 64), (80, 64), (64, 64), (50, 64), ((70, 90), 64), (71, (64, 48))])
def test_torchvision(image: Image.Image, interpolation: Any, sizes: Any) -> None:
    resize, size = sizes
    theirs = transforms.Compose(
        [
            transforms.Resize(resize, InterpolationMode[interpolation.upper()]),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    ours = Preprocessing(size=size, resize=resize, interpolation=interpolation, **IMAGENET)
    assert torch.equal(ours(image), theirs(image))


@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 1.0])
@pytest.mark.parametrize("size", [64, 75])
def test_timm(image: Image.Image, crop_pct: float, size: int) -> None:
    theirs = create_transform(size, interpolation="bicubic", crop_pct=crop_pct, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    ours = Preprocessing(size=size, resize=int(size / crop_pct), interpolation="bicubic", **IMAGENET)
    assert torch.equal(ours(image), theirs(image))


def test_transformers_squashes(image: Image.Image) -> None:
    theirs = ViTImageProcessorPil(size={"height": 64, "width": 80})(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(Preprocessing(size=(64, 80))(image), theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("resize", "size"), [(73, 64), (71, 64), (50, 64), (50, 65)])
def test_transformers_crops(image: Image.Image, resize: int, size: int) -> None:
    processor = ViTImageProcessorPil(
        size={"shortest_edge": resize},
        resample=Image.Resampling.BICUBIC,
        do_center_crop=True,
        crop_size={"height": size, "width": size},
        image_mean=list(IMAGENET_MEAN),
        image_std=list(IMAGENET_STD),
    )
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    ours = Preprocessing(size=size, resize=resize, interpolation="bicubic", crop="down", **IMAGENET)
    torch.testing.assert_close(ours(image), theirs, atol=1e-6, rtol=0)
