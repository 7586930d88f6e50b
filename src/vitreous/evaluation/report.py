"""Everything that `vitreous evaluate` finds out about a model on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.data.dataset import DataSet
from vitreous.data.digests import image_digests
from vitreous.errors import VitreousError
from vitreous.evaluation.cache import Cache
from vitreous.evaluation.evaluate import Evaluation, check_head, evaluate
from vitreous.evaluation.matching import Match, match, read_match
from vitreous.evaluation.measures import Measure, Method, Settings, check
from vitreous.evaluation.real_labels import read_real
from vitreous.evaluation.subject import (
    Bar,
    Loading,
    Subject,
    images_to_measure,
    learn_and_measure,
    no_bar,
    warnings_for,
)
from vitreous.preprocessing import Preprocessing
from vitreous.weights.model_info import labels_of


@dataclass(frozen=True)
class Question:
    """What is asked of a model."""

    split: str | None = None  # None: test, else val, else all images that the model has not seen in training
    sizes: tuple[int, ...] = ()  # none: the model's own
    methods: tuple[Method, ...] = ()  # that measure its features
    settings: Settings = field(default_factory=Settings)
    real: Path | None = None  # ImageNet ReaL's labels
    classes: Path | None = None  # which of the model's classes each of the data's is


@dataclass
class Report:
    """What was found, size by size."""

    split: str
    images: int
    subject: Subject
    classes: tuple[str, ...]  # of the data
    labels: tuple[str, ...] | None  # of the model
    shown: list[Preprocessing]
    matched: Match | None  # None: the head was not scored, because of this:
    why_not: str = ""
    left_out: str = ""  # images that were left out because the model has seen them in training
    warnings: tuple[str, ...] = ()  # images that it has seen in training, and that are measured on all the same
    learnt: str = ""  # what features were learnt from and measured on
    unreadable: list[str] = field(default_factory=list)  # images that features could not be made of
    scores: list[Evaluation] = field(default_factory=list)
    measures: list[list[Measure]] = field(default_factory=list)

    def label(self, index: int) -> str:
        return f"class {index}" if self.labels is None else self.labels[index]

    def confusions(self, one: Evaluation) -> list[dict[str, Any]]:
        """Every pair of a truth and another answer that occurs, the most frequent first."""
        table = one.result.confusion or ()
        pairs = [(count, i, j) for i, row in enumerate(table) for j, count in enumerate(row) if count and i != j]
        return [
            {"truth": self.label(i), "answer": self.label(j), "images": count}
            for count, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))
        ]

    def to_json(self) -> dict[str, Any]:
        sizes = [list(one.size) for one in self.shown if isinstance(one.size, tuple)]
        taken = [[measure.to_json() for measure in row] for row in self.measures]
        return {
            "split": self.split,
            "images": self.images,
            "left_out": self.left_out or None,
            "warnings": list(self.warnings),
            "model": {
                "name": self.subject.name,
                "content_hash": self.subject.digest,
                "selection": self.subject.selection,
            },
            "preprocessing": [one.to_json() for one in self.shown],
            "classes": None if self.matched is None else self.matched.rule,
            "not_scored": self.why_not or None,
            "scores": [self._scores_json(one) for one in self.scores],
            "features": [{"size": s, "measures": row} for s, row in zip(sizes, taken, strict=False)],
            "learnt": self.learnt or None,
            "features_unreadable": self.unreadable,
        }

    def _scores_json(self, one: Evaluation) -> dict[str, Any]:
        held = one.result.to_json()
        names = {} if self.matched is None else dict(zip(self.matched.places, self.classes, strict=True))
        held["per_class"] = [
            {"data_class": names[score["index"]], "model_class": self.label(score["index"]), **score}
            for score in held["per_class"]
            if score["index"] in names
        ]
        held["confusion"] = self.confusions(one)
        real = one.real and {"top1": one.real.top1, "images": one.real.images, "left_out": one.real.left_out}
        speed = {"seconds": one.seconds, "images_per_second": one.images_per_second}
        return {"size": list(one.size), **held, "real": real, **speed, "unreadable": list(one.unreadable.values())}


def report(
    subject: Subject, data: DataSet, question: Question, loading: Loading, cache: Cache, bar: Bar = no_bar
) -> Report:
    """Score the head and measure the features. Where features are asked for, a head that cannot be scored is told."""
    measured = images_to_measure(data, subject, question.split, bar)
    images = measured.images
    shown = [subject.shown(size) for size in question.sizes or (None,)]
    labels, classes = labels_of(subject.model), subject.model.config.num_classes
    found = Report(measured.split, len(images), subject, data.classes, labels, shown, None)
    found.left_out, found.warnings = measured.left_out, measured.warnings
    try:
        check_head(subject)
        found.matched = _match(question, data.classes, labels, classes)
    except VitreousError as error:
        if not question.methods or question.classes is not None:
            raise
        found.why_not = str(error)
    truth = None
    if question.real is not None and found.matched is None:
        raise VitreousError(
            f"{question.real}: labels to score answers by, and there are none to score: {found.why_not}"
        )
    if question.real is not None:
        truth = read_real(question.real, images, labels, classes)
    if question.methods:
        _measure(found, data, question, loading, cache, bar)
    for one in shown if found.matched is not None else ():
        assert found.matched is not None
        with bar(f"{subject.name} at {pixels(one)}", len(images)) as tick:
            found.scores.append(evaluate(subject, images, found.matched, one, loading, truth, tick))
    return found


def _match(question: Question, data: Sequence[str], labels: tuple[str, ...] | None, classes: int) -> Match:
    if question.classes is None:
        return match(data, labels, classes)
    return read_match(question.classes, data, labels, classes)


def _measure(found: Report, data: DataSet, question: Question, loading: Loading, cache: Cache, bar: Bar) -> None:
    parts = learn_and_measure(data, question.split)
    seen = image_digests(parts.test) if found.subject.seen is not None else None
    told = (f"features: {text}" for text in warnings_for(found.subject, seen))
    found.warnings = (*found.warnings, *told)
    check(question.methods, parts.train.labels, parts.test.labels, parts.classes, question.settings, parts.name)
    for one in found.shown:
        with bar(f"features at {pixels(one)}", len(parts.train) + len(parts.test)) as tick:
            settings, methods = question.settings, question.methods
            taken = cache.measures(found.subject, parts, methods, settings, one, loading, tick)
        found.measures.append(list(taken.measures))
        found.learnt = taken.told(parts)
        found.unreadable = list(dict.fromkeys((*taken.train_unreadable, *taken.test_unreadable)))


def pixels(shown: Preprocessing) -> str:
    assert isinstance(shown.size, tuple)
    height, width = shown.size
    return str(height) if height == width else f"{height} x {width}"
