"""`vitreous evaluate`: how good a model is on a data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.parts import (
    DataOptions,
    File,
    Folder,
    Json,
    Learning,
    Overwrite,
    Running,
    Weights,
    check_writing,
    paced,
    print_json,
    show_columns,
    show_facts,
    stopping,
    tell_unreadable,
    teller_for,
    warn,
    write_json,
)
from vitreous.utils.console import STDERR, STDOUT, printable, say

if TYPE_CHECKING:
    from vitreous.evaluation.report import Report

MOST_CLASSES, MOST_PAIRS = 20, 10  # that are shown; --json has all


@dataclass(frozen=True)
class Truth:
    """What is right."""

    split: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """train, val, test or all; if not given, the data's own test split, else its own val split, else all images, of
    which only those that the model has not seen in training, if it is a run directory."""
    real: File = None
    """ImageNet ReaL's reassessed labels: a list of right answers for each validation image, found by the number in its
    name (ILSVRC2012_val_00000001 is the first)."""
    classes: Annotated[Path | None, tyro.conf.arg(metavar="MAP.json|MAP.csv")] = None
    """which of the model's classes each class of the data is, where that cannot be told: a JSON object, or a CSV of two
    columns, from the data's name to the model's name or index."""


@dataclass(frozen=True)
class Writing:
    """Where the answer goes, beside the terminal."""

    json: Json = False
    """one JSON object instead of tables."""
    out: Folder = None
    """write everything to this folder, with a picture of accuracy against size where there are several sizes."""
    overwrite: Overwrite = False
    """replace the folder of an earlier evaluation, once the new one is complete."""


def evaluate(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    *,
    weights: Weights,
    size: Annotated[tuple[int, ...], tyro.conf.arg(metavar="PX ...", help_behavior_hint="")] = (),
    reading: DataOptions = DataOptions(),  # noqa: B008 (they are frozen)
    truth: Truth = Truth(),
    learning: Learning = Learning(),  # noqa: B008
    running: Running = Running(),  # noqa: B008
    writing: Writing = Writing(),
) -> None:
    """Say how good a model is on a data set: every image once.

    Args:
        source: data as in `vitreous data`: a folder, a manifest, arrays, tars, Parquet or a name.
        weights: what is measured.
        size: image sizes, one after the other; the model's own if none is given.
        reading: where images and labels are, and how they are split.
        truth: what is right.
        learning: what features are worth.
        running: how images come to the model.
        writing: where the answer goes.
    """
    from vitreous.data.open_data import open_data
    from vitreous.evaluation.cache import Cache, usual_place
    from vitreous.evaluation.measures import Settings
    from vitreous.evaluation.report import Question, report
    from vitreous.evaluation.subject import open_subject

    check_writing(writing.out, contents, overwrite=writing.overwrite, draws=len(size) > 1)
    teller = teller_for(writing.json)
    loading = running.loading(teller)
    settings = Settings(tuple(learning.shots))
    question = Question(truth.split, size, tuple(learning.measures), settings, truth.real, truth.classes)
    data = open_data(source, reading.reading(weights.model))
    subject = open_subject(weights.model, loading.device, weights.heads, weights.preprocessing)
    for note in (*subject.notes, *data.notes):
        teller.notes.print(printable(note), style="dim", soft_wrap=True)
    with stopping(bool(learning.measures)):
        found = report(subject, data, question, loading, Cache(learning.cache or usual_place()), paced(teller))
    warn(teller, found.warnings)
    if writing.json:
        print_json({"data": source, **found.to_json()})
    else:
        show(source, found)
    write(source, found, writing)
    scored = found.scores[0].unreadable.values() if found.scores else ()
    tell_unreadable(teller, list(dict.fromkeys((*scored, *found.unreadable))))


def contents(folder: Path) -> tuple[str, ...]:
    """The files that --out writes."""
    return ("evaluation.json", "resolution.png", "resolution.svg")


def write(source: str, found: "Report", writing: Writing) -> None:
    from vitreous.evaluation.figures import draw_curve
    from vitreous.utils.atomic import atomic_folder

    if writing.out is not None:
        drawn: list[Path] = []
        with atomic_folder(writing.out, writing.overwrite, contents) as folder:
            write_json(folder / "evaluation.json", {"data": source, **found.to_json()})
            if len(found.scores) > 1:
                drawn = draw_curve(found.scores, f"{found.subject.name} on {Path(source).name}, {found.split}", folder)
        if drawn:
            shown = ", ".join(str(writing.out / path.name) for path in drawn)
            say(f"drawn: {shown}", STDERR if writing.json else STDOUT)


def show(source: str, found: "Report") -> None:
    shown = [str(one) for one in found.shown]
    rows = [
        ("data", f"{printable(source)}: {found.split}, {found.images:,} images"),
        ("model", f"{found.subject.name}, content hash {found.subject.digest}"),
        ("weights", printable(found.subject.selection)),
        ("shown", shown[0] + (f"; and at {len(shown) - 1} more sizes" if shown[1:] else "")),
    ]
    if found.left_out:
        rows.append(("seen", found.left_out))
    if found.matched is not None:
        named = found.subject.model.labels is not None or found.labels is None
        assumed = "" if named else "; the model names no classes, and its 1,000 are taken to be ImageNet-1k's"
        rows.append(("classes", f"matched {found.matched.rule}{assumed}"))
    if found.why_not:
        rows.append(("head", f"not scored: {printable(found.why_not)}"))
    if found.learnt:
        rows.append(("features", found.learnt))
    show_facts(rows)
    if found.scores:
        show_scores(found)
    if len(found.scores) == 1:
        show_classes(found)
    if found.measures:
        show_measures(found)


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def show_scores(found: "Report") -> None:
    from vitreous.evaluation.metrics import percentages
    from vitreous.evaluation.report import pixels

    columns = [
        ("size", [pixels(one) for one in found.shown]),
        ("top-1", [percent(one.result.top1) for one in found.scores]),
        ("95% interval", [percentages(one.result.interval) if one.result.interval else "" for one in found.scores]),
        ("top-5", [percent(one.result.top5) for one in found.scores]),
        ("mAP", [percent(one.result.map) for one in found.scores]),
        ("ReaL", [percent(one.real.top1) if one.real else "" for one in found.scores]),
        ("loss", [f"{one.result.loss:.4f}" for one in found.scores]),
        ("calibration error", [percent(one.result.calibration) for one in found.scores]),
        ("images/s", [f"{one.images_per_second:,.0f}" for one in found.scores]),
    ]
    show_columns([(name, cells) for name, cells in columns if any(cells)])
    first = found.scores[0]
    if first.real is not None and first.real.left_out:
        say(f"ReaL: {first.real.images:,} images; {first.real.left_out:,} without labels are left out")
    if first.result.invalid:
        say(f"{first.result.invalid:,} images were answered with NaN, and count as wrong")


def show_classes(found: "Report") -> None:
    assert found.matched is not None
    result = found.scores[0].result
    scores = [(name, result.per_class[place]) for name, place in zip(found.classes, found.matched.places, strict=True)]
    scores = [(name, score) for name, score in scores if score.images]
    if len(scores) > MOST_CLASSES:
        say(f"\nthe {MOST_CLASSES} worst of {len(scores):,} classes; --json has all")
        scores = sorted(scores, key=lambda one: one[1].f1 or 0.0)[:MOST_CLASSES]
    theirs = [found.label(score.index) for _, score in scores]
    names = [
        name if name == label or found.labels is None else f"{name} ({label})"
        for (name, _), label in zip(scores, theirs, strict=True)
    ]
    columns = [
        ("class", [printable(name) for name in names]),
        ("images", [f"{score.images:,}" for _, score in scores]),
        ("recall", [percent(score.recall) for _, score in scores]),
        ("precision", [percent(score.precision) for _, score in scores]),
        ("F1", [percent(score.f1) for _, score in scores]),
    ]
    show_columns(columns)
    if pairs := found.confusions(found.scores[0])[:MOST_PAIRS]:
        heads = (("is", "truth"), ("taken for", "answer"), ("images", "images"))
        show_columns([(head, [printable(pair[key]) for pair in pairs]) for head, key in heads], left=2)


def show_measures(found: "Report") -> None:
    from vitreous.evaluation.report import pixels

    names = [one.name for one in found.measures[0]]
    columns = [("size", [pixels(one) for one in found.shown])]
    columns += [(name, [str(row[place]) for row in found.measures]) for place, name in enumerate(names)]
    show_columns(columns)
    for one in found.measures[0]:
        if one.method == "knn":
            swept = ", ".join(f"{k}: {100 * value:.1f}" for k, value in one.details["swept"].items())
            say(f"k-NN with k = {one.details['k']}, chosen by training images; all k: {swept}")
