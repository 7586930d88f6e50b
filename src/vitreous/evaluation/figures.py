"""Pictures of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.utils.atomic import atomic_file
from vitreous.utils.figures import blank, label, literal_text, rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.evaluation.evaluate import Evaluation


def saved(figure: Figure, folder: Path, name: str) -> list[Path]:
    """As PNG and as SVG, each whole or not there."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        with atomic_file(path) as temporary:
            temporary.write_bytes(rendered(figure, path.suffix[1:]))
    return paths


@literal_text
def draw_curve(found: Sequence[Evaluation], title: str, folder: Path) -> list[Path]:
    """resolution.png and resolution.svg: accuracy of every kind there is, against the image size."""
    ordered = sorted(found, key=lambda one: one.size)
    labels = [str(one.size[0]) if one.size[0] == one.size[1] else f"{one.size[0]}x{one.size[1]}" for one in ordered]
    figure = blank(6.4, 4.0)
    axes = figure.add_subplot()
    for name, values in _lines(ordered).items():
        (line,) = axes.plot(range(len(values)), [100 * value for value in values], marker="o", label=name)
        for place, value in enumerate(values):
            offset: Any = (0, 6)
            axes.annotate(
                f"{100 * value:.1f}",
                (place, 100 * value),
                offset,
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=line.get_color(),
            )
    axes.set_xticks(range(len(labels)), labels)
    axes.set(xlabel="image size (px)", ylabel="accuracy (%)", title=label(title, 80))
    axes.margins(y=0.12)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return saved(figure, folder, "resolution")


def _lines(found: Sequence[Evaluation]) -> dict[str, list[float]]:
    columns = {
        "top-1": [one.result.top1 for one in found],
        "top-5": [one.result.top5 for one in found],
        "mAP": [one.result.map for one in found],
        "ReaL": [None if one.real is None else one.real.top1 for one in found],
    }
    return {name: [v for v in values if v is not None] for name, values in columns.items() if None not in values}
