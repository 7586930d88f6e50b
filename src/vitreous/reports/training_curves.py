"""The charts of a run, made from the lines of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vitreous.reports.charts import Chart, Kind, Line, Numbers, moving_average

Record = dict[str, Any]
SMOOTH_FROM = 40  # points; shorter curves are not smoothed
LOG_RATIO = 20.0  # ratio of largest to smallest loss above which the axis is logarithmic
MAX_COMPARED = 16  # runs in a comparison: training_report.css has as many pairs of a colour and a dash pattern
MAX_VALUE = 1e30  # larger values are treated as infinite


@dataclass(frozen=True)
class History:
    """Records of a run in order. Steps repeated after an interruption appear once, with their last values."""

    train: Sequence[Record]
    evaluations: dict[tuple[str, str], Sequence[Record]]  # keys: split and weights
    events: Sequence[tuple[float, str]]  # x position and text
    x_name: Literal["epoch", "step"]

    @property
    def window(self) -> int:
        """Window of the moving average, in points."""
        return max(1, len(self.train) // SMOOTH_FROM)

    @classmethod
    def of(cls, records: Iterable[Record]) -> History:
        kinds: dict[str, list[Record]] = {"train": [], "eval": [], "event": []}
        for record in records:
            kinds.get(record.get("kind", ""), []).append(record)
        train = _last_pass(kinds["train"])
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in kinds["eval"]:
            group = str(record.get("split") or "val"), str(record.get("weights") or "raw")
            groups.setdefault(group, []).append(record)
        evaluations: dict[tuple[str, str], Sequence[Record]] = {key: _last_pass(group) for key, group in groups.items()}
        drawn = [*train, *(record for group in evaluations.values() for record in group)]
        x_name: Literal["epoch", "step"] = (
            "epoch" if drawn and all(not math.isnan(number(r, "epoch")) for r in drawn) else "step"
        )
        return cls(train, evaluations, _placed(kinds["event"], drawn, x_name), x_name)

    def x(self, records: Sequence[Record]) -> Numbers:
        values = column(records, self.x_name)
        return values if not np.isnan(values).any() else np.arange(1.0, len(records) + 1)


def number(record: Record, key: str) -> float:
    """The value of a record; NaN if it is missing or not finite."""
    value = record.get(key)
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_VALUE
    return float(value) if known else math.nan  # type: ignore[arg-type]


def column(records: Sequence[Record], key: str) -> Numbers:
    return np.array([number(record, key) for record in records], dtype=np.float64)


def charts(history: History) -> list[Chart]:
    """Charts of loss, accuracy, learning rate, gradient norm, throughput and data loading, if they have data."""
    metric, name = _metric(history)
    found = [
        _chart(history, "Loss", "loss", "loss"),
        _chart(history, name, metric if metric == "map" else "accuracy", metric, "percent"),
        _chart(history, "Learning rate", "lr", steady=True),
        _chart(history, "Gradient norm", "grad_norm"),
        _chart(history, "Images per second", "images_per_second", from_zero=True),
        _chart(history, "Time spent waiting for data", "data_wait", kind="percent"),
    ]
    return [chart for chart in found if any(np.isfinite(line.y).any() for line in chart.lines)]


def run_style(number: int) -> str:
    """The line style of a run in a comparison; 0 is the run of the report."""
    return f"run{number}"


def comparison_charts(names: Sequence[str], histories: Sequence[History]) -> list[Chart]:
    """Charts with the validation results of runs. The weights (raw or EMA) are those of the best evaluation."""
    metric, title = _metric(histories[0])
    x_name: Literal["epoch", "step"] = "epoch" if all(h.x_name == "epoch" for h in histories) else "step"
    curves: list[tuple[str, str, Sequence[Record]]] = []
    for number, (name, history) in enumerate(zip(names, histories, strict=True)):
        if best := best_evaluation(history, metric) or best_evaluation(history, "loss"):
            curves.append((name, run_style(number), history.evaluations[best[1:3]]))

    def chart(title: str, key: str, kind: Kind) -> Chart:
        lines = [Line(name, style, column(group, x_name), column(group, key)) for name, style, group in curves]
        return Chart(title, x_name, lines, kind, bool(lines) and key == "loss" and _needs_log(lines))

    return [
        chart(f"{title} on validation images", metric, "percent"),
        chart("Loss on validation images", "loss", "number"),
    ]


def _metric(history: History) -> tuple[str, str]:
    """Key and title of the main metric."""
    for key, title in (("map", "Mean average precision"), ("patch_accuracy", "Accuracy of predicted colours")):
        if any(not np.isnan(column(group, key)).all() for group in history.evaluations.values()):
            return key, title
    return "top1", "Accuracy"


def best_evaluation(history: History, key: str) -> tuple[float, str, str, Record] | None:
    """The best evaluation during training; ties go to the lower loss: (value, split, weights, record)."""
    found = [
        (number(record, key), split, weights, record)
        for (split, weights), group in history.evaluations.items()
        for record in group
        if split != "test" and not math.isnan(number(record, key))
    ]
    sign = -1 if key == "loss" else 1
    return max(found, key=lambda entry: (sign * entry[0], -number(entry[3], "loss")), default=None)


def _chart(
    history: History,
    title: str,
    train_key: str,
    eval_key: str = "",
    kind: Kind = "number",
    steady: bool = False,
    from_zero: bool = False,
) -> Chart:
    x, y = history.x(history.train), column(history.train, train_key)
    lines = [Line("train", "train", x, y)]
    if history.window > 1 and not steady:
        lines = [Line("", "raw", x, y), Line("train", "train", x, moving_average(y, history.window))]
    for (split, weights), group in history.evaluations.items() if eval_key else ():
        style: Literal["val", "ema", "other"] = "other" if split == "test" else "ema" if weights == "ema" else "val"
        name = f"{split} EMA" if weights == "ema" else split
        lines.append(Line(name, style, history.x(group), column(group, eval_key)))
    log = eval_key == "loss" and _needs_log(lines)
    marks = [x for x, _ in history.events]
    return Chart(title, history.x_name, lines, kind, log, from_zero, marks, _not_finite(history, train_key))


def _needs_log(lines: Sequence[Line]) -> bool:
    """Whether the values need a logarithmic axis."""
    values, drawn = (
        np.concatenate([line.y[np.isfinite(line.y)] for line in some])
        for some in (lines, [line for line in lines if line.style != "raw"])
    )
    return bool(len(drawn) and values.min() > 1e-9 and drawn.max() > LOG_RATIO * drawn.min())


def _not_finite(history: History, key: str) -> str:
    """A note on values that are not finite and so cannot be drawn. Missing values do not count."""
    steps = [
        record.get("step", "?")
        for record in history.train
        if isinstance(record.get(key), float) and math.isnan(number(record, key))
    ]
    if len(steps) < 2:
        return f"Not finite at step {steps[0]}." if steps else ""
    return f"Not finite at {len(steps):,} steps, first at step {steps[0]}."


def _last_pass(records: Iterable[Record]) -> list[Record]:
    """Drop records of steps that a resumed run has repeated."""
    kept: list[Record] = []
    for record in records:
        step = number(record, "step")
        while kept and number(kept[-1], "step") >= step:
            kept.pop()
        kept.append(record)
    return kept


def _placed(events: Sequence[Record], drawn: Sequence[Record], x_name: str) -> list[tuple[float, str]]:
    """Positions of events on the x axis. Events have a step; their epoch is interpolated."""
    steps, xs = column(drawn, "step"), column(drawn, x_name)
    known = np.isfinite(steps) & np.isfinite(xs)
    steps, xs = steps[known], xs[known]
    order = steps.argsort(kind="stable")
    placed = []
    for event in events:
        step = number(event, "step")
        x = float(np.interp(step, steps[order], xs[order])) if len(order) and not math.isnan(step) else math.nan
        placed.append((x, str(event.get("text") or "")))
    return sorted(placed, key=lambda event: (math.isnan(event[0]), event[0]))
