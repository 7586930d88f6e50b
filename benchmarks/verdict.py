"""What measurements of peers.py come to: ours against the best of the others in each cell, and against the floors.

A cell is a model and a task. The best peer is the fastest of all variants of all peers; for memory, the one that takes
least. No torch here, so that tables can be made anywhere.
"""

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

TASKS = {"train": "training", "infer": "inference", "fp8": "inference in fp8", "latency": "one image"}
NAMES = {"ours": "Vitreous", "timm": "timm", "huggingface": "Hugging Face", "torchvision": "torchvision"}
# How many times the best peer's images a second, and how much of its memory, time and seconds, is the aim on a GPU.
FASTER = {
    ("train", "B/16"): 1.25,
    ("train", "L/16"): 1.20,
    ("infer", "B/16"): 1.20,
    ("infer", "L/16"): 1.15,
    ("fp8", "B/16"): 1.60,
    ("fp8", "L/16"): 1.60,
}
MEMORY, LATENCY = 0.9, 0.9
START_UP = {"train": 20.0, "infer": 8.0}


def merged(lines: Iterable[Row]) -> dict[str, Any]:
    """All that was written, line by line: of two measurements of the same thing the later one."""
    found: dict[str, Any] = {"environment": {}, "machine": {}, "rows": [], "startup": [], "failed": []}
    kept: dict[tuple[Any, ...], Row] = {}
    for line in lines:
        kind, row = line["kind"], {key: value for key, value in line.items() if key != "kind"}
        if kind in ("environment", "machine"):
            found[kind] |= row
        else:
            names = ("who", "model", "task", "variant", "batch", "height", "width_px", "width", "axis")
            key = tuple(row.get(name) for name in names)
            kept.pop(("failed", *key), None)
            kept[kind, *key] = row
    for (kind, *_), row in kept.items():
        found[{"time": "rows", "startup": "startup", "failed": "failed"}[kind]].append(row)
    return found


def fewest_bytes(task: str, precision: str, parameters: int, pixels: int, outputs: int) -> int:
    """What has to pass through memory once, whatever is fused: for inference weights, images and logits in the
    precision (images and logits in bf16 for fp8); for training the images, and weights and both moments of AdamW in
    fp32, each read and written. Activations are not counted, nor gradients."""
    if task == "train":
        return 4 * pixels + 24 * parameters
    weight, rest = {"fp32": (4, 4), "bf16": (2, 2), "fp8": (1, 2)}[precision]
    return weight * parameters + rest * (pixels + outputs)


def is_ours(row: Row) -> bool:
    return bool(row["who"] == "ours")


def is_of(row: Row, cell: str) -> bool:
    """Whether a row counts in a cell. fp8 is held against the peers' bf16, since they have none."""
    if cell == "fp8":
        return bool(row["task"] == "infer") and (not is_ours(row) or row["variant"] == "fp8")
    extra = is_ours(row) and ("uint8" in row["variant"] or (row["variant"] == "fp8" and cell != "fp8"))
    return bool(row["task"] == cell) and not extra


def fastest(rows: Sequence[Row]) -> Row | None:
    return max(rows, key=lambda row: row["images_per_second"], default=None)


def cells(found: dict[str, Any], costs: dict[str, dict[str, int]]) -> list[Row]:
    """Each cell with ours, the best peer, their ratio, the aim and whether it is reached, and the floors in ms.

    `costs`: of each model its FLOPs of one forward pass of one image, and its parameters.
    """
    machine, made = found["machine"], []
    cuda = "bf16" in machine.get("matmul_flops", {})
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        for task in TASKS:
            rows = [row for row in found["rows"] if row["model"] == model and is_of(row, task)]
            mine = fastest([row for row in rows if is_ours(row)])
            peers = [row for row in rows if not is_ours(row)]
            best = fastest(peers)
            if (mine or best) is None or (task == "fp8" and mine is None):
                continue
            batch = (mine or best or {})["batch"]
            precision = "fp8" if task == "fp8" else "bf16" if cuda else "fp32"
            cell = {"model": model, "task": task, "batch": batch, "ours": _short(mine), "best": _short(best)}
            if mine and best:
                cell["ratio"] = round(mine["images_per_second"] / best["images_per_second"], 3)
            if mine and best and cuda:  # a process takes memory for much else than tensors
                least = min(row["peak_gib"] for row in peers)
                cell |= {"least_peak_gib": least, "memory_ratio": round(mine["peak_gib"] / least, 3)}
            made.append({**cell, **_floors(task, precision, batch, costs.get(model), machine)})
    return made


def _short(row: Row | None) -> Row | None:
    keys = ("who", "variant", "images_per_second", "ms", "ms_10", "ms_90", "peak_gib", "reserved_gib", "path")
    return None if row is None else {key: row[key] for key in keys if row.get(key) is not None}


def _floors(task: str, precision: str, batch: int, cost: dict[str, int] | None, machine: Row) -> Row:
    if cost is None or not machine:
        return {}
    kind = "train" if task == "train" else "infer"
    flops = batch * cost["flops"] * (3 if kind == "train" else 1)
    count = fewest_bytes(kind, precision, cost["parameters"], batch * 3 * 224 * 224, batch * 1000)
    return {
        "precision": precision,
        "flops": flops,
        "bytes": count,
        "floor_flops_ms": round(1e3 * flops / machine["matmul_flops"][precision], 4),
        "floor_bytes_ms": round(1e3 * count / machine["copy_bytes"], 4),
    }


def aims(found: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """On a GPU, each aim: what it is about, what was measured, what was aimed at, and whether it is reached."""
    listed: list[tuple[str, str, str, bool]] = []
    if "bf16" not in found["machine"].get("matmul_flops", {}):
        return listed
    for cell in found["cells"]:
        model, task = cell["model"], cell["task"]
        name = f"{model} {TASKS[task]}"
        if "ratio" not in cell:
            continue
        if task == "latency":
            ratio = 1 / cell["ratio"]
            listed.append((f"{name}, time", f"{ratio:.2f} x", f"<= {LATENCY:.2f} x", ratio <= LATENCY))
        elif (task, model) in FASTER:
            aim = FASTER[task, model]
            listed.append((f"{name}, images/s", f"{cell['ratio']:.2f} x", f">= {aim:.2f} x", cell["ratio"] >= aim))
        if task == "train":
            ratio = cell["memory_ratio"]
            listed.append((f"{name}, memory", f"{ratio:.2f} x", f"<= {MEMORY:.2f} x", ratio <= MEMORY))
    for row in found["startup"]:
        if is_ours(row) and row["model"] == "B/16":
            most, taken = START_UP[row["task"]], row["first_seconds"]
            name = f"B/16 {TASKS[row['task']]} ({row['variant']}), start-up"
            listed.append((name, f"{taken:.1f} s", f"<= {most:.0f} s", taken <= most))
    return listed
