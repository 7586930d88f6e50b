"""Live peers. All of them import torchvision."""

import runpy
from pathlib import Path

OPERATORS = Path(__file__).parents[2] / "benchmarks" / "torchvision_operators.py"
runpy.run_path(str(OPERATORS))["define_missing"]()
