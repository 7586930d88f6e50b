"""Figures that several experiments share. Every value of a seed is drawn, with the mean."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitreous.experiments.compare_figure import COLOURS, MARKERS
from vitreous.utils.figures import add_legend, label_text, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, PAPER = COLOURS[0], COLOURS[1]
MAX_TICKS = 6  # more values on a logarithmic axis would overlap


def dot_rows(
    rows: Sequence[tuple[str, Sequence[float]]],
    label: str,
    paper: Sequence[float | None] = (),
    paper_label: str = "",
) -> Figure:
    """One row per group: a small dot per seed, a large one for the mean. With `paper`, a second panel shows the numbers
    of the paper, on its own axis."""
    with_paper = any(value is not None for value in paper)
    figure = new_figure(8.6 if with_paper else 6.4, 1.2 + 0.3 * len(rows))
    axes = figure.subplots(1, 2 if with_paper else 1, sharey=True, squeeze=False)[0]
    heights = range(len(rows), 0, -1)
    for height, (_, values) in zip(heights, rows, strict=True):
        if values:
            axes[0].plot(values, [height] * len(values), "o", color=OURS, markersize=3.5, alpha=0.55)
            axes[0].plot(statistics.fmean(values), height, "o", color=OURS, markersize=8, markeredgecolor="white")
        else:
            axes[0].text(0.02, height, "failed", transform=axes[0].get_yaxis_transform(), va="center", fontsize=8)
    axes[0].set_yticks(list(heights), [label_text(name) for name, _ in rows])
    axes[0].set(xlabel=label, ylim=(0.4, len(rows) + 0.6))
    if with_paper:
        for height, value in zip(heights, paper, strict=True):
            if value is not None:
                axes[1].plot(value, height, "D", color=PAPER, markersize=6)
        axes[1].set(xlabel=paper_label)
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
        axis.margins(x=0.08)
    return figure


Curve = Mapping[float, Sequence[float]]
"""The values of all seeds by x."""


def line_panels(panels: Mapping[str, Mapping[str, Curve]], xlabel: str, *, log: bool = False) -> Figure:
    """One panel per measure, one line per group through the means over seeds, and a small dot per seed. The titles of
    the panels are the labels of their y axes."""
    panels = panels or {"no results": {}}  # all cells failed
    figure = new_figure(max(5.0, 3.9 * len(panels)), 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    drawn: dict[str, Any] = {}
    for axis, (label, groups) in zip(axes, panels.items(), strict=True):
        for number, (name, values) in enumerate(groups.items()):
            if line := _draw_curve(axis, values, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]):
                drawn.setdefault(name, line)
        if log:
            axis.set_xscale("log")
            ticks = sorted({x for values in groups.values() for x in values})
            if len(ticks) <= MAX_TICKS:
                axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
                axis.minorticks_off()
            else:
                plain_log_ticks(axis.xaxis)
        axis.set(xlabel=xlabel, ylabel=label)
        axis.grid(alpha=0.3)
        axis.margins(0.06)
    if len(drawn) > 1:
        add_legend(
            figure, list(drawn.values()), list(drawn), loc="outside upper center", ncols=len(drawn), frameon=False
        )
    return figure


def _draw_curve(axis: Any, values: Curve, colour: str, marker: str) -> Any:
    """Draw one line and return it; None if there are no values."""
    present = {x: each for x, each in sorted(values.items()) if each}
    if not present:
        return None
    means = [statistics.fmean(each) for each in present.values()]
    (line,) = axis.plot(list(present), means, color=colour, marker=marker, markersize=6)
    for x, each in present.items():
        if len(each) > 1:
            axis.plot([x] * len(each), each, marker, color=colour, markersize=3, alpha=0.5)
    return line


def plain_log_ticks(axis: Any) -> None:
    """Label the ticks of a logarithmic x or y axis with plain numbers. matplotlib writes powers as formulas, which are
    not parsed in our figures (`literal_text`)."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 1e4 * low else (1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.set_minor_formatter(NullFormatter())
