"""The command `vitreous info`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import command
import vitreous
from helpers import oracle, tiny_vit
from vitreous.cli import main

LABELS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints: native, Google, BiT, of a training script, and one with an unexpected tensor."""
    monkeypatch.chdir(tmp_path)
    model = tiny_vit(gelu="erf", resample="timm")
    model.labels = LABELS
    vitreous.save(model, "native.safetensors")
    np.savez("google.npz", **oracle("google_vit_token_prelogits")[0])
    np.savez("bit.npz", **oracle("bit_v2_small")[0])
    state = {name: p.detach() for name, p in model.named_parameters()}
    torch.save({"teacher": state, "epoch": 3}, "script.pth")
    torch.save({**state, "extra": torch.ones(3)}, "extra.pth")
    return tmp_path


def run(*arguments: str) -> int:
    try:
        main(["info", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def rows(text: str) -> dict[str, str]:
    """Return the rows of a table by their first column, with wrapped lines joined."""
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        first, rest = line[:15].strip(), line[15:].strip()
        key = first or key
        found[key] = f"{found[key]} {rest}" if key in found else rest
    return found


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("google.npz") == 0
    out, err = capsys.readouterr()
    assert not err
    assert rows(out) == {
        "file": "google.npz",
        "format": "google (npz, float32)",
        "model": "none of `vitreous models` has this architecture",
        "config": "image_size 32 x 32, patch_size 8 x 8, width 48, depth 2, heads 3, mlp_dim 96, pool token,"
        " representation_size 40, num_classes 7, position learned-1d, resample google, gelu tanh, norm_eps 1e-06",
        "cost": "50,391 parameters; 0.00166 GFLOPs at 32 x 32, 16 patches",
        "preprocessing": "squash to 32 x 32, bilinear without antialiasing; mean 0.5, 0.5, 0.5; std 0.5, 0.5, 0.5",
        "labels": "not in the file; 7 classes",
        "tensors": "42 used, 0 ignored",
    }
    assert max(map(len, out.splitlines())) <= 120


def test_labels_notes_and_ignored_tensors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("native.safetensors") == 0
    assert rows(capsys.readouterr().out)["labels"] == "ant, bee, cat, dog, elk and 2 more"
    assert run("script.pth", "--heads", "3") == 0
    table = rows(capsys.readouterr().out)
    assert table["ignored"] == "epoch: not under 'teacher'"
    assert table["note"].startswith("loaded the weights under 'teacher'; other keys in the file: 'epoch'")
    assert run("bit.npz") == 0
    assert rows(capsys.readouterr().out)["format"] == "bit (npz, float32)"


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("native.safetensors", "--json") == 0
    out, err = capsys.readouterr()
    assert not err
    assert len(out.splitlines()) == 1
    facts: dict[str, Any] = json.loads(out)
    model = vitreous.load("native.safetensors")
    assert set(facts) >= {"source", "dialect", "container", "model", "config", "parameters", "flops", "tokens"}
    assert set(facts) >= {"dtypes", "preprocessing", "labels", "origin", "tensors", "notes"}
    assert (facts["source"], facts["dialect"], facts["container"]) == ("native.safetensors", "native", "safetensors")
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["labels"] == list(LABELS)
    assert facts["dtypes"] == ["float32"]
    assert facts["config"]["kind"] == "vit"
    assert facts["config"]["heads"] == 3
    assert vitreous.Preprocessing.from_json(facts["preprocessing"]) == model.preprocessing
    assert facts["tensors"]["used"] == list(model.report.used)
    assert facts["tensors"]["missing"] == facts["tensors"]["unexpected"] == []
    assert run("bit.npz", "--json") == 0
    bit = json.loads(capsys.readouterr().out)
    assert (bit["config"]["kind"], bit["tokens"], bit["labels"]) == ("bit", 0, None)


def test_another_size(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("google.npz", "--image-size", "64", "32", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["config"]["image_size"], facts["tokens"]) == ([64, 32], 32)
    assert facts["preprocessing"]["size"] == [64, 32]
    assert run("google.npz", "--image-size", "48", "--json") == 0
    assert json.loads(capsys.readouterr().out)["config"]["image_size"] == [48, 48]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.npz",), "vitreous: absent.npz: no such file or folder"),
        ((".",), "vitreous: .: a folder with several checkpoints; give the path of one: bit.npz, extra.pth"),
        (("script.pth",), "vitreous: script.pth: the file does not contain the number of heads"),
        (("script.pth", "--heads", "5"), "ViTConfig.heads = 5: must divide the width, 48"),
        (("google.npz", "--heads", "4"), "heads = 4, but the file has 3"),
        (("google.npz", "--image-size", "33"), "the nearest height that works is 32 or 40"),
        (("google.npz", "--image-size", "0"), "image_size = 0"),
        (("extra.pth", "--heads", "3"), "  + extra (3,)"),
        (("hf://nobody/nothing",), "vitreous: hf://nobody/nothing: not in the cache"),
        (("hf:nothing",), "vitreous: hf:nothing: no such file or folder"),
        ((), "FILE"),
        (("google.npz", "--heads", "many"), "heads"),
        (("google.npz", "--jason"), "--json"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert not out


def test_warnings_go_to_stderr(folder: Path) -> None:
    result = command.vitreous("info", "extra.pth", "--heads", "3", "--no-strict", "--json")
    assert result.returncode == 0
    assert result.stderr.startswith("vitreous: warning: extra.pth: read as timm, ")
    assert json.loads(result.stdout)["tensors"]["unexpected"] == ["extra"]


def test_truncated_file_is_a_one_line_error(folder: Path) -> None:
    (folder / "cut.safetensors").write_bytes((folder / "native.safetensors").read_bytes()[:-7])
    result = command.vitreous("info", "cut.safetensors")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("vitreous: cut.safetensors: the file is truncated: 7 of its ")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "--json" in capsys.readouterr().out
