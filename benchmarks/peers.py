"""Vitreous beside timm, Hugging Face and torchvision: images a second, memory, latency, start-up, and the floors.

    PYTHONPATH=src python3 benchmarks/peers.py --quick        # the GPU if there is one, else the CPU
    python benchmarks/peers.py --only who=ours,timm model=B/16 task=train "variant=*cudnn*"
    python benchmarks/peers.py --growth                       # ours against tokens, batch and width

Every implementation lives in a process of its own. They import, build, compile and take a first step beside each other;
what is timed, is timed alone. The peers get what a user can give them: torch.compile, cuDNN's attention, bf16 autocast
or everything in bf16, channels-last images, CUDA graphs for one image. Each measurement is appended to a file as soon
as it is there, and the last of each counts, so that a run that was stopped can be completed by another. What is
measured in another way (--gelu) belongs to another file (--out).

Images are synthetic, normalised, on the device. Inference: weights and images in bf16 on a GPU, fp32 on a CPU. A
training step: forward, cross-entropy, backward, fused AdamW. Peak memory is that of tensors while steps are timed;
where steps are recorded as CUDA graphs, while they were recorded too.
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
from contestants import PEERS, Cell
from harness import RESULTS, environment, write
from verdict import NAMES, TASKS, Row, aims, cells, merged
from workers import Benchmark, Lines

BATCH = {"cuda": {"B/16": 256, "L/16": 128}, "cpu": {"Ti/16": 8, "B/16": 8}}


# ---------------------------------------------------------------- what is measured


def words(*groups: Iterable[str]) -> list[str]:
    """Every combination, a word of each group; empty words are left out."""
    return [" ".join(filter(None, chosen)) for chosen in product(*groups)]


def our_variants(task: str, device: str) -> list[str]:
    if device == "cpu":
        return ["fp32"] if task == "infer" else ["eager", "compiled"]
    inference = ["bf16", "fp8"]
    return {"infer": [*inference, "bf16 uint8", "fp8 uint8"], "train": ["compiled"], "latency": inference}[task]


def peer_variants(who: str, model: str, task: str, device: str, quick: bool) -> list[str]:
    if device == "cpu":
        return ["eager", "compiled"]
    if task == "latency":
        return words(["reduce-overhead"], ["cudnn"] if quick and who != "timm" else ["", "cudnn"])
    types = ["autocast", "bf16"] if task == "train" else [""]
    if not quick:
        extra = words(["compiled cudnn"], types, ["channels-last"])
        return words(["compiled", "eager"], ["cudnn", ""], types) + extra
    if who == "timm":  # the fastest of the three when compiled
        return words(["compiled cudnn", "compiled", "eager cudnn"], types)
    if model == "L/16":
        return words(["eager cudnn"], types[-1:])
    return words(["compiled cudnn", "eager cudnn"], types)


def plan(device: str, quick: bool) -> list[Cell]:
    found = []
    for model, batch in BATCH[device].items():
        for task in ("train", "infer", "latency"):
            if task == "latency" and (device, model) != ("cuda", "B/16"):
                continue
            count = 1 if task == "latency" else batch
            found += [Cell("ours", model, task, variant, count) for variant in our_variants(task, device)]
            for who in PEERS:
                variants = peer_variants(who, model, task, device, quick)
                found += [Cell(who, model, task, variant, count) for variant in variants]
    return found


def growth_plan(device: str) -> list[Cell]:
    """Ours, with one thing growing at a time: patches by the image's size, images, width in heads of 64."""
    cuda = device == "cuda"
    model = "B/16" if cuda else "Ti/16"
    variants = {"infer": "bf16" if cuda else "fp32", "train": "compiled" if cuda else "eager"}
    grids = [(8, 8), (8, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)][: None if cuda else 5]
    found = []
    for task, variant in variants.items():
        for rows, cols in grids:
            found.append(Cell("ours", model, task, variant, 32 if cuda else 2, 16 * rows, 16 * cols, None, "tokens"))
        for power in range(10 if cuda else 6):
            found.append(Cell("ours", model, task, variant, 2**power, axis="batch"))
        for width in (192, 384, 768, 1152, 1536) if cuda else (64, 128, 192, 384, 768):
            found.append(Cell("ours", model, task, variant, 128 if cuda else 2, width=width, axis="width"))
    return found


def chosen(found: Iterable[Cell], only: Iterable[str]) -> list[Cell]:
    """Those that match every FIELD=PATTERN[,PATTERN]."""
    wanted = [text.split("=", 1) for text in only]
    return [
        cell
        for cell in found
        if all(any(fnmatchcase(str(getattr(cell, k)), p) for p in patterns.split(",")) for k, patterns in wanted)
    ]


# ---------------------------------------------------------------- what it comes to


def finish(lines: Lines, out: Path) -> None:
    found = merged(lines.read())
    costs = {name: vitreous.cost(name) for name in dict.fromkeys(row["model"] for row in found["rows"])}
    found["cells"] = cells(found, {n: {"flops": c.flops.total, "parameters": c.parameters} for n, c in costs.items()})
    write(out, {**described(found), **found})
    show(found)


def described(found: dict[str, Any]) -> dict[str, Any]:
    made = environment()
    made["versions"] |= {NAMES[who]: version for who, version in found.pop("environment").items() if who in NAMES}
    return made


def show(found: dict[str, Any]) -> None:
    print()
    for cell in found["cells"]:
        ours, best = cell["ours"], cell["best"]
        parts = [f"{cell['model']} {TASKS[cell['task']]}, batch {cell['batch']}:"]
        for row in filter(None, (ours, best)):
            parts.append(
                f"{NAMES[row['who']]} {row['images_per_second']:,.1f} images/s, {row['ms']:.2f} ms ({row['variant']});"
            )
        if "ratio" in cell:
            parts.append(f"{cell['ratio']:.2f} x;")
        if "memory_ratio" in cell:
            parts.append(f"memory {cell['memory_ratio']:.2f} x;")
        if "flops" in cell:
            parts.append(
                f"floors {cell['floor_flops_ms']:.2f} ms (operations), {cell['floor_bytes_ms']:.2f} ms (bytes)"
            )
        print(" ".join(parts))
    print()
    for name, measured, aim, reached in aims(found):
        print(f"{'reached ' if reached else 'missed  '} {name}: {measured}, aim {aim}")


def exponent(x: list[float], y: list[float]) -> float | None:
    """p of y ~ x^p: least squares on logarithms over the upper half, where constants have faded."""
    points = sorted(zip(x, y, strict=True))[len(x) // 2 :]
    if len(points) < 2:
        return None
    logs = [(math.log(a), math.log(b)) for a, b in points]
    middle = [sum(values) / len(logs) for values in zip(*logs, strict=True)]
    over = sum((a - middle[0]) * (b - middle[1]) for a, b in logs)
    return round(over / sum((a - middle[0]) ** 2 for a, _ in logs), 3)


def along(row: Row) -> float:
    tokens = row["height"] // 16 * (row["width_px"] // 16)
    return float({"tokens": tokens, "batch": row["batch"], "width": row["width"]}[row["axis"]])


def finish_growth(lines: Lines, out: Path) -> None:
    found = merged(lines.read())
    series: list[Row] = []
    for axis, task in product(("tokens", "batch", "width"), ("infer", "train")):
        rows = sorted((r for r in found["rows"] if (r["axis"], r["task"]) == (axis, task)), key=along)
        if not rows:
            continue
        x, ms, peak = ([value(row) for row in rows] for value in (along, lambda r: r["ms"], lambda r: r["peak_gib"]))
        fitted = {"time_exponent": exponent(x, ms), "memory_exponent": exponent(x, peak)}
        common = {"axis": axis, "task": task, "model": rows[0]["model"], "variant": rows[0]["variant"]}
        series.append({**common, "x": x, "ms": ms, "peak_gib": peak, **fitted})
        print(f"{axis}, {task}: time ~ {axis}^{fitted['time_exponent']}, memory ~ ^{fitted['memory_exponent']}")
    write(out, {**described(found), "series": series, "rows": found["rows"], "failed": found["failed"]})


def started(wanted: list[Cell], quick: bool) -> list[Cell]:
    """Of B/16 how each is begun for throughput: ours as it is, the peers compiled."""
    usual = ("bf16", "fp8", "compiled", "compiled autocast")
    ones = [cell for cell in wanted if cell.model == "B/16" and cell.task != "latency" and cell.variant in usual]
    return [cell for cell in ones if cell.who == "ours" or not quick]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--only", nargs="+", default=[], metavar="FIELD=PATTERN", help="of who, model, task, variant")
    parser.add_argument("--quick", action="store_true", help="leave out what is known not to be the best")
    parser.add_argument("--warm", action="store_true", help="compile into --caches, and time nothing")
    parser.add_argument("--growth", action="store_true", help="ours against tokens, batch and width")
    parser.add_argument("--phases", nargs="+", default=["machine", "time", "startup"], help="machine, time, startup")
    parser.add_argument(
        "--gelu", default="erf", choices=["erf", "tanh"], help="of all of them: erf, as the peers have it"
    )
    parser.add_argument("--jobs", type=int, help="processes that prepare beside each other: 8 on a GPU, 1 on a CPU")
    parser.add_argument("--repeats", type=int, help="of each step that is timed")
    parser.add_argument("--minutes", type=float, default=600, help="begin nothing after so many")
    parser.add_argument("--patience", type=float, default=400, help="seconds to wait for an answer")
    parser.add_argument("--caches", type=Path, help="of compilers, to be kept; if not given, they go away")
    parser.add_argument("--out", type=Path, help="the JSON file; its lines go to the same name with .jsonl")
    options = parser.parse_args()
    out = options.out or RESULTS / f"{'growth' if options.growth else 'peers'}-{options.device}.json"
    lines = Lines(out.with_suffix(".jsonl"))
    caches = options.caches or Path(tempfile.mkdtemp(prefix="peers-"))
    caches.mkdir(parents=True, exist_ok=True)
    jobs = options.jobs or (8 if options.device == "cuda" else 1)
    benchmark = Benchmark(options.device, lines, caches.absolute(), jobs, options.minutes, options.patience)
    wanted = growth_plan(options.device) if options.growth else plan(options.device, options.quick)
    try:
        wanted = [replace(cell, gelu=options.gelu) for cell in chosen(wanted, options.only)]
        measure(benchmark, wanted, options)
    except KeyboardInterrupt:
        print("stopped; what was measured is kept", flush=True)
    finally:
        if options.caches is None:
            shutil.rmtree(caches, ignore_errors=True)
    if not options.warm:
        (finish_growth if options.growth else finish)(lines, out)


def measure(benchmark: Benchmark, wanted: list[Cell], options: argparse.Namespace) -> None:
    peers = not options.growth and not options.warm
    if peers and "machine" in options.phases:
        benchmark.machine()
    if "time" in options.phases:
        benchmark.rounds(wanted, options.repeats or (7 if options.growth else None), options.warm)
    if peers and "startup" in options.phases and options.device == "cuda":
        benchmark.startup(started(wanted, options.quick))


if __name__ == "__main__":
    main()
