"""Every script of benchmarks/ prints its help without a GPU, and a script that needs a GPU says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.glob("*.py") if "argument_parser(__doc__)" in path.read_text())
NEED_A_GPU = {
    "attention.py": [],
    "gpu_utilisation.py": ["digits"],
    "loss_curves.py": ["digits"],
    "precision.py": ["vitreous-mini", "digits"],
    "training_step.py": ["digits"],
}
# All scripts in one process, so that torch is imported once.
PROGRAM = """
import contextlib, io, json, runpy, sys
results = {}
for script, *arguments in json.loads(sys.argv[1]):
    sys.argv, printed, status = [script, *arguments], io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        status = stop.code
    results[script.rsplit("/", 1)[1]] = [status, printed.getvalue()]
print(json.dumps(results))
"""


def run_scripts(commands: list[list[str]]) -> dict[str, tuple[object, str]]:
    """Return the exit status and the output of each command."""
    line = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(line, cwd=BENCHMARKS, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return {name: (status, text) for name, (status, text) in json.loads(done.stdout.splitlines()[-1]).items()}


def test_every_script_prints_its_help() -> None:
    assert len(SCRIPTS) >= 18
    results = run_scripts([[str(script), "--help"] for script in SCRIPTS])
    for name, (status, text) in results.items():
        assert status == 0, name
        assert text.startswith(f"usage: {name}"), name
        assert f"benchmarks/{name}" in text, f"{name} does not say how to run it"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_script_that_needs_a_gpu_says_so() -> None:
    results = run_scripts([[str(BENCHMARKS / name), *arguments] for name, arguments in NEED_A_GPU.items()])
    for name, (status, _) in results.items():
        assert status == f"{name} needs a CUDA GPU, and torch {torch.__version__} finds none."


def test_every_script_is_listed_in_the_readme() -> None:
    text = (BENCHMARKS / "README.md").read_text()
    assert [path.name for path in BENCHMARKS.glob("*.py") if f"`{path.name}`" not in text] == []
    assert [path.name for path in (BENCHMARKS / "results").glob("*.json") if f"`{path.name}`" not in text] == []
