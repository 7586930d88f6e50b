"""The checkpoint that comes with the package: found by its name, as safe and as whole as any other."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from safetensors import safe_open

import vitreous
from helpers import images, outputs, tiny_vit
from vitreous import VitreousError
from vitreous.models import zoo
from vitreous.weights import shipped
from vitreous.weights.express import TRAINING

ROOT = Path(__file__).parents[2]
NAME = "vitreous-mini"
FILE = shipped.FOLDER / f"{NAME}.safetensors"
CARD = shipped.FOLDER / f"{NAME}.md"


def test_it_is_the_models_of_the_zoo() -> None:
    model = vitreous.load(NAME)
    assert model.config == zoo.config(NAME)
    assert not any(getattr(model.config, name) for name in TRAINING)
    assert model.labels is not None
    assert len(set(model.labels)) == model.config.num_classes == 20
    assert model.preprocessing.size == model.config.image_size
    assert not model.report.notes
    assert outputs(model, images(2, 3, 96, 96)).std() > 0


def test_it_is_small_and_in_16_bits() -> None:
    assert FILE.stat().st_size <= 8_000_000
    with safe_open(FILE, "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118


def test_it_was_trained_and_its_card_says_how() -> None:
    """A stand-in, and a card with gaps, do not get out of the house."""
    assert "trained_on" in vitreous.load(NAME).report.origin
    assert [line for line in CARD.read_text().splitlines() if "TODO" in line] == []


def test_the_card_names_every_class_and_the_size() -> None:
    card, model = CARD.read_text(), vitreous.load(NAME)
    assert all(label in card for label in model.labels or ())
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    for script in ("examples/mini_data.py", "examples/ship_mini.py", "benchmarks/transfer.py"):
        assert script in card
        assert (ROOT / script).is_file()


def test_the_name_wins_over_a_file_and_a_path_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vitreous.save(tiny_vit(), "mine.safetensors")
    Path("mine.safetensors").rename(NAME)
    model = vitreous.load(NAME)
    assert model.config == zoo.config(NAME)
    assert model.report.notes == (f"this is the {NAME} that comes with the package; what lies here is ./{NAME}",)
    for path in (f"./{NAME}", Path(NAME), str(tmp_path / NAME)):
        assert vitreous.load(path).config == tiny_vit().config


def test_a_name_that_is_nearly_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VitreousError, match=r"^vitreous_mini: no such file or folder; did you mean vitreous-mini"):
        vitreous.load("vitreous_mini")
    with pytest.raises(VitreousError, match=r"^mini.npz: no such file or folder$"):
        vitreous.load("mini.npz")


def test_missing_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(
        VitreousError, match=r"^vitreous-mini: its weights are missing from this installation \(.*anew$"
    ):
        vitreous.load(NAME)
    (tmp_path / FILE.name).write_bytes(FILE.read_bytes()[:-100])
    with pytest.raises(VitreousError, match=r"^vitreous-mini: "):
        vitreous.load(NAME)


def test_it_is_converted_like_any_other(tmp_path: Path) -> None:
    vitreous.convert(NAME, tmp_path / "out.safetensors", "native")
    assert (tmp_path / "out.safetensors").read_bytes() == FILE.read_bytes()
    features = vitreous.load(NAME, num_classes=3, image_size=64)
    assert (features.config.num_classes, features.config.image_size) == (3, (64, 64))


def test_it_is_in_the_wheel(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        for file in (FILE, CARD):
            assert archive.read(f"vitreous/weights/shipped/{file.name}") == file.read_bytes()


# ---------------------------------------------------------------- examples/ship_mini.py


def ship(run: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "examples" / "ship_mini.py", run, "--out", out]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_run_is_shipped(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out.safetensors"
    run.mkdir()
    model = vitreous.load(NAME)
    with torch.no_grad():  # numbers that 16 bits cannot hold exactly
        for p in model.parameters():
            p.mul_(1.0001)
    model.config = replace(model.config, stochastic_depth=0.1)
    vitreous.save(model, run / "best.safetensors")
    assert ship(run, out).returncode == 0
    shipped_model = vitreous.load(out)
    assert shipped_model.config == zoo.config(NAME)
    assert shipped_model.labels == model.labels
    assert shipped_model.preprocessing == model.preprocessing
    assert "CIFAR-10" in shipped_model.report.origin["trained_on"]
    for ours, theirs in zip(shipped_model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs.half().float())


@pytest.mark.parametrize("fault", ["width", "labels", "size"])
def test_what_does_not_fit_is_not_shipped(tmp_path: Path, fault: str) -> None:
    model = vitreous.load(NAME)
    if fault == "width":
        model = tiny_vit()
    elif fault == "labels":
        model.labels = tuple(map(str, range(20)))
    else:
        torch.nn.init.constant_(model.get_parameter("head.weight"), 1e6)
    vitreous.save(model, tmp_path / "best.safetensors")
    result = ship(tmp_path, tmp_path / "out.safetensors")
    assert result.returncode == 1
    sentence = {"width": "not the zoo's vitreous-mini: ", "labels": "its classes are 0, 1", "size": "too large for 16"}
    assert sentence[fault] in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_info_tells_what_it_was_trained_on(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path / "best.safetensors")
    assert ship(tmp_path, tmp_path / "out.safetensors").returncode == 0
    command = [sys.executable, "-m", "vitreous", "info", str(tmp_path / "out.safetensors"), "--json"]
    facts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert facts["model"] == NAME
    assert "Imagenette" in facts["origin"]["trained_on"]
