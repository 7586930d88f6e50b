"""torchvision is imported with its own operators where they can be loaded, else with two that do nothing."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "torchvision_operators.py"
# As the real library: an operator that is defined already is an error there. In C++ it is the end of the process.
PACKAGE = "import torch\ntorch.library.define('torchvision::nms', '(Tensor x) -> Tensor')\n"
PROGRAM = "import runpy, sys\nrunpy.run_path(sys.argv[1])['define_missing']()\nimport torchvision\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "torchvision").mkdir()
    return tmp_path / "torchvision"


def test_operators_that_can_be_loaded_are_not_defined_before(package: Path) -> None:
    (package / "__init__.py").write_text(PACKAGE)
    (package / "_C.so").symlink_to(str(torch._C.__file__))  # a library that can be loaded
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", PROGRAM, str(SCRIPT)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("library", [None, b"no library"])
def test_operators_that_cannot_be_loaded(package: Path, library: bytes | None) -> None:
    if library is not None:
        (package / "_C.so").write_bytes(library)
    assert not runpy.run_path(str(SCRIPT))["loads"](package)


def test_here_torchvision_is_imported() -> None:
    """By whatever way this machine needs: the other tests of this folder were collected."""
    import torchvision

    assert hasattr(torch.ops.torchvision, "nms")
    assert torchvision.models.VisionTransformer
