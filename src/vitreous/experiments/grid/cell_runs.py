"""Run one cell: train, measure, and store the result under a hash of everything that it depends on."""

from __future__ import annotations

import json
import re
import shutil
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from vitreous import __version__
from vitreous.errors import VitreousError, one_line
from vitreous.experiments.grid.cell_measures import TrainedCell
from vitreous.experiments.grid.experiment import Cell, CellRecord
from vitreous.training.config import TrainConfig
from vitreous.training.outcome import Outcome
from vitreous.training.run_directory import RunDirectory
from vitreous.training.train import resume, train
from vitreous.training.user_parts import PARTS
from vitreous.utils.atomic import atomic_file
from vitreous.utils.device import pick_device
from vitreous.utils.json_files import dump_json, read_json

# Settings that do not change what is trained: they are not part of a key.
NOT_IN_KEY = ("out", "device", "workers", "save_minutes", "tensorboard", "wandb", "compare_with", "profile")
CONTENT_FIELDS = {"start", *PARTS}  # name files whose content changes what is trained
MAX_SLUG, KEY_LETTERS = 60, 10  # of the names of run directories
ORPHAN_SECONDS = 5.0  # that processes of a killed sweep get to end


@dataclass(frozen=True)
class CellTask:
    """A cell with everything that a process needs to run it."""

    cell: Cell
    key: str
    experiment: str
    folder: Path  # of all cells
    data: str  # the pre-training data
    device: str
    start_weights: Path | None = None  # last weights of the cell that this one starts from

    @property
    def name(self) -> str:
        """The name of the run directory: experiment, factors and seed, readable, and the key."""
        factors = self.cell.label or "-".join(str(value) for value in self.cell.factors.values())
        text = re.sub(r"[^\w.+]+", "-", f"{self.experiment}-{factors}-seed{self.cell.seed}").strip("-")
        return f"{text[:MAX_SLUG].rstrip('-')}-{self.key[:KEY_LETTERS]}"

    @property
    def title(self) -> str:
        """For the progress display."""
        factors = self.cell.label or ", ".join(str(value) for value in self.cell.factors.values())
        return f"{self.experiment}: {factors or 'all'}, seed {self.cell.seed}"

    @property
    def run(self) -> Path:
        return self.folder / self.name

    @property
    def record_path(self) -> Path:
        return self.folder / f"{self.name}.json"


def cell_key(cell: Cell, data: str, fingerprints: Mapping[str, str], version: int, hardware: str) -> str:
    """Return the hash of everything that the result of a cell depends on: settings, content of the data, measures,
    initial weights, version of the experiment and of this package, and the kind of device."""
    config = {name: value for name, value in given_settings(cell.config).items() if name not in NOT_IN_KEY}
    for name in CONTENT_FIELDS & config.keys():
        config[name] = fingerprints.get(config[name], config[name])
    measures = []
    for measure in cell.measures:
        fields = measure.to_json()
        measures.append({name: fingerprints.get(v, v) if isinstance(v, str) else v for name, v in fields.items()})
    content = {
        "config": None if cell.config is None else config,
        "data": fingerprints.get(cell.data or data, "") if cell.config is not None else "",
        "measures": measures,
        "start": None if cell.start is None else cell_key(cell.start, data, fingerprints, version, hardware),
        "model": fingerprints.get(cell.model or "", cell.model),
        "version": version,
        "vitreous": __version__,
        "hardware": hardware,
    }
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=12).hexdigest()


def given_settings(config: TrainConfig | None) -> dict[str, Any]:
    """Return the settings that differ from the defaults of TrainConfig."""
    if config is None:
        return {}
    defaults = TrainConfig().flat()
    return {name: value for name, value in config.flat().items() if value != defaults[name]}


def stored_record(task: CellTask) -> CellRecord | None:
    """Return the stored result of a cell, which another experiment may have run. None: there is none, or it cannot be
    read."""
    for path in sorted(task.folder.glob(f"*-{task.key[:KEY_LETTERS]}.json")):
        try:
            record = CellRecord.from_json(read_json(path))
        except (VitreousError, TypeError):
            continue
        if record.key == task.key and not record.error:
            return record
    return None


def run_cell(task: CellTask) -> CellRecord:
    """Run a cell, and return its result or the reason why it has none. Only results are stored."""
    started = time.monotonic()
    cell = task.cell
    settings = {name: value for name, value in given_settings(cell.config).items() if name not in ("out", "device")}
    try:
        outcome = None if cell.config is None else _trained(task)
        values, notes = _measured(task, outcome), outcome.selection if outcome else ()
    except KeyboardInterrupt:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, VitreousError) else f"{type(error).__name__}: {one_line(error)}"
        _write_log(task, error)
        return CellRecord(dict(cell.factors), cell.seed, {}, reason or type(error).__name__, task.name, key=task.key)
    seconds = outcome.seconds if outcome else 0.0
    run = task.name if cell.config is not None else ""
    measuring = time.monotonic() - started if outcome is None else 0.0
    record = CellRecord(
        dict(cell.factors), cell.seed, values, "", run, round(seconds + measuring, 3), settings, list(notes), task.key
    )
    with atomic_file(task.record_path) as temporary:
        dump_json(temporary, asdict(record))
    return record


def _trained(task: CellTask) -> Outcome:
    """Train, or continue a run that was interrupted. A complete run is only read."""
    config = task.cell.config
    assert config is not None
    if task.start_weights is not None:
        config = config.with_(start=str(task.start_weights))
    if (task.run / "config.json").is_file():
        _wait_until_unlocked(RunDirectory(task.run))
        # The data may have moved, and the run may continue on another GPU.
        return resume(task.run, data=task.cell.data or task.data, device=task.device, quiet=True)
    return train(task.cell.data or task.data, config.with_(out=str(task.run), device=task.device), quiet=True)


def _wait_until_unlocked(directory: RunDirectory) -> None:
    """Processes of a sweep that was killed end a moment later: see `end_with_parent`."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while directory.is_locked() and time.monotonic() < deadline:
        time.sleep(0.05)


def _measured(task: CellTask, outcome: Outcome | None) -> dict[str, Any]:
    weights = task.cell.model
    if outcome is not None:
        weights = str(outcome.run / "last.safetensors")
    temporary = task.folder / f".{task.name}.features"
    trained = TrainedCell(weights, outcome, pick_device(task.device), temporary)
    values: dict[str, Any] = {}
    try:
        for measure in task.cell.measures:
            values |= measure.measure(trained)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return values


def _write_log(task: CellTask, error: Exception) -> None:
    """Write the traceback of a failed cell next to its run, to find its cause."""
    with suppress(OSError):
        path = task.folder / f"{task.name}.error.txt"
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
