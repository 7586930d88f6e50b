"""`examples/mini_data.py` merges the training images of two data sets and uses no test images."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import command
from vitreous import open_data

SCRIPT = Path(__file__).parents[1] / "examples" / "mini_data.py"
WORDNET_IDS = (
    *("n01440764", "n02102040", "n02979186", "n03000684", "n03028079"),
    *("n03394916", "n03417042", "n03425413", "n03445777", "n03888257"),
)
TEST = 255  # all pixels of test images; training images are darker


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    cifar = random.integers(0, 200, (40, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(40) % 10
    white = np.full((10, 32, 32, 3), TEST, np.uint8)
    np.savez(
        tmp_path / "cifar.npz", train_images=cifar, train_labels=labels, test_images=white, test_labels=labels[:10]
    )
    for number, name in enumerate(WORDNET_IDS):
        for split, shade in (("train", 10 * number), ("val", TEST)):
            folder = tmp_path / "imagenette" / split / name
            folder.mkdir(parents=True)
            for i in range(3):
                pixels = np.full((160, 200 + i, 3), shade, np.uint8)
                Image.fromarray(pixels).save(folder / f"{split}{number}{i}.JPEG", quality=95)
    return tmp_path


def make(folder: Path, out: str, *options: str) -> subprocess.CompletedProcess[str]:
    return command.script(SCRIPT, "cifar.npz", "imagenette", out, "--workers", "0", *options, cwd=folder)


def test_both_data_sets_are_merged(inputs: Path) -> None:
    result = make(inputs, "a.npz")
    assert result.returncode == 0, result.stderr
    with np.load(inputs / "a.npz") as file:
        arrays = {key: file[key] for key in file.files}
    assert arrays["train_images"].shape[1:] == arrays["val_images"].shape[1:] == (112, 112, 3)
    assert len(arrays["train_images"]) + len(arrays["val_images"]) == 40 + 30
    assert len(arrays["val_images"]) == 4  # 5%
    for split in ("train", "val"):
        for image, label in zip(arrays[f"{split}_images"], arrays[f"{split}_labels"], strict=True):
            assert image.mean() < TEST - 20  # no test image
            if label >= 10:
                assert abs(image.mean() - 10 * (label - 10)) < 2  # each has its own class
    data = open_data(inputs / "a.npz")
    assert data.classes[:2] == ("airplane", "automobile")
    assert data.classes[10:12] == ("tench", "English springer")
    assert len(data.classes) == 20
    assert data.val is not None
    assert data.test is None


def test_the_seed_selects_the_validation_images(inputs: Path) -> None:
    for out, seed in (("a.npz", "0"), ("b.npz", "0"), ("c.npz", "1")):
        assert make(inputs, out, "--seed", seed).returncode == 0
    assert (inputs / "a.npz").read_bytes() == (inputs / "b.npz").read_bytes()
    a, c = (np.load(inputs / name)["val_images"] for name in ("a.npz", "c.npz"))
    assert a.shape != c.shape or (a != c).any()


def test_a_folder_that_is_not_imagenette(inputs: Path) -> None:
    for split in ("train", "val"):
        (inputs / "imagenette" / split / WORDNET_IDS[0]).rename(inputs / "imagenette" / split / "fish")
    result = make(inputs, "a.npz")
    assert result.returncode == 1
    assert "its classes are" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (inputs / "a.npz").exists()
