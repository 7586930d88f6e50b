"""Timing, and results that say where they come from."""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def median_seconds(function: Callable[[], object], device: str, repeats: int = 20, warm_up: int = 5) -> float:
    """Median over `repeats` calls after `warm_up`; by CUDA events on a GPU."""
    for _ in range(warm_up):
        function()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        else:
            begin = time.perf_counter()
            function()
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def environment(*packages: str) -> dict[str, Any]:
    """Date, hardware, versions and the command."""
    hardware = f"{platform.machine()}, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        hardware = torch.cuda.get_device_name()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in packages:
        module = sys.modules.get(name)
        versions[name] = getattr(module, "__version__", "not installed")
    return {
        "date": date.today().isoformat(),
        "hardware": hardware,
        "versions": versions,
        "command": " ".join(["python", *sys.argv]),
    }


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {path}")
