"""Markdown tables made from the result files. `docs/refresh.py` inserts them into README.md and docs/."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from peer_summary import NAMES, TASKS, Row, belongs_to, check_targets, fastest, is_ours

RESULTS = Path(__file__).parent / "results"


def generated(name: str) -> str:
    """Return the table of that name, or a note if its result file does not exist yet."""
    file, make = TABLES[name]
    path = RESULTS / file
    return make(json.loads(path.read_text())) if path.exists() else f"*There is no `{path.name}` yet.*"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. The first column is left-aligned, the others are right-aligned."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed_table(result: dict[str, Any]) -> str:
    """The best speed of each implementation, our ratio to the best peer, and how the numbers were made."""
    shown = [cell for cell in result["cells"] if cell["ours"] and cell["best"]]
    heads = ["", *(f"{cell['model']} {TASKS[cell['task']]}" for cell in shown)]
    lines = []
    for who, name in NAMES.items():
        speeds = [_best_speed(result, cell, who) for cell in shown]
        if any(speeds):
            lines.append([f"**{name}**" if who == "ours" else name, *speeds])
    lines.append(["Vitreous / best peer", *map(_ratio_to_best, shown)])
    return f"{markdown(heads, lines)}\n\n{_provenance(result)}"


def _provenance(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items() if name != "python")
    batches = dict.fromkeys(f"{cell['batch']:,} for {cell['model']}" for cell in result["cells"] if cell["batch"] > 1)
    return f"{result['hardware']}, {result['date']}; {versions}; batch size {', '.join(batches)}."


def _best_speed(result: dict[str, Any], cell: Row, who: str) -> str:
    rows = [row for row in result["rows"] if row["model"] == cell["model"] and row["who"] == who]
    best = fastest([row for row in rows if belongs_to(row, cell["task"])])
    if best is None or (cell["task"] == "fp8" and who != "ours"):
        return ""
    text = f"{best['ms']:.2f} ms" if cell["task"] == "latency" else _number(best["images_per_second"])
    return f"**{text}**" if who == "ours" else text


def _ratio_to_best(cell: Row) -> str:
    return f"{cell['ratio']:.2f} ×" if cell["task"] != "latency" else f"{1 / cell['ratio']:.2f} × the time"


def memory_table(result: dict[str, Any]) -> str:
    """Peak memory of a training step: our fastest variant, and the variant of each peer that needs least."""
    heads = ["peak memory of a training step (GiB)", *NAMES.values(), "Vitreous / best peer"]
    rows = []
    for cell in result["cells"]:
        if cell["task"] == "train" and "memory_ratio" in cell:
            peaks = [_least_memory(result, cell["model"], who) for who in NAMES]
            rows.append([f"{cell['model']}, batch {cell['batch']}", *peaks, f"{cell['memory_ratio']:.2f} ×"])
    return markdown(heads, rows)


def _least_memory(result: dict[str, Any], model: str, who: str) -> str:
    rows = [row for row in result["rows"] if (row["model"], row["who"], row["task"]) == (model, who, "train")]
    rows = [fastest(rows)] if who == "ours" else rows  # the variant whose speed the other table states
    peaks = [row["peak_gib"] for row in rows if row]
    text = f"{min(peaks):.1f}" if peaks else ""
    return f"**{text}**" if who == "ours" and text else text


def startup_table(result: dict[str, Any]) -> str:
    """Seconds from the call to the end of the first step, with empty caches."""
    rows = [
        [f"{NAMES[row['who']]}, {TASKS[row['task']]} ({row['variant']})", f"{row['first_seconds']:.1f}"]
        for row in sorted(result["startup"], key=lambda row: (row["task"], not is_ours(row)))
    ]
    return markdown(["B/16, seconds to the end of the first step", "s"], rows)


def lower_bounds_table(result: dict[str, Any]) -> str:
    """The time of each cell, compared with the least time that its FLOPs and its memory traffic need."""
    heads = ["ms", "Vitreous", "best peer", "compute bound", "memory bound", "Vitreous / higher bound"]
    rows = []
    for cell in result["cells"]:
        if "flops" not in cell or cell["ours"] is None:
            continue
        least = max(cell["floor_flops_ms"], cell["floor_bytes_ms"])
        times = [cell["ours"]["ms"], cell["best"]["ms"] if cell["best"] else None]
        times += [cell["floor_flops_ms"], cell["floor_bytes_ms"]]
        shown = ["" if value is None else f"{value:.3g}" for value in times]
        rows.append([f"{cell['model']} {TASKS[cell['task']]}", *shown, f"{cell['ours']['ms'] / least:.2f} ×"])
    machine = result["machine"]
    peaks = ", ".join(f"{value / 1e12:,.0f} TFLOP/s in {name}" for name, value in machine["matmul_flops"].items())
    return f"{markdown(heads, rows)}\n\nMeasured peaks: {peaks}; {machine['copy_bytes'] / 1e12:.2f} TB/s for copies."


def targets_table(result: dict[str, Any]) -> str:
    """The targets, and whether each is met."""
    rows = [[name, measured, target, "yes" if met else "no"] for name, measured, target, met in check_targets(result)]
    return markdown(["compared with the best peer", "measured", "target", "met"], rows)


def growth_table(result: dict[str, Any]) -> str:
    """The fitted exponents of time and memory."""
    heads = ["exponent of", "tokens", "batch", "width"]
    rows = []
    for task in ("infer", "train"):
        for kind in ("time", "memory"):
            series = {one["axis"]: one[f"{kind}_exponent"] for one in result["series"] if one["task"] == task}
            powers = [series.get(axis) for axis in heads[1:]]
            rows.append([f"{TASKS[task]}, {kind}", *("" if power is None else f"{power:.2f}" for power in powers)])
    return markdown(heads, rows)


def cpu_table(result: dict[str, Any]) -> str:
    """Images/s: a line for each implementation, a column for each model and batch size, and our ratio to the best."""
    rows = result["rows"]
    cells = list(dict.fromkeys((row["model"], row["batch"]) for row in rows))
    names = list(dict.fromkeys(row["who"] for row in rows))
    rates = {(row["who"], row["model"], row["batch"]): _number(row["images_per_second"]) for row in rows}
    lines = [[f"**{NAMES.get(who, who)}**" if who == "ours" else who] for who in names]
    for line, who in zip(lines, names, strict=True):
        line += [rates[who, *cell] for cell in cells]
    ratios = {(row["model"], row["batch"]): row["ratio"] for row in rows if row["who"] == "ours"}
    lines.append(["Vitreous / best peer", *(f"{ratios[cell]:.2f} ×" for cell in cells)])
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    heads = ["images/s, fp32", *(f"{model}, batch {batch}" for model, batch in cells)]
    return f"{markdown(heads, lines)}\n\n{result['hardware']}, {result['date']}; {versions}."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


TABLES = {
    "speed": ("peers-cuda.json", speed_table),
    "memory": ("peers-cuda.json", memory_table),
    "startup": ("peers-cuda.json", startup_table),
    "floors": ("peers-cuda.json", lower_bounds_table),
    "aims": ("peers-cuda.json", targets_table),
    "growth": ("growth-cuda.json", growth_table),
    "speed-cpu": ("peers-cpu.json", speed_table),
    "cpu": ("cpu.json", cpu_table),
}
