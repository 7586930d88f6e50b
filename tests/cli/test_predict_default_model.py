"""`vitreous predict` without --model uses vitreous-mini, which comes with the package."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import command
import vitreous

NOTE = "the model is vitreous-mini, which has 20 classes: airplane, "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    result = command.vitreous(*arguments, "--device", "cpu", cwd=folder)
    assert result.returncode == 0, result.stderr
    return result


def test_table_and_note(folder: Path) -> None:
    result = run(folder, "predict", "photo.png")
    assert result.stdout.splitlines()[0] == "photo.png"
    assert result.stderr.startswith(NOTE)
    assert len(result.stderr.splitlines()) == 1


def test_json_contains_all_classes(folder: Path) -> None:
    result = run(folder, "predict", "photo.png", "--json", "--top", "20")
    (line,) = result.stdout.splitlines()
    assert [answer["label"] for answer in sorted(json.loads(line)["top"], key=lambda a: a["class"])] == list(
        vitreous.load("vitreous-mini").labels or ()
    )
    assert result.stderr.startswith(NOTE)
