"""HEIC photos in every format of data, in worker processes, and in commands; and what is said without pillow-heif."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from command import vitreous
from pictures import heic, write, write_tar
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.data.scan import scan_images
from vitreous.data.transforms import DecodeCheck

pytest.importorskip("pillow_heif")
WHOLE = Reading(val_fraction=0)
SIZE = (32, 48)  # upright width and height; stored as 48 x 32


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of portraits as a phone writes them, with upper-case suffixes."""
    root = tmp_path_factory.mktemp("phone") / "photos"
    for place, name in enumerate(("cats", "dogs")):
        (root / name).mkdir(parents=True)
        for i in range(3):
            colour = (100 * place + 50, 20 * i, 50)
            suffix = ("HEIC", "heif", "hif")[i]
            (root / name / f"IMG_{i}.{suffix}").write_bytes(heic(Image.new("RGB", SIZE[::-1], colour), orientation=6))
    return root


def write_format(photos: Path, kind: str, place: Path) -> Path:
    files = sorted(photos.rglob("IMG*"))
    if kind == "folder":
        return photos
    if kind == "manifest":
        lines = [f"{file.relative_to(photos)},{file.parent.name}" for file in files]
        path = photos / "labels.csv"
        path.write_text("\n".join(["image,label", *lines]))
        return path
    members = {str(file.relative_to(photos)): file.read_bytes() for file in files}
    if kind == "tar":
        return write_tar(place / "photos.tar", members)
    if kind == "zip":
        import zipfile

        with zipfile.ZipFile(place / "photos.zip", "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return place / "photos.zip"
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {"image": [{"bytes": data} for data in members.values()], "label": [name[:4] for name in members]}
    parquet.write_table(arrow.table(table), place / "photos.parquet")
    return place / "photos.parquet"


@pytest.mark.parametrize("kind", ["folder", "manifest", "tar", "zip", "parquet"])
def test_formats_of_data(photos: Path, tmp_path: Path, kind: str) -> None:
    data = open_data(write_format(photos, kind, tmp_path), WHOLE)
    assert len(data.train) == 6
    assert {data.train.image(i).size for i in range(6)} == {SIZE}
    red, _, _ = data.train.image(5).getpixel((5, 5))  # type: ignore[misc]
    assert abs(red - 150) < 8
    if kind == "folder":
        assert not scan_images(data.train, DecodeCheck(), 3, 2, torch.device("cpu"), lambda count: None).bad


def test_commands(photos: Path, tmp_path: Path) -> None:
    result = vitreous("data", photos, "--no-sheet", cwd=tmp_path)
    assert result.returncode == 0
    assert "all 48 x 32 (height x width)" in result.stdout
    result = vitreous("predict", photos, "--top", "1", cwd=tmp_path)
    assert (result.returncode, result.stdout.count("IMG_")) == (0, 6)


def test_without_the_package(photos: Path, tmp_path: Path) -> None:
    """A process in which pillow-heif cannot be imported: the message names the files and the package."""
    (tmp_path / "pillow_heif.py").write_text("raise ImportError('not installed')")
    for i in range(70):
        write(tmp_path / "mixed" / "cats" / f"{i}.png", i)
        write(tmp_path / "mixed" / "dogs" / f"{i}.png", 100 + i)
    (tmp_path / "mixed" / "dogs" / "IMG_1.HEIC").write_bytes((photos / "dogs" / "IMG_0.HEIC").read_bytes())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*arguments: object) -> tuple[int, str]:
        typed = [sys.executable, "-m", "vitreous", *map(str, arguments)]
        done = subprocess.run(typed, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    code, text = run("data", "mixed", "--no-sheet")
    assert code == 0
    assert "1 HEIC image cannot be read ('IMG_1.HEIC'): pip install pillow-heif" in text
    assert "unreadable 1 image" in text
    code, text = run("data", photos, "--no-sheet")
    assert code == 2
    assert "6 HEIC images cannot be read ('IMG_0.HEIC', 'IMG_1.heif', 'IMG_2.hif' and 3 more): pip install" in text
    assert "none of the 6 images that were tried can be read" in text
    code, text = run("predict", photos / "cats")
    assert code == 1
    assert "IMG_0.HEIC: is a HEIC/HEIF image, which needs the package pillow-heif: pip install pillow-heif" in text
