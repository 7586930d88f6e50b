"""`vitreous.runs`: training runs as rows of a table, with their status, their results and the settings that differ."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from vitreous.errors import VitreousError, brief, one_line
from vitreous.evaluation.metrics import wilson_interval
from vitreous.evaluation.training_images import held_out_digest
from vitreous.training import durations, state
from vitreous.training.legs import Leg, length_change, read_legs
from vitreous.training.run_directory import RunDirectory
from vitreous.training.run_search import find_runs
from vitreous.training.setting_differences import differing_settings, settings_of
from vitreous.utils.json_files import read_json
from vitreous.utils.progress import ProgressReporter
from vitreous.utils.regular_files import open_regular

Status = Literal["complete", "running", "interrupted", "diverged", "damaged"]
Sort = Literal["name", "accuracy", "best", "epochs", "time", "date", "status"]
TAIL_BYTES = 1 << 18  # read from the end of a log
# What a damaged or hostile file can raise: files are checked, but their values may have any type.
DAMAGE = (VitreousError, OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, repr=False)
class RunRow:
    """One run in the list that `vitreous.runs` returns. Numbers are None if they are not known.

    >>> outcome = vitreous.train("digits", out="runs/first", duration="2 steps", quiet=True)
    >>> (row,) = vitreous.runs("runs")
    >>> row.name, row.status, row.metric, row.split, row.images, row.steps
    ('first', 'complete', 'top1', 'test', 360, 2)
    """

    path: Path  # the run directory
    name: str  # name of the directory, with its parents if others have the same name
    status: Status  # complete, running, interrupted, diverged (the loss was not finite) or damaged
    detail: str = ""  # how far an unfinished run is; what is wrong with a damaged one
    data: str = ""  # path or name that was trained on
    metric: str = ""  # metric of the result: top1, map for several labels per image, or loss without labels
    value: float | None = None  # value of that metric
    interval: tuple[float, float] | None = None  # 95% interval of `value`
    split: str = ""  # split that the result was measured on
    images: int | None = None  # number of images of the result
    measured_on: str = ""  # a letter: results with different letters were measured on different images
    best_metric: str = ""  # metric that selects the best weights, on the validation images
    best_value: float | None = None  # value of that metric
    best_step: int | None = None  # step of the best weights
    steps: int | None = None  # number of steps that are done
    total_steps: int | None = None  # number of steps of the whole run
    epochs: float | None = None  # number of epochs that are done
    seconds: float | None = None  # training time
    fingerprint: str = ""  # fingerprint of data and splits, by name; "": not known
    held_out: str = ""  # hash of the content of the validation and test images; "": not known
    device: str = ""  # name of the GPU, or cpu
    version: str = ""  # version of vitreous
    changed: str = ""  # date and time of the last change
    settings: Mapping[str, Any] = field(default_factory=dict)  # all settings that determine the weights
    differences: Mapping[str, Any] = field(default_factory=dict)  # those settings that differ between the rows

    def __repr__(self) -> str:
        data = Path(self.data).name
        value = (
            ""
            if self.value is None
            else f", {self.metric} {self.value:.2%} on {self.images or 0:,} {self.split} images"
        )
        return f"RunRow({self.name!r}: {self.status}{f' ({self.detail})' if self.detail else ''}, {data}{value})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for `json.dumps`."""
        return {**asdict(self), "path": str(self.path)}


def runs(*folders: str | os.PathLike[str], sort: Sort = "name") -> list[RunRow]:
    """List training runs, with their status, their results and the settings that differ.

    - `folders`: folders that contain runs, at up to three levels, run directories, or patterns such as "runs/photos-*";
      default: the folder `runs`
    - `sort`: name, accuracy, best, epochs, time, date or status; accuracies that were measured on different images are
      not mixed

    Returns a list of `RunRow`. A run that cannot be read is a row with the status "damaged" and the reason. A folder
    that does not exist raises a `VitreousError`.

    >>> for lr in (0.001, 0.003):
    ...     outcome = vitreous.train("digits", out=f"runs/lr-{lr}", lr=lr, duration="2 steps", quiet=True)
    >>> [(row.name, row.status, row.differences) for row in vitreous.runs("runs")]
    [('lr-0.001', 'complete', {'lr': 0.001}), ('lr-0.003', 'complete', {'lr': 0.003})]
    """
    return list_runs(folders or ("runs",), sort, ProgressReporter(quiet=True))


def list_runs(folders: Iterable[str | os.PathLike[str]], sort: Sort, reporter: ProgressReporter) -> list[RunRow]:
    """As `runs`, with a progress bar."""
    if sort not in get_args(Sort):
        raise VitreousError(f"sort = {brief(sort)}: expected one of {', '.join(get_args(Sort))}")
    paths = find_runs(folders)
    read: list[tuple[RunRow, dict[str, Any]]] = []
    with reporter.bar("reading runs", len(paths)) as advance:
        for path in paths:
            read.append(_read_row(path))
            advance(1)
    rows = _with_unique_names(_with_differences(read))
    return sorted(_with_letters(rows), key=_sort_key(sort))


# ---------------------------------------------------------------- one run


def _read_row(path: Path) -> tuple[RunRow, dict[str, Any]]:
    """The row of a run, and its description; empty if it is damaged."""
    directory = RunDirectory(path)
    row = RunRow(path, path.absolute().name, "damaged", changed=_last_change(directory))
    try:
        if not (path / "config.json").exists():
            raise VitreousError("config.json is missing")
        description = directory.description()
        row = replace(row, **_described(description), settings=settings_of(description))
        row = replace(row, held_out=held_out_digest(path))
    except DAMAGE as error:
        return replace(row, detail=_reason(error, path)), {}
    try:
        return replace(row, **_status(directory, description)), description
    except DAMAGE as error:
        return replace(row, status="damaged", detail=_reason(error, path)), description


def _described(description: dict[str, Any]) -> dict[str, Any]:
    """Columns that config.json contains."""
    environment = description["environment"]
    return {
        "data": description["data"],
        "fingerprint": str(description.get("fingerprint") or ""),
        "device": str(environment.get("gpu") or "cpu"),
        "version": str(description.get("vitreous") or environment.get("vitreous") or ""),
        "best_metric": str(description["config"].get("best_by") or "top1"),
    }


def _status(directory: RunDirectory, description: dict[str, Any]) -> dict[str, Any]:
    """Status, result and progress of a run."""
    legs = read_legs(description)
    last = _last_line(directory.metrics)
    values = read_json(directory.path / "result.json") if (directory.path / "result.json").is_file() else {}
    total = legs[-1].steps if legs else _integer(description.get("steps")) or _estimate_steps(description, last)
    complete = bool(values) and len(values.get("legs") or ()) == len(legs)
    if directory.is_locked():
        found = _unfinished(directory, last, total, legs)
        return {**found, "status": "running", "detail": found["detail"] or "starting"}
    if not complete:
        found = _unfinished(directory, None, total, legs)
        if (directory.path / "bad_batch.txt").is_file():
            detail = f"the loss was not finite; last saved state: {found['detail']}"
            return {**found, "status": "diverged", "detail": detail}
        return {**found, "status": "interrupted", "detail": _search_progress(description) or found["detail"]}
    if not directory.best.is_file():
        raise VitreousError("best.safetensors is missing")
    steps = _integer(values.get("steps"))
    return {
        "status": "complete",
        **_result(values),
        **_best(values.get("best")),
        **_progress(steps, _number(values.get("seconds")), total, last),
    }


def _unfinished(
    directory: RunDirectory, last: dict[str, Any] | None, total: int | None, legs: Sequence[Leg]
) -> dict[str, Any]:
    """Progress of a run without a result: that of the last line of the log, or of the saved state to continue from."""
    progress = _saved_progress(directory)
    line = _last_line(directory.metrics)
    steps = _integer(last.get("step")) if last else None
    steps = steps if steps is not None else _integer(progress.get("step"))
    seconds = _number((last or {}).get("seconds")) or _number(progress.get("seconds"))
    detail = f"step {steps:,} of {total:,}" if steps is not None and total else f"step {steps:,}" if steps else ""
    detail += ", without the final evaluation" if steps is not None and steps == total else ""
    detail += f", {length_change(legs)}" if legs else ""
    return {
        "detail": detail or "no state was saved yet",
        **_best(progress.get("best")),
        **_progress(steps, seconds, total, line),
    }


def _saved_progress(directory: RunDirectory) -> dict[str, Any]:
    """The progress of the newest saved state; empty if none was saved. Contents are not compared with their digests."""
    states = state.list_states(directory.state)
    for path in states:
        with suppress(*DAMAGE):
            if (path / state.SUMS).is_file():
                return read_json(path / state.PROGRESS)
    if states:
        raise VitreousError("all saved states are damaged")
    return {}


def _result(values: dict[str, Any]) -> dict[str, Any]:
    """The result in result.json. A run without validation and test images has none."""
    result = values.get("result")
    if result is None:
        return {"detail": "no validation or test images"}
    known = [name for name in ("top1", "map") if _number(result.get(name)) is not None]
    unlabelled = not known and result.get("per_class") == []  # masked-patch pre-training
    metric = known[0] if known else "loss" if unlabelled else "map"
    value, images = _number(result.get(metric)), _integer(result.get("images"))
    if value is None or not (0 <= value <= 1 or metric == "loss") or not images or images < 0:
        raise VitreousError("result.json has no valid result")
    interval = wilson_interval(value, images) if metric == "top1" else None
    split = str(values.get("split") or "")
    return {"metric": metric, "value": value, "interval": interval, "split": split, "images": images}


def _best(best: Any) -> dict[str, Any]:
    if not isinstance(best, dict):
        return {}
    return {"best_value": _number(best.get("value")), "best_step": _integer(best.get("step"))}


def _progress(
    steps: int | None, seconds: float | None, total: int | None, last: dict[str, Any] | None
) -> dict[str, Any]:
    """Steps, epochs and time. The log has the number of epochs of its last step."""
    epoch, step = _number((last or {}).get("epoch")), _integer((last or {}).get("step"))
    epochs = None if epoch is None or not step or steps is None else steps * epoch / step
    return {"steps": steps, "total_steps": total, "epochs": epochs, "seconds": seconds}


def _search_progress(description: dict[str, Any]) -> str:
    """How far a learning-rate search is; "" if the run has a learning rate."""
    config, done = description["config"], len(description.get("rates") or ())
    candidates = config.get("lr_candidates") or ()
    if config.get("lr") is not None or not candidates:
        return ""
    return f"learning-rate search, {done} of {len(candidates)} candidates done"


def _estimate_steps(description: dict[str, Any], last: dict[str, Any] | None) -> int | None:
    """Steps of the whole run, for runs of versions that did not store them."""
    duration, batch = description["config"].get("duration"), _integer(description["config"].get("batch_size"))
    examples, epoch = _number((last or {}).get("examples")), _number((last or {}).get("epoch"))
    if not isinstance(duration, str) or not batch:
        return None
    images = round(examples / epoch) if examples and epoch else 0
    with suppress(VitreousError):
        return durations.run_length(duration, batch_size=batch, images=images)
    return None


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last line about training steps in a log, which may be damaged."""
    with suppress(*DAMAGE), open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        for line in reversed(file.read(TAIL_BYTES).splitlines()):
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and record.get("kind") == "train":
                    return record
    return None


def _last_change(directory: RunDirectory) -> str:
    times = []
    for path in (directory.metrics, directory.path / "result.json", directory.path / "config.json"):
        with suppress(*DAMAGE):
            times.append(path.stat().st_mtime)
    with suppress(*DAMAGE):
        return datetime.fromtimestamp(max(times)).isoformat(" ", "seconds")
    return ""


def _reason(error: BaseException, path: Path) -> str:
    if isinstance(error, VitreousError):
        return one_line(error).removeprefix(f"{path}{os.sep}").removeprefix(f"{path}: ")
    return f"its files have unexpected values ({type(error).__name__}: {one_line(error)})"


def _number(value: Any) -> float | None:
    finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if finite and not math.isnan(value) else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or number != int(number) else int(number)


# ---------------------------------------------------------------- all runs


def _with_differences(read: Sequence[tuple[RunRow, dict[str, Any]]]) -> list[RunRow]:
    different = iter(differing_settings([description for _, description in read if description]))
    return [replace(row, differences=next(different)) if description else row for row, description in read]


def _with_unique_names(rows: Sequence[RunRow]) -> list[RunRow]:
    """Rows with their paths as names if the names of their folders are not unique."""
    counts = Counter(row.name for row in rows)
    return [replace(row, name=str(row.path)) if counts[row.name] > 1 else row for row in rows]


def _with_letters(rows: Sequence[RunRow]) -> list[RunRow]:
    """Rows with a letter for the images of their result. Without a fingerprint of its data, a run has its own."""
    letters: dict[tuple[object, ...], str] = {}

    def letter(row: RunRow) -> str:
        # Other images may have the same names.
        kind = [row.settings.get(name) for name in ("patch_target", "mask_ratio")] if row.metric == "loss" else []
        key = (row.fingerprint or row.path, row.held_out, row.split, row.images, row.metric, *kind)
        return "" if row.value is None else letters.setdefault(key, _letter(len(letters)))

    return [replace(row, measured_on=letter(row)) for row in rows]


def _letter(number: int) -> str:
    """a, b ... z, aa, ab ..."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)


def _sort_key(sort: Sort) -> Callable[[RunRow], Any]:
    """Best first, newest first, and rows without the value last; equal ones by name."""

    def key(row: RunRow) -> Any:
        first: Any = ()
        match sort:
            case "accuracy":
                sign = 1 if row.metric == "loss" else -1
                first = (row.value is None, len(row.measured_on), row.measured_on, sign * (row.value or 0.0))
            case "best":
                sign = 1 if row.best_metric == "loss" else -1
                first = (row.best_value is None, row.best_metric, sign * (row.best_value or 0.0))
            case "epochs":
                first = (row.epochs is None, -(row.epochs or 0.0))
            case "time":
                first = (row.seconds is None, -(row.seconds or 0.0))
            case "date":
                first = tuple(-ord(character) for character in row.changed) or (0,)
            case "status":
                first = get_args(Status).index(row.status)
            case "name":
                pass
        return first, _natural(row.name)

    return key


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort run-9 before run-10."""
    parts: list[tuple[bool, int, str]] = []
    digits = ""
    for character in f"{name}\0":
        if character.isdecimal() and character.isascii():
            digits += character
            continue
        if digits:
            parts.append((False, int(digits[:300]), digits))
            digits = ""
        parts.append((True, 0, character))
    return parts
