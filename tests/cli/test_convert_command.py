"""The command `vitreous convert`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import command
import vitreous
from helpers import oracle, tiny_vit
from vitreous.cli import main
from vitreous.weights.dialects import DIALECTS

LABELS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = tiny_vit(gelu="erf", resample="timm")
    model.labels = LABELS
    vitreous.save(model, "in.safetensors")
    np.savez("google.npz", **oracle("google_vit_token_prelogits")[0])
    return tmp_path


def run(*arguments: str) -> int:
    try:
        main(["convert", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_convert_to_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("in.safetensors", "out", "--to", "timm") == 0
    out, err = capsys.readouterr()
    assert out == "out: timm, 0.3 MB in config.json, model.safetensors\n"
    assert not err
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["config.json", "model.safetensors"]
    there, here = vitreous.load("out"), vitreous.load("in.safetensors")
    assert (there.config, there.labels) == (here.config, LABELS)
    assert all(torch.equal(a, b) for a, b in zip(there.parameters(), here.parameters(), strict=True))


def test_convert_to_a_file_with_notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("google.npz", "out.npz", "--to", "google") == 0
    assert capsys.readouterr() == ("out.npz: google, 0.2 MB\n", "")
    model = tiny_vit()
    model.labels = LABELS
    vitreous.save(model, "labelled.safetensors")
    assert run("labelled.safetensors", "named.npz", "--to", "google") == 0
    out, err = capsys.readouterr()
    assert out == "named.npz: google, 0.3 MB\n"
    notes = err.splitlines()
    assert "vitreous: note: the labels are not stored: this format cannot store them" in notes
    assert all(note.startswith("vitreous: note: ") for note in notes)


def test_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("google.npz", "out.safetensors", "--to", "native", "--num-classes", "0", "--image-size", "48", "64") == 0
    config = vitreous.load("out.safetensors").config
    assert (config.num_classes, config.image_size) == (0, (48, 64))
    torch.save(vitreous.load("in.safetensors").state_dict(), "bare.pth")
    assert run("bare.pth", "heads.safetensors", "--to", "native", "--heads", "6") == 0
    assert vitreous.load("heads.safetensors").config.heads == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("in.safetensors", "out.npz", "--to", "google"), "google cannot represent this model; to write it anyway"),
        (("in.safetensors", "out.npz", "--to", "google"), "  gelu = 'erf': it has the tanh GELU"),
        (("in.safetensors", "out.npz", "--to", "bit"), "bit cannot represent a ViT: write it as google or big-vision"),
        (("in.safetensors", "out.pth", "--to", "native"), "native is written as a file that ends in .safetensors"),
        (("in.safetensors", "out", "--to", "google"), "google is written as a file that ends in .npz"),
        (("in.safetensors", "out.pth", "--to", "timm"), "timm is written as a folder"),
        (("in.safetensors", "in.safetensors", "--to", "huggingface"), "huggingface is written as a folder"),
        (("in.safetensors", "absent/out.safetensors", "--to", "native"), "there is no folder"),
        (("in.safetensors", "absent/out", "--to", "timm"), "there is no folder"),
        (("absent.npz", "out.safetensors", "--to", "native"), "absent.npz: no such file or folder"),
        (("in.safetensors", ".", "--to", "timm"), "holds other files ('google.npz', 'in.safetensors')"),
        (("in.safetensors", "out", "--to", "swin"), "swin"),
        (("in.safetensors", "out"), "--to"),
        (("in.safetensors",), "OUT"),
        (("in.safetensors", "out.safetensors", "--to", "native", "--num-classes", "-1"), "num_classes = -1"),
        (("in.safetensors", "out.safetensors", "--to", "native", "--image-size", "33"), "nearest height that works"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert not out
    assert sorted(folder.iterdir()) == before


def test_force_writes_with_a_warning(folder: Path) -> None:
    result = command.vitreous("convert", "in.safetensors", "out.npz", "--to", "google", "--force")
    assert result.returncode == 0
    assert result.stderr.startswith("vitreous: warning: out.npz: google cannot represent all of this model")
    assert "  gelu = 'erf': it has the tanh GELU" in result.stderr
    assert result.stdout.startswith("out.npz: google, ")
    assert vitreous.load("out.npz").report.dialect == "google"


def test_config_of_a_timm_folder(folder: Path) -> None:
    assert run("in.safetensors", "out", "--to", "timm") == 0
    settings = json.loads((folder / "out" / "config.json").read_text())
    assert settings["model_args"]["num_heads"] == 3
    assert settings["label_names"] == list(LABELS)


def test_help_lists_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = "".join(capsys.readouterr().out.split())
    assert all(name in out for name in DIALECTS)
