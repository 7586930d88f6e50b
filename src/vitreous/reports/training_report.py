"""The training report: report.html of a run, one self-contained HTML file."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Result, format_interval
from vitreous.reports.charts import draw_chart, swatch
from vitreous.reports.class_tables import MAX_COUNTED, bar, class_table, confusions, percent
from vitreous.reports.data_check_section import data_check_section
from vitreous.reports.html_page import HtmlPage, Section, render_page, write_html
from vitreous.reports.masked_pictures import MaskedPicture, masked_section
from vitreous.reports.run_summary import RunSummary
from vitreous.reports.training_curves import (
    History,
    best_evaluation,
    charts,
    column,
    comparison_charts,
    number,
    run_style,
)
from vitreous.utils.html import image_url, text
from vitreous.utils.progress import format_duration

MAX_SIDE = 224  # pixels; larger images are downscaled
TINY_SIDE = 64  # images up to this size are shown without smoothing
MAX_EVENTS = 200
METRICS = (("map", "mAP"), ("top1", "accuracy"), ("loss", "loss"))  # main metric of an evaluation: the first it has


@dataclass(frozen=True)
class ExampleImage:
    """An image with its label and the predictions of the model."""

    name: str
    pixels: NDArray[np.uint8]  # (height, width, channels), or without channels for grey
    truth: tuple[str, ...]
    answers: tuple[tuple[str, float], ...]  # class names and probabilities, highest first
    loss: float


@dataclass(frozen=True)
class TrainingReport:
    """Contents of the report."""

    title: str
    outcome: str  # one sentence
    command: str  # command line of the run
    classes: tuple[str, ...]
    records: Sequence[dict[str, Any]]  # the lines of metrics.jsonl
    result: Result | None  # of the last evaluation, on `split`
    split: str
    best: Sequence[ExampleImage]
    worst: Sequence[ExampleImage]
    choices: Sequence[tuple[str, str, str]]  # field, value, reason
    config: dict[str, Any]
    environment: dict[str, str]
    data: Sequence[tuple[str, str]]
    notes: Sequence[str]
    next_steps: Sequence[str]  # commands
    links: Sequence[tuple[str, str]] = ()  # title and relative path of a file in the run directory
    runs: Sequence[RunSummary] = ()  # this run and the run it is compared with; empty: no comparison
    selection: Sequence[str] = ()  # which weights were measured, and how they were selected
    unreadable: int = 0  # images that could not be read
    check_command: str = ""  # command that checks the data
    masked: Sequence[MaskedPicture] = ()  # predictions of masked patches
    advice: Sequence[tuple[str, str]] = ()  # reason and command of a change that may improve the result


def write_report(path: Path, report: TrainingReport) -> None:
    """Write the report atomically."""
    write_html(path, render_training_report(report))


def render_training_report(report: TrainingReport) -> str:
    history = History.of(report.records)
    selection = "".join(f'<p class="quiet">Weights: {text(line)}.</p>' for line in report.selection)
    return render_page(
        HtmlPage(
            assets="training_report",
            title=f"{report.title}: {report.outcome}",
            kicker="Training report",
            heading=report.title,
            header=f'<p class="outcome">{text(report.outcome)}</p>\n{selection}\n{_tiles(report, history)}',
            sections=[Section(name.lower(), name, title, body) for name, title, body in _sections(report, history)],
            links=_links(report.links),
        )
    )


def _sections(report: TrainingReport, history: History) -> list[tuple[str, str, str]]:
    result, split = report.result, text(report.split)
    return [
        ("Notes", "Notes", _items(report.notes)),
        ("Comparison", "Comparison with other runs", _comparison(report.runs)),
        ("Curves", "Curves", _curves(history)),
        ("Masked", "Masked patches", masked_section(report.masked, report.split)),
        ("Confusions", f"Confusions on {split}", confusions(result, report.classes) if result else ""),
        ("Classes", f"Classes on {split}", class_table(result, report.classes) if result and result.per_class else ""),
        ("Worst", "Worst predictions", _cards(report.worst, "The images with the largest loss.")),
        ("Best", "Best predictions", _cards(report.best, "Correct predictions with the highest confidence.")),
        ("Check", "Data check", _data_check(report)),
        ("Choices", "Settings chosen automatically", _choices(report.choices)),
        ("Data", "Data", _facts(report.data)),
        ("Command", "Command", _commands([report.command])),
        ("Advice", "Most likely to improve the result", _advice(report.advice)),
        ("Next", "What to try next", _commands(report.next_steps)),
        ("Configuration", "Configuration", _config(report.config)),
        ("Environment", "Environment", _facts(list(report.environment.items()))),
    ]


def _data_check(report: TrainingReport) -> str:
    return data_check_section(report.worst, report.split, report.unreadable, report.check_command)


def _tiles(report: TrainingReport, history: History) -> str:
    tiles: list[tuple[str, str]] = []
    if result := report.result:
        tiles += [(percent(value), f"{report.split} {name}") for value, name in _metrics(result)]
        if result.interval is not None:  # right after the accuracy
            interval = (
                format_interval(result.interval),
                f"95% interval (Wilson), {result.images:,} {report.split} images",
            )
            tiles.insert(1, interval)
        tiles.append((_loss(result.loss), f"{report.split} loss"))
        if result.calibration is not None:
            tiles.append((percent(result.calibration), f"{report.split} calibration error"))
        if result.invalid:
            tiles.append((f"{result.invalid:,}", "images with NaN predictions"))
    for key, name in METRICS:
        if best := best_evaluation(history, key):
            value, split, weights, record = best
            shown, end = (_loss(value), "lowest") if key == "loss" else (percent(value), "highest")
            place = f"{'EMA, ' if weights == 'ema' else ''}{history.x_name} {_number(number(record, history.x_name))}"
            count = sum(len(group) for group in history.evaluations.values())
            tiles.append((shown, f"{end} {split} {name} of {count} evaluations, selected ({place})"))
            break
    speed, memory = column(history.train, "images_per_second"), column(history.train, "memory_bytes")
    if np.isfinite(speed).any():
        tiles.append((_number(float(np.nanmedian(speed))), "images per second"))
    if np.isfinite(memory).any():
        tiles.append((_bytes(float(np.nanmax(memory))), "peak memory"))
    items = "".join(f'<div class="tile"><b>{text(value)}</b><span>{text(name)}</span></div>' for value, name in tiles)
    return f'<div class="tiles">{items}</div>\n' if tiles else ""


def _metrics(result: Result) -> list[tuple[float, str]]:
    """Metrics to show. Top-5 is left out for few classes, and mean recall where it is close to the accuracy."""
    shares = [
        (result.top1, "accuracy"),
        (result.map, "mean average precision"),
        (result.patch_accuracy, "accuracy of the colours of masked patches"),
    ]
    if len(result.per_class) > MAX_COUNTED:
        shares.append((result.top5, "top-5 accuracy"))
    if result.balanced is not None and abs(result.balanced - (result.top1 or 0.0)) >= 0.005:
        shares.append((result.balanced, "mean recall"))
    return [(value, name) for value, name in shares if value is not None]


def _comparison(runs: Sequence[RunSummary]) -> str:
    """A table of results and different settings of runs, and charts with their evaluations."""
    if not runs:
        return ""
    histories = [History.of(run.records) for run in runs]
    found = (name for key, name in METRICS if any(best_evaluation(history, key) for history in histories))
    metric = next(found, "accuracy")
    columns = [
        (*_best_result(run, history), *_length(history), run.initial_weights)
        for run, history in zip(runs, histories, strict=True)
    ]
    heads = "".join(
        f'<th class="name">{swatch(run_style(place))} {text(run.name)}</th>' for place, run in enumerate(runs)
    )
    names = (metric, "95% interval", "measured on", "epochs", "time", "initial weights")
    rows = _comparison_rows(zip(names, zip(*columns, strict=True), strict=True))
    if runs[0].settings:
        rows += '<tr class="group"><th scope="rowgroup">different settings</th></tr>\n'
        rows += _comparison_rows((name, [run.settings[name] for run in runs]) for name in runs[0].settings)
        rows += '<tr class="group"><th scope="rowgroup">selection</th></tr>\n'
    rows += _comparison_rows([("weights", [run.selection or "-" for run in runs])])
    table = f'<table class="runs"><thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    drawn = "".join(draw_chart(chart) for chart in comparison_charts([run.name for run in runs], histories))
    return f'<div class="scroll">{table}</div><div class="charts">{drawn}</div>'


def _comparison_rows(rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    return "".join(
        f'<tr><th scope="row">{text(name)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>\n'
        for name, cells in rows
    )


def _best_result(run: RunSummary, history: History) -> tuple[str, str, str]:
    """Result, interval and number of images; for an unfinished run, the best evaluation so far."""
    other = "" if run.same_images else ", other images than those of this run"
    if (result := run.result) is not None:
        value = result.top1 if result.top1 is not None else result.map
        shown = _loss(result.loss) if not result.per_class else "-" if value is None else percent(value)
        interval = "-" if result.interval is None else format_interval(result.interval)
        return shown, interval, f"{result.images:,} {run.split} images{other}"
    for key, _ in METRICS:
        if best := best_evaluation(history, key):
            shown = _loss(best[0]) if key == "loss" else percent(best[0])
            return shown, "-", f"{best[1]} images, best so far{other}"
    return "-", "-", "no evaluation yet"


def _length(history: History) -> tuple[str, str]:
    """Epochs and training time so far."""
    last = history.train[-1] if history.train else {"epoch": 0, "seconds": 0}
    epoch, seconds = number(last, "epoch"), number(last, "seconds")
    return ("-" if math.isnan(epoch) else _number(epoch)), ("-" if math.isnan(seconds) else format_duration(seconds))


def _curves(history: History) -> str:
    drawn = "".join(draw_chart(chart) for chart in charts(history))
    if not drawn:
        return ""
    events = "".join(f"<li>{text(_event(history, x, words))}</li>" for x, words in history.events[:MAX_EVENTS])
    more = len(history.events) - MAX_EVENTS
    tail = f'<p class="note">{more:,} more events are in metrics.jsonl.</p>' if more > 0 else ""
    key = f"Faint lines: recorded values. Solid lines: moving average over {history.window:,} points."
    words = f'<p class="quiet">{key}</p>' if history.window > 1 else ""
    return f'{words}<div class="charts">{drawn}</div>' + (f'<ol class="events">{events}</ol>{tail}' if events else "")


def _event(history: History, x: float, words: str) -> str:
    return words if math.isnan(x) else f"{history.x_name} {_number(x)}: {words}"


def _cards(pictures: Sequence[ExampleImage], caption: str) -> str:
    cards = "".join(_card(picture) for picture in pictures)
    return f'<p class="quiet">{caption}</p><div class="cards">{cards}</div>' if cards else ""


def _card(picture: ExampleImage) -> str:
    source, tiny = _png(picture)
    truth = f'label: <b class="name">{text(", ".join(picture.truth))}</b>' if picture.truth else "no label"
    answers = "".join(_answer(name, value, name in picture.truth) for name, value in picture.answers)
    name, css = text(picture.name), ' class="tiny"' if tiny else ""
    return f"""<figure class="card" title="{name}"><img{css} alt="{name}" src="{source}">
<p>{truth}</p>{answers or "<p>the model predicted NaN</p>"}
<p class="file">loss {_loss(picture.loss)}, <span class="name">{name}</span></p></figure>
"""


def _answer(name: str, value: float, right: bool) -> str:
    mark = "\u2713\u00a0" if right else ""
    return (
        f'<div class="answer{"" if right else " no"}"><span class="name">{mark}{text(name)}</span>'
        f'<span class="num">{percent(value)}</span>{bar(value)}</div>'
    )


def _png(picture: ExampleImage) -> tuple[str, bool]:
    """The image as a data URL, and whether it is small enough to be shown without smoothing."""
    pixels = np.asarray(picture.pixels)
    grey = pixels.ndim == 3 and pixels.shape[2] == 1
    pixels = pixels[:, :, 0] if grey else pixels
    if pixels.dtype != np.uint8 or not pixels.size or (pixels.ndim, *pixels.shape[2:]) not in ((2,), (3, 3), (3, 4)):
        raise VitreousError(
            f"{picture.name}: an image of shape {picture.pixels.shape} and type {picture.pixels.dtype} cannot be "
            "shown; expected 8-bit pixels, height x width x 1 (grey), 3 (RGB) or 4 (RGBA)"
        )
    image = Image.fromarray(np.ascontiguousarray(pixels))
    tiny = max(image.size) <= TINY_SIDE
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return image_url(file.getvalue(), "png"), tiny


def _choices(choices: Sequence[tuple[str, str, str]]) -> str:
    rows = "".join(
        f"<tr><td><code>{text(field)}</code></td><td>{text(value)}</td><td>{text(why)}</td></tr>\n"
        for field, value, why in choices
    )
    heads = "<thead><tr><th>field</th><th>value</th><th>reason</th></tr></thead>"
    return f'<table class="choices facts">{heads}<tbody>{rows}</tbody></table>' if rows else ""


def _facts(facts: Sequence[tuple[str, object]]) -> str:
    rows = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>\n' for name, value in facts)
    return f'<table class="facts"><tbody>{rows}</tbody></table>' if rows else ""


def _config(config: dict[str, Any]) -> str:
    facts = [
        (name, v if isinstance(v, str) else json.dumps(v, default=str, ensure_ascii=False))
        for name, v in config.items()
    ]
    return f"<details><summary>All {len(facts)} fields</summary>{_facts(facts)}</details>" if facts else ""


def _advice(advice: Sequence[tuple[str, str]]) -> str:
    return "".join(f"<p>{text(reason[0].upper() + reason[1:])}:</p>\n{_commands([line])}" for reason, line in advice)


def _commands(commands: Sequence[str]) -> str:
    return "".join(f"<pre><code>{text(command)}</code></pre>\n" for command in commands if command)


def _items(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>" if items else ""


def _links(links: Sequence[tuple[str, str]]) -> str:
    """Links to files in the run directory. After "./" a browser cannot read a host or a script."""
    return "".join(f'<a href="./{text(quote(href, safe="/#?=&%"))}">{text(title)}</a>' for title, href in links)


def _number(value: float) -> str:
    """Three significant digits, or all digits of a large number; never 1e+03."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _loss(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) and 0.1 <= abs(value) < 100 else _number(value)


def _bytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
