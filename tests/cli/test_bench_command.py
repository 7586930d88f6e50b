"""The command `vitreous bench`."""

import json
from pathlib import Path

import pytest

from helpers import tiny_vit
from vitreous import save
from vitreous.benchmark import bench as module
from vitreous.benchmark import machine
from vitreous.cli import main


def run(*arguments: object) -> int:
    try:
        main(["bench", *map(str, arguments), "--device", "cpu", "--seconds", "0.02"])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(machine.MATMUL_SIDES, "cpu", 96)
    save(tiny_vit(), "tiny.safetensors")
    return tmp_path


def test_table_and_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "tiny.safetensors", "--batch-size", 2) == 0
    out = capsys.readouterr().out
    for name in ("model", "path", "speed", "batch", "time", "arithmetic", "memory", "energy", "start-up"):
        assert f"\n{name} " in f"\n{out}"
    assert "96 x 96 matrices in fp32" in out
    assert run("--model", "tiny.safetensors", "--batch-size", 2, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch_size"] == 2
    assert f"{found['path']}" in out


def test_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "tiny.safetensors", "--mode", "train") == 0
    assert "training in fp32" in capsys.readouterr().out


def test_mistakes_are_one_line_errors(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--mode", "train", "--precision", "fp8") == 2
    assert run("--model", "tiny.safetensors", "--precision", "fp8") == 2
    assert run("--model", "tiny.safetensors", "--json", "speed.json") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("vitreous: ") for line in lines)
    assert "fp8" in lines[1]


def test_ctrl_c(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_measure_step", interrupted)
    assert run("--model", "tiny.safetensors") == 130
    assert capsys.readouterr().err == "vitreous: stopped\n"
