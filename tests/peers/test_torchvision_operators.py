"""torchvision is imported with its own operators if they can be loaded, otherwise with two that are only declared."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "torchvision_operators.py"
# Defines its operator on import, as torchvision does. Defining it twice is an error here and aborts Python in C++.
PACKAGE = "import torch\ntorch.library.define('torchvision::nms', '(Tensor x) -> Tensor')\n"
PROGRAM = "import runpy, sys\nrunpy.run_path(sys.argv[1])['define_missing']()\nimport torchvision\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "torchvision").mkdir()
    return tmp_path / "torchvision"


def import_after_define_missing(package: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", PROGRAM, str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_operators_that_can_be_loaded_are_not_defined_a_second_time(package: Path) -> None:
    (package / "__init__.py").write_text(PACKAGE)
    (package / "_C.so").symlink_to(str(torch._C.__file__))  # a library that can be loaded
    done = import_after_define_missing(package)
    assert done.returncode == 0, done.stderr


def test_operators_that_cannot_be_loaded_are_defined(package: Path) -> None:
    (package / "__init__.py").write_text(PACKAGE)
    (package / "_C.so").write_bytes(b"no library")
    done = import_after_define_missing(package)
    assert done.returncode != 0
    assert "nms" in done.stderr  # the package's own definition came second


@pytest.mark.parametrize("library", [None, b"no library"])
def test_a_package_without_a_loadable_library(package: Path, library: bytes | None) -> None:
    if library is not None:
        (package / "_C.so").write_bytes(library)
    assert not runpy.run_path(str(SCRIPT))["load_operators"](package)


def test_torchvision_can_be_imported_here() -> None:
    import torchvision

    assert hasattr(torch.ops.torchvision, "nms")
    assert torchvision.models.VisionTransformer
