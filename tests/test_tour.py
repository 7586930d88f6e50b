"""The cells of docs/tour.ipynb run in order and print what the notebook shows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOUR = Path(__file__).parents[1] / "docs" / "tour.ipynb"


def test_the_tour_runs(tmp_path: Path) -> None:
    for name in ("matplotlib", "sklearn"):
        pytest.importorskip(name)
    cells = [cell for cell in json.loads(TOUR.read_text())["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    printed = "".join(
        "".join(one["text"]) for cell in cells for one in cell["outputs"] if one["output_type"] == "stream"
    )
    environment = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == printed
    pictures = [one for cell in cells for one in cell["outputs"] if "image/png" in one.get("data", {})]
    assert len(pictures) == 6
