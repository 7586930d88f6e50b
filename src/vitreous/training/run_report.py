"""The report of a finished run: report.html in its directory, and the summary on the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitreous.data.dataset import DataSet, Source
from vitreous.errors import format_count
from vitreous.evaluation.extremes import Example
from vitreous.models.custom import CustomConfig
from vitreous.reports.masked_pictures import MaskedPicture
from vitreous.reports.training_report import ExampleImage, TrainingReport, write_report
from vitreous.training import comparison_run
from vitreous.training.advice import Advice
from vitreous.training.log_format import format_metric
from vitreous.training.outcome import Outcome, outcome_sentence
from vitreous.training.plan import Plan
from vitreous.training.run_directory import RunDirectory
from vitreous.training.start_summary import describe_initial_weights, describe_model, format_value
from vitreous.utils import html
from vitreous.utils.atomic import atomic_file
from vitreous.utils.environment import program
from vitreous.utils.import_path import is_import_path
from vitreous.utils.progress import ProgressReporter

NO_INSPECTION_YET = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Not yet</title>
<body style="font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem">
<p>This model has not been inspected yet. This command writes the page:</p><pre>{command}</pre></body></html>
"""


def write_run_report(
    data: DataSet,
    plan: Plan,
    directory: RunDirectory,
    outcome: Outcome,
    examples: tuple[list[Example], list[Example]],
    source: Source,
    advice: Sequence[Advice] = (),
    masked: Sequence[MaskedPicture] = (),
) -> None:
    """Write report.html. `examples`: the best and worst predictions, for images of `source`. `masked`: predictions of
    masked patches."""
    description, records = directory.description(), directory.records()
    counts = [(f"{name} images", f"{len(part):,}") for name, part in data.splits.items()]
    best, worst = (_example_images(part, data, source) for part in examples)
    runs, run_notes = comparison_run.compared_runs(plan.config.run.compare_with, directory, outcome, records)
    write_report(
        directory.report,
        TrainingReport(
            title=data.name,
            outcome=outcome_sentence(outcome, plan),
            selection=outcome.selection,
            command=description["command"],
            classes=data.classes,
            records=records,
            result=outcome.result,
            split=outcome.split,
            best=best,
            worst=worst,
            choices=[(c["field"], format_value(c["value"]), c["why"]) for c in description["choices"]],
            config=description["config"],
            environment=description["environment"],
            data=[("source", description["data"]), *counts, ("split", data.split), _classes(data)],
            notes=[*_notes(data, plan, directory, records), *run_notes],
            unreadable=len(_unreadable(directory)),
            masked=masked,
            check_command=""
            if description.get("data_in_memory") or not data.classes
            else f"{program()} data {shlex.quote(description['data'])} --check",
            next_steps=_next_commands(plan, directory),
            advice=[(one.reason, one.command) for one in advice],
            links=[] if isinstance(plan.model, CustomConfig) else [("Look inside", _inspection_link(directory))],
            runs=runs,
        ),
    )


def _classes(data: DataSet) -> tuple[str, str]:
    return ("classes", str(len(data.classes))) if data.classes else ("labels", "not used")


def _notes(data: DataSet, plan: Plan, directory: RunDirectory, records: Sequence[dict[str, Any]]) -> list[str]:
    unreadable = _unreadable(directory)
    notes = [f"{describe_model(plan)}, started from {describe_initial_weights(plan)}"] if plan.facts.start else []
    notes += [*data.notes, *plan.notes]
    notes += [f"{format_count(len(unreadable), 'image')} could not be read (bad_images.txt)"] if unreadable else []
    return notes + [f"step {r['step']}: {r['text']}" for r in records if r.get("kind") == "event"]


def _unreadable(directory: RunDirectory) -> list[str]:
    path = directory.path / "bad_images.txt"
    return path.read_text("utf-8", "replace").splitlines() if path.is_file() else []


def _example_images(examples: Sequence[Example], data: DataSet, source: Source) -> list[ExampleImage]:
    images = []
    for example in examples:
        pixels: Any = np.asarray(source.image(example.index))
        truth = tuple(data.classes[i] for i in example.truth)
        answers = tuple((data.classes[i], p) for i, p in example.answers)
        images.append(ExampleImage(source.name(example.index), pixels, truth, answers, example.loss))
    return images


def _next_commands(plan: Plan, directory: RunDirectory) -> list[str]:
    run = shlex.quote(str(directory.path))
    if isinstance(plan.model, CustomConfig):
        trust = " --trust-code" if is_import_path(plan.model.code) else ""
        return [f"{program()} predict PHOTO.jpg --model {run}{trust}"] if trust else []
    if plan.config.masks_patches:
        return [f"{program()} finetune LABELLED_PHOTOS --from {run}", f"{program()} inspect {run}"]
    return [
        f"{program()} info {run}",
        f"{program()} predict PHOTO.jpg --model {run}",
        f"{program()} inspect {run}",
    ]


def _inspection_link(directory: RunDirectory) -> str:
    """The page that `vitreous inspect` writes, relative to the report. Until then, a page with the command."""
    page = directory.path / "inspection" / "index.html"
    if not page.exists():
        page.parent.mkdir(exist_ok=True)
        command = html.text(f"{program()} inspect {shlex.quote(str(directory.path))}")
        with atomic_file(page) as temporary:
            temporary.write_text(NO_INSPECTION_YET.format(command=command), encoding="utf-8")
    return "inspection/index.html"


def print_outcome(
    plan: Plan, directory: RunDirectory, outcome: Outcome, reporter: ProgressReporter, advice: Sequence[Advice] = ()
) -> None:
    """Print the result, how the weights were selected, the files, advice and the next commands."""
    rows = [("result", outcome_sentence(outcome, plan))]
    if outcome.result is not None:
        metrics = outcome.result.summary().items()
        rows.append((outcome.split, "  ".join(f"{name} {format_metric(name, value)}" for name, value in metrics)))
    rows += [("weights" if not number else "", text) for number, text in enumerate(outcome.selection)]
    rows += [("model", str(directory.best)), ("report", str(directory.report))]
    reporter.print("")
    reporter.table(rows)
    if advice:
        reporter.print("\nmost likely to improve the result:", style="bold")
        for one in advice:
            reporter.print(f"  {one.reason}:\n    {one.command}")
    if commands := _next_commands(plan, directory):
        reporter.print("\nwhat to try next:", style="bold")
        for line in commands:
            reporter.print(f"  {line}")
