"""Models held against each other: what their features are worth on the same images, in one table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitreous.data.digests import image_digests
from vitreous.errors import VitreousError
from vitreous.evaluation.cache import Cache
from vitreous.evaluation.measures import Measure, Method, Settings, check
from vitreous.evaluation.subject import Bar, Loading, Parts, no_bar, open_subject, warnings_for
from vitreous.experiments.suite import Suite, Task
from vitreous.utils.console import printable
from vitreous.utils.torch_settings import default_modes


@dataclass(frozen=True)
class Row:
    """One number of the table: a measure on a data set, or the mean of a group of those."""

    group: str
    data: str  # "" for a mean
    measure: str
    values: tuple[Measure | float, ...]  # for each model


@dataclass(frozen=True)
class Comparison:
    suite: str
    models: tuple[str, ...]
    digests: tuple[str, ...]
    selections: tuple[str, ...]  # how the weights of each model were selected
    rows: tuple[Row, ...]
    told: dict[str, str]  # of each data set: what was learnt from and measured on
    notes: tuple[str, ...] = ()  # what one should know of models and data: what was guessed
    warnings: tuple[str, ...] = ()  # models that were measured on images which they have seen in training
    unreadable: tuple[str, ...] = ()  # images that were left out, and why

    def to_json(self) -> dict[str, Any]:
        names = zip(self.models, self.digests, self.selections, strict=True)
        rows = [
            {
                "group": row.group,
                "data": row.data or None,
                "measure": row.measure,
                "values": {
                    m: v.to_json() if isinstance(v, Measure) else v
                    for m, v in zip(self.models, row.values, strict=True)
                },
            }
            for row in self.rows
        ]
        models = [{"name": name, "content_hash": digest, "selection": how} for name, digest, how in names]
        notes = {"notes": list(self.notes), "warnings": list(self.warnings), "unreadable": list(self.unreadable)}
        return {"suite": self.suite, "models": models, "data": self.told, "rows": rows, **notes}

    def cells(self) -> list[tuple[str, str, list[str]]]:
        """Data or group, measure and the text for each model."""
        return [(row.data or _mean_of(row.group), row.measure, [shown(v) for v in row.values]) for row in self.rows]

    def markdown(self) -> str:
        lines = [f"| data | measure | {' | '.join(map(_plain, self.models))} |"]
        lines.append("|---|---|" + "---:|" * len(self.models))
        lines += [f"| {_plain(data)} | {measure} | {' | '.join(cells)} |" for data, measure, cells in self.cells()]
        return "\n".join(lines) + "\n"


@default_modes()
def compare(
    models: Sequence[str],
    suite: Suite,
    methods: Sequence[Method],
    cache: Cache,
    loading: Loading,
    settings: Settings = Settings(),  # noqa: B008 (it is frozen)
    bar: Bar = no_bar,
) -> Comparison:
    """Every measure of every model on every data set. Whatever can be known to fail is looked at before the first
    feature is made."""
    if not models or not suite.tasks or not methods:
        raise VitreousError("compare: name at least one model, one data set and one measure")
    opened = _opened(suite, methods, settings)
    subjects = [open_subject(model, loading.device) for model in models]
    names = _distinct([subject.name for subject in subjects], models)
    found: list[list[list[Measure]]] = [[] for _ in opened]  # for each data set and model
    told: dict[str, str] = {}
    unreadable: list[str] = []
    warnings: list[str] = []
    for place, (task, parts) in enumerate(opened):
        seen = image_digests(parts.test) if any(subject.seen is not None for subject in subjects) else None
        for name, subject in zip(names, subjects, strict=True):
            chosen = task.settings(settings)
            warnings += (f"{name} on {parts.name}: {text}" for text in warnings_for(subject, seen))
            with bar(f"{name} on {parts.name}", len(parts.train) + len(parts.test)) as tick:
                taken = cache.measures(subject, parts, methods, chosen, subject.shown(), loading, tick)
            found[place].append(list(taken.measures))
        told[parts.name] = taken.told(parts)  # what cannot be read is the same for every model
        unreadable += dict.fromkeys((*taken.train_unreadable, *taken.test_unreadable))
    rows = _rows(suite, [parts.name for _, parts in opened], found)
    hashes, selections = tuple(one.digest for one in subjects), tuple(one.selection for one in subjects)
    notes = [f"{name}: {note}" for name, subject in zip(names, subjects, strict=True) for note in subject.notes]
    notes += [f"{parts.name}: {note}" for _, parts in opened for note in parts.notes]
    return Comparison(
        suite.name,
        tuple(names),
        hashes,
        selections,
        tuple(rows),
        told,
        tuple(notes),
        tuple(warnings),
        tuple(unreadable),
    )


def _opened(suite: Suite, methods: Sequence[Method], settings: Settings) -> list[tuple[Task, Parts]]:
    opened = []
    for _, task in suite.tasks:
        parts = task.opened()
        check(methods, parts.train.labels, parts.test.labels, parts.classes, task.settings(settings), parts.name)
        opened.append((task, parts))
    # Two folders may have one name; one that was given is kept.
    names = _distinct([parts.name for _, parts in opened], [task.name or task.source for task, _ in opened])
    return [(task, replace(parts, name=name)) for name, (task, parts) in zip(names, opened, strict=True)]


def _distinct(names: list[str], sources: Sequence[str]) -> list[str]:
    """Those that are there twice by where they come from, and what comes from one place by numbers."""
    found = [source if names.count(name) > 1 else name for name, source in zip(names, sources, strict=True)]
    return [f"{name} ({found[: i + 1].count(name)})" if found.count(name) > 1 else name for i, name in enumerate(found)]


def _rows(suite: Suite, data: list[str], found: list[list[list[Measure]]]) -> list[Row]:
    """Data set by data set; behind a group of several its means, and behind all groups those of all data sets."""
    rows: list[Row] = []
    first = 0
    for group in suite.groups:
        last = first + len(group.tasks)
        for place in range(first, last):
            columns = zip(*found[place], strict=True)
            rows += [Row(group.name, data[place], column[0].name, tuple(column)) for column in columns]
        if len(group.tasks) > 1:
            rows += _means(group.name, found[first:last])
        first = last
    if len(suite.groups) > 1:
        rows += _means("all", found)
    return rows


def _means(group: str, found: list[list[list[Measure]]]) -> list[Row]:
    """The mean over data sets of each measure, for each model."""
    names = [one.name for one in found[0][0]]
    rows = []
    for place, name in enumerate(names):
        values = [[task[model][place].mean for task in found] for model in range(len(found[0]))]
        rows.append(Row(group, "", name, tuple(statistics.fmean(each) for each in values)))
    return rows


def _mean_of(group: str) -> str:
    return "mean of all" if group in ("", "all") else f"mean of {group}"


def shown(value: Measure | float) -> str:
    return str(value) if isinstance(value, Measure) else f"{100 * value:.1f}"


def _plain(text: str) -> str:
    return printable(text).replace("|", "\\|")
