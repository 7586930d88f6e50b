"""Inference on a CPU in fp32, ours beside timm, Hugging Face (eager and compiled) and ONNX Runtime, in one run.

    python benchmarks/cpu.py                    # B/16 and Ti/16, batches of 1 and 8, as many threads as there are cores

ONNX Runtime runs timm's model as torch exports it, by both of torch's exporters, with all its optimisations. The
candidates take turns, a few calls each, so that whatever else the machine does hits them alike; medians of all calls.
Every one has the same shape and erf GELU.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import contestants
import torchvision_operators
from contestants import Cell
from harness import RESULTS, environment, write
from vitreous.fast import accelerate

CPU = torch.device("cpu")
EXPORTS: dict[str, dict[str, Any]] = {
    "onnx runtime": {"dynamo": True, "opset_version": 18},
    "onnx runtime, other exporter": {"dynamo": False, "opset_version": 17},
}


def candidates(model: str, x: Tensor, folder: Path) -> dict[str, Callable[[], object]]:
    cell = Cell("ours", model, "infer", "fp32", len(x))
    run = accelerate(contestants.ours(cell, CPU).eval())
    found: dict[str, Callable[[], object]] = {"ours": lambda: run(x)}
    for name, build in (("timm", contestants.timm), ("huggingface", contestants.huggingface)):
        network = build(cell).eval()
        compiled = torch.compile(network, dynamic=False)
        found[f"{name} eager"] = lambda network=network: network(x)  # type: ignore[misc]
        found[f"{name} compiled"] = lambda compiled=compiled: compiled(x)  # type: ignore[misc]
    network = contestants.timm(cell).eval()
    for name, how in EXPORTS.items():
        file = folder / f"{abs(hash((model, len(x), name)))}.onnx"
        torch.onnx.export(network, (x,), file, **how)
        found[name] = session(file, x)
    return found


def session(file: Path, x: Tensor) -> Callable[[], object]:
    import onnxruntime as library

    options = library.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
    opened = library.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name, array = opened.get_inputs()[0].name, x.numpy()
    return lambda: opened.run(None, {name: array})


@torch.inference_mode()
def in_turns(found: dict[str, Callable[[], object]], seconds: float, calls: int = 3) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in found}
    for run in found.values():
        run()
        run()
    until = time.perf_counter() + seconds * len(found)
    while time.perf_counter() < until:
        for name, run in found.items():
            run()  # the first after another's has its caches to fill
            for _ in range(calls):
                began = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "B/16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each candidate")
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu.json")
    options = parser.parse_args()
    torchvision_operators.define_missing()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for model in options.models:
        for batch in options.batches:
            x = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
            torch._dynamo.reset()
            with tempfile.TemporaryDirectory() as folder:
                times = in_turns(candidates(model, x, Path(folder)), options.seconds)
            medians = {name: statistics.median(found) for name, found in times.items()}
            best = min((name for name in medians if name != "ours"), key=lambda name: medians[name])
            for name, median in medians.items():
                row = {"model": model, "batch": batch, "who": name, "ms": round(1e3 * median, 2)}
                row |= {"images_per_second": round(batch / median, 2), "calls": len(times[name])}
                rows.append(row | ({"ratio": round(medians[best] / median, 3), "best": best} if name == "ours" else {}))
                print(rows[-1], flush=True)
    import onnxruntime  # noqa: F401 (its version goes into the result)

    write(options.out, {**environment("vitreous", "timm", "transformers", "onnxruntime"), "rows": rows})


if __name__ == "__main__":
    main()
