"""Tables in Markdown of what was measured, for the documentation: `docs/refresh.py` puts them where they belong."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from verdict import NAMES, TASKS, Row, aims, fastest, is_of, is_ours

RESULTS = Path(__file__).parent / "results"


def generated(name: str) -> str:
    """The table of that name; of what was not measured yet, a word."""
    file, make = TABLES[name]
    path = RESULTS / file
    return make(json.loads(path.read_text())) if path.exists() else f"*There is no `{path.name}` yet.*"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed(found: dict[str, Any]) -> str:
    """What everybody reaches at best in each cell, ours first, and how far ours is ahead; with where it comes from."""
    shown = [cell for cell in found["cells"] if cell["ours"] and cell["best"]]
    heads = ["", *(f"{cell['model']} {TASKS[cell['task']]}" for cell in shown)]
    lines = []
    for who, name in NAMES.items():
        reached = [_reached(found, cell, who) for cell in shown]
        if any(reached):
            lines.append([f"**{name}**" if who == "ours" else name, *reached])
    lines.append(["ours to the best of them", *map(_ahead, shown)])
    return f"{markdown(heads, lines)}\n\n{source(found)}"


def source(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if name != "python")
    batches = dict.fromkeys(f"{cell['batch']:,} for {cell['model']}" for cell in found["cells"] if cell["batch"] > 1)
    return f"{found['hardware']}, {found['date']}; {versions}; batches of {', '.join(batches)}."


def _reached(found: dict[str, Any], cell: Row, who: str) -> str:
    rows = [row for row in found["rows"] if row["model"] == cell["model"] and row["who"] == who]
    best = fastest([row for row in rows if is_of(row, cell["task"])])
    if best is None or (cell["task"] == "fp8" and who != "ours"):
        return ""
    text = f"{best['ms']:.2f} ms" if cell["task"] == "latency" else number(best["images_per_second"])
    return f"**{text}**" if who == "ours" else text


def _ahead(cell: Row) -> str:
    return f"{cell['ratio']:.2f} ×" if cell["task"] != "latency" else f"{1 / cell['ratio']:.2f} × the time"


def memory(found: dict[str, Any]) -> str:
    """Of training: the least that anybody takes at its peak."""
    heads = ["GiB at the peak of a training step", *NAMES.values(), "ours to the least of them"]
    rows = []
    for cell in found["cells"]:
        if cell["task"] == "train" and "memory_ratio" in cell:
            cells = [_least(found, cell["model"], who) for who in NAMES]
            rows.append([f"{cell['model']}, batch {cell['batch']}", *cells, f"{cell['memory_ratio']:.2f} ×"])
    return markdown(heads, rows)


def _least(found: dict[str, Any], model: str, who: str) -> str:
    rows = [row for row in found["rows"] if (row["model"], row["who"], row["task"]) == (model, who, "train")]
    rows = [fastest(rows)] if who == "ours" else rows  # ours is the one that is as fast as it says
    peaks = [row["peak_gib"] for row in rows if row]
    text = f"{min(peaks):.1f}" if peaks else ""
    return f"**{text}**" if who == "ours" and text else text


def startup(found: dict[str, Any]) -> str:
    """From the call to the end of the first step, with empty caches."""
    rows = [
        [f"{NAMES[row['who']]}, {TASKS[row['task']]} ({row['variant']})", f"{row['first_seconds']:.1f}"]
        for row in sorted(found["startup"], key=lambda row: (row["task"], not is_ours(row)))
    ]
    return markdown(["B/16, seconds to the end of the first step", "s"], rows)


def floors(found: dict[str, Any]) -> str:
    """Each cell beside what operations and bytes alone would take."""
    heads = ["ms", "Vitreous", "the best peer", "floor by operations", "floor by bytes", "ours over the higher floor"]
    rows = []
    for cell in found["cells"]:
        if "flops" not in cell or cell["ours"] is None:
            continue
        least = max(cell["floor_flops_ms"], cell["floor_bytes_ms"])
        times = [cell["ours"]["ms"], cell["best"]["ms"] if cell["best"] else None]
        times += [cell["floor_flops_ms"], cell["floor_bytes_ms"]]
        shown = ["" if value is None else f"{value:.3g}" for value in times]
        rows.append([f"{cell['model']} {TASKS[cell['task']]}", *shown, f"{cell['ours']['ms'] / least:.2f} ×"])
    peaks = ", ".join(f"{value / 1e12:,.0f} in {name}" for name, value in found["machine"]["matmul_flops"].items())
    told = f"Measured peaks: {peaks} TFLOP/s; {found['machine']['copy_bytes'] / 1e12:.2f} TB/s of copying."
    return f"{markdown(heads, rows)}\n\n{told}"


def reached(found: dict[str, Any]) -> str:
    """What was aimed at, and whether it was reached."""
    rows = [[name, measured, aim, "yes" if met else "no"] for name, measured, aim, met in aims(found)]
    return markdown(["to the best peer", "measured", "aim", "reached"], rows)


def growth(found: dict[str, Any]) -> str:
    """The exponents of the power laws."""
    heads = ["grows with the power of", "tokens", "batch", "width"]
    rows = []
    for task in ("infer", "train"):
        for kind in ("time", "memory"):
            series = {one["axis"]: one[f"{kind}_exponent"] for one in found["series"] if one["task"] == task}
            powers = [series.get(axis) for axis in heads[1:]]
            rows.append([f"{TASKS[task]}, {kind}", *("" if power is None else f"{power:.2f}" for power in powers)])
    return markdown(heads, rows)


def on_cpu(found: dict[str, Any]) -> str:
    """Images a second: a line for each candidate, a column for each model and batch; then ours to the best of them."""
    rows = found["rows"]
    cells = list(dict.fromkeys((row["model"], row["batch"]) for row in rows))
    names = list(dict.fromkeys(row["who"] for row in rows))
    rates = {(row["who"], row["model"], row["batch"]): number(row["images_per_second"]) for row in rows}
    lines = [[f"**{NAMES.get(who, who)}**" if who == "ours" else who] for who in names]
    for line, who in zip(lines, names, strict=True):
        line += [rates[who, *cell] for cell in cells]
    ratios = {(row["model"], row["batch"]): row["ratio"] for row in rows if row["who"] == "ours"}
    lines.append(["ours to the best of them", *(f"{ratios[cell]:.2f} ×" for cell in cells)])
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    heads = ["images/s, fp32", *(f"{model}, batch {batch}" for model, batch in cells)]
    return f"{markdown(heads, lines)}\n\n{found['hardware']}, {found['date']}; {versions}."


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


TABLES = {
    "speed": ("peers-cuda.json", speed),
    "memory": ("peers-cuda.json", memory),
    "startup": ("peers-cuda.json", startup),
    "floors": ("peers-cuda.json", floors),
    "aims": ("peers-cuda.json", reached),
    "growth": ("growth-cuda.json", growth),
    "speed-cpu": ("peers-cpu.json", speed),
    "cpu": ("cpu.json", on_cpu),
}
