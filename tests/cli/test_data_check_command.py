"""The command `vitreous data --check`, on tiles of two real photographs."""

import csv
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitreous as package
from command import vitreous
from vitreous import VitreousError
from vitreous.data.options import Reading
from vitreous.evaluation.training_images import SeenImages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 tiles of a temple and 40 of a flower, with two wrong labels, copies, a leak, and damaged and tiny images."""
    photos = pytest.importorskip("sklearn.datasets").load_sample_images().images
    root = tmp_path_factory.mktemp("check") / "photos"
    for name, pixels in zip(("temple", "flower"), photos, strict=True):
        photo = Image.fromarray(pixels)
        for split, rows in {"train": range(3), "val": range(3, 4)}.items():
            (root / split / name).mkdir(parents=True)
            for row in rows:
                for column in range(10):
                    box = (column * 60, row * 100, column * 60 + 96, row * 100 + 96)
                    photo.crop(box).save(root / split / name / f"{row}{column}.png")
    train = root / "train"
    (train / "temple" / "20.png").rename(train / "flower" / "wrong1.png")
    (train / "flower" / "15.png").rename(train / "temple" / "wrong2.png")
    image = Image.open(train / "flower" / "14.png")
    image.resize((60, 64)).save(root / "val" / "flower" / "small copy.jpg", quality=70)
    shutil.copy(train / "temple" / "24.png", train / "temple" / "same.png")
    image.resize((20, 20)).save(train / "flower" / "tiny.png")
    (train / "temple" / "bad.jpg").write_bytes(b"text")
    Image.new("RGB", (96, 96), "black").save(train / "temple" / "black.png")
    return root


def content(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha1(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def checked(folder: Path) -> Path:
    """The output folder of a check."""
    before = content(folder)
    done = vitreous("data", "photos", "--check", "--cache", "cache", cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    assert content(folder) == before  # nothing was moved or changed
    (folder.parent / "stdout.txt").write_text(done.stdout)
    return folder.parent / "photos-check"


def test_findings(checked: Path) -> None:
    assert sorted(path.name for path in checked.iterdir()) == ["check.json", "index.html", "suspects.csv"]
    with (checked / "suspects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["kind"], []).append(os.path.relpath(row["file"], "photos"))
    assert {"train/flower/wrong1.png", "train/temple/wrong2.png"} <= set(found["label"])
    assert len(found["label"]) <= 5
    assert sorted(found["leak"]) == ["train/flower/14.png", "train/flower/tiny.png", "val/flower/small copy.jpg"]
    assert {"train/temple/24.png", "train/temple/same.png"} <= set(found["copy"])
    assert found["tiny"] == ["train/flower/tiny.png"]
    assert found["unreadable"] == ["train/temple/bad.jpg"]
    assert found["blank"] == ["train/temple/black.png"]
    wrong = next(row for row in rows if row["file"].endswith("wrong1.png"))
    assert (wrong["label"], wrong["suggested_label"], wrong["split"]) == ("flower", "temple", "train")
    assert float(wrong["probability_wrong"]) > 0.5


def test_printed_summary(checked: Path) -> None:
    text = (checked.parent / "stdout.txt").read_text()
    for words in ("wrong labels", "flower -> temple", "(leaks)", "5-fold cross-validation", "more pictures", "bad.jpg"):
        assert words in text
    assert "photos-check/index.html" in text


def test_json_existing_output_and_python(checked: Path, folder: Path) -> None:
    done = vitreous("data", "photos", "--check", "--cache", "cache", cwd=folder.parent)
    assert done.returncode == 2
    assert "photos-check exists already" in done.stderr
    assert (checked / "index.html").is_file()
    other = folder.parent / "other"
    done = vitreous("data", "photos", "--check", "--cache", "cache", "--json", "--out", "other", cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    stored = json.loads((other / "check.json").read_text())
    assert printed["page"] == "other/index.html"
    assert printed["findings"] == stored["findings"] == json.loads((checked / "check.json").read_text())["findings"]


def test_a_model_that_was_trained_on_the_images(folder: Path, tmp_path: Path) -> None:
    """A run directory is a model; a warning says that its training images are checked."""
    from vitreous.data.digests import image_digests

    (tmp_path / "config.json").write_text("{}")
    package.save(package.load("vitreous-mini"), tmp_path / "best.safetensors")
    images = package.open_data(folder / "train").train
    SeenImages.of({"train": image_digests(images)}).write(tmp_path)
    few = tmp_path / "few"
    for name in ("temple", "flower"):
        shutil.copytree(folder / "train" / name, few / name, ignore=lambda _, names: [n for n in names if n > "05"])
    check = package.check_data(few, model=tmp_path, cache=tmp_path / "cache", workers=0)
    assert "TRAINING IMAGES" in check.warnings[0]
    assert check.images.label(0) == "flower"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "x"), "--model has an effect only with --check"),
        (("--out", "x"), "--out has an effect only with --check"),
        (("--check", "--sheet", "x.png"), "--check draws no contact sheet"),
        (("--check", "--out", "new", "--model", "gone.safetensors"), "gone.safetensors"),
        (("--check", "--device", "tpu"), "device = 'tpu'"),
        (("--check", "--out", "photos/check"), "photos/check is in the data folder"),
        (("--check", "--out", "new", "--cache", "photos/c"), "photos/c is in the data folder"),
    ],
)
def test_mistakes(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = vitreous("data", "photos", *arguments, cwd=folder.parent)
    assert done.returncode == 2
    assert message in done.stderr


def test_odd_folders(tmp_path: Path) -> None:
    """One image per class; no readable image; several labels per image."""
    for number, name in enumerate("ab"):
        (tmp_path / "two" / name).mkdir(parents=True)
        Image.effect_noise((40, 40), 50 + number).save(tmp_path / "two" / name / "a.png")
    check = package.check_data(tmp_path / "two", cache=tmp_path / "cache", reading=Reading(val_fraction=0))
    assert (check.suspects, check.copies, check.error_rate) == ((), (), None)
    assert "two classes" in check.notes[-1]
    assert any("outliers were not searched for" in note for note in check.notes)
    assert not any(line.startswith("Labels") for line in check.method)
    for name in "ab":
        (tmp_path / "two" / name / "a.png").write_bytes(b"text")
    with pytest.raises(VitreousError, match=r"images .* can be read.*a\.png"):
        package.check_data(tmp_path / "two", reading=Reading(val_fraction=0), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    several = torch.zeros(6, 2, dtype=torch.bool)
    several[:, 0] = several[3:, 1] = True
    import numpy as np

    pixels = np.random.default_rng(0).integers(0, 255, (6, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "multi.npz", images=pixels, labels=several.numpy(), classes=np.array(["a", "b"]))
    check = package.check_data(tmp_path / "multi.npz", cache=tmp_path / "cache", out=tmp_path / "out")
    assert any("several labels" in note for note in check.notes)
    assert (tmp_path / "out" / "index.html").is_file()
