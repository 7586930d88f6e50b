"""`--compare-with`: another run directory, whose curves and result the report shows next to those of this run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, summarize_names
from vitreous.evaluation.metrics import Result, result_from_json
from vitreous.reports.run_summary import RunSummary
from vitreous.training.initial_weights import source_name
from vitreous.training.run_directory import RunDirectory
from vitreous.utils.json_files import read_json


def check_comparable(path: str, classes: Sequence[str], own: RunDirectory) -> None:
    """Raise an error unless `path` is another run directory with the same classes."""
    try:
        directory = RunDirectory.open(path)
        theirs = directory.description().get("classes")
    except VitreousError as error:
        raise VitreousError(f"compare_with: {error}") from error
    if directory.path.resolve() == own.path.resolve():
        raise VitreousError(f"compare_with: {path} is this run itself")
    if not isinstance(theirs, list):
        raise VitreousError(f"compare_with: {path} does not list its classes; an older version of Vitreous wrote it")
    if set(theirs) != set(classes):
        raise VitreousError(
            f"compare_with: {path} has other classes ({summarize_names(theirs, 3)}) than this data"
            f" ({summarize_names(classes, 3)}), so the two cannot be compared"
        )


def read_run_summary(directory: RunDirectory) -> RunSummary:
    """Read a run for the report. It may be unfinished."""
    path = directory.path / "result.json"
    values = read_json(path) if path.is_file() else {}
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
    start = directory.description().get("start")
    initial = source_name(str(start["source"])) if isinstance(start, dict) and "source" in start else "random weights"
    name = directory.path.absolute().name
    return RunSummary(name, initial, records, result, split, selection[0] if selection else "")


def absolute_path(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
