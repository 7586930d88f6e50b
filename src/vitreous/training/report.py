"""The page that a run leaves behind: one file, complete in itself, that any browser opens from anywhere."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Result
from vitreous.pages import policy, text
from vitreous.training.beside import Ran
from vitreous.training.charts import draw, swatch
from vitreous.training.curves import STYLES, History, best_evaluation, charts, column, compared, number
from vitreous.training.report_classes import COUNTED, bar, class_table, confusions, share
from vitreous.training.telling import times
from vitreous.weights.files import replacing

LARGEST_SIDE = 224  # pixels of a picture in the page; larger ones are shrunk
TINY_SIDE = 64  # up to here a picture is shown pixel by pixel
MOST_EVENTS = 200


@dataclass(frozen=True)
class Picture:
    """One image and what the model said about it, in words."""

    name: str
    pixels: NDArray[np.uint8]  # (height, width, channels), or without channels for grey
    truth: tuple[str, ...]
    answers: tuple[tuple[str, float], ...]  # with probabilities, the likeliest first
    loss: float


@dataclass(frozen=True)
class Report:
    """Everything that the page shows."""

    title: str
    outcome: str  # one sentence
    command: str  # what was typed
    classes: tuple[str, ...]
    records: Sequence[dict[str, Any]]  # the lines of metrics.jsonl
    result: Result | None  # of the last evaluation, on `split`
    split: str
    best: Sequence[Picture]
    worst: Sequence[Picture]
    choices: Sequence[tuple[str, str, str]]  # field, value, why
    config: dict[str, Any]
    environment: dict[str, str]
    data: Sequence[tuple[str, str]]
    notes: Sequence[str]
    next_steps: Sequence[str]  # commands
    links: Sequence[tuple[str, str]] = ()  # title, and a file beside the page
    runs: Sequence[Ran] = ()  # this one and another, to be compared


def write_report(path: Path, report: Report) -> None:
    """Write the page, whole or not at all."""
    page = render(report)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(report: Report) -> str:
    history = History.of(report.records)
    style, script = (files("vitreous.training").joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    sections = [(name, title, body) for name, title, body in _sections(report, history) if body]
    nav = "".join(f'<a href="#{name.lower()}">{name}</a>' for name, _, _ in sections)
    main = "".join(
        f'<section id="{name.lower()}"><h2>{title}</h2>\n{body}</section>\n' for name, title, body in sections
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(report.title)}: {text(report.outcome)}</title>
<style>{style}</style></head>
<body><header><p class="kicker">Training report</p><h1 class="name">{text(report.title)}</h1>
<p class="outcome">{text(report.outcome)}</p>
{_tiles(report, history)}<nav>{nav}{_links(report.links)}</nav></header>
<main>
{main}</main>
<footer>Written by Vitreous. This page is one file and loads nothing.</footer>
<script>{script}</script></body></html>
"""


def _sections(report: Report, history: History) -> list[tuple[str, str, str]]:
    result, split = report.result, text(report.split)
    return [
        ("Notes", "Notes", _items(report.notes)),
        ("Comparison", "Side by side", _comparison(report.runs)),
        ("Curves", "Curves", _curves(history)),
        ("Confusions", f"Confusions on {split}", confusions(result, report.classes) if result else ""),
        ("Classes", f"Classes on {split}", class_table(result, report.classes) if result else ""),
        ("Worst", "Worst predictions", _cards(report.worst, "The images with the largest loss.")),
        ("Best", "Best predictions", _cards(report.best, "Right, and with the most confidence.")),
        ("Choices", "What was chosen, and why", _choices(report.choices)),
        ("Data", "Data", _facts(report.data)),
        ("Command", "Command", _commands([report.command])),
        ("Next", "What to try next", _commands(report.next_steps)),
        ("Configuration", "Configuration", _config(report.config)),
        ("Environment", "Environment", _facts(list(report.environment.items()))),
    ]


def _tiles(report: Report, history: History) -> str:
    tiles: list[tuple[str, str]] = []
    if result := report.result:
        tiles += [(share(value), f"{report.split} {name}") for value, name in _shares(result)]
        tiles.append((_loss(result.loss), f"{report.split} loss"))
        if result.calibration is not None:
            tiles.append((share(result.calibration), f"{report.split} calibration error"))
        if result.invalid:
            tiles.append((f"{result.invalid:,}", "images answered with NaN"))
    for key, name in (("top1", "accuracy"), ("map", "mAP")):
        best = best_evaluation(history, key)
        if best and not (result and best[1] == report.split):  # there the result says it
            value, split, weights, record = best
            place = f"{'EMA, ' if weights == 'ema' else ''}{history.x_name} {_number(number(record, history.x_name))}"
            tiles.append((share(value), f"best {split} {name} ({place})"))
    speed, memory = column(history.train, "images_per_second"), column(history.train, "memory_bytes")
    if np.isfinite(speed).any():
        tiles.append((_number(float(np.nanmedian(speed))), "images per second"))
    if np.isfinite(memory).any():
        tiles.append((_bytes(float(np.nanmax(memory))), "peak memory"))
    items = "".join(f'<div class="tile"><b>{text(value)}</b><span>{text(name)}</span></div>' for value, name in tiles)
    return f'<div class="tiles">{items}</div>\n' if tiles else ""


def _shares(result: Result) -> list[tuple[float, str]]:
    """The shares that say something: the fifth of few classes, or a mean recall that is the accuracy, do not."""
    shares = [(result.top1, "accuracy"), (result.map, "mean average precision")]
    if len(result.per_class) > COUNTED:
        shares.append((result.top5, "top-5 accuracy"))
    if result.balanced is not None and abs(result.balanced - (result.top1 or 0.0)) >= 0.005:
        shares.append((result.balanced, "mean recall"))
    return [(value, name) for value, name in shares if value is not None]


def _comparison(runs: Sequence[Ran]) -> str:
    """Two runs in one table, and their evaluations on the same axes."""
    if not runs:
        return ""
    histories = [History.of(run.records) for run in runs]
    metric = "mAP" if any(best_evaluation(history, "map") for history in histories) else "accuracy"
    told = [
        (*_reached(run, history), *_length(history), run.began) for run, history in zip(runs, histories, strict=True)
    ]
    heads = "".join(
        f'<th class="name">{swatch(style)} {text(run.name)}</th>' for run, style in zip(runs, STYLES, strict=True)
    )
    rows = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>\n'
        for name, cells in zip((metric, "of", "epochs", "time", "began with"), zip(*told, strict=True), strict=True)
    )
    table = f'<table class="runs"><thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    drawn = "".join(draw(chart) for chart in compared([run.name for run in runs], histories))
    return f'{table}<div class="charts">{drawn}</div>'


def _reached(run: Ran, history: History) -> tuple[str, str]:
    """What it came to, and on which images; of a run that has not ended, the best so far."""
    if run.result is not None:
        value = run.result.top1 if run.result.top1 is not None else run.result.map
        return ("-" if value is None else share(value)), f"{run.result.images:,} {run.split} images"
    best = best_evaluation(history, "top1") or best_evaluation(history, "map")
    return (share(best[0]), f"{best[1]} images, the best so far") if best else ("-", "nothing yet")


def _length(history: History) -> tuple[str, str]:
    """Epochs and time, as far as it has come."""
    last = history.train[-1] if history.train else {"epoch": 0, "seconds": 0}
    epoch, seconds = number(last, "epoch"), number(last, "seconds")
    return ("-" if math.isnan(epoch) else _number(epoch)), ("-" if math.isnan(seconds) else times(seconds))


def _curves(history: History) -> str:
    drawn = "".join(draw(chart) for chart in charts(history))
    if not drawn:
        return ""
    events = "".join(f"<li>{text(_event(history, x, words))}</li>" for x, words in history.events[:MOST_EVENTS])
    more = len(history.events) - MOST_EVENTS
    tail = f'<p class="note">{more:,} more are in metrics.jsonl.</p>' if more > 0 else ""
    key = f"Faint lines are as recorded, solid ones the mean of {history.window:,} around each point."
    words = f'<p class="quiet">{key}</p>' if history.window > 1 else ""
    return f'{words}<div class="charts">{drawn}</div>' + (f'<ol class="events">{events}</ol>{tail}' if events else "")


def _event(history: History, x: float, words: str) -> str:
    return words if math.isnan(x) else f"{history.x_name} {_number(x)}: {words}"


def _cards(pictures: Sequence[Picture], caption: str) -> str:
    cards = "".join(_card(picture) for picture in pictures)
    return f'<p class="quiet">{caption}</p><div class="cards">{cards}</div>' if cards else ""


def _card(picture: Picture) -> str:
    source, tiny = _png(picture)
    truth = f'is <b class="name">{text(", ".join(picture.truth))}</b>' if picture.truth else "has no label"
    answers = "".join(_answer(name, value, name in picture.truth) for name, value in picture.answers)
    name, css = text(picture.name), ' class="tiny"' if tiny else ""
    return f"""<figure class="card" title="{name}"><img{css} alt="{name}" src="{source}">
<p>{truth}</p>{answers or "<p>the model said NaN</p>"}
<p class="file">loss {_loss(picture.loss)}, <span class="name">{name}</span></p></figure>
"""


def _answer(name: str, value: float, right: bool) -> str:
    mark = "\u2713\u00a0" if right else ""
    return (
        f'<div class="answer{"" if right else " no"}"><span class="name">{mark}{text(name)}</span>'
        f'<span class="num">{share(value)}</span>{bar(value)}</div>'
    )


def _png(picture: Picture) -> tuple[str, bool]:
    """The picture as an address that holds it, and whether its pixels are few enough to be shown as squares."""
    pixels = np.asarray(picture.pixels)
    grey = pixels.ndim == 3 and pixels.shape[2] == 1
    pixels = pixels[:, :, 0] if grey else pixels
    if pixels.dtype != np.uint8 or not pixels.size or (pixels.ndim, *pixels.shape[2:]) not in ((2,), (3, 3), (3, 4)):
        raise VitreousError(
            f"{picture.name}: a picture of shape {picture.pixels.shape} and type {picture.pixels.dtype} cannot be "
            "shown; expected 8-bit pixels, height x width x 1 (grey), 3 (RGB) or 4 (RGBA)"
        )
    image = Image.fromarray(np.ascontiguousarray(pixels))
    tiny = max(image.size) <= TINY_SIDE
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}", tiny


def _choices(choices: Sequence[tuple[str, str, str]]) -> str:
    rows = "".join(
        f"<tr><td><code>{text(field)}</code></td><td>{text(value)}</td><td>{text(why)}</td></tr>\n"
        for field, value, why in choices
    )
    heads = "<thead><tr><th>field</th><th>value</th><th>why</th></tr></thead>"
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


def _commands(commands: Sequence[str]) -> str:
    return "".join(f"<pre><code>{text(command)}</code></pre>\n" for command in commands if command)


def _items(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>" if items else ""


def _links(links: Sequence[tuple[str, str]]) -> str:
    """Files beside the page, and nothing else: after "./" nothing is a host or a script."""
    return "".join(f'<a href="./{text(quote(href, safe="/#?=&%"))}">{text(title)}</a>' for title, href in links)


def _number(value: float) -> str:
    """Three digits, or all of a whole number; never 1e+03."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _loss(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) and 0.1 <= abs(value) < 100 else _number(value)


def _bytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
