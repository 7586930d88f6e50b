"""`vitreous.sweep`: train with a grid of settings or with random draws, and select the best by validation metric."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from hashlib import blake2b
from pathlib import Path
from typing import Any

from vitreous.data.dataset import DataSet
from vitreous.data.open_data import absolute_data_path, open_data
from vitreous.errors import VitreousError, brief, summarize_names
from vitreous.evaluation.evaluated_model import open_model
from vitreous.experiments.grid.cell_folder import CELLS, content_fingerprint, locked_cells
from vitreous.experiments.grid.cell_runs import CellTask, cell_key
from vitreous.experiments.grid.experiment import Cell
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.sweep import Sweep, cell_devices, refuse_in_new_process
from vitreous.experiments.grid.work import expected_work
from vitreous.experiments.sweeps.best_validation import BestValidation
from vitreous.experiments.sweeps.run_length import RunLength, fix_run_length
from vitreous.experiments.sweeps.search_space import (
    SearchSpace,
    as_factor,
    combination_label,
    describe_number,
    make_search_space,
)
from vitreous.experiments.sweeps.sweep_request import SweepOptions, SweepRequest
from vitreous.experiments.sweeps.sweep_result import SweepResult, check_sweep_folder, read_keys
from vitreous.training.choose_config import choose_config
from vitreous.training.config import TrainConfig
from vitreous.training.config_file import read_config_file
from vitreous.training.defaults import FROM_SCRATCH
from vitreous.training.distributed import World
from vitreous.training.user_parts import absolute_parts, name_parts, part_import_paths, parts_in_memory
from vitreous.utils.atomic import atomic_file
from vitreous.utils.device import pick_device
from vitreous.utils.environment import command, environment
from vitreous.utils.figures import require_matplotlib
from vitreous.utils.import_path import import_path_of, refuse_during_import, source_digest
from vitreous.utils.json_files import dump_json, read_json
from vitreous.utils.progress import ProgressReporter

FORMAT = "vitreous sweep"
FILE, RESULT = "sweep.json", "result"  # in the output folder
VERSION = 1  # of the way in which cells are made from settings; results of another version are not used


def sweep(  # noqa: PLR0913 (keyword arguments, the same as the command's flags)
    data: object = None,
    config: TrainConfig | str | os.PathLike[str] | None = None,
    *,
    grid: Mapping[str, Any] | None = None,
    random: Mapping[str, Any] | None = None,
    draws: int = 20,
    draw_seed: int = 0,
    seeds: int = 1,
    jobs: int = 1,
    overwrite: bool = False,
    quiet: bool = False,
    **fields: Any,
) -> SweepResult:
    """Train with every combination of some settings, and select the best one by its validation metric.

    - `data`, `config`, `fields`: the settings that all runs share, as in `vitreous.train`; `out` is the folder of all
      runs, by default sweeps/NAME-HASH. Data and code of your own must be importable
    - `grid`: values of settings, all combinations of which are trained
    - `random`: values, or ranges such as "1e-4..1e-2", from which combinations are drawn: log-uniform for learning
      rates and weight decay, otherwise uniform ("log:16..512" and "linear:0..0.1" choose)
    - `draws`, `draw_seed`: number of combinations of `random`, and random seed. More draws keep the first ones
    - `seeds`: runs per combination, with different seeds; the means are compared
    - `jobs`: runs side by side on each GPU, or on the CPU
    - `overwrite`: replace the result of another sweep in `out`
    - `quiet`: print nothing

    The same call continues after an interruption. A combination that is invalid fails, and the others go on. Returns a
    `SweepResult`. Misspelt settings and values of a wrong type raise a `VitreousError` before anything is trained.

    >>> tiny = {"width": 16, "depth": 1, "heads": 2, "mlp_dim": 32, "patch_size": 4, "image_size": 8}
    >>> found = vitreous.sweep(
    ...     "digits", grid={"lr": [1e-4, 3e-3]}, duration="1 epoch", out="lr", device="cpu", quiet=True, **tiny
    ... )
    >>> found.best.settings
    {'lr': 0.003}
    >>> [row.settings["lr"] for row in found.rows]  # sorted: the best is first
    [0.003, 0.0001]
    >>> found.metric, found.images, found.best.value > found.rows[1].value
    ('top1', 144, True)
    >>> model = vitreous.load(found.best.runs[0])
    """
    refuse_during_import("vitreous.sweep")
    refuse_in_new_process("sweep")
    if isinstance(config, str | os.PathLike):
        file = read_config_file(config, searches=True)
        data, config = file.data if data is None else data, file.config()
        if grid is None and random is None:
            grid, random = file.searches.get("grid"), file.searches.get("random")
    fields, _ = name_parts(fields)
    base = absolute_parts(TrainConfig.from_flat({**(config or TrainConfig()).flat(), **fields}))
    if in_memory := parts_in_memory(base):
        raise VitreousError(
            f"{', '.join(in_memory)}: a sweep needs code that other processes can import: define it at the top level of"
            " a file"
        )
    options = SweepOptions(draws, draw_seed, seeds, jobs, overwrite)
    return run_sweep(prepare_sweep(data, base, grid, random, options), ProgressReporter(quiet))


def prepare_sweep(
    data: object,
    base: TrainConfig,
    grid: Mapping[str, Any] | None,
    random: Mapping[str, Any] | None,
    options: SweepOptions,
) -> SweepRequest:
    """Check the arguments. Nothing is read or written."""
    if World.current().size > 1:
        raise VitreousError("sweep: each run has one process; start it without torchrun, with jobs and several GPUs")
    options.check()
    space = make_search_space(grid, random, options.draws, options.draw_seed)
    _check_base(base, space)
    return SweepRequest(_data_source(data), base, space, options)


def _data_source(data: object) -> str:
    """Return data as text, which other processes can open."""
    if data is None:
        raise VitreousError("data is missing: give a folder of images, a file or a name, or `data` in a config file")
    path = data if isinstance(data, str | os.PathLike) else import_path_of(data)
    if path is None or not isinstance(os.fspath(path), str):
        raise VitreousError(
            f"data = {brief(data)}: a sweep needs data that other processes can open: a path, a name, or a class or"
            " function at the top level of a file"
        )
    return absolute_data_path(path)


def _check_base(base: TrainConfig, space: SearchSpace) -> None:
    """Raise an error for settings that contradict a swept one in every run."""
    if "lr" in space.values and base.finetuning.lr_candidates:
        raise VitreousError("lr is swept, and lr_candidates are given: use one of them")
    if "duration" in space.values and base.schedule.budget is not None:
        raise VitreousError("duration is swept, and a budget is given: use one of them")
    if base.reading.val_fraction == 0:
        raise VitreousError("val_fraction = 0: a sweep selects settings by their results on validation images")


# ---------------------------------------------------------------- running


def run_sweep(request: SweepRequest, reporter: ProgressReporter) -> SweepResult:
    """Run all cells that have no result yet, and write the result."""
    require_matplotlib()
    device = pick_device(request.base.run.device)
    opened = open_data(request.data, request.base.reading, reporter.bar)
    if opened.val is None:
        raise VitreousError(f"{opened.name}: there are no validation images, by which a sweep selects settings")
    fingerprint = content_fingerprint(opened)
    out = _output_folder(request, opened.name, fingerprint)
    length = _stored_length(request, out, fingerprint) or fix_run_length(request, opened, reporter)
    metric = request.base.run.best_by or ("map" if opened.multi_label else "top1")
    cells = _make_cells(request, length, metric)
    hardware = environment(device).get("gpu", device.type)
    fingerprints = {request.data: fingerprint, **_start_digests(request), **_code_digests(request)}
    keys = [cell_key(cell, request.data, fingerprints, VERSION, hardware) for cell in cells]
    _check_earlier_result(request, out, keys)
    with locked_cells(out):
        with atomic_file(out / FILE) as temporary:
            dump_json(temporary, {"format": FORMAT, **request.identity(fingerprint), "length": length.to_json()})
        for line in (*request.space.describe(), _plan_text(request, out), length.text):
            reporter.note(line)
        folder = (out / CELLS).absolute()
        tasks = {
            key: CellTask(cell, key, "sweep", folder, request.data, request.base.run.device)
            for key, cell in zip(keys, cells, strict=True)
        }
        work = {key: expected_work(task.cell, len(opened.train)) for key, task in tasks.items()}
        records = Sweep(tasks, {}, work, reporter, noun="run").run(request.options.jobs, cell_devices(device))
        found = CellRecords("", tuple(records[key] for key in keys))
        result = _result(request, out, found, metric, length, opened, environment(device))
        result.write(out / RESULT, _selected_toml(request, length, result, reporter))
    return result


def _plan_text(request: SweepRequest, out: Path) -> str:
    return f"{describe_number(request.space, len(request.combinations()), request.options.seeds)}, in {out}"


def _output_folder(request: SweepRequest, name: str, fingerprint: str) -> Path:
    """Return the folder of `out`, or one whose name depends on data and settings, so that the same call finds it."""
    if (out := request.base.run.out) is not None:
        return Path(out)
    content = [request.identity(fingerprint), request.space.describe(), request.space.draw_seed, request.data]
    digest = blake2b(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data"
    return Path("sweeps") / f"{slug}-{digest}"


def _stored_length(request: SweepRequest, out: Path, fingerprint: str) -> RunLength | None:
    """Return the length of the runs of the sweep that is continued. None: it is a new one."""
    path = out / FILE
    if not os.path.lexists(path):
        if out.is_dir() and (others := sorted({one.name for one in out.iterdir()} - {CELLS, RESULT})):
            raise VitreousError(f"{out} holds other files ({summarize_names(others, 4)}): give an empty or a new --out")
        return None
    try:
        stored = read_json(path)
    except VitreousError as error:
        raise VitreousError(f"{out}: {error}; give another --out") from error
    if stored.get("format") != FORMAT:
        raise VitreousError(f"{path} was not written by `vitreous sweep`: give another --out")
    identity = request.identity(fingerprint)
    if {name: stored.get(name) for name in identity} != identity:
        if request.options.overwrite:
            return None
        raise VitreousError(
            f"{out} holds a sweep of other settings or data: give another --out, or replace its result with --overwrite"
        )
    return RunLength.from_json(stored.get("length"), path)


def _check_earlier_result(request: SweepRequest, out: Path, keys: Sequence[str]) -> None:
    """Raise an error if the result folder holds something else than a result that this sweep extends."""
    folder = out / RESULT
    continued = not request.options.overwrite and (folder / "result.json").is_file()
    check_sweep_folder(folder, request.options.overwrite or continued)
    if continued and not read_keys(folder / "result.json") <= set(keys):
        raise VitreousError(
            f"{folder} is the result of a sweep over other values: give another --out, or replace it with --overwrite"
            " (finished runs are used again)"
        )


def _start_digests(request: SweepRequest) -> dict[str, str]:
    """Return hashes of the initial weights. Weights that cannot be opened are an error of the runs that use them."""
    digests = {}
    for config in request.configs({}):
        start = config.architecture.start
        if start is not None and start != FROM_SCRATCH and start not in digests:
            try:
                digests[start] = open_model(start).digest
            except VitreousError:
                if "start" not in request.space.values:
                    raise
    return digests


def _code_digests(request: SweepRequest) -> dict[str, str]:
    """Return hashes of the files with code of the user: a run is repeated if they change."""
    paths = {path for config in request.configs({}) for path in part_import_paths(config)}
    return {path: f"{path} {source_digest(path)}" for path in paths}


def _make_cells(request: SweepRequest, length: RunLength, metric: str) -> list[Cell]:
    measures = (BestValidation(metric),)
    first = request.base.run.seed
    pairs = zip(request.combinations(), request.configs(length.fixed), strict=True)
    return [
        Cell(
            {name: as_factor(value) for name, value in combination.items()},
            measures,
            seed,
            config.with_(seed=seed),
            label=combination_label(combination),
        )
        for combination, config in pairs
        for seed in range(first, first + request.options.seeds)
    ]


def _result(
    request: SweepRequest,
    out: Path,
    records: CellRecords,
    metric: str,
    length: RunLength,
    opened: DataSet,
    machine: Mapping[str, str],
) -> SweepResult:
    description = {
        "date": date.today().isoformat(),
        "command": command(),
        "environment": dict(machine),
        "data": opened.name,
        "kind": request.space.kind,
        "swept": request.space.describe(),
        "length": length.text,
        "seeds": request.options.seeds,
    }
    failed = [replace(record, run="") if record.error else record for record in records]
    return SweepResult.from_records(
        CellRecords("", tuple(failed)), request.combinations(), metric, out / RESULT, out / CELLS, description
    )


def _selected_toml(
    request: SweepRequest, length: RunLength, result: SweepResult, reporter: ProgressReporter
) -> str | None:
    """Return a config file with all settings of the selected runs. None: no run has a result."""
    if result.best is None:
        return None
    config = request.base.with_(**length.fixed, out=None).with_(**result.best.settings)
    return choose_config(request.data, config, quiet=True).to_toml()
