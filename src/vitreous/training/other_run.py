"""Another run, beside which the report shows this one: what there is to say about each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Result, result_from_json
from vitreous.reports.run_summary import RunSummary
from vitreous.training.initial_weights import source_name
from vitreous.training.run_directory import RunDirectory
from vitreous.utils.json_files import read_json


def summarise_run(
    folder: RunDirectory, records: Sequence[dict[str, Any]], result: Result | None, split: str, selection: Sequence[str]
) -> RunSummary:
    start = folder.description().get("start")
    began = source_name(str(start["source"])) if isinstance(start, dict) and "source" in start else "random weights"
    return RunSummary(folder.path.absolute().name, began, records, result, split, selection[0] if selection else "")


def open_other_run(path: str, classes: Sequence[str], own: RunDirectory) -> RunDirectory:
    """The run to be shown beside this one, if the two can be compared."""
    try:
        folder = RunDirectory.open(path)
        theirs = folder.description().get("classes")
    except VitreousError as error:
        raise VitreousError(f"compare_with: {error}") from error
    if folder.path.resolve() == own.path.resolve():
        raise VitreousError(f"compare_with: {path} is this run itself")
    if not isinstance(theirs, list):
        raise VitreousError(f"compare_with: {path} does not say which classes it has; it was begun by an older version")
    if set(theirs) != set(classes):
        raise VitreousError(
            f"compare_with: {path} has other classes ({_some(theirs)}) than this data ({_some(classes)}), so that the two"
            " cannot be compared"
        )
    return folder


def read_run_summary(folder: RunDirectory) -> RunSummary:
    """As far as it has come."""
    path = folder.path / "result.json"
    found = read_json(path) if path.is_file() else {}
    result = result_from_json(found["result"]) if found.get("result") else None
    selection = found.get("selection", ())
    return summarise_run(
        folder, folder.records(), result, str(found.get("split", "")), [str(text) for text in selection]
    )


def absolute_path(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
