"""The picture of a comparison: a panel for each data set, a colour for each model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitreous.evaluation.figures import saved
from vitreous.evaluation.measures import Measure
from vitreous.experiments.compare import Comparison, Row
from vitreous.utils.figures import blank, label, legend, literal_text

ACROSS = 3  # panels side by side
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # told apart by everybody
MARKS = "osD^vPX"
APART = 0.09  # of the room for a measure, between two models
NAMES = 4  # of models, in a line of the legend


@literal_text
def draw_comparison(found: Comparison, folder: Path) -> list[Path]:
    """comparison.png and comparison.svg: each measure on each data set. Means are left to the table."""
    panels: dict[str, list[Row]] = {}
    for row in found.rows:
        if row.data:
            panels.setdefault(f"{row.group}: {row.data}" if row.group else row.data, []).append(row)
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    figure = blank(max(6.4, 4.4 * across), 3.2 * down + 0.3 * -(-len(found.models) // NAMES))
    axes = figure.subplots(down, across, sharey=True, squeeze=False).flatten()
    for axis, (name, rows) in zip(axes, panels.items(), strict=False):
        axis.set_title(label(name, 40))
        axis.set_xticks(range(len(rows)), [row.measure for row in rows])
        axis.set(ylim=(0, 102), xlim=(-0.5, len(rows) - 0.5), ylabel="accuracy (%)")
        axis.label_outer()
        axis.grid(alpha=0.3)
        lines = [_plot(axis, rows, model, len(found.models)) for model in range(len(found.models))]
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    legend(figure, lines, found.models, loc="outside lower center", ncols=NAMES, frameon=False)
    return saved(figure, folder, "comparison")


def _plot(axis: Any, rows: list[Row], model: int, models: int) -> Any:
    """Of one model: few-shot as a line along the shots, the rest as points, each with its spread."""
    values = [row.values[model] for row in rows]
    taken = [value for value in values if isinstance(value, Measure)]
    style = {"color": COLOURS[model % len(COLOURS)], "marker": MARKS[model % len(MARKS)], "markersize": 5}
    for method in dict.fromkeys(value.method for value in taken):
        at = [place for place, value in enumerate(taken) if value.method == method]
        x = [place + APART * (model - (models - 1) / 2) for place in at]
        y, spread = [100 * taken[i].mean for i in at], [100 * (taken[i].spread or 0) for i in at]
        drawn = axis.errorbar(x, y, spread, linestyle="-" if method == "fewshot" else "none", capsize=2, **style)
    return drawn
