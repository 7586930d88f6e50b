"""The checkpoint that comes with the package: loaded by name, complete, and described by its model card."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from safetensors import safe_open

import command
import vitreous
from helpers import images, outputs, tiny_vit
from vitreous import ViTConfig, VitreousError
from vitreous.models import zoo
from vitreous.weights import shipped
from vitreous.weights.compatibility import TRAINING_FIELDS

ROOT = Path(__file__).parents[2]
NAME = "vitreous-mini"
FILE = shipped.FOLDER / f"{NAME}.safetensors"
CARD = shipped.FOLDER / f"{NAME}.md"


def test_it_has_the_config_of_the_zoo() -> None:
    model = vitreous.load(NAME)
    assert model.config == zoo.config(NAME)
    assert not any(getattr(model.config, name) for name in TRAINING_FIELDS)
    assert model.labels is not None
    assert len(set(model.labels)) == model.config.num_classes == 20
    assert model.preprocessing.size == model.config.image_size
    assert not model.report.notes
    assert outputs(model, images(2, 3, 96, 96)).std() > 0


def test_it_is_small_and_in_16_bits() -> None:
    assert FILE.stat().st_size <= 8_000_000
    with safe_open(FILE, "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118


def test_all_pages_state_its_size() -> None:
    size = f"{FILE.stat().st_size / 1e6:.1f} MB"
    for page in (ROOT / "README.md", ROOT / "docs" / "weights.md", CARD):
        lines = [line for line in page.read_text().splitlines() if "MB" in line and ("fp16" in line or NAME in line)]
        assert lines
        assert all(size in line for line in lines), page.name
    millions = sum(p.numel() for p in vitreous.load(NAME).parameters()) / 1e6
    assert f"a ViT with {millions:.1f} million parameters" in (ROOT / "docs" / "weights.md").read_text()


def test_it_was_trained_and_its_card_says_how() -> None:
    """A placeholder checkpoint or an incomplete model card must not be released."""
    assert "trained_on" in vitreous.load(NAME).report.origin
    assert [line for line in CARD.read_text().splitlines() if "TODO" in line] == []


def test_the_card_names_every_class_and_the_size() -> None:
    card, model = CARD.read_text(), vitreous.load(NAME)
    assert all(label in card for label in model.labels or ())
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    for script in ("examples/mini_data.py", "examples/ship_mini.py", "benchmarks/transfer.py"):
        assert script in card
        assert (ROOT / script).is_file()


def test_the_name_takes_precedence_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vitreous.save(tiny_vit(), "mine.safetensors")
    Path("mine.safetensors").rename(NAME)
    model = vitreous.load(NAME)
    assert model.config == zoo.config(NAME)
    assert model.report.notes == (f"source: the {NAME} of the package; the file in the current folder is ./{NAME}",)
    for path in (f"./{NAME}", Path(NAME), str(tmp_path / NAME)):
        assert vitreous.load(path).config == tiny_vit().config


def test_a_misspelt_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VitreousError, match=r"^vitreous_mini: no such file or folder; did you mean vitreous-mini"):
        vitreous.load("vitreous_mini")
    with pytest.raises(VitreousError, match=r"^mini.npz: no such file or folder$"):
        vitreous.load("mini.npz")


def test_missing_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(
        VitreousError, match=r"^vitreous-mini: its weights are missing from this installation \(.*reinstall vitreous$"
    ):
        vitreous.load(NAME)
    (tmp_path / FILE.name).write_bytes(FILE.read_bytes()[:-100])
    with pytest.raises(VitreousError, match=r"^vitreous-mini: "):
        vitreous.load(NAME)


def card_and_tensors(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the description in a native checkpoint, without versions, and the bytes of its tensors."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    card = json.loads(header.pop("__metadata__")["vitreous"])
    return without_version(card), json.dumps(header).encode() + content[start:]


def without_version(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_version(each) for name, each in value.items() if name != "version"}
    return value


def test_it_can_be_converted(tmp_path: Path) -> None:
    vitreous.convert(NAME, tmp_path / "out.safetensors", "native")
    (written, tensors), (card, shipped_tensors) = (card_and_tensors(p) for p in (tmp_path / "out.safetensors", FILE))
    assert tensors == shipped_tensors
    defaults = {field.name: field.default for field in fields(ViTConfig)}
    added = written["config"].keys() - card["config"].keys()  # fields that the config did not have at that time
    assert all(written["config"].pop(name) == defaults[name] for name in added)
    assert written == card  # except for the version that wrote it
    features = vitreous.load(NAME, num_classes=3, image_size=64)
    assert (features.config.num_classes, features.config.image_size) == (3, (64, 64))


def test_it_is_in_the_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        for file in (FILE, CARD):
            assert archive.read(f"vitreous/weights/shipped/{file.name}") == file.read_bytes()


# ---------------------------------------------------------------- examples/ship_mini.py


def ship(run: Path, data: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return command.script(ROOT / "examples" / "ship_mini.py", run, data, "--out", out)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images of plain colours, one colour per class."""
    random, labels = np.random.default_rng(0), np.arange(80) % 20
    colours = random.integers(0, 256, (20, 1, 1, 3))
    pixels = np.clip(colours[labels] + random.normal(0, 4, (80, 112, 112, 3)), 0, 255).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "mini.npz"
    parts = {
        "train_images": pixels[:60],
        "train_labels": labels[:60],
        "val_images": pixels[60:],
        "val_labels": labels[60:],
    }
    np.savez(path, **parts, classes=np.array(vitreous.load(NAME).labels))
    return path


def deeper() -> vitreous.VisionTransformer:
    """Return a model as the recipe trains it, with more blocks than the shipped one."""
    shipped_one = vitreous.load(NAME)
    torch.manual_seed(0)
    model = vitreous.create(NAME, depth=8, stochastic_depth=0.1)
    model.preprocessing, model.labels = shipped_one.preprocessing, shipped_one.labels
    return model


def test_a_run_is_shipped_without_its_last_blocks(tmp_path: Path, data: Path) -> None:
    model, out = deeper(), tmp_path / "out.safetensors"
    vitreous.save(model, tmp_path / "best.safetensors")
    result = ship(tmp_path, data, out)
    assert result.returncode == 0, result.stderr
    assert "accuracy on the validation images: 100.0%" in result.stdout
    made = vitreous.load(out)
    assert made.config == zoo.config(NAME)
    assert (made.labels, made.preprocessing) == (model.labels, model.preprocessing)
    assert "CIFAR-10" in made.report.origin["trained_on"]
    theirs = dict(model.named_parameters())
    for name, p in made.named_parameters():
        if name.startswith(("patch_embed.", "blocks.")):
            assert torch.equal(p, theirs[name].half().float()), name
    facts = json.loads(command.vitreous("info", out, "--json").stdout)
    assert facts["model"] == NAME
    assert "Imagenette" in facts["origin"]["trained_on"]


@pytest.mark.parametrize("fault", ["width", "depth", "labels", "large", "data"])
def test_an_unsuitable_run_is_refused(tmp_path: Path, data: Path, fault: str) -> None:
    model = deeper()
    if fault == "width":
        model = tiny_vit()
    elif fault == "depth":
        model = vitreous.create(NAME, depth=2)
    elif fault == "labels":
        model.labels = tuple(map(str, range(20)))
    elif fault == "large":
        torch.nn.init.constant_(model.get_parameter("blocks.0.norm1.bias"), 1e6)
    else:
        np.savez(tmp_path / "other.npz", images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(4) % 2)
        data = tmp_path / "other.npz"
    vitreous.save(model, tmp_path / "best.safetensors")
    result = ship(tmp_path, data, tmp_path / "out.safetensors")
    assert result.returncode == 1
    sentence = {
        "width": "not the zoo's vitreous-mini: ",
        "depth": "depth is 2, less than 7",
        "labels": "its classes are 0, 1",
        "large": "too large for float16",
        "data": "not a file of mini_data.py",
    }
    assert sentence[fault] in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.safetensors").exists()
