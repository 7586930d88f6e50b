"""Confusion matrix, most frequent confusions, and the table of per-class metrics, as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.metrics import ClassScore, Result
from vitreous.utils.html import text

MAX_COUNTED = 20  # classes; a larger confusion matrix has colours but no numbers
MAX_DRAWN = 60  # classes; beyond this only the most frequent confusions are listed
MAX_ROWS = 2000  # of the table of classes
LEGEND = (
    "Rows: labels. Columns: predictions. Blue: fraction of the row that is correct. "
    "Orange: fraction of the row that is predicted as the class of the column."
)


def class_name(classes: Sequence[str], index: int) -> str:
    return classes[index] if 0 <= index < len(classes) else f"class {index}"


def percent(value: float) -> str:
    """A fraction as a percentage. More digits near 0% and 100%, so that only exact values are shown as these."""
    if 0 < value < 0.0005:
        return f"{100 * value:.2f}%" if value >= 0.0001 else "<0.01%"
    if 0.9995 <= value < 1:
        return f"{math.floor(1e4 * value) / 100:.2f}%"
    return f"{100 * value:.1f}%"


def bar(value: float) -> str:
    """A horizontal bar for a fraction."""
    width = 100 * min(max(value, 0.0), 1.0)
    return f'<span class="share"><i style="--p:{width:.1f}%"></i></span>'


def confusions(result: Result, classes: Sequence[str]) -> str:
    """The confusion matrix, unless there are too many classes, and the most frequent confusions."""
    if result.confusion is None or len(result.confusion) < 2:
        return ""
    counts = np.array(result.confusion, dtype=np.int64)
    matrix = _matrix(counts, classes) if len(counts) <= MAX_DRAWN else ""
    legend = f'<p class="quiet">{LEGEND}</p>' if matrix else ""
    return f'{legend}<div class="columns">{matrix}{_pairs(counts, classes, 10 if matrix else 20)}</div>'


def _matrix(counts: NDArray[np.int64], classes: Sequence[str]) -> str:
    names = [class_name(classes, i) for i in range(len(counts))]
    dense = len(counts) > MAX_COUNTED
    upright = max(map(len, names)) > 3 or dense
    heads = "".join(
        f'<th scope="col" title="{text(name)}"{" class=up" if upright else ""}><div>{text(name)}</div></th>'
        for name in names
    )
    rows = "".join(
        f'<tr><th scope="row" title="{text(names[i])}">{text(names[i])}</th>'
        + "".join(_cell(counts, names, i, j, dense) for j in range(len(counts)))
        + "</tr>\n"
        for i in range(len(counts))
    )
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="confusion matrix">
<table class="confusion{" dense" if dense else ""}"><thead><tr><td style="background:none"></td>{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>
"""


def _cell(counts: NDArray[np.int64], names: Sequence[str], i: int, j: int, dense: bool) -> str:
    count = int(counts[i, j])
    if not count:
        return "<td></td>"
    part = count / int(counts[i].sum())
    alpha = 0.12 + 0.88 * (part if i == j else math.sqrt(part))  # square root: makes rare confusions visible
    css = ("r" if i == j else "w") + (" s" if alpha > 0.6 else "")
    tooltip = f"{names[i]} \u2192 {names[j]}: {count:,} ({percent(part)})"
    return f'<td class="{css}" style="--a:{alpha:.2f}" title="{text(tooltip)}">{"" if dense else f"{count}"}</td>'


def _pairs(counts: NDArray[np.int64], classes: Sequence[str], count: int) -> str:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = (-wrong).argsort(axis=None, kind="stable")[:count]
    pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, wrong.shape), strict=True) if wrong[i, j]]
    if not pairs:
        return '<p class="quiet">There are no confusions.</p>'
    totals = counts.sum(1)
    rows = "".join(
        f'<tr><td class="name">{text(class_name(classes, i))}</td><td class="name">{text(class_name(classes, j))}</td>'
        f'<td class="num">{wrong[i, j]:,}</td><td class="num">{percent(float(wrong[i, j] / totals[i]))}</td></tr>\n'
        for i, j in pairs
    )
    return f"""<div class="pairs"><h3>Most frequent confusions</h3>
<div class="scroll"><table><thead><tr><th>label</th><th>predicted</th><th class="num">images</th>\
<th class="num">of the class</th></tr></thead>
<tbody>{rows}</tbody></table></div></div>
"""


def class_table(result: Result, classes: Sequence[str]) -> str:
    """One row per class, in the order of the classes; for many classes, in increasing order of F1."""
    scores = list(result.per_class)
    several = result.map is not None or any(score.average_precision is not None for score in scores)
    if len(scores) > MAX_COUNTED:
        scores.sort(key=lambda s: (s.f1 is None, s.f1 or 0.0))
    omitted = len(scores) - MAX_ROWS
    heads = ["images", "correct", "recall", "precision", "F1", *(["average precision"] if several else [])]
    columns = "".join(f'<th class="num" scope="col">{head}</th>' for head in heads)
    rows = "".join(_class_row(score, classes, several) for score in scores[:MAX_ROWS])
    note = (
        f'<p class="note">The {MAX_ROWS:,} classes with the lowest F1; {omitted:,} more are not shown.</p>'
        if omitted > 0
        else ""
    )
    tall = " tall" if len(scores) > MAX_COUNTED else ""
    return f"""<div class="scroll{tall}" tabindex="0" role="region" aria-label="classes">
<table class="classes"><thead><tr><th scope="col">class</th>{columns}</tr></thead>
<tbody>{rows}</tbody></table></div>{note}
"""


def _metric_cell(value: float, place: int) -> str:
    return f"{bar(value)}<b>{percent(value)}</b>" if place == 0 else percent(value)


def _class_row(score: ClassScore, classes: Sequence[str], several: bool) -> str:
    name = text(class_name(classes, score.index))
    counts = "".join(f'<td class="num" data-value="{n}">{n:,}</td>' for n in (score.images, score.right))
    shares = [score.recall, score.precision, score.f1, *([score.average_precision] if several else [])]
    cells = "".join(
        '<td class="num" data-value="">\u2013</td>'
        if value is None
        else f'<td class="num" data-value="{value:.6f}">{_metric_cell(value, place)}</td>'
        for place, value in enumerate(shares)
    )
    return f'<tr><td class="name" data-value="{name}">{name}</td>{counts}{cells}</tr>\n'
