"""Time fp32 inference on a CPU: Vitreous, timm, Hugging Face (eager and compiled) and ONNX Runtime, in one run.

    python benchmarks/cpu.py                    # B/16 and Ti/16, batch sizes 1 and 8, one thread per core

ONNX Runtime runs timm's model, exported by each of torch's two exporters, with all graph optimisations. The
implementations take turns, a few calls each, so that other load on the machine affects all of them alike. The result is
the median of all calls. All of them have the same shape and erf GELU.
"""

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

import peer_models
import torchvision_operators
from harness import RESULTS, argument_parser, environment, write_result
from peer_models import Measurement
from vitreous.fast import accelerate

CPU = torch.device("cpu")
EXPORTS: dict[str, dict[str, Any]] = {
    "onnx runtime": {"dynamo": True, "opset_version": 18},
    "onnx runtime, other exporter": {"dynamo": False, "opset_version": 17},
}


def implementations(model: str, x: Tensor, folder: Path) -> dict[str, Callable[[], object]]:
    measurement = Measurement("ours", model, "infer", "fp32", len(x))
    run = accelerate(peer_models.vitreous_model(measurement, CPU).eval())
    calls: dict[str, Callable[[], object]] = {"ours": lambda: run(x)}
    for name, build in (("timm", peer_models.timm_model), ("huggingface", peer_models.huggingface_model)):
        network = build(measurement).eval()
        compiled = torch.compile(network, dynamic=False)
        calls[f"{name} eager"] = lambda network=network: network(x)  # type: ignore[misc]
        calls[f"{name} compiled"] = lambda compiled=compiled: compiled(x)  # type: ignore[misc]
    network = peer_models.timm_model(measurement).eval()
    for name, options in EXPORTS.items():
        file = folder / f"{abs(hash((model, len(x), name)))}.onnx"
        torch.onnx.export(network, (x,), file, **options)
        calls[name] = onnx_call(file, x)
    return calls


def onnx_call(file: Path, x: Tensor) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    opened = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name, array = opened.get_inputs()[0].name, x.numpy()
    return lambda: opened.run(None, {name: array})


@torch.inference_mode()
def time_in_turns(calls: dict[str, Callable[[], object]], seconds: float, repeats: int = 3) -> dict[str, list[float]]:
    """Return the times of all calls. The implementations take turns, so that other load affects all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for run in calls.values():
        run()
        run()
    until = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < until:
        for name, run in calls.items():
            run()  # not timed: it fills the CPU caches
            for _ in range(repeats):
                began = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - began)
    return times


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "B/16"], help="default: Ti/16 B/16")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="batch sizes (default: 1 8)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each implementation (default: 10)")
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu.json", help="JSON file")
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
                times = time_in_turns(implementations(model, x, Path(folder)), options.seconds)
            medians = {name: statistics.median(values) for name, values in times.items()}
            best = min((name for name in medians if name != "ours"), key=lambda name: medians[name])
            for name, median in medians.items():
                row = {"model": model, "batch": batch, "who": name, "ms": round(1e3 * median, 2)}
                row |= {"images_per_second": round(batch / median, 2), "calls": len(times[name])}
                rows.append(row | ({"ratio": round(medians[best] / median, 3), "best": best} if name == "ours" else {}))
                print(rows[-1], flush=True)
    import onnxruntime  # noqa: F401 (`environment` records its version)

    write_result(options.out, {**environment("vitreous", "timm", "transformers", "onnxruntime"), "rows": rows})


if __name__ == "__main__":
    main()
