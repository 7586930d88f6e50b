"""`compare_models`: the feature quality of several models on the same data sets, in one table."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from vitreous.data.digests import image_digests
from vitreous.errors import VitreousError
from vitreous.evaluation.cache import FeatureCache
from vitreous.evaluation.evaluation_images import TrainTestImages, seen_warnings
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.measures import Measure, MeasureSettings, Method, check_measures
from vitreous.evaluation.model_argument import ModelSource, model_argument
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar
from vitreous.experiments.suite import Suite, Task
from vitreous.models.base import restored_modes
from vitreous.utils.console import printable
from vitreous.utils.torch_settings import default_modes


@dataclass(frozen=True)
class ComparisonRow:
    """A measure on a data set, or its mean over a group of data sets."""

    group: str
    data: str  # "" for a mean
    measure: str
    values: tuple[Measure | float, ...]  # one per model


@dataclass(frozen=True, repr=False)
class Comparison:
    """The measures of several models on several data sets: the result of `vitreous.compare`."""

    suite: str  # name of the suite; "" for data sets
    models: tuple[str, ...]  # names of the models
    digests: tuple[str, ...]  # content hashes of the models
    selections: tuple[str, ...]  # how the weights of each model were selected
    rows: tuple[ComparisonRow, ...]  # measures of all models, by data set, and their means
    images: dict[str, str]  # for each data set, the images trained and tested on
    notes: tuple[str, ...] = ()  # about models and data, such as guessed settings
    warnings: tuple[str, ...] = ()  # about test images that a model has seen in training
    unreadable: tuple[str, ...] = ()  # errors of images that are left out

    def to_json(self) -> dict[str, Any]:
        """Return what `vitreous compare --json` prints."""
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
        return {"suite": self.suite, "models": models, "data": self.images, "rows": rows, **notes}

    def cells(self) -> list[tuple[str, str, list[str]]]:
        """Return for each row the data set or group, the measure, and the text for each model."""
        return [
            (row.data or _mean_title(row.group), row.measure, [_format_value(v) for v in row.values])
            for row in self.rows
        ]

    def __repr__(self) -> str:
        return self.markdown().rstrip()

    def _repr_markdown_(self) -> str:
        """Show the table in a notebook."""
        return self.markdown()

    def caption(self) -> list[str]:
        """Return the images of each data set, how the weights of each model were selected, and warnings."""
        lines = [f"{name}: {images}" for name, images in self.images.items()]
        lines += [f"weights of {name}: {how}" for name, how in zip(self.models, self.selections, strict=True)]
        return lines + [f"WARNING: {text}" for text in self.warnings]

    def markdown(self) -> str:
        """Return the table, followed by the caption as a list."""
        lines = [f"| data | measure | {' | '.join(map(_escape_cell, self.models))} |"]
        lines.append("|---|---|" + "---:|" * len(self.models))
        lines += [
            f"| {_escape_cell(data)} | {measure} | {' | '.join(cells)} |" for data, measure, cells in self.cells()
        ]
        lines += ["", *(f"- {_escape_cell(line)}" for line in self.caption())]
        return "\n".join(lines) + "\n"


@default_modes()
def compare_models(
    models: Sequence[ModelSource],
    suite: Suite,
    methods: Sequence[Method],
    cache: FeatureCache,
    options: InferenceOptions,
    settings: MeasureSettings = MeasureSettings(),  # noqa: B008 (it is frozen)
    bar: ProgressBar = no_progress_bar,
    names: Sequence[str] | None = None,
) -> Comparison:
    """Compute every measure of every model on every data set. Errors that do not need features are raised first.

    `names`: of the models, if they are not to be named after their files.
    """
    if not models or not suite.tasks or not methods:
        raise VitreousError("compare: give at least one model, one data set and one measure")
    opened = _open_tasks(suite, methods, settings)
    evaluated = [model_argument(one, "compare", device=options.device, training_images=True) for one in models]
    if names is None:
        sources = [
            one.name if isinstance(model, nn.Module) else os.fsdecode(model)
            for one, model in zip(evaluated, models, strict=True)
        ]
        names = _unique_names([one.name for one in evaluated], sources)
    measures: list[list[list[Measure]]] = [[] for _ in opened]  # by data set and model
    descriptions: dict[str, str] = {}
    unreadable: list[str] = []
    warnings: list[str] = []
    for number, (task, images) in enumerate(opened):
        digests = image_digests(images.test) if any(one.seen is not None for one in evaluated) else None
        for name, one in zip(names, evaluated, strict=True):
            warnings += (f"{name} on {images.name}: {text}" for text in seen_warnings(one, digests))
            progress_bar = bar(f"{name} on {images.name}", len(images.train) + len(images.test))
            with restored_modes(one.model), progress_bar as tick:
                chosen = task.measure_settings(settings)
                results = cache.measures(one, images, methods, chosen, one.preprocessing(), options, tick)
            measures[number].append(list(results.measures))
        descriptions[images.name] = results.describe_images(images)  # the same for every model
        unreadable += dict.fromkeys((*results.train_unreadable, *results.test_unreadable))
    notes = [f"{name}: {note}" for name, one in zip(names, evaluated, strict=True) for note in one.notes]
    notes += [f"{images.name}: {note}" for _, images in opened for note in images.notes]
    return Comparison(
        suite=suite.name,
        models=tuple(names),
        digests=tuple(one.digest for one in evaluated),
        selections=tuple(one.selection for one in evaluated),
        rows=tuple(_rows(suite, [images.name for _, images in opened], measures)),
        images=descriptions,
        notes=tuple(notes),
        warnings=tuple(warnings),
        unreadable=tuple(unreadable),
    )


def _open_tasks(
    suite: Suite, methods: Sequence[Method], settings: MeasureSettings
) -> list[tuple[Task, TrainTestImages]]:
    opened = []
    for _, task in suite.tasks:
        images = task.open()
        train, test = images.train.labels, images.test.labels
        check_measures(methods, train, test, images.classes, task.measure_settings(settings), images.name)
        opened.append((task, images))
    # Two folders may have the same name. A name that the suite gives is kept.
    names = _unique_names([images.name for _, images in opened], [task.name or task.source for task, _ in opened])
    return [(task, replace(images, name=name)) for name, (task, images) in zip(names, opened, strict=True)]


def _unique_names(names: list[str], sources: Sequence[str]) -> list[str]:
    """Replace repeated names by their sources, and number repeated sources."""
    found = [source if names.count(name) > 1 else name for name, source in zip(names, sources, strict=True)]
    return [f"{name} ({found[: i + 1].count(name)})" if found.count(name) > 1 else name for i, name in enumerate(found)]


def _rows(suite: Suite, data: list[str], measures: list[list[list[Measure]]]) -> list[ComparisonRow]:
    """Return the rows of each data set, means after each group of several, and means of all data sets at the end."""
    rows: list[ComparisonRow] = []
    first = 0
    for group in suite.groups:
        last = first + len(group.tasks)
        for number in range(first, last):
            columns = zip(*measures[number], strict=True)
            rows += [ComparisonRow(group.name, data[number], column[0].name, tuple(column)) for column in columns]
        if len(group.tasks) > 1:
            rows += _mean_rows(group.name, measures[first:last])
        first = last
    if len(suite.groups) > 1:
        rows += _mean_rows("all", measures)
    return rows


def _mean_rows(group: str, measures: list[list[list[Measure]]]) -> list[ComparisonRow]:
    """Return the mean of each measure over the data sets, for each model."""
    names = [one.name for one in measures[0][0]]
    rows = []
    for number, name in enumerate(names):
        values = [[task[model][number].mean for task in measures] for model in range(len(measures[0]))]
        rows.append(ComparisonRow(group, "", name, tuple(statistics.fmean(each) for each in values)))
    return rows


def _mean_title(group: str) -> str:
    return "mean of all" if group in ("", "all") else f"mean of {group}"


def _format_value(value: Measure | float) -> str:
    return str(value) if isinstance(value, Measure) else f"{100 * value:.1f}"


def _escape_cell(text: str) -> str:
    return printable(text).replace("|", "\\|")
