"""Another run, beside which the report shows this one: what there is to say about each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Result, result_from_json
from vitreous.training.folder import RunFolder
from vitreous.training.starting import short_name
from vitreous.weights.files import read_json


@dataclass(frozen=True)
class Ran:
    """A run as it is compared with another."""

    name: str
    began: str  # with what
    records: Sequence[dict[str, Any]]  # the lines of metrics.jsonl
    result: Result | None  # None: it has not come to its end
    split: str  # that the result is of


def ran(folder: RunFolder, records: Sequence[dict[str, Any]], result: Result | None, split: str) -> Ran:
    start = folder.description().get("start")
    began = short_name(start["source"]) if start else "random weights"
    return Ran(folder.path.absolute().name, began, records, result, split)


def opened(path: str, classes: Sequence[str], own: RunFolder) -> RunFolder:
    """The run to be shown beside this one, if the two can be compared."""
    try:
        folder = RunFolder.opened(path)
        theirs = folder.description().get("classes")
    except VitreousError as error:
        raise VitreousError(f"beside: {error}") from error
    if folder.path.resolve() == own.path.resolve():
        raise VitreousError(f"beside: {path} is this run itself")
    if not isinstance(theirs, list):
        raise VitreousError(f"beside: {path} does not say which classes it has; it was begun by an older version")
    if set(theirs) != set(classes):
        raise VitreousError(
            f"beside: {path} has other classes ({_some(theirs)}) than this data ({_some(classes)}), so that the two"
            " cannot be compared"
        )
    return folder


def read(folder: RunFolder) -> Ran:
    """As far as it has come."""
    path = folder.path / "result.json"
    found = read_json(path) if path.is_file() else {}
    result = result_from_json(found["result"]) if found.get("result") else None
    return ran(folder, folder.records(), result, found.get("split", ""))


def anchored(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
