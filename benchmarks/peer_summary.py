"""Summarise the measurements of peers.py: Vitreous against the best peer, and against the lower bounds of the hardware.

A cell is a model and a task, such as B/16 training. The best peer of a cell is the fastest of all variants of all
peers; for memory it is the variant that needs least. This file does not import torch, so that the tables of the
documentation can be made on any machine.
"""

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

TASKS = {"train": "training", "infer": "inference", "fp8": "inference in fp8", "latency": "one image"}
NAMES = {"ours": "Vitreous", "timm": "timm", "huggingface": "Hugging Face", "torchvision": "torchvision"}
# Targets on a GPU, relative to the best peer: at least this many times its images/s ...
SPEED_TARGETS = {
    ("train", "B/16"): 1.25,
    ("train", "L/16"): 1.20,
    ("infer", "B/16"): 1.20,
    ("infer", "L/16"): 1.15,
    ("fp8", "B/16"): 1.60,
    ("fp8", "L/16"): 1.60,
}
MEMORY_TARGET, LATENCY_TARGET = 0.9, 0.9  # ... and at most this share of its peak memory and latency.
STARTUP_TARGETS = {"train": 20.0, "infer": 8.0}  # seconds


def merge_measurements(lines: Iterable[Row]) -> dict[str, Any]:
    """Merge the lines of a measurement log. A later measurement replaces an earlier one of the same thing."""
    merged: dict[str, Any] = {"environment": {}, "machine": {}, "rows": [], "startup": [], "failed": []}
    latest: dict[tuple[Any, ...], Row] = {}
    for line in lines:
        kind, row = line["kind"], {key: value for key, value in line.items() if key != "kind"}
        if kind in ("environment", "machine"):
            merged[kind] |= row
        else:
            names = ("who", "model", "task", "variant", "batch", "height", "width_px", "width", "axis")
            key = tuple(row.get(name) for name in names)
            latest.pop(("failed", *key), None)
            latest[kind, *key] = row
    for (kind, *_), row in latest.items():
        merged[{"time": "rows", "startup": "startup", "failed": "failed"}[kind]].append(row)
    return merged


def least_memory_traffic(task: str, precision: str, parameters: int, pixels: int, outputs: int) -> int:
    """Return the bytes that must pass through memory once, however much is fused.

    Inference: weights, images and logits in the precision (for fp8: images and logits in bf16). Training: the images,
    and the fp32 weights and both AdamW moments, each read and written. Activations and gradients are not counted.
    """
    if task == "train":
        return 4 * pixels + 24 * parameters
    weight, rest = {"fp32": (4, 4), "bf16": (2, 2), "fp8": (1, 2)}[precision]
    return weight * parameters + rest * (pixels + outputs)


def is_ours(row: Row) -> bool:
    return bool(row["who"] == "ours")


def belongs_to(row: Row, task: str) -> bool:
    """Whether a row counts in the cells of a task. Our fp8 is compared with the peers' bf16, since they have no fp8."""
    if task == "fp8":
        return bool(row["task"] == "infer") and (not is_ours(row) or row["variant"] == "fp8")
    other_input = is_ours(row) and ("uint8" in row["variant"] or row["variant"] == "fp8")
    return bool(row["task"] == task) and not other_input


def fastest(rows: Sequence[Row]) -> Row | None:
    return max(rows, key=lambda row: row["images_per_second"], default=None)


def compare_cells(merged: dict[str, Any], costs: dict[str, dict[str, int]]) -> list[Row]:
    """Return each cell with our row, the best peer's row, their ratio, and the lower bounds of the time in ms.

    `costs` holds for each model the FLOPs of the forward pass of one image ("flops") and the "parameters".
    """
    machine, cells = merged["machine"], []
    cuda = "bf16" in machine.get("matmul_flops", {})
    for model in dict.fromkeys(row["model"] for row in merged["rows"]):
        for task in TASKS:
            rows = [row for row in merged["rows"] if row["model"] == model and belongs_to(row, task)]
            ours = fastest([row for row in rows if is_ours(row)])
            peers = [row for row in rows if not is_ours(row)]
            best = fastest(peers)
            if (ours or best) is None or (task == "fp8" and ours is None):
                continue
            batch = (ours or best or {})["batch"]
            precision = "fp8" if task == "fp8" else "bf16" if cuda else "fp32"
            cell = {"model": model, "task": task, "batch": batch, "ours": _shorten(ours), "best": _shorten(best)}
            if ours and best:
                cell["ratio"] = round(ours["images_per_second"] / best["images_per_second"], 3)
            if ours and best and cuda:  # not on a CPU, where the memory of a process holds more than tensors
                least = min(row["peak_gib"] for row in peers)
                cell |= {"least_peak_gib": least, "memory_ratio": round(ours["peak_gib"] / least, 3)}
            cells.append({**cell, **_lower_bounds(task, precision, batch, costs.get(model), machine)})
    return cells


def _shorten(row: Row | None) -> Row | None:
    keys = ("who", "variant", "images_per_second", "ms", "ms_10", "ms_90", "peak_gib", "reserved_gib", "path")
    return None if row is None else {key: row[key] for key in keys if row.get(key) is not None}


def _lower_bounds(task: str, precision: str, batch: int, cost: dict[str, int] | None, machine: Row) -> Row:
    if cost is None or not machine:
        return {}
    kind = "train" if task == "train" else "infer"
    flops = batch * cost["flops"] * (3 if kind == "train" else 1)
    traffic = least_memory_traffic(kind, precision, cost["parameters"], batch * 3 * 224 * 224, batch * 1000)
    return {
        "precision": precision,
        "flops": flops,
        "bytes": traffic,
        "floor_flops_ms": round(1e3 * flops / machine["matmul_flops"][precision], 4),
        "floor_bytes_ms": round(1e3 * traffic / machine["copy_bytes"], 4),
    }


def check_targets(summary: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Return (name, measured, target, whether it is met) for each target. There are none for a CPU."""
    checked: list[tuple[str, str, str, bool]] = []
    if "bf16" not in summary["machine"].get("matmul_flops", {}):
        return checked
    for cell in summary["cells"]:
        model, task = cell["model"], cell["task"]
        name = f"{model} {TASKS[task]}"
        if "ratio" not in cell:
            continue
        if task == "latency":
            ratio, target = 1 / cell["ratio"], LATENCY_TARGET
            checked.append((f"{name}, time", f"{ratio:.2f} x", f"<= {target:.2f} x", ratio <= target))
        elif (task, model) in SPEED_TARGETS:
            ratio, target = cell["ratio"], SPEED_TARGETS[task, model]
            checked.append((f"{name}, images/s", f"{ratio:.2f} x", f">= {target:.2f} x", ratio >= target))
        if task == "train":
            ratio, target = cell["memory_ratio"], MEMORY_TARGET
            checked.append((f"{name}, memory", f"{ratio:.2f} x", f"<= {target:.2f} x", ratio <= target))
    for row in summary["startup"]:
        if is_ours(row) and row["model"] == "B/16":
            target, seconds = STARTUP_TARGETS[row["task"]], row["first_seconds"]
            name = f"B/16 {TASKS[row['task']]} ({row['variant']}), start-up"
            checked.append((name, f"{seconds:.1f} s", f"<= {target:.0f} s", seconds <= target))
    return checked
