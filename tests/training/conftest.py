"""Small real data sets, and real training processes."""

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
import pytest
from PIL import Image

COLOURS = {"rot": (200, 60, 50), "grün": (60, 180, 70), "blau": (50, 80, 200)}
TINY_RUN = (
    *("--model", "Ti/16", "--image-size", "16", "--patch-size", "4", "--width", "32", "--depth", "2", "--heads", "2"),
    *("--mlp-dim", "64", "--batch-size", "16", "--duration", "40steps", "--evaluate-every", "10steps"),
    *("--device", "cpu"),
)


def draw_folder(root: Path, images: int = 24, side: int = 20) -> Path:
    """Noisy colours in JPEG files, a folder for each class: easy to tell apart, and no two alike."""
    random = np.random.default_rng(0)
    for label, colour in COLOURS.items():
        (root / label).mkdir(parents=True)
        for number in range(images):
            size = (side + int(random.integers(8)), side + int(random.integers(8)), 3)
            pixels = np.clip(random.normal(colour, 60, size), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number:03d}.jpg", quality=90)
    return root


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("data") / "farben")


@pytest.fixture
def vitreous(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in a process of its own, in an empty folder."""

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vitreous", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300, **options
        )

    return run


def start(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vitreous", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def step_of(run: Path) -> int:
    """How far a run has come, by its log."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=0)
    except FileNotFoundError:
        return 0


def kill_at(process: subprocess.Popen[str], run: Path, step: int, number: int = signal.SIGKILL) -> tuple[str, str]:
    """Send a signal once the run has come to a step; what it said."""
    deadline = time.monotonic() + 120
    while step_of(run) < step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    return process.communicate(timeout=120)
