"""The figure of a comparison: one panel per data set, one colour per model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitreous.evaluation.figures import add_caption, save_figure
from vitreous.evaluation.measures import Measure
from vitreous.experiments.compare import Comparison, ComparisonRow
from vitreous.utils.atomic import atomic_file, atomic_folder
from vitreous.utils.figures import add_legend, label_text, literal_text, new_figure
from vitreous.utils.json_files import dump_json

PANELS_PER_ROW = 3
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # safe for colour blindness
MARKERS = "osD^vPX"
OFFSET = 0.09  # between models, along the x axis
LEGEND_COLUMNS = 4


def comparison_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that `write_comparison` writes to a folder."""
    return ("comparison.json", "comparison.md", "comparison.png", "comparison.svg")


def write_comparison(found: Comparison, markdown: Path | None, out: Path | None, overwrite: bool) -> list[Path]:
    """Write the table to a file, and JSON, table and figure to a folder. Return the paths of the figures."""
    if markdown is not None:
        with atomic_file(markdown, overwrite) as temporary:
            temporary.write_text(found.markdown(), encoding="utf-8")
    if out is None:
        return []
    with atomic_folder(out, overwrite, comparison_files) as folder:
        dump_json(folder / "comparison.json", found.to_json())
        (folder / "comparison.md").write_text(found.markdown(), encoding="utf-8")
        figures = draw_comparison(found, folder)
    return [out / path.name for path in figures]


@literal_text
def draw_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write comparison.png and comparison.svg: every measure on every data set, without means.

    The caption names the images of each data set and how the weights of each model were selected.
    """
    panels: dict[str, list[ComparisonRow]] = {}
    for row in comparison.rows:
        if row.data:
            panels.setdefault(f"{row.group}: {row.data}" if row.group else row.data, []).append(row)
    across = min(PANELS_PER_ROW, len(panels))
    down = -(-len(panels) // across)
    models = len(comparison.models)
    figure = new_figure(max(6.4, 4.4 * across), 3.2 * down + 0.3 * -(-models // LEGEND_COLUMNS))
    axes = figure.subplots(down, across, sharey=True, squeeze=False).flatten()
    for axis, (name, rows) in zip(axes, panels.items(), strict=False):
        axis.set_title(label_text(name, 40))
        axis.set_xticks(range(len(rows)), [row.measure for row in rows])
        axis.set(ylim=(0, 102), xlim=(-0.5, len(rows) - 0.5), ylabel="accuracy (%)")
        axis.label_outer()
        axis.grid(alpha=0.3)
        lines = [_plot_model(axis, rows, model, models) for model in range(models)]
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    add_legend(figure, lines, comparison.models, loc="outside upper center", ncols=LEGEND_COLUMNS, frameon=False)
    add_caption(figure, comparison.caption())
    return save_figure(figure, folder, "comparison")


def _plot_model(axis: Any, rows: list[ComparisonRow], model: int, models: int) -> Any:
    """Plot one model: few-shot as a line over the shots, other measures as points, with error bars."""
    values = [row.values[model] for row in rows]
    measures = [value for value in values if isinstance(value, Measure)]
    style = {"color": COLOURS[model % len(COLOURS)], "marker": MARKERS[model % len(MARKERS)], "markersize": 5}
    for method in dict.fromkeys(value.method for value in measures):
        positions = [position for position, value in enumerate(measures) if value.method == method]
        x = [position + OFFSET * (model - (models - 1) / 2) for position in positions]
        y, spread = [100 * measures[i].mean for i in positions], [100 * (measures[i].spread or 0) for i in positions]
        drawn = axis.errorbar(x, y, spread, linestyle="-" if method == "fewshot" else "none", capsize=2, **style)
    return drawn
