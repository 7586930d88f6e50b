"""The page of a data check: findings with thumbnails, marks by keyboard, and their export as CSV or as a script."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.folder_listing import folder_class_name
from vitreous.errors import SystemFaultError, VitreousError, format_count
from vitreous.evaluation.data_check import CheckedImages, CopyGroup, DataCheck, OddImage, describe_copies
from vitreous.evaluation.data_check_labels import LabelSuspect
from vitreous.evaluation.learning_curve import ClassNeed, LearningCurve
from vitreous.evaluation.metrics import format_interval
from vitreous.reports.charts import Chart, Line, draw_chart
from vitreous.reports.class_tables import bar, percent
from vitreous.reports.data_check_text import (
    ODD_TITLES,
    VERDICTS,
    describe_curve,
    describe_pair,
    describe_separation,
    describe_suspects,
)
from vitreous.reports.html_page import HtmlPage, Section, render_page
from vitreous.utils.html import clean, image_url, text

MAX_SUSPECTS, MAX_GROUPS, MAX_MEMBERS, MAX_ODD, MAX_PAIRS, MAX_CLASSES = 400, 100, 8, 60, 50, 1000
THUMBNAIL, PLAIN_SIDE = 144, 48  # pixels; images up to PLAIN_SIDE are shown without smoothing
KEYS = """<kbd>&rarr;</kbd> <kbd>&larr;</kbd> move, <kbd>1</kbd> keep, <kbd>2</kbd> use the suggested label, \
<kbd>3</kbd> remove, <kbd>0</kbd> no mark, <kbd>L</kbd> choose another label"""
INTRODUCTION = f"""<p class="lead">Mark images, then export the marks. This page and \
<code>vitreous data --check</code> change nothing: the script, if you run it, moves removed images \
to a quarantine folder and relabelled images to the \
folder of their new class (<code>sh fixes.sh</code>). It deletes nothing.</p>
<p class="quiet" id="keys">Keys: {KEYS}.</p>"""
TOOLBAR = """<div id="toolbar" role="toolbar" aria-label="Marks"><span id="count" role="status">no marks</span>
<label>label of the selected image <select id="other"><option value="">-</option></select></label>
<button type="button" id="csv">Export CSV</button><button type="button" id="script">Export script</button>
<button type="button" id="clear">Clear all</button></div>
"""


def render_data_check_page(check: DataCheck, class_folders: bool) -> str:
    """The HTML page. `class_folders`: labels are names of folders, so that moving a file changes its label."""
    thumbnails = _Thumbnails(check.images)
    sections = [
        Section("labels", "Labels", "Probably wrong labels", _suspects(check, thumbnails)),
        Section("copies", "Copies", "Copies and leaks", _copies(check, thumbnails)),
        *_odd_sections(check, thumbnails),
        Section("classes", "Classes", "Classes that cannot be told apart", _pairs(check)),
        Section("curve", "More pictures", "Which class needs more pictures?", _curve(check)),
        Section("method", "Method", "Method and notes", _method(check)),
    ]
    name = check.images.data.name
    warnings = "".join(f'<p class="warning">{text(warning)}</p>' for warning in check.warnings)
    return render_page(
        HtmlPage(
            assets="training_report data_check_page",
            title=f"{clean(name)}: data check",
            kicker="Data check",
            heading=name,
            header=f'{warnings}<p class="outcome">{text(_outcome(check))}</p>\n{_tiles(check)}{INTRODUCTION}',
            sections=sections,
            before_main=TOOLBAR,
            data=_data(check, thumbnails.shown, class_folders),
        )
    )


def _outcome(check: DataCheck) -> str:
    images = ", ".join(f"{len(source):,} {split}" for split, source in check.images.splits.items())
    return f"{images} images, {format_count(len(check.images.data.classes), 'class')}; features of {check.model}"


def _tiles(check: DataCheck) -> str:
    suspects = "-" if check.error_rate is None else f"{len(check.suspects):,}"
    counts = [(suspects, "probably wrong labels"), (f"{len(check.copies):,}", "groups of copies")]
    counts.append((f"{len(check.leaks):,}", "of them across splits"))
    counts += [(f"{len(check.odd_of(kind)):,}", title.lower()) for kind, title in ODD_TITLES.items()]
    items = "".join(f'<div class="tile"><b>{value}</b><span>{text(name)}</span></div>' for value, name in counts)
    return f'<div class="tiles">{items}</div>\n'


class _Thumbnails:
    """Small versions of images as HTML. `shown`: the images that were requested."""

    def __init__(self, images: CheckedImages):
        self.images = images
        self.shown: dict[int, None] = {}

    def html(self, number: int) -> str:
        self.shown[number] = None
        name = text(self.images.name(number))
        _, source, index = self.images.locate(number)
        try:
            image = source.image(index, (THUMBNAIL, THUMBNAIL))
        except SystemFaultError:
            raise
        except VitreousError:
            return '<div class="missing">unreadable</div>'
        plain = max(image.size) <= PLAIN_SIDE
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "PNG" if plain else "JPEG", **({} if plain else {"quality": 80}))
        css = ' class="tiny"' if plain else ""
        return f'<img{css} alt="{name}" src="{image_url(file.getvalue(), "png" if plain else "jpeg")}">'


def _item(thumbnails: _Thumbnails, number: int, lines: Iterable[str], suggested: int | None = None) -> str:
    """A card with buttons to mark the image. `lines` are HTML."""
    images = thumbnails.images
    relabel, suggestion = "", ""
    if suggested is not None:
        name = text(images.data.classes[suggested])
        relabel = f'<button type="button" data-mark="relabel">{name}</button>'
        suggestion = f' data-suggested="{suggested}"'
    body = "".join(f"<p>{line}</p>" for line in lines)
    return f"""<figure class="card item" tabindex="0" data-image="{number}"{suggestion}>{thumbnails.html(number)}
{body}<p class="file">{text(images.split_of(number))}: <span class="name">{text(images.name(number))}</span></p>
<div class="marks"><button type="button" data-mark="keep">Keep</button>{relabel}\
<button type="button" data-mark="remove">Remove</button></div></figure>
"""


def _sentence(words: str) -> str:
    return text(words[:1].upper() + words[1:])


def _more(number: int, limit: int) -> str:
    if number <= limit:
        return ""
    return f'<p class="note">{number - limit:,} more are not shown; suspects.csv lists all.</p>'


def _suspects(check: DataCheck, thumbnails: _Thumbnails) -> str:
    classes = check.images.data.classes
    lead = f'<p class="quiet">{_sentence(describe_suspects(check))}.</p>'
    if not check.suspects:
        return lead

    def lines(suspect: LabelSuspect) -> list[str]:
        label, other = text(classes[suspect.label]), text(classes[suspect.suggested])
        return [
            f'label <b class="name">{label}</b> {percent(suspect.label_probability)}',
            f'suggested <b class="name">{other}</b> {percent(suspect.suggested_probability)}',
            f"wrong with probability {percent(suspect.wrong)}",
        ]

    cards = "".join(
        _item(thumbnails, suspect.image, lines(suspect), suspect.suggested) for suspect in check.suspects[:MAX_SUSPECTS]
    )
    words = '<p class="quiet">Percentages after classes are out-of-fold predictions. Most probable errors first.</p>'
    return f'{lead}{words}<div class="cards">{cards}</div>{_more(len(check.suspects), MAX_SUSPECTS)}'


def _copies(check: DataCheck, thumbnails: _Thumbnails) -> str:
    order = " Leaks come first, then different labels." if len(check.copies) > 1 else ""
    lead = f'<p class="quiet">{_sentence(describe_copies(check))}.{order}</p>'
    groups = "".join(_copy_group(check, thumbnails, group) for group in check.copies[:MAX_GROUPS])
    return f"{lead}{groups}{_more(len(check.copies), MAX_GROUPS)}"


def _copy_group(check: DataCheck, thumbnails: _Thumbnails, group: CopyGroup) -> str:
    images = check.images
    facts = ["identical files" if group.identical else f"copies, similarity {group.similarity:.3f}"]
    if len(group.splits) > 1:
        facts.append(f"<b>leak</b>: in {text(' and '.join(group.splits))}")
    facts += ["<b>labels differ</b>"] if group.labels_differ else []
    labels = list(dict.fromkeys(images.label(number) for number in group.images))

    def other(number: int) -> int | None:
        rest = [label for label in labels if label != images.label(number)]
        return images.data.classes.index(rest[0]) if len(rest) == 1 and not images.data.multi_label else None

    cards = "".join(
        _item(thumbnails, number, [f'label <b class="name">{text(images.label(number))}</b>'], other(number))
        for number in group.images[:MAX_MEMBERS]
    )
    more = len(group.images) - MAX_MEMBERS
    rest = f'<p class="note">and {more:,} more copies; suspects.csv lists all</p>' if more > 0 else ""
    return f'<h3>{", ".join(facts)}</h3><div class="cards">{cards}</div>{rest}\n'


def _odd_sections(check: DataCheck, thumbnails: _Thumbnails) -> list[Section]:
    def item(odd: OddImage) -> str:
        label = f'label <b class="name">{text(check.images.label(odd.image))}</b>'
        return _item(thumbnails, odd.image, [label, text(odd.detail)])

    sections = []
    for kind, title in ODD_TITLES.items():
        found = check.odd_of(kind)
        cards = "".join(map(item, found[:MAX_ODD]))
        body = f'<div class="cards">{cards}</div>{_more(len(found), MAX_ODD)}' if found else ""
        sections.append(Section(kind, title.removesuffix(" images"), f"{title}: {len(found):,}", body))
    return sections


def _pairs(check: DataCheck) -> str:
    if check.separation is None:
        return ""
    pairs, classes = check.separation.indistinct, check.images.data.classes
    items = "".join(f"<li>{text(describe_pair(pair, classes))}</li>" for pair in pairs[:MAX_PAIRS])
    listing = f"<ul>{items}</ul>{_more(len(pairs), MAX_PAIRS)}" if items else ""
    return f'<p class="quiet">{_sentence(describe_separation(check.separation))}.</p>{listing}'


def _curve(check: DataCheck) -> str:
    curve, classes = check.curve, check.images.data.classes
    if curve is None:
        return ""
    lead = f"<p>{_sentence(describe_curve(curve, classes))}.</p>"
    chart = draw_chart(_curve_chart(curve, classes)) if len(curve.points) > 1 else ""
    words = (
        '<p class="quiet">Recall of held-out images, out of fold. Gain: change of the recall from half of the training'
        " images of all classes to all; its intervals hold for all classes together (95%).</p>"
    )
    rows = "".join(_need_row(need, classes) for need in curve.needs[:MAX_CLASSES])
    names = ("images", "recall", "95% interval", "gain", "interval", "verdict")
    heads = "".join(f'<th class="num" scope="col">{head}</th>' for head in names)
    table = f"""<div class="scroll" tabindex="0" role="region" aria-label="classes"><table class="classes"><thead><tr>\
<th scope="col">class</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"""
    return f"{lead}{chart}{words + table if rows else ''}{_more(len(curve.needs), MAX_CLASSES)}"


def _need_row(need: ClassNeed, classes: Sequence[str]) -> str:
    low, high = (100 * value for value in need.gain_interval)
    rank = {"more": 0, "unknown": 1, "enough": 2}[need.verdict]
    name = text(classes[need.index])
    cells = (
        (need.images, f"{need.images:,}"),
        (need.recall, f"{bar(need.recall)}<b>{percent(need.recall)}</b>"),
        (need.interval[0], format_interval(need.interval)),
        (need.gain, f"{100 * need.gain:+.1f}"),
        (need.gain_interval[0], f"{low:+.1f} to {high:+.1f}"),
        (rank, VERDICTS[need.verdict]),
    )
    columns = "".join(f'<td class="num" data-value="{value:.6g}">{shown}</td>' for value, shown in cells)
    return f'<tr><td class="name" data-value="{name}">{name}</td>{columns}</tr>\n'


def _curve_chart(curve: LearningCurve, classes: Sequence[str]) -> Chart:
    """Accuracy of all classes, and the recall of the class with the largest gain and of the one with the lowest."""
    x = np.array([float(np.mean(point.images)) for point in curve.points])
    lines = [Line("all classes", "val", x, np.array([point.accuracy for point in curve.points]))]
    chosen: dict[int, Any] = {}
    if curve.needs:
        chosen = {
            max(curve.needs, key=lambda need: need.gain).index: "ema",
            min(curve.needs, key=lambda need: need.recall).index: "other",
        }
    columns = list(curve.classes or range(len(classes)))
    for index, style in chosen.items():
        y = [point.recall[columns.index(index)] for point in curve.points]
        lines.append(Line(classes[index], style, x, np.array([np.nan if v is None else v for v in y])))
    return Chart("Accuracy on held-out images", "training images per class (mean)", lines, kind="percent")


def _method(check: DataCheck) -> str:
    items = "".join(f"<li>{text(line)}.</li>" for line in (*check.method, *check.notes))
    counts = format_count(len(check.images), "image")
    return f'<ul>{items}</ul><p class="quiet">{counts}; features of {text(check.model)}.</p>'


# ---------------------------------------------------------------- data for the script


def _data(check: DataCheck, shown: Iterable[int], class_folders: bool) -> str:
    images = check.images
    classes = images.data.classes
    files = {number: images.file(number) for number in shown}
    names = "\0".join(images.name(number) for number in files)
    table = {
        "id": blake2b(names.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest(),
        "name": clean(images.data.name),
        "classes": [] if images.data.multi_label else list(classes),
        "quarantine": _quarantine([file for file in files.values() if file is not None]),
        "images": {
            str(number): {
                "name": images.name(number),
                "split": images.split_of(number),
                "label": images.label(number),
                **_place(file, images.label(number), class_folders),
            }
            for number, file in files.items()
        },
    }
    words = json.dumps(table, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="data">{words}</script>\n'


def _place(file: tuple[str, str] | None, label: str, class_folders: bool) -> dict[str, Any]:
    """Return the folder, the path of an image below it, and which part of that path is the class (-1: none)."""
    if file is None:
        return {}
    root, below = file
    path = PurePosixPath(os.path.join(root, below))  # noqa: PTH118 (an absolute path stays as it is)
    inside = path.is_relative_to(root)
    parts = list(path.relative_to(root).parts) if inside else list(path.parts[1:])
    folders = [folder_class_name(part) for part in parts[:-1]] if class_folders and inside else []
    return {
        "root": root if inside else "/",
        "parts": parts,
        "classAt": folders.index(label) if label in folders else -1,
    }


def _quarantine(files: Sequence[tuple[str, str]]) -> str:
    """Return a folder next to the data: inside of it, the removed images would become a class."""
    roots = sorted({root for root, _ in files})
    common = os.path.commonpath(roots) if roots else ""
    return f"{common.rstrip('/')}-quarantine" if common.strip("/") else ""
