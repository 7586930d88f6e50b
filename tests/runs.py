"""Small data sets and training runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import command
import forked
from vitreous import TrainConfig

COLOURS = {"rot": (200, 60, 50), "grün": (60, 180, 70), "blau": (50, 80, 200)}
TINY_RUN = (
    *("--model", "Ti/16", "--image-size", "16", "--patch-size", "4", "--width", "32", "--depth", "2", "--heads", "2"),
    *("--mlp-dim", "64", "--batch-size", "16", "--duration", "40steps", "--evaluate-every", "10steps"),
    *("--device", "cpu"),
)


def draw_folder(root: Path, images: int = 24, side: int = 20) -> Path:
    """Write JPEG files of noisy colours, one folder per class: easy to classify, and no two equal."""
    random = np.random.default_rng(0)
    for label, colour in COLOURS.items():
        (root / label).mkdir(parents=True)
        for number in range(images):
            size = (side + int(random.integers(8)), side + int(random.integers(8)), 3)
            pixels = np.clip(random.normal(colour, 60, size), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number:03d}.jpg", quality=90)
    return root


def start(*arguments: object, cwd: Path, start_new_session: bool = False, **options: Any) -> subprocess.Popen[str]:
    """Start a command in its own process, which can be killed. `options`: of `subprocess.Popen`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not options and hasattr(os, "fork"):
        process: Any = forked.start([str(argument) for argument in arguments], cwd, environment, start_new_session)
        return process  # type: ignore[no-any-return]
    options["start_new_session"] = start_new_session
    typed = [sys.executable, "-m", "vitreous", *map(str, arguments)]
    return subprocess.Popen(
        typed, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def complete(*arguments: object, cwd: Path) -> str:
    """Run a command in this process, and return what it prints."""
    result = command.vitreous(*arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def step_of(run: Path) -> int:
    """Return the last step in the log of a run."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=0)
    except FileNotFoundError:
        return 0


def wait_for(process: subprocess.Popen[str], run: Path, step: int) -> None:
    """Wait until the run reaches a step."""
    deadline = time.monotonic() + 120
    while step_of(run) < step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until a condition holds. The process must still run then."""
    deadline = time.monotonic() + 120
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()


def is_training(out: Path, cells: int, step: int) -> bool:
    """Whether so many cells of a sweep have started, and one of them that is not done has reached a step."""
    runs = [path for path in (out / "cells").glob("[!.]*") if path.is_dir()]
    unfinished = [path for path in runs if not path.with_name(f"{path.name}.json").exists()]
    return len(runs) >= cells and any(step_of(path) >= step for path in unfinished)


def kill_at(process: subprocess.Popen[str], run: Path, step: int, number: int = signal.SIGKILL) -> tuple[str, str]:
    """Send a signal when the run reaches a step; return its stdout and stderr."""
    wait_for(process, run, step)
    process.send_signal(number)
    return process.communicate(timeout=120)


TINY: dict[str, Any] = {
    "model": "Ti/16",
    "image_size": 16,
    "patch_size": 4,
    "width": 32,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 64,
    "batch_size": 16,
    "duration": "12 steps",
    "evaluate_every": "6 steps",
    "device": "cpu",
}
STRONG = {"dropout": 0.1, "stochastic_depth": 0.3, "mixup": 0.5, "cutmix": 1.0, "randaugment": 2, "erase": 0.3}


def config(out: Path, **changes: Any) -> TrainConfig:
    return TrainConfig().with_(**{**TINY, "out": str(out), **changes})


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]
