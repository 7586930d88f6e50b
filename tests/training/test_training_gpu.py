"""Training on a GPU: compiled, in bf16."""

import gc
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from runs import STRONG, config, records, step_of
from vitreous import VitreousError, recipe, resume, train
from vitreous.training.signals import Stopped

pytestmark = pytest.mark.gpu


def stop_at(run: Path, step: int) -> None:
    """Send SIGTERM to this process when the run reaches a step."""

    def watch() -> None:
        while step_of(run) < step:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def test_the_digits_recipe(tmp_path: Path) -> None:
    outcome = train("digits", recipe("digits").with_(out=str(tmp_path / "run"), device="cuda"), quiet=True)
    assert outcome.result.top1 >= 0.98
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "gpu" in stored["environment"]
    assert not [r for r in records(tmp_path / "run", "event") if "compiled" in r["text"]]  # no fallback
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize("cache", ["always", "never"])
def test_deterministic_runs_resume_exactly(folder: Path, tmp_path: Path, cache: str) -> None:
    options: dict[str, Any] = {
        **STRONG, "device": "cuda", "deterministic": True, "duration": "60 steps", "cache": cache, "workers": 2,
    }  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(folder, config(whole, **options), quiet=True)
    stop_at(parts, 20)
    with pytest.raises(Stopped):
        train(folder, config(parts, **options), quiet=True)
    resume(parts, quiet=True)
    torch.use_deterministic_algorithms(False)
    assert (whole / "last.safetensors").read_bytes() == (parts / "last.safetensors").read_bytes()


def test_out_of_memory_halves_the_micro_batch(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        **STRONG, "device": "cuda", "precision": "fp32", "optimiser": "sgd", "lr": 0.01, "image_size": 64,
        "width": 192, "depth": 8, "heads": 3, "mlp_dim": 768, "batch_size": 256, "duration": "3 steps",
        "evaluate_every": "3 steps", "compile": "no", "cache": "always", "ema": 0.0,
    }  # fmt: skip
    plenty, tight = tmp_path / "plenty", tmp_path / "tight"
    train(folder, config(plenty, **options), quiet=True)
    gc.collect()  # memory of other tests
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + 2e9
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        train(folder, config(tight, **options, micro_batch=256), quiet=True)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    events = [r["text"] for r in records(tight, "event")]
    assert any("out of memory: passes of" in text for text in events)
    state = json.loads(next((tight / "state").glob("step-*/progress.json")).read_text())
    assert state["micro_batch"] < 256
    ours, theirs = load_file(plenty / "last.safetensors"), load_file(tight / "last.safetensors")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=1e-3)


def test_bf16_and_compiled_training_learns_like_fp32(folder: Path, tmp_path: Path) -> None:
    results = {}
    for name, options in (("fast", {}), ("plain", {"precision": "fp32", "compile": "no"})):
        train(folder, config(tmp_path / name, device="cuda", duration="80 steps", **options), quiet=True)
        results[name] = [r["loss"] for r in records(tmp_path / name, "train")]
    assert results["fast"][-1] == pytest.approx(results["plain"][-1], rel=0.2)
    assert results["fast"][-1] < results["fast"][0] * 0.8


def test_nan_loss_names_the_right_step(folder: Path, tmp_path: Path) -> None:
    options = {"lr": 1e30, "clip": None, "warmup": "0%", "ema": 0.0, "optimiser": "sgd", "device": "cuda"}
    with pytest.raises(VitreousError, match=r"NaN or infinite at step [0-4] "):
        train(folder, config(tmp_path / "run", **options, duration="200 steps"), quiet=True)


@pytest.mark.parametrize("target", ["colour", "colours", "pixels"])
def test_masked_patches(folder: Path, tmp_path: Path, target: str) -> None:
    options: dict[str, Any] = {"objective": "masked-patches", "patch_target": target, "device": "cuda"}
    outcome = train(folder, config(tmp_path / "run", **options, duration="20 steps"), quiet=True)
    assert outcome.result.loss < (0.3 if target == "pixels" else 6.2)
    assert not [r for r in records(tmp_path / "run", "event") if "continuing without" in r["text"]]  # no fallback
