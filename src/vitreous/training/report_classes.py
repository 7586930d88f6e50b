"""The report's part on classes: which are taken for which, and how good each of them is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.metrics import ClassScore, Result
from vitreous.pages import text

COUNTED = 20  # classes up to which the matrix has room for numbers
DRAWN = 60  # classes up to which there is a matrix
MOST_ROWS = 2000  # of the table of classes
LEGEND = (
    "Each row is a class, each column an answer. The deeper the blue, the larger the share of the row that is right; "
    "the deeper the orange, the larger the share that is taken for that column."
)


def name_of(classes: Sequence[str], index: int) -> str:
    return classes[index] if 0 <= index < len(classes) else f"class {index}"


def share(value: float) -> str:
    """A share as a percentage. What is not quite all, or not quite nothing, does not look like it."""
    if 0 < value < 0.0005:
        return f"{100 * value:.2f}%" if value >= 0.0001 else "<0.01%"
    if 0.9995 <= value < 1:
        return f"{math.floor(1e4 * value) / 100:.2f}%"
    return f"{100 * value:.1f}%"


def bar(value: float) -> str:
    percent = 100 * min(max(value, 0.0), 1.0)
    return f'<span class="share"><i style="--p:{percent:.1f}%"></i></span>'


def confusions(result: Result, classes: Sequence[str]) -> str:
    """A matrix if the classes are few enough to be seen, and the pairs that are mixed up most."""
    if result.confusion is None or len(result.confusion) < 2:
        return ""
    counts = np.array(result.confusion, dtype=np.int64)
    matrix = _matrix(counts, classes) if len(counts) <= DRAWN else ""
    legend = f'<p class="quiet">{LEGEND}</p>' if matrix else ""
    return f'{legend}<div class="beside">{matrix}{_pairs(counts, classes, 10 if matrix else 20)}</div>'


def _matrix(counts: NDArray[np.int64], classes: Sequence[str]) -> str:
    names = [name_of(classes, i) for i in range(len(counts))]
    dense = len(counts) > COUNTED
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
    alpha = 0.12 + 0.88 * (part if i == j else math.sqrt(part))  # the root: few mistakes are to be seen too
    css = ("r" if i == j else "w") + (" s" if alpha > 0.6 else "")
    said = f"{names[i]} \u2192 {names[j]}: {count:,} ({share(part)})"
    return f'<td class="{css}" style="--a:{alpha:.2f}" title="{text(said)}">{"" if dense else f"{count}"}</td>'


def _pairs(counts: NDArray[np.int64], classes: Sequence[str], most: int) -> str:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = (-wrong).argsort(axis=None, kind="stable")[:most]
    pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, wrong.shape), strict=True) if wrong[i, j]]
    if not pairs:
        return '<p class="quiet">No image was taken for another class.</p>'
    totals = counts.sum(1)
    rows = "".join(
        f'<tr><td class="name">{text(name_of(classes, i))}</td><td class="name">{text(name_of(classes, j))}</td>'
        f'<td class="num">{wrong[i, j]:,}</td><td class="num">{share(float(wrong[i, j] / totals[i]))}</td></tr>\n'
        for i, j in pairs
    )
    return f"""<div class="pairs"><h3>Most frequent confusions</h3>
<div class="scroll"><table><thead><tr><th>is</th><th>taken for</th><th class="num">images</th>\
<th class="num">of its class</th></tr></thead>
<tbody>{rows}</tbody></table></div></div>
"""


def class_table(result: Result, classes: Sequence[str]) -> str:
    """One row for each class, in their order; where they are many, the worst first."""
    scores = list(result.per_class)
    several = result.map is not None or any(score.average_precision is not None for score in scores)
    if len(scores) > COUNTED:
        scores.sort(key=lambda s: (s.f1 is None, s.f1 or 0.0))
    left_out = len(scores) - MOST_ROWS
    heads = ["images", "right", "recall", "precision", "F1", *(["average precision"] if several else [])]
    columns = "".join(f'<th class="num" scope="col">{head}</th>' for head in heads)
    rows = "".join(_class_row(score, classes, several) for score in scores[:MOST_ROWS])
    note = f'<p class="note">The {MOST_ROWS:,} worst; {left_out:,} more are left out here.</p>' if left_out > 0 else ""
    tall = " tall" if len(scores) > COUNTED else ""
    return f"""<div class="scroll{tall}" tabindex="0" role="region" aria-label="classes">
<table class="classes"><thead><tr><th scope="col">class</th>{columns}</tr></thead>
<tbody>{rows}</tbody></table></div>{note}
"""


def _figure(value: float, place: int) -> str:
    return f"{bar(value)}<b>{share(value)}</b>" if place == 0 else share(value)


def _class_row(score: ClassScore, classes: Sequence[str], several: bool) -> str:
    name = text(name_of(classes, score.index))
    counts = "".join(f'<td class="num" data-value="{n}">{n:,}</td>' for n in (score.images, score.right))
    shares = [score.recall, score.precision, score.f1, *([score.average_precision] if several else [])]
    cells = "".join(
        '<td class="num" data-value="">\u2013</td>'
        if value is None
        else f'<td class="num" data-value="{value:.6f}">{_figure(value, place)}</td>'
        for place, value in enumerate(shares)
    )
    return f'<tr><td class="name" data-value="{name}">{name}</td>{counts}{cells}</tr>\n'
