"""Draw docs/speed.png, docs/roofline.png and docs/growth.png from peers.py results: `python benchmarks/figures.py`"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import RESULTS, argument_parser
from peer_summary import NAMES, TASKS, Row, belongs_to, fastest
from vitreous.utils.atomic import atomic_file
from vitreous.utils.figures import new_figure, render_figure

DOCS = Path(__file__).parents[1] / "docs"
COLOURS = {"ours": "#0072b2", "timm": "#d55e00", "huggingface": "#009e73", "torchvision": "#cc79a7"}
LIGHT = "#56b4e9"  # ours in fp8
MARKS = {"train": "o", "infer": "s", "fp8": "D", "latency": "^"}
UNITS = {"ms": "ms per step", "peak_gib": "peak GiB"}


def best_row(result: dict[str, Any], model: str, task: str, who: str) -> Row | None:
    rows = [row for row in result["rows"] if (row["model"], row["who"]) == (model, who) and belongs_to(row, task)]
    return fastest(rows)


# ---------------------------------------------------------------- speed.png


def draw_speed(result: dict[str, Any]) -> Any:
    """Draw images/s of the best variant of each implementation for each model, then latency and memory."""
    models = list(dict.fromkeys(cell["model"] for cell in result["cells"]))
    have = {(cell["model"], cell["task"]) for cell in result["cells"]}
    figure = new_figure(11.0, 3.1 * len(models))
    axes = figure.subplots(len(models), 3, squeeze=False)
    for line, model in zip(axes, models, strict=True):
        draw_throughput(line[0], result, model, "train")
        draw_throughput(line[1], result, model, "infer")
        if (model, "latency") in have:
            draw_latency(line[2], result, model)
        else:
            draw_memory(line[2], result, models)
    return figure


def draw_bars(axis: Any, names: Sequence[str], values: Sequence[float], colours: Sequence[str], form: str) -> None:
    drawn = axis.bar(range(len(values)), values, color=colours, width=0.7)
    axis.bar_label(drawn, [format(value, form) for value in values], fontsize=8, padding=2)
    axis.set_xticks(range(len(names)), names, fontsize=8 if len(names) < 5 else 7)
    axis.margins(y=0.14)
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)


def draw_throughput(axis: Any, result: dict[str, Any], model: str, task: str) -> None:
    rows = [(NAMES[who].replace(" ", "\n"), COLOURS[who], best_row(result, model, task, who)) for who in NAMES]
    if task == "infer":
        rows.insert(0, ("Vitreous\nfp8", LIGHT, best_row(result, model, "fp8", "ours")))
    shown = [(name, colour, row["images_per_second"]) for name, colour, row in rows if row is not None]
    draw_bars(axis, [n for n, _, _ in shown], [v for _, _, v in shown], [c for _, c, _ in shown], ",.0f")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(title=f"{model} {TASKS[task]}", ylabel="images/s")


def draw_latency(axis: Any, result: dict[str, Any], model: str) -> None:
    rows = [(who, best_row(result, model, "latency", who)) for who in NAMES]
    shown = [(NAMES[who].replace(" ", "\n"), COLOURS[who], row["ms"]) for who, row in rows if row is not None]
    draw_bars(axis, [n for n, _, _ in shown], [v for _, _, v in shown], [c for _, c, _ in shown], ".2f")
    axis.set(title=f"{model}, one image (lower is better)", ylabel="ms")


def draw_memory(axis: Any, result: dict[str, Any], models: Sequence[str]) -> None:
    """Draw the least peak memory of each implementation in training."""
    there = {who: name for who, name in NAMES.items() if any(row["who"] == who for row in result["rows"])}
    width = 0.8 / len(there)
    for place, (who, name) in enumerate(there.items()):
        heights = []
        for model in models:
            rows = [r for r in result["rows"] if (r["who"], r["model"], r["task"]) == (who, model, "train")]
            heights.append(min((row["peak_gib"] for row in rows), default=0.0))
        at = [x + width * (place - (len(there) - 1) / 2) for x in range(len(models))]
        drawn = axis.bar(at, heights, width=0.9 * width, color=COLOURS[who], label=name)
        axis.bar_label(drawn, [f"{height:.1f}" if height else "" for height in heights], fontsize=7, padding=2)
    axis.set_xticks(range(len(models)), models)
    axis.set(title="memory in training (lower is better)", ylabel="peak GiB")
    axis.margins(y=0.14)
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=7)


# ---------------------------------------------------------------- roofline.png


def draw_roofline(result: dict[str, Any]) -> Any:
    """Draw the machine's roofline with every cell, and each cell's time divided by its lower bound."""
    shown = [cell for cell in result["cells"] if "flops" in cell]
    figure = new_figure(11.0, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    draw_roof(left, result["machine"], shown)
    draw_lower_bounds(right, shown)
    return figure


def draw_roof(axis: Any, machine: Row, shown: Sequence[Row]) -> None:
    intensities = [cell["flops"] / cell["bytes"] for cell in shown]
    low, high = min([50.0, *intensities]) / 2, max(intensities) * 2
    used = {name: peak for name, peak in machine["matmul_flops"].items() if any(c["precision"] == name for c in shown)}
    for name, peak in used.items():
        ridge = peak / machine["copy_bytes"]
        heights = [min(peak, x * machine["copy_bytes"]) / 1e12 for x in (low, ridge, high)]
        axis.plot([low, ridge, high], heights, color="black", linewidth=1.2, linestyle="--" if name == "fp8" else "-")
        place = (1.3 * max(used.values()) / machine["copy_bytes"], peak / 1e12)
        text = f"{name}: {peak / 1e12:,.0f} TFLOP/s"
        axis.annotate(text, place, (0, 3), textcoords="offset points", fontsize=8)
    bandwidth = f"{machine['copy_bytes'] / 1e12:.2f} TB/s"
    start = (low * 1.1, low * 1.1 * machine["copy_bytes"] / 1e12)
    axis.annotate(bandwidth, start, (4, -8), textcoords="offset points", fontsize=8, va="top")
    for cell, x in zip(shown, intensities, strict=True):
        for who, row in (("best", cell["best"]), ("ours", cell["ours"])):
            if row is None or (cell["task"] == "fp8" and who == "best"):
                continue
            colour = COLOURS[row["who"]]
            face = colour if who == "ours" else "white"
            height = cell["flops"] / row["ms"] / 1e9
            axis.plot(x, height, MARKS[cell["task"]], color=colour, markerfacecolor=face, markersize=7, zorder=3)
            if who == "ours":
                axis.annotate(cell["model"][0], (x, height), (6, 3), textcoords="offset points", fontsize=8)
    axis.set(xscale="log", yscale="log", xlim=(low, high))
    axis.set(xlabel="FLOPs per byte of memory traffic", ylabel="model TFLOP/s", title="Roofline")
    axis.grid(alpha=0.3, which="both")
    draw_legend(axis, shown)


def draw_legend(axis: Any, shown: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D

    def line(mark: str, colour: str, name: str, face: str) -> Any:
        return Line2D([], [], marker=mark, color=colour, markerfacecolor=face, linestyle="none", label=name)

    tasks = dict.fromkeys(cell["task"] for cell in shown)
    lines = [line(MARKS[task], "grey", TASKS[task], "grey") for task in tasks]
    who = dict.fromkeys(cell["best"]["who"] for cell in shown if cell["best"])
    lines += [line("o", COLOURS["ours"], "Vitreous", COLOURS["ours"])]
    lines += [line("o", COLOURS[one], f"{NAMES[one]}, best peer", "white") for one in who]
    axis.legend(handles=lines, frameon=False, fontsize=8, loc="lower right")


def draw_lower_bounds(axis: Any, shown: Sequence[Row]) -> None:
    """Draw the time of each cell as a multiple of its lower bound (compute or memory bandwidth, the higher one)."""
    names, text = [], {"textcoords": "offset points", "fontsize": 8, "va": "center"}
    for place, cell in enumerate(reversed(shown)):
        least = max(cell["floor_flops_ms"], cell["floor_bytes_ms"])
        names.append(f"{cell['model']} {TASKS[cell['task']]}\n{least:.3g} ms")
        for offset, row in ((0.19, cell["ours"]), (-0.19, cell["best"])):
            if row is None:
                continue
            times = row["ms"] / least
            axis.barh(place + offset, times - 1, left=1, height=0.36, color=COLOURS[row["who"]])
            axis.annotate(f"{times:.2f}", (times, place + offset), (3, 0), **text)
    axis.axvline(1, color="black", linewidth=1.2)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(
        xlabel="multiple of the lower bound (Vitreous above, best peer below)", title="Time / lower bound", xscale="log"
    )
    axis.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axis.minorticks_off()
    most = max(
        row["ms"] / max(c["floor_flops_ms"], c["floor_bytes_ms"])
        for c in shown
        for row in (c["ours"], c["best"])
        if row
    )
    axis.set_xlim(0.95, 1.6 * most)
    axis.grid(alpha=0.3, axis="x")
    axis.set_axisbelow(True)


# ---------------------------------------------------------------- growth.png


def draw_growth(result: dict[str, Any]) -> Any:
    """Draw time and memory against tokens, batch and width, with the fitted exponents."""
    names = list(dict.fromkeys(series["axis"] for series in result["series"]))
    figure = new_figure(3.6 * len(names), 5.6)
    axes = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        shown = [series for series in result["series"] if series["axis"] == name]
        for axis, (value, unit) in zip(axes[:, column], UNITS.items(), strict=True):
            draw_series(axis, shown, value)
            axis.set(xlabel=name, ylabel="" if column else unit)
    return figure


def draw_series(axis: Any, shown: Sequence[Row], value: str) -> None:
    for series in shown:
        power = series["time_exponent" if value == "ms" else "memory_exponent"]
        label = TASKS[series["task"]] + ("" if power is None else f": {series['axis']}$^{{{power:.2f}}}$")
        colour = COLOURS["ours"] if series["task"] == "train" else LIGHT
        axis.plot(series["x"], series[value], marker=MARKS[series["task"]], color=colour, label=label)
    places = sorted({x for series in shown for x in series["x"]})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(places, [f"{x:,.0f}" for x in places], fontsize=7)
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--peers", type=Path, default=RESULTS / "peers-cuda.json", help="result of peers.py")
    parser.add_argument("--growth", type=Path, default=RESULTS / "growth-cuda.json", help="result of peers.py --growth")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for the images (default: docs/)")
    options = parser.parse_args()
    pictures: list[tuple[Path, str, Callable[[dict[str, Any]], Any]]] = [
        (options.peers, "speed", draw_speed),
        (options.peers, "roofline", draw_roofline),
        (options.growth, "growth", draw_growth),
    ]
    for source, name, draw in pictures:
        if not source.exists():
            print(f"skipped {name}.png: {source} does not exist")
            continue
        path = options.out / f"{name}.png"
        with atomic_file(path) as temporary:
            temporary.write_bytes(render_figure(draw(json.loads(source.read_text())), "png"))
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
