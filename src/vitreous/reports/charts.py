"""Line charts for HTML pages: inline SVG for the lines, HTML for the text, so that both fit any width.

The SVG is stretched to the available space; strokes keep their width in pixels and text keeps its font size.
A chart is complete without scripts. A script can read values back from the paths with the ranges in `data-x`, `data-y`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.utils.html import text

Numbers = NDArray[np.float64]
Kind = Literal["number", "percent"]

SIDE = 1000  # side of the SVG coordinate system
MAX_POINTS = 800
MAX_DOTS = 60  # per line; more would overlap
MAX_MARKS = 40
SPIKE = 4.0  # a peak higher than this times the 99th percentile is cut off


@dataclass(frozen=True)
class Line:
    """One curve. NaN makes a gap."""

    name: str
    style: str  # class in the style sheet: train, val, ema, other, run0 ...; raw: faint, and not in the legend
    x: Numbers
    y: Numbers


@dataclass(frozen=True)
class Chart:
    title: str
    x_name: str
    lines: Sequence[Line]
    kind: Kind = "number"
    log: bool = False  # logarithmic y axis; all values must be positive
    from_zero: bool = False  # the y axis starts at zero
    marks: Sequence[float] = ()  # x of vertical lines, numbered from 1
    note: str = ""


def downsample(x: Numbers, y: Numbers, count: int = MAX_POINTS) -> tuple[Numbers, Numbers]:
    """At most `count` points with the same appearance: minimum and maximum of each segment, and both ends."""
    if len(x) <= count:
        return x, y
    kept = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), max(1, (count - 2) // 2)):
        known = part[np.isfinite(y[part])]
        kept |= {int(known[y[known].argmin()]), int(known[y[known].argmax()])} if len(known) else {int(part[0])}
    order = sorted(kept)
    return x[order], y[order]


def moving_average(y: Numbers, window: int) -> Numbers:
    """The mean of `window` points around each point, without NaN; at both ends the window is shorter."""
    window = min(window, len(y))
    if window < 2:
        return y
    known = np.isfinite(y)
    ones = np.ones(window)
    counts = np.convolve(known, ones, "same")
    totals = np.convolve(np.where(known, y, 0.0), ones, "same")
    return np.where(known, totals / np.maximum(counts, 1), np.nan)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Evenly spaced round numbers that cover the range from `low` to `high`."""
    if high - low <= max(1e-9 * abs(high), 1e-30):  # a single value: widen the range
        low, high = (low - 0.1 * abs(low), high + 0.1 * abs(high)) if abs(low) > 1e-30 else (0.0, 1.0)
    raw = (high - low) / about
    power = math.floor(math.log10(raw))
    step = next(m for m in (1, 2, 5, 10) if m * 10.0**power >= raw * 0.999) * 10.0**power
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def tick_names(values: Sequence[float], kind: Kind = "number") -> list[str]:
    """Tick labels with the same number of decimals; very small and very large values are shortened."""
    if kind == "percent":
        return [f"{name}%" for name in _decimals([100 * v for v in values])]
    top = max(abs(v) for v in values)
    if top >= 10_000:
        unit, letter = next(unit for unit in LARGE if top >= unit[0])
        return [f"{v / unit:g}{letter}" if v else "0" for v in values]
    return [_scientific(v) for v in values] if top < 0.01 else _decimals(values)


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, 50 ... that cover the range from `low` to `high`; for many decades, only powers of ten."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, (last - first) // 6)
    found = [float(f"{m}e{power}") for power in range(first, last + every, every) for m in steps]
    below = [v for v in found if v <= low * 1.001]
    above = [v for v in found if v >= high * 0.999]
    return [v for v in found if below[-1] <= v <= above[0]]


LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _plain(value: float) -> str:
    return f"{value:g}" if 1e-4 < value < 1e4 else _scientific(value)


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"


def _decimals(values: Sequence[float]) -> list[str]:
    step = min((abs(b - a) for a, b in pairwise(values)), default=1.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return [f"{v:,.{decimals}f}" for v in values]


def draw_chart(chart: Chart) -> str:
    """The chart as an HTML <figure>; an empty string if no line has a point."""
    lines = [
        Line(line.name, line.style, *downsample(line.x, line.y)) for line in chart.lines if np.isfinite(line.y).any()
    ]
    if not lines:
        return ""
    y_ticks, cut = _y_ticks(chart, lines)
    y_names = [_plain(v) for v in y_ticks] if chart.log else tick_names(y_ticks, chart.kind)
    frame = _Frame(*_x_range(lines), y_ticks[0], y_ticks[-1], chart.log)
    x_ticks = [
        x
        for x in ticks(frame.x_low, frame.x_high, 6)
        if frame.x_low <= x <= frame.x_high and (x.is_integer() or chart.x_name != "step")
    ]
    marks = [(x, str(i)) for i, x in enumerate(chart.marks, 1) if frame.x_low <= x <= frame.x_high][:MAX_MARKS]
    paths = "".join(_path(line, frame) for line in sorted(lines, key=lambda line: line.style != "raw"))
    svg = f"""<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none"{' class="cut"' if cut else ""} role="img" \
aria-label="{_description(chart, lines)}">{_grid(frame, x_ticks, y_ticks)}{_marks(frame, marks)}{paths}</svg>"""
    scale = '<span class="key">log scale</span>' if chart.log else ""
    notes = " ".join(note for note in (chart.note, cut) if note)
    return f"""<figure class="chart" {frame.data} data-kind="{chart.kind}" data-x-name="{text(chart.x_name)}">
<figcaption><b>{text(chart.title)}</b>{scale}{_legend(lines)}</figcaption>
<div class="frame"><div class="y-names">{_labels(y_ticks, frame.y, "bottom", y_names)}</div>
<div class="plot">{svg}{_labels([x for x, _ in marks], frame.x, "left", [n for _, n in marks], "mark-name")}</div>
<div class="x-names">{_labels(x_ticks, frame.x, "left", tick_names(x_ticks))}</div></div>
<p class="axis">{text(chart.x_name)}</p>{f'<p class="note">{text(notes)}</p>' if notes else ""}</figure>
"""


@dataclass(frozen=True)
class _Frame:
    """Maps values to fractions of the width and height of the plot."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log: bool = False

    def x(self, value: Any) -> Any:
        return (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: Any) -> Any:
        if self.log:
            return np.log(value / self.y_low) / math.log(self.y_high / self.y_low)
        return (value - self.y_low) / (self.y_high - self.y_low)

    @property
    def data(self) -> str:
        ranges = f'data-x="{self.x_low:.9g} {self.x_high:.9g}" data-y="{self.y_low:.9g} {self.y_high:.9g}"'
        return f"{ranges} data-log" if self.log else ranges


def _x_range(lines: Sequence[Line]) -> tuple[float, float]:
    low, high = min(float(line.x.min()) for line in lines), max(float(line.x.max()) for line in lines)
    return (min(0.0, low), high) if high > low else (min(0.0, low), max(1.0, 2 * high))


def _y_ticks(chart: Chart, lines: Sequence[Line]) -> tuple[list[float], str]:
    """Ticks of the y axis, and a note if peaks are cut off to keep the other values visible."""
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    low, high, usual = float(values.min()), float(values.max()), float(np.quantile(values, 0.99))
    cut = ""
    if chart.log:
        return log_ticks(low, high), ""
    if len(values) > 50 and usual > 0 and high > SPIKE * usual:
        peak = f"{100 * high:.3g}%" if chart.kind == "percent" else f"{high:.3g}"
        cut, high = f"Peaks up to {peak} are cut off.", 1.5 * usual
    if low >= 0 and (chart.from_zero or low < high / 2):
        low = 0.0
    found = ticks(low, high)
    if chart.kind == "percent":  # fractions lie between 0% and 100%
        found = [v for v in found if 0 <= v <= 1] or [0.0, 1.0]
    return (found, cut) if len(found) > 1 else ([0.0, 1.0], cut)


def _labels(values: Sequence[float], place: Any, side: str, names: Sequence[str], kind: str = "") -> str:
    css = f' class="{kind}"' if kind else ""
    return "".join(
        f'<span{css} style="{side}:{100 * place(value):.2f}%">{text(name)}</span>'
        for value, name in zip(values, names, strict=True)
    )


def _grid(frame: _Frame, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> str:
    rows = "".join(f"M0,{SIDE * (1 - frame.y(v)):.1f}H{SIDE}" for v in y_ticks)
    columns = "".join(f"M{SIDE * frame.x(v):.1f},{SIDE}v-12" for v in x_ticks)
    return f'<path class="grid" d="{rows}{columns}"/>'


def _marks(frame: _Frame, marks: Sequence[tuple[float, str]]) -> str:
    lines = "".join(f"M{SIDE * frame.x(x):.1f},0V{SIDE}" for x, _ in marks)
    return f'<path class="mark" d="{lines}"/>' if marks else ""


def _path(line: Line, frame: _Frame) -> str:
    known = [False, *np.isfinite(line.y).tolist(), False]  # padded on both sides
    dotted = line.style not in ("train", "raw") and sum(known) <= MAX_DOTS
    strokes, dots = "", ""
    points = zip((SIDE * frame.x(line.x)).tolist(), (SIDE * (1 - frame.y(line.y))).tolist(), strict=True)
    for i, (x, y) in enumerate(points, 1):
        if known[i]:
            strokes += f"{'L' if known[i - 1] else 'M'}{x:.2f},{y:.2f}"
        if known[i] and (dotted or not (known[i - 1] or known[i + 1])):  # an isolated point is invisible as a line
            dots += f"M{x:.2f},{y:.2f}h0"
    path = f'<path class="line {line.style}" data-name="{text(line.name)}" d="{strokes}"/>'
    return path + (f'<path class="dots {line.style}" d="{dots}"/>' if dots else "")


def _legend(lines: Sequence[Line]) -> str:
    shown = [line for line in lines if line.style != "raw"]
    if len(shown) == 1:  # the title already names it
        return ""
    return "".join(f'<span class="key {line.style}">{swatch(line.style)}{text(line.name)}</span>' for line in shown)


def swatch(style: str) -> str:
    """The symbol of a line style in a legend."""
    dot = "" if style == "train" else f'<path class="dots {style}" d="M12,5h0"/>'
    return f'<svg viewBox="0 0 24 10" width="24" height="10"><path class="line {style}" d="M1,5H23"/>{dot}</svg>'


def _description(chart: Chart, lines: Sequence[Line]) -> str:
    """A text description of the chart for screen readers."""

    def value(y: float) -> str:
        return f"{100 * y:.3g}%" if chart.kind == "percent" else f"{y:.3g}"

    parts = []
    for line in lines:
        if line.style != "raw":
            y = line.y[np.isfinite(line.y)]
            parts.append(f"{line.name} from {value(float(y[0]))} to {value(float(y[-1]))}")
    return text(f"{chart.title} by {chart.x_name}: {', '.join(parts)}")
