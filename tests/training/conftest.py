"""Fixtures: a folder of images, and the command in this process or in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import command
from runs import draw_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("data") / "farben")


@pytest.fixture
def vitreous(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in this process, in an empty folder."""
    return partial(command.vitreous, cwd=tmp_path)


@pytest.fixture
def vitreous_process(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in a process of its own, in an empty folder."""

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        typed = [sys.executable, "-m", "vitreous", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.run(
            typed, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300, **options
        )

    return run
