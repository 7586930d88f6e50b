"""Compare Vitreous with timm, Hugging Face and torchvision: images/s, memory, latency, start-up time and lower bounds.

    PYTHONPATH=src python3 benchmarks/peers.py --quick        # on the GPU if there is one, otherwise on the CPU
    python benchmarks/peers.py --only who=ours,timm model=B/16 task=train "variant=*cudnn*"
    python benchmarks/peers.py --growth                       # Vitreous alone: time against tokens, batch and width

Each implementation runs in its own process. The processes import, build, compile and run a first step in parallel; each
is then timed alone. The peers get every setting a user can choose: torch.compile, cuDNN attention, bf16 autocast or
bf16 weights, channels-last images, CUDA graphs for one image. Each measurement is appended to a .jsonl file at once,
and the last measurement of each kind counts: a second run completes an interrupted one. Write runs with another --gelu
to another file (--out).

Images are synthetic, normalised and on the device. Inference: weights and images in bf16 on a GPU, in fp32 on a CPU.
Training step: forward, cross-entropy, backward, fused AdamW. Peak memory counts tensors while steps are timed, and
while CUDA graphs are recorded.
"""

import argparse
import math
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import torch

import vitreous
from harness import RESULTS, argument_parser, environment, write_result
from peer_models import PEERS, Measurement
from peer_processes import MeasurementLog, PeerBenchmark
from peer_summary import NAMES, TASKS, Row, check_targets, compare_cells, merge_measurements

BATCH = {"cuda": {"B/16": 256, "L/16": 128}, "cpu": {"Ti/16": 8, "B/16": 8}}


# ---------------------------------------------------------------- choosing the measurements


def combinations(*groups: Iterable[str]) -> list[str]:
    """Return every combination of one word from each group, joined by spaces. Empty words are left out."""
    return [" ".join(filter(None, words)) for words in product(*groups)]


def our_variants(task: str, device: str) -> list[str]:
    if device == "cpu":
        return ["fp32"] if task == "infer" else ["eager", "compiled"]
    inference = ["bf16", "fp8"]
    return {"infer": [*inference, "bf16 uint8", "fp8 uint8"], "train": ["compiled"], "latency": inference}[task]


def peer_variants(who: str, model: str, task: str, device: str, quick: bool) -> list[str]:
    if device == "cpu":
        return ["eager", "compiled"]
    if task == "latency":
        return combinations(["reduce-overhead"], ["cudnn"] if quick and who != "timm" else ["", "cudnn"])
    types = ["autocast", "bf16"] if task == "train" else [""]
    if not quick:
        extra = combinations(["compiled cudnn"], types, ["channels-last"])
        return combinations(["compiled", "eager"], ["cudnn", ""], types) + extra
    if who == "timm":  # the fastest of the three when compiled
        return combinations(["compiled cudnn", "compiled", "eager cudnn"], types)
    if model == "L/16":
        return combinations(["eager cudnn"], types[-1:])
    return combinations(["compiled cudnn", "eager cudnn"], types)


def peer_measurements(device: str, quick: bool) -> list[Measurement]:
    measurements = []
    for model, batch in BATCH[device].items():
        for task in ("train", "infer", "latency"):
            if task == "latency" and (device, model) != ("cuda", "B/16"):
                continue
            count = 1 if task == "latency" else batch
            for variant in our_variants(task, device):
                measurements.append(Measurement("ours", model, task, variant, count))
            for who in PEERS:
                for variant in peer_variants(who, model, task, device, quick):
                    measurements.append(Measurement(who, model, task, variant, count))
    return measurements


def growth_measurements(device: str) -> list[Measurement]:
    """Vitreous with one quantity growing at a time: patches (by the image size), batch, width (in heads of 64)."""
    cuda = device == "cuda"
    model = "B/16" if cuda else "Ti/16"
    variants = {"infer": "bf16" if cuda else "fp32", "train": "compiled" if cuda else "eager"}
    grids = [(8, 8), (8, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)][: None if cuda else 5]
    measurements = []
    for task, variant in variants.items():
        one = Measurement("ours", model, task, variant, batch=1)
        for rows, cols in grids:
            size = {"height": 16 * rows, "width_px": 16 * cols}
            measurements.append(replace(one, batch=32 if cuda else 2, axis="tokens", **size))
        for power in range(10 if cuda else 6):
            measurements.append(replace(one, batch=2**power, axis="batch"))
        for width in (192, 384, 768, 1152, 1536) if cuda else (64, 128, 192, 384, 768):
            measurements.append(replace(one, batch=128 if cuda else 2, axis="width", width=width))
    return measurements


def startup_measurements(measurements: list[Measurement], quick: bool) -> list[Measurement]:
    """Those of B/16 for throughput in their usual form: ours with its defaults, the peers compiled."""
    usual = ("bf16", "fp8", "compiled", "compiled autocast")
    kept = [m for m in measurements if m.model == "B/16" and m.task != "latency" and m.variant in usual]
    return [m for m in kept if m.who == "ours" or not quick]


def select(measurements: Iterable[Measurement], conditions: Iterable[str]) -> list[Measurement]:
    """Return the measurements that match every FIELD=PATTERN[,PATTERN]."""
    wanted = [text.split("=", 1) for text in conditions]
    return [
        one
        for one in measurements
        if all(any(fnmatchcase(str(getattr(one, k)), p) for p in patterns.split(",")) for k, patterns in wanted)
    ]


# ---------------------------------------------------------------- results


def write_comparison(log: MeasurementLog, out: Path) -> None:
    summary = merge_measurements(log.read())
    costs = {name: vitreous.cost(name) for name in dict.fromkeys(row["model"] for row in summary["rows"])}
    numbers = {name: {"flops": c.flops.total, "parameters": c.parameters} for name, c in costs.items()}
    summary["cells"] = compare_cells(summary, numbers)
    write_result(out, {**result_header(summary), **summary})
    print_comparison(summary)


def result_header(summary: dict[str, Any]) -> dict[str, Any]:
    header = environment()
    versions = summary.pop("environment").items()
    header["versions"] |= {NAMES[who]: version for who, version in versions if who in NAMES}
    return header


def print_comparison(summary: dict[str, Any]) -> None:
    print()
    for cell in summary["cells"]:
        parts = [f"{cell['model']} {TASKS[cell['task']]}, batch {cell['batch']}:"]
        for row in filter(None, (cell["ours"], cell["best"])):
            parts.append(
                f"{NAMES[row['who']]} {row['images_per_second']:,.1f} images/s, {row['ms']:.2f} ms ({row['variant']});"
            )
        if "ratio" in cell:
            parts.append(f"speed ratio {cell['ratio']:.2f};")
        if "memory_ratio" in cell:
            parts.append(f"memory ratio {cell['memory_ratio']:.2f};")
        if "flops" in cell:
            compute, traffic = cell["floor_flops_ms"], cell["floor_bytes_ms"]
            parts.append(f"lower bounds {compute:.2f} ms (compute), {traffic:.2f} ms (memory bandwidth)")
        print(" ".join(parts))
    print()
    for name, measured, target, met in check_targets(summary):
        print(f"{'met    ' if met else 'missed '} {name}: {measured}, target {target}")


def exponent(x: list[float], y: list[float]) -> float | None:
    """Fit p of y ~ x^p by least squares on logarithms, over the upper half of x, where constant costs matter least."""
    points = sorted(zip(x, y, strict=True))[len(x) // 2 :]
    if len(points) < 2:
        return None
    logs = [(math.log(a), math.log(b)) for a, b in points]
    middle = [sum(values) / len(logs) for values in zip(*logs, strict=True)]
    over = sum((a - middle[0]) * (b - middle[1]) for a, b in logs)
    return round(over / sum((a - middle[0]) ** 2 for a, _ in logs), 3)


def axis_value(row: Row) -> float:
    tokens = row["height"] // 16 * (row["width_px"] // 16)
    return float({"tokens": tokens, "batch": row["batch"], "width": row["width"]}[row["axis"]])


def write_growth(log: MeasurementLog, out: Path) -> None:
    merged = merge_measurements(log.read())
    series: list[Row] = []
    for axis, task in product(("tokens", "batch", "width"), ("infer", "train")):
        rows = sorted((r for r in merged["rows"] if (r["axis"], r["task"]) == (axis, task)), key=axis_value)
        if not rows:
            continue
        x, ms, peak = [axis_value(row) for row in rows], [row["ms"] for row in rows], [row["peak_gib"] for row in rows]
        fitted = {"time_exponent": exponent(x, ms), "memory_exponent": exponent(x, peak)}
        common = {"axis": axis, "task": task, "model": rows[0]["model"], "variant": rows[0]["variant"]}
        series.append({**common, "x": x, "ms": ms, "peak_gib": peak, **fitted})
        print(f"{axis}, {task}: time ~ {axis}^{fitted['time_exponent']}, memory ~ ^{fitted['memory_exponent']}")
    write_result(out, {**result_header(merged), "series": series, "rows": merged["rows"], "failed": merged["failed"]})


# ---------------------------------------------------------------- command line


def parse_options() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    phases = ["machine", "time", "startup"]
    parser.add_argument("--device", default=device, choices=["cuda", "cpu"], help="default: the GPU if there is one")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="FIELD=PATTERN",
        help="measure a selection of who, model, task, variant",
    )
    parser.add_argument("--quick", action="store_true", help="skip variants that are known not to be the fastest")
    parser.add_argument("--warm", action="store_true", help="only fill the compiler caches in --caches; time nothing")
    parser.add_argument(
        "--growth", action="store_true", help="measure Vitreous against tokens, batch and width instead"
    )
    parser.add_argument("--phases", nargs="+", default=phases, help="some of: machine, time, startup (default: all)")
    parser.add_argument(
        "--gelu", default="erf", choices=["erf", "tanh"], help="GELU of all implementations (default: erf)"
    )
    parser.add_argument("--jobs", type=int, help="processes that prepare in parallel (default: 8 on a GPU, 1 on a CPU)")
    parser.add_argument("--repeats", type=int, help="timed repeats of each step")
    parser.add_argument(
        "--minutes", type=float, default=600, help="start no measurement later than this (default: 600)"
    )
    parser.add_argument("--patience", type=float, default=400, help="seconds to wait for a process (default: 400)")
    parser.add_argument("--caches", type=Path, help="folder of compiler caches to keep (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="JSON file; single measurements go to the same name with .jsonl")
    return parser.parse_args()


def run_measurements(benchmark: PeerBenchmark, options: argparse.Namespace) -> None:
    everything = (
        growth_measurements(options.device) if options.growth else peer_measurements(options.device, options.quick)
    )
    selected = [replace(one, gelu=options.gelu) for one in select(everything, options.only)]
    with_peers = not options.growth and not options.warm
    if with_peers and "machine" in options.phases:
        benchmark.measure_machine()
    if "time" in options.phases:
        repeats = options.repeats or (7 if options.growth else None)
        benchmark.measure_steps(selected, repeats, compile_only=options.warm)
    if with_peers and "startup" in options.phases and options.device == "cuda":
        benchmark.measure_startup(startup_measurements(selected, options.quick))


def main() -> None:
    options = parse_options()
    out = options.out or RESULTS / f"{'growth' if options.growth else 'peers'}-{options.device}.json"
    log = MeasurementLog(out.with_suffix(".jsonl"))
    caches = options.caches or Path(tempfile.mkdtemp(prefix="peers-"))
    caches.mkdir(parents=True, exist_ok=True)
    jobs = options.jobs or (8 if options.device == "cuda" else 1)
    benchmark = PeerBenchmark(options.device, log, caches.absolute(), jobs, options.minutes, options.patience)
    try:
        run_measurements(benchmark, options)
    except KeyboardInterrupt:
        print("stopped; finished measurements are kept", flush=True)
    finally:
        if options.caches is None:
            shutil.rmtree(caches, ignore_errors=True)
    if not options.warm:
        (write_growth if options.growth else write_comparison)(log, out)


if __name__ == "__main__":
    main()
