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


def lines(
    axis: Any,
    groups: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    xlabel: str,
    ylabel: str,
    log: bool = False,
    legend: bool = True,
) -> None:
    """Lines through means: for each group the values of all seeds by x, with a dot per seed."""
    drawn = []
    for number, values in enumerate(groups.values()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        present = {x: each for x, each in sorted(values.items()) if each}
        means = [statistics.fmean(each) for each in present.values()]
        drawn += axis.plot(list(present), means, color=colour, marker=marker, markersize=6)
        for x, each in present.items():
            if len(each) > 1:
                axis.plot([x] * len(each), each, marker, color=colour, markersize=3, alpha=0.5)
    if log:
        axis.set_xscale("log")
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.grid(alpha=0.3)
    if legend and len(groups) > 1:
        add_legend(axis, drawn, list(groups), frameon=False, fontsize=8)
