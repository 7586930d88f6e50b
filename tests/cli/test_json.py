"""`--json` in every command: JSON on stdout, nothing else on stdout, and no file."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import vitreous
from helpers import tiny_vit
from pictures import classes
from vitreous.benchmark import machine
from vitreous.cli import JSON_COMMANDS, main

MODEL = ("--model", "m.safetensors")
PREDICTION_KEYS = {"image", "top", "predicted", "rejected", "threshold"}
TINY_SWEEP = (
    *("--duration", "2steps", "--width", "16", "--depth", "1", "--heads", "2", "--mlp-dim", "16", "--patch-size", "4"),
    *("--image-size", "8", "--device", "cpu"),
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "bench": (*MODEL, "--batch-size", "2", "--seconds", "0.02", "--device", "cpu"),
    "calibrate": ("m.safetensors", "pets", "--out", "c.safetensors", "--device", "cpu"),
    "compare": (
        "m.safetensors",
        "--data",
        "pets",
        "--with",
        "knn",
        "--out",
        "drawn",
        "--device",
        "cpu",
        "--workers",
        "0",
    ),
    "data": ("pets",),
    "evaluate": ("pets", *MODEL, "--size", "32", "40", "--out", "drawn", "--device", "cpu", "--workers", "0"),
    "info": ("m.safetensors",),
    "models": ("dinov2-*", "--weights"),
    "predict": ("pets", *MODEL, "--device", "cpu"),
    "recipes": (),
    "reproduce": ("table1",),
    "runs": ("pets",),
    "sweep": ("digits", "--grid", "lr=1e-3,1e-2", *TINY_SWEEP),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setitem(machine.MATMUL_SIDES, "cpu", 96)
    for split in ("train", "test"):
        classes(tmp_path / "pets" / split, {"cat": 12, "dog": 12})
    model = tiny_vit(num_classes=2)
    model.labels = ("cat", "dog")
    vitreous.save(model, "m.safetensors")
    return tmp_path


def run(*arguments: str) -> int:
    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def strict_json(text: str) -> Any:
    """Parse JSON without NaN and Infinity, which Python writes but which are not JSON."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_all_commands_with_json_are_tested() -> None:
    assert set(COMMANDS) == set(JSON_COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_stdout_contains_only_json(command: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(command, *COMMANDS[command], "--json") == 0
    out = capfd.readouterr().out
    assert out.endswith("\n")
    if command == "predict":  # one object per image
        assert [set(strict_json(line)) for line in out.splitlines()] == [PREDICTION_KEYS] * 48
    else:
        assert strict_json(out)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_after_json_is_an_error_with_the_correct_command(
    command: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("--json", "r.json"), ("--json=r.json",), ("--json=r.txt",)):
        assert run(command, *COMMANDS[command], *arguments) == 2
        out, err = capfd.readouterr()
        assert not out
        file = arguments[-1].removeprefix("--json=")
        assert f"--json takes no file: it prints JSON to stdout. Use `--json > {file}`" in err
        assert ("--out DIR" in err) == (command in ("compare", "evaluate"))
        assert not Path(file).exists()
    assert list(here.glob("r.*")) == []


def test_the_argument_after_json_may_be_a_positional_argument(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("predict", "--json", "pets/test/cat/000.png", *MODEL, "--device", "cpu") == 0
    assert strict_json(capfd.readouterr().out)["image"] == "pets/test/cat/000.png"
    assert run("predict", "--json", "pets/test/cat/000.png", *MODEL, "--tpo", "3") == 2
    assert "takes no file" not in capfd.readouterr().err  # --tpo is wrong; `> 000.png` would destroy the image
    assert run("evaluate", *MODEL, "--json", "results.txt") == 2
    assert "results.txt: there is no such file or folder" in capfd.readouterr().err  # it is DATA


def test_nan_is_null(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = tiny_vit(num_classes=2)
    model.labels = ("cat", "dog")
    model.head.weight.data.mul_(3e38)  # logits overflow
    vitreous.save(model, "large.safetensors")
    assert run("evaluate", "pets", "--model", "large.safetensors", "--device", "cpu", "--workers", "0", "--json") == 0
    assert strict_json(capfd.readouterr().out)["scores"][0]["loss"] is None


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_notes_go_to_stderr_on_a_terminal(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --json, one console writes notes and results to stdout if both streams are one terminal."""
    (here / "pets" / "test" / "cat" / "bad.png").write_bytes(b"broken")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert run(command, *COMMANDS[command], "--json") == 1  # one image is unreadable
    out, err = capsys.readouterr()
    assert "bad.png: not an image" in err
    assert all(strict_json(line) for line in out.splitlines())
