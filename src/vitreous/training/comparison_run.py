"""`--compare-with`: other runs, whose curves, results and settings the report shows together with those of this run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, summarize_names
from vitreous.evaluation.metrics import Result, result_from_json
from vitreous.evaluation.training_images import held_out_digest
from vitreous.reports.run_summary import RunSummary
from vitreous.reports.training_curves import MAX_COMPARED
from vitreous.training.outcome import Outcome, is_complete
from vitreous.training.run_directory import RunDirectory
from vitreous.training.setting_differences import differing_settings, initial_weights_name, setting_text
from vitreous.utils.json_files import read_json


def check_comparable(paths: Sequence[str], classes: Sequence[str], own: RunDirectory) -> None:
    """Raise an error unless all paths are other run directories with the same classes."""
    if len(paths) >= MAX_COMPARED:
        raise VitreousError(
            f"compare_with: {len(paths)} runs; a chart has {MAX_COMPARED} distinct lines, one of them for this run:"
            f" give at most {MAX_COMPARED - 1}, or list the runs with `vitreous runs`"
        )
    for path in paths:
        _check_comparable(path, classes, own)


def _check_comparable(path: str, classes: Sequence[str], own: RunDirectory) -> None:
    try:
        directory = RunDirectory.open(path)
        theirs = directory.description().get("classes")
    except VitreousError as error:
        raise VitreousError(f"compare_with: {error}") from error
    if directory.path.resolve() == own.path.resolve():
        raise VitreousError(f"compare_with: {path} is this run itself")
    if not isinstance(theirs, list):
        raise VitreousError(f"compare_with: {path} does not list its classes; an older version of Vitreous wrote it")
    if set(map(str, theirs)) != set(classes):
        names = [summarize_names(some, 3) or "none" for some in (theirs, classes)]
        raise VitreousError(
            f"compare_with: {path} has other classes ({names[0]}) than this data ({names[1]}), so the two cannot be"
            " compared"
        )


def compared_runs(
    paths: Sequence[str], directory: RunDirectory, outcome: Outcome, records: Sequence[dict[str, Any]]
) -> tuple[list[RunSummary], list[str]]:
    """This run and those at `paths`, with notes about the comparison. Empty if none of them can be read."""
    own = directory.description()
    runs = [summarise_run(directory, records, outcome.result, outcome.split, outcome.selection)]
    descriptions, notes = [own], []
    for other in map(RunDirectory, map(Path, absolute_paths(paths))):
        try:
            theirs, description = read_run_summary(other), other.description()
        except VitreousError as error:  # it was readable when this run was started
            notes.append(f"the run to compare with could not be read: {error}")
            continue
        if theirs.name in {run.name for run in runs}:
            theirs = replace(theirs, name=str(other.path))
        same_content = held_out_digest(other.path) == held_out_digest(directory.path)
        if description.get("fingerprint") != own["fingerprint"] or not same_content:
            notes.append(f"{theirs.name} was trained and evaluated on other images than this run")
            theirs = replace(theirs, same_images=False)
        if any(description["config"].get(name) != own["config"].get(name) for name in ("patch_target", "mask_ratio")):
            notes.append(f"{theirs.name} predicts something else of masked patches: the losses cannot be compared")
        runs.append(theirs)
        descriptions.append(description)
    if len(runs) == 1:
        return [], notes
    settings = [
        {name: setting_text(value) for name, value in different.items() if name != "initial_weights"}
        for different in differing_settings(descriptions)
    ]
    return [replace(run, settings=texts) for run, texts in zip(runs, settings, strict=True)], notes


def read_run_summary(directory: RunDirectory) -> RunSummary:
    """Read a run for the report. It may be unfinished."""
    values = read_json(directory.path / "result.json") if is_complete(directory) else {}
    result = result_from_json(values["result"]) if values.get("result") else None
    selection = [str(text) for text in values.get("selection", ())]
    return summarise_run(directory, directory.records(), result, str(values.get("split", "")), selection)


def summarise_run(
    directory: RunDirectory,
    records: Sequence[dict[str, Any]],
    result: Result | None,
    split: str,
    selection: Sequence[str],
) -> RunSummary:
    name, initial = directory.path.absolute().name, initial_weights_name(directory.description())
    return RunSummary(name, initial, records, result, split, selection[0] if selection else "")


def absolute_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths made absolute, each one once."""
    return tuple(dict.fromkeys(str(Path(path).absolute()) for path in paths))
