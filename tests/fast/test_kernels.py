"""The fused kernels compared with plain torch: in Triton's interpreter on a CPU, or compiled on a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# On some virtual CPUs bf16 matmuls kill the process (SIGILL) unless oneDNN is kept from AMX. AVX512_CORE would do that,
# too, but then oneDNN has no fp8 matmuls.
CHILD = {"TRITON_INTERPRET": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}

triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def names() -> list[str]:
    """Return the names of the checks. Without Triton they cannot be imported."""
    if importlib.util.find_spec("triton") is None:
        return ["all"]
    sys.path.insert(0, str(HERE))
    from checks import CHECKS

    return list(CHECKS)


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str]:
    child = subprocess.run(
        [sys.executable, HERE / "checks.py"],
        env={**os.environ, **CHILD},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    found: dict[str, str] = json.loads(child.stdout.splitlines()[-1])
    return found


@triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the checks run compiled")
@pytest.mark.parametrize("name", names())
def test_interpreted(name: str, interpreted: dict[str, str]) -> None:
    assert interpreted[name] == "", interpreted[name]


@triton
@pytest.mark.gpu
@pytest.mark.parametrize("name", names())
def test_on_a_gpu(name: str) -> None:
    from checks import CHECKS

    torch.manual_seed(0)
    CHECKS[name]()
