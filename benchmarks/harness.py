"""Shared by the benchmark scripts: timing, command-line helpers, and result files that record how they were made."""

import argparse
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


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints the script's docstring, with its line breaks, as the help text."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def require_gpu() -> None:
    """Exit with one sentence if torch finds no CUDA GPU."""
    if not torch.cuda.is_available():
        raise SystemExit(f"{Path(sys.argv[0]).name} needs a CUDA GPU, and torch {torch.__version__} finds none.")


def parse_fields(texts: list[str]) -> dict[str, Any]:
    """Parse FIELD=VALUE arguments. A value that is valid JSON is decoded; any other value stays a string."""
    fields = {}
    for name, value in (text.split("=", 1) for text in texts):
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def median_seconds(function: Callable[[], object], device: str, repeats: int = 20, warm_up: int = 5) -> float:
    """Return the median time of a call after `warm_up` calls. On a GPU each call is timed alone, with CUDA events."""
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
    """Return the date, the hardware, the versions of torch and the named packages, and the command line."""
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


def write_result(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")
