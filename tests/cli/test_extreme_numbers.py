"""Absurdly large and negative numbers give a one-line error in every command: no overflow, no fork bomb."""

import os
import signal
from pathlib import Path

import pytest
import torch

import vitreous
from helpers import tiny_vit
from runs import TINY_RUN, draw_folder
from vitreous.cli import _resource_error, main
from vitreous.data.options import Reading

HUGE, MANY = str(2**70), str(10**9)
RUN = (*TINY_RUN, "--workers", "0")
MODEL = ("--model", "m.safetensors", "--device", "cpu")
EVALUATE = ("evaluate", "data", *MODEL)
CASES = [
    *((("train", "data", "--out", "run", *RUN), f"--{flag}", HUGE) for flag in ("seed", "split-seed", "batch-size")),
    *((("train", "data", "--out", "run", *RUN), f"--{flag}", HUGE) for flag in ("width", "mlp-dim", "registers")),
    (("train", "data", "--out", "run", *RUN), "--depth", MANY),
    *((("train", "data", "--out", "run", *RUN), f"--{flag}", "1e+308") for flag in ("head-bias", "layer-scale")),
    (("train", "data", "--out", "run", *RUN), "--size", MANY),
    (("train", "data", "--out", "run", *RUN), "--workers", MANY),
    (("train", "data", "--out", "run", *RUN), "--randaugment", MANY),
    (("finetune", "data", "--from", "m.safetensors", "--out", "run", *RUN[-4:]), "--seed", HUGE),
    (("data", "data", "--no-sheet"), "--split-seed", HUGE),
    *((("predict", "data", *MODEL), flag, value) for flag in ("--top", "--batch-size") for value in (HUGE, "-1", "0")),
    *((EVALUATE, flag, HUGE) for flag in ("--split-seed", "--batch-size", "--workers", "--size")),
    *((EVALUATE, flag, "-1") for flag in ("--batch-size", "--workers", "--size")),
    *(((*EVALUATE, "--with", "fewshot"), "--shots", value) for value in (HUGE, MANY, "-1", "0")),
    (("inspect", "m.safetensors", "data/rot/000.jpg", "--device", "cpu"), "--size", MANY),
    (("features", "data", "out", *MODEL), "--workers", MANY),
    (("features", "data", "out", *MODEL), "--layer", HUGE),
    (("compare", "m.safetensors", "--data", "data", "--with", "knn", *MODEL[2:]), "--split-seed", HUGE),
    (("compare", "m.safetensors", "--data", "data", "--with", "knn", *MODEL[2:]), "--workers", MANY),
    *((("bench", *MODEL), flag, HUGE) for flag in ("--batch-size", "--size")),
    *((("bench", *MODEL), "--seconds", value) for value in ("inf", "nan", "-1", "1e+308")),
    (("bench", "--mode", "data", "--data", "data"), "--workers", MANY),
    (("info", "m.safetensors"), "--image-size", MANY),
    (("convert", "m.safetensors", "out.safetensors", "--to", "native"), "--num-classes", HUGE),
    (("models", "Ti/16"), "--size", HUGE),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    draw_folder(folder / "data", images=4)
    model = tiny_vit(num_classes=3)
    model.labels = ("blau", "grün", "rot")
    vitreous.save(model, folder / "m.safetensors")
    return folder


@pytest.mark.parametrize(("command", "flag", "value"), CASES, ids=lambda value: value[0] if value[1:] else None)
def test_error_is_one_line(
    command: tuple[str, ...],
    flag: str,
    value: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    before = signal.signal(signal.SIGALRM, lambda *_: os._exit(1))  # instead of a hang
    signal.alarm(60)
    try:
        with pytest.raises(SystemExit) as end:
            main([*command, flag, value])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert end.value.code == 2
    messages = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitreous: ")]
    assert len(messages) == 1, messages
    assert value in messages[0] or "shots" in messages[0]
    assert not Path("run").exists()
    assert not Path("out").exists()


def test_out_of_memory_is_one_line() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**62, dtype=torch.uint8)  # more than any machine can address
    assert _resource_error(error.value) == (
        "not enough memory: 4,294,967,296.0 GiB were requested at once; use a smaller image size, batch size or model"
    )
    with pytest.raises(MemoryError) as error:
        bytearray(2**62)
    assert _resource_error(error.value) == "not enough memory; use a smaller image size, batch size or model"
    assert _resource_error(ValueError("a bug")) is None


def test_in_python(place: Path) -> None:
    with pytest.raises(vitreous.VitreousError, match=r"split_seed = .*: must be below 2\*\*62"):
        vitreous.open_data(place / "data", Reading(split_seed=2**70))
    with pytest.raises(vitreous.VitreousError, match=r"ViTConfig.depth = 1000000: must be 10,000 or less"):
        vitreous.ViTConfig(depth=10**6)
