"""Figures of evaluation results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vitreous.utils.atomic import atomic_file
from vitreous.utils.figures import label_text, literal_text, new_figure, render_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.evaluation.evaluate import Evaluation

CAPTION_LINE = 0.14  # inches
LETTERS_PER_INCH = 18  # in a caption, approximately
MAX_SENTENCE = 300  # letters


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG, each atomically. Return the paths."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        with atomic_file(path) as temporary:
            temporary.write_bytes(render_figure(figure, path.suffix[1:]))
    return paths


def add_caption(figure: Figure, sentences: Sequence[str]) -> None:
    """Add small text below a figure, each sentence on a new line, and make the figure higher for it."""
    width, height = figure.get_size_inches()
    letters = int(LETTERS_PER_INCH * width)
    lines = [line for sentence in sentences for line in wrap(label_text(sentence, MAX_SENTENCE), letters)]
    figure.set_size_inches(width, height + CAPTION_LINE * len(lines))
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7)


@literal_text
def draw_resolution_curve(
    evaluations: Sequence[Evaluation], title: str, caption: Sequence[str], folder: Path
) -> list[Path]:
    """Write resolution.png and resolution.svg: top-1, top-5, mAP and ReaL accuracy by image size, where available.

    `caption`: sentences that name the images and how the weights were selected.
    """
    ordered = sorted(evaluations, key=lambda one: one.size)
    labels = [str(one.size[0]) if one.size[0] == one.size[1] else f"{one.size[0]}x{one.size[1]}" for one in ordered]
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    for name, values in _accuracy_lines(ordered).items():
        (line,) = axes.plot(range(len(values)), [100 * value for value in values], marker="o", label=name)
        for position, value in enumerate(values):
            offset: Any = (0, 6)
            axes.annotate(
                f"{100 * value:.1f}",
                (position, 100 * value),
                offset,
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=line.get_color(),
            )
    axes.set_xticks(range(len(labels)), labels)
    axes.set(xlabel="image size (px)", ylabel="accuracy (%)", title=label_text(title, 80))
    axes.margins(y=0.12)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    add_caption(figure, caption)
    return save_figure(figure, folder, "resolution")


def _accuracy_lines(evaluations: Sequence[Evaluation]) -> dict[str, list[float]]:
    columns = {
        "top-1": [one.result.top1 for one in evaluations],
        "top-5": [one.result.top5 for one in evaluations],
        "mAP": [one.result.map for one in evaluations],
        "ReaL": [None if one.real is None else one.real.top1 for one in evaluations],
    }
    return {name: [v for v in values if v is not None] for name, values in columns.items() if None not in values}
