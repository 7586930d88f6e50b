"""Make timm, torchvision and transformers importable for the tests that compare with them. All use torchvision."""

import runpy
from pathlib import Path

OPERATORS = Path(__file__).parents[2] / "benchmarks" / "torchvision_operators.py"
runpy.run_path(str(OPERATORS))["define_missing"]()
