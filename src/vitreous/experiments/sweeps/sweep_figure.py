"""The figure of a sweep: one panel per swept setting, one dot per run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitreous.evaluation.figures import add_caption, save_figure
from vitreous.experiments.compare_figure import COLOURS
from vitreous.experiments.grid.plots import MAX_TICKS, plain_log_ticks
from vitreous.experiments.sweeps.search_space import format_setting
from vitreous.utils.figures import add_legend, label_text, literal_text, new_figure

Points = Sequence[tuple[Any, Sequence[float]]]
"""The values of a setting, and the metric of all seeds, in the order of the table: the selected one is first."""
PANELS_PER_ROW = 3
LOG_RATIO = 8.0  # of the largest value to the smallest, from which on an axis is logarithmic
LABEL_WIDTH = 0.12  # of the label of a tick, as a fraction of the axis
RUN, MEAN, SELECTED = COLOURS[0], COLOURS[6], COLOURS[1]


@literal_text
def draw_sweep(
    panels: Mapping[str, Points], metric: str, label: str, caption: Sequence[str], folder: Path
) -> list[Path]:
    """Write sweep.png and sweep.svg. Each panel shows all runs, so that its spread is that of the other settings."""
    across = max(1, min(PANELS_PER_ROW, len(panels)))
    down = max(1, -(-len(panels) // across))
    figure = new_figure(max(5.0, 3.6 * across), 3.3 * down)
    axes = figure.subplots(down, across, sharey=True, squeeze=False).flatten()
    factor = 1 if metric == "loss" else 100
    drawn: dict[str, Any] = {}
    for axis, (name, points) in zip(axes, panels.items(), strict=False):
        scaled = [(value, [factor * one for one in values]) for value, values in points]
        drawn |= _draw_panel(axis, scaled)
        axis.set_xlabel(label_text(name, 40))
        axis.grid(alpha=0.3)
        axis.margins(0.08)
    for axis in axes[::across]:
        axis.set_ylabel(label if metric == "loss" else f"{label} (%)")
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    if drawn:
        add_legend(
            figure, list(drawn.values()), list(drawn), loc="outside upper center", ncols=len(drawn), frameon=False
        )
    add_caption(figure, caption)
    return save_figure(figure, folder, "sweep")


def _draw_panel(axis: Any, points: Points) -> dict[str, Any]:
    """Draw the runs by the value of one setting. Returns what is drawn, for the legend."""
    levels = _levels([value for value, _ in points])
    positions = [levels[format_setting(value)] for value, _ in points]
    _set_ticks(axis, [value for value, _ in points], levels)
    drawn: dict[str, Any] = {}
    x = [position for position, (_, values) in zip(positions, points, strict=True) for _ in values]
    y = [value for _, values in points for value in values]
    if not y:
        axis.text(0.5, 0.5, "all runs failed", transform=axis.transAxes, ha="center")
        return drawn
    (drawn["one run"],) = axis.plot(x, y, "o", color=RUN, markersize=4.5, alpha=0.6)
    groups: dict[float, list[float]] = {}
    for place, value in zip(x, y, strict=True):
        groups.setdefault(place, []).append(value)
    if len(groups) < len(y):  # otherwise the mean is the run
        means = [statistics.fmean(groups[place]) for place in sorted(groups)]
        (drawn["mean over the other settings and seeds"],) = axis.plot(
            sorted(groups), means, "_-", color=MEAN, markersize=14, linewidth=0.8
        )
    best = points[0][1]
    (drawn["selected"],) = axis.plot(
        [positions[0]] * len(best), best, "o", color=SELECTED, markersize=10, fillstyle="none", markeredgewidth=1.8
    )
    return drawn


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _levels(values: Sequence[Any]) -> dict[str, float]:
    """Return the position of each value on the x axis: numbers themselves, texts in their order."""
    if _is_numeric(values):
        return {format_setting(value): float(value) for value in values}
    names = sorted({format_setting(value) for value in values})
    return {name: float(place) for place, name in enumerate(names)}


def _set_ticks(axis: Any, values: Sequence[Any], levels: Mapping[str, float]) -> None:
    if not _is_numeric(values):
        axis.set_xticks(list(levels.values()), [label_text(name, 16) for name in levels])
        axis.set_xlim(-0.5, len(levels) - 0.5)
        return
    places = sorted(set(levels.values()))
    logarithmic = places[0] > 0 and places[-1] >= LOG_RATIO * places[0] and math.isfinite(places[-1])
    if logarithmic:
        axis.set_xscale("log")
    if len(places) <= MAX_TICKS and _are_apart(places, logarithmic):
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
    elif logarithmic:
        axis.set_xlim(places[0] / 1.2, places[-1] * 1.2)
        plain_log_ticks(axis.xaxis)


def _are_apart(places: Sequence[float], logarithmic: bool) -> bool:
    """Whether the labels of all values fit next to each other."""
    shown = [math.log(place) for place in places] if logarithmic else places
    return all(after - before >= LABEL_WIDTH * (shown[-1] - shown[0]) for before, after in pairwise(shown))
