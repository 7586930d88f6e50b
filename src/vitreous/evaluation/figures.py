"""Figures of evaluation results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vitreous.utils.atomic import atomic_file
from vitreous.utils.figures import add_legend, label_text, literal_text, new_figure, render_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.evaluation.evaluate import Evaluation
    from vitreous.evaluation.precision_recall import PrecisionRecall

CAPTION_LINE = 0.14  # inches
LETTERS_PER_INCH = 18  # in a caption, approximately
MAX_SENTENCE = 300  # letters
MAX_DRAWN = 9  # classes in the precision-recall figure: one colour each


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


@literal_text
def draw_precision_recall(curves: PrecisionRecall, title: str, caption: Sequence[str], folder: Path) -> list[Path]:
    """Write precision_recall.png and .svg: the micro average, and the classes with the lowest average precision."""
    figure = new_figure(6.4, 4.6)
    axes = figure.add_subplot()
    lines, names = [], []
    for curve in (curves.micro, *curves.classes[:MAX_DRAWN]):
        style: dict[str, Any] = {"color": "black", "linewidth": 2.2, "zorder": 3} if curve is curves.micro else {}
        # As in the definition of average precision, a curve starts at recall 0 and steps down from its next point.
        x, y = [0.0, *curve.recall], [curve.precision[0], *curve.precision]
        lines += axes.plot([100 * value for value in x], [100 * value for value in y], drawstyle="steps-pre", **style)
        names.append(f"{label_text(curve.name, 28)}: {100 * curve.average_precision:.1f}")
    axes.set(xlabel="recall (%)", ylabel="precision (%)", title=label_text(title, 80), xlim=(0, 101), ylim=(0, 103))
    axes.grid(alpha=0.3)
    hidden = len(curves.classes) - MAX_DRAWN
    heading = "average precision (%)" + (
        f",\n{MAX_DRAWN} lowest of {len(curves.classes):,} classes" if hidden > 0 else ""
    )
    place: Any = (1.01, 1.0)
    add_legend(axes, lines, names, title=heading, loc="upper left", bbox_to_anchor=place, frameon=False, fontsize=8)
    add_caption(figure, caption)
    return save_figure(figure, folder, "precision_recall")


def _accuracy_lines(evaluations: Sequence[Evaluation]) -> dict[str, list[float]]:
    columns = {
        "top-1": [one.result.top1 for one in evaluations],
        "top-5": [one.result.top5 for one in evaluations],
        "mAP": [one.result.map for one in evaluations],
        "ReaL": [None if one.real is None else one.real.top1 for one in evaluations],
    }
    return {name: [v for v in values if v is not None] for name, values in columns.items() if None not in values}
