"""`vitreous.reproduce`: run an experiment of the paper, and write its table, figure and verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from vitreous.data.dataset import DataSet
from vitreous.data.open_data import absolute_data_path, open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError, brief, one_line
from vitreous.evaluation.evaluated_model import display_name, open_model
from vitreous.experiments.experiment_result import ExperimentResult, check_result_folder
from vitreous.experiments.grid.cell_folder import content_fingerprint, locked_cells
from vitreous.experiments.grid.cell_runs import CellTask, cell_key
from vitreous.experiments.grid.experiment import Cell, CellRecord, Experiment
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.settings import Setting, make_setting, source_title
from vitreous.experiments.grid.sweep import Sweep, cell_devices, refuse_in_new_process
from vitreous.experiments.grid.work import expected_work
from vitreous.experiments.options import ReproduceOptions
from vitreous.experiments.registry import find_experiment, short_name
from vitreous.utils.annotations import describe_annotation, matches_annotation
from vitreous.utils.device import pick_device
from vitreous.utils.environment import command, environment
from vitreous.utils.figures import require_matplotlib
from vitreous.utils.import_path import is_import_path, refuse_during_import
from vitreous.utils.limits import check_count
from vitreous.utils.progress import ProgressReporter

TINY_DATA = "digits"


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment with its cells, their keys, and the place of its output."""

    name: str  # of its folder
    experiment: Experiment
    setting: Setting
    cells: tuple[Cell, ...]
    keys: tuple[str, ...]
    folder: Path


def reproduce(name: str, *, quiet: bool = False, **fields: Any) -> ExperimentResult:
    """Run an experiment of the ViT paper, and write its table, its figure and a verdict on the paper's conclusion.

    - `name`: a name of `vitreous reproduce`, such as "table8", or file.py:NAME for an experiment of your own
    - `quiet`: print nothing
    - `fields`: fields of `ReproduceOptions`, with the names of the command-line flags: data, transfer, scale, seeds,
      out, model, jobs, device, overwrite

    Results of cells (training runs and measurements) are stored in OUT/cells; a call with the same arguments runs only
    those that are missing. Table, figure and result.json are written to OUT/NAME-SCALE.

    Returns an `ExperimentResult`. An unknown name or field, and an earlier result in the same folder with other data or
    settings, raise a `VitreousError`.

    >>> result = vitreous.reproduce("axial", quiet=True)  # scale tiny: a few seconds, too small for conclusions
    >>> result.verdict.answer, len(result.records), result.folder.name
    ('undecided', 6, 'axial-tiny')
    """
    known = {field.name: field.type for field in dataclass_fields(ReproduceOptions)}
    for field, value in fields.items():
        if field not in known:
            near = get_close_matches(field, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(known)}"
            raise VitreousError(f"reproduce has no argument {field!r}; {hint}")
        fields[field] = _as_text(value)
    return reproduce_all([name], ReproduceOptions(**fields), ProgressReporter(quiet))[0]


def redraw(path: Path, out: Path, overwrite: bool, names: Sequence[str] = ()) -> ExperimentResult:
    """Write table, figure and verdict again from a result.json. Nothing is trained.

    `names`: the name of its experiment, which is necessary only for an import path.
    """
    require_matplotlib()
    result = ExperimentResult.read(path, find_experiment(names[0]) if len(names) == 1 else None)
    if names and tuple(map(short_name, names)) != (result.name,):
        raise VitreousError(f"{path} is the result of {result.name}, not of {' '.join(names)}")
    folder = out / f"{result.name}-{result.records.scale}"
    if folder.is_dir() and path.resolve().is_relative_to(folder.resolve()):
        raise VitreousError(f"{path} is in the folder that would be replaced: give another --out")
    try:
        result.write(folder, overwrite)
    except VitreousError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise VitreousError(f"{path} is damaged, or another version of {result.name} wrote it ({reason})") from error
    return replace(result, folder=folder)


def _as_text(value: Any) -> Any:
    """Convert paths to text, and a list to a tuple."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return tuple(map(_as_text, value)) if isinstance(value, list | tuple) else value


def check_reproduce_options(options: ReproduceOptions) -> ReproduceOptions:
    """Check types and values, and make paths absolute."""
    for field in dataclass_fields(ReproduceOptions):
        value = getattr(options, field.name)
        if not matches_annotation(value, field.type):
            raise VitreousError(f"{field.name} = {brief(value)}: expected {describe_annotation(field.type)}")
    check_count("jobs", options.jobs)
    if options.seeds is not None:
        check_count("seeds", options.seeds)
    titles = ["unseen", *map(source_title, options.transfer)]
    if same := [title for title in dict.fromkeys(titles) if titles.count(title) > 1]:
        raise VitreousError(
            f"transfer: {same[0]!r} names more than one data set in the table: give data sets with different names"
        )
    transfer = tuple(absolute_data_path(source) for source in options.transfer)
    data = None if options.data is None else absolute_data_path(options.data)
    return replace(options, data=data, transfer=transfer)


def reproduce_all(
    names: Sequence[str], options: ReproduceOptions, reporter: ProgressReporter
) -> list[ExperimentResult]:
    """Run several experiments. Cells that they share run once, and cells of all of them run side by side."""
    refuse_during_import("vitreous.reproduce")
    options = check_reproduce_options(options)
    refuse_in_new_process("reproduce")
    require_matplotlib()
    device, out = pick_device(options.device), Path(options.out)
    planned, sweep = plan_sweep(names, options, reporter)
    with locked_cells(out):
        records = sweep.run(options.jobs, cell_devices(device))
        results = [_result(one, records, device) for one in planned]
        for one, result in zip(planned, results, strict=True):
            result.write(one.folder, overwrite=True)
    return results


def plan_sweep(
    names: Sequence[str], options: ReproduceOptions, reporter: ProgressReporter
) -> tuple[list[PlannedExperiment], Sweep]:
    """Return the experiments with their cells, and the sweep that runs them. Nothing is written."""
    planned = _plan(names, options)
    return planned, _make_sweep(planned, options, reporter, [name for name in names if is_import_path(name)])


def _plan(names: Sequence[str], options: ReproduceOptions) -> list[PlannedExperiment]:
    """Make the cells of all experiments. Every error that can be found before training is raised here."""
    if len(set(map(short_name, names))) < len(names):
        raise VitreousError("an experiment is given twice, or two have the same name: run them one after the other")
    experiments = {name: find_experiment(name) for name in names}
    for name, experiment in experiments.items():
        _check_needs(name, experiment, options)
    opened: dict[str, DataSet] = {}
    needed = [_pretraining_data(experiment, options) for experiment in experiments.values()]
    reading = Reading() if options.model is None else Reading(val_fraction=0.0)  # nothing is trained
    for source in dict.fromkeys([*filter(None, needed), *options.transfer]):
        opened[source] = open_data(source, reading)
    fingerprints = {source: content_fingerprint(data) for source, data in opened.items()}
    if options.model is not None:
        fingerprints[options.model] = open_model(options.model).digest
    device = pick_device(options.device)
    hardware = environment(device).get("gpu", device.type)
    planned = []
    for name, experiment in experiments.items():
        source = _pretraining_data(experiment, options)
        seeds = options.seeds or experiment.seeds[options.scale]
        setting = make_setting(
            options.scale,
            source,
            opened.get(source),
            options.transfer,
            seeds,
            options.model if experiment.needs.model else None,
        )
        cells = tuple(experiment.cells(setting))
        _add_fingerprints(fingerprints, cells)
        keys = tuple(cell_key(cell, source, fingerprints, experiment.version, hardware) for cell in cells)
        folder = Path(options.out) / f"{short_name(name)}-{options.scale}"
        plan = PlannedExperiment(short_name(name), experiment, setting, cells, keys, folder)
        _check_folder(plan, options)
        planned.append(plan)
    return planned


def _add_fingerprints(fingerprints: dict[str, str], cells: Sequence[Cell]) -> None:
    """Add the fingerprints of data and checkpoints that the cells name themselves."""
    for cell in cells:
        for source in filter(None, (cell.data, *(source for one in cell.measures for source in one.sources))):
            if source not in fingerprints:
                fingerprints[source] = content_fingerprint(open_data(source))
        if cell.model is not None and cell.model not in fingerprints:
            fingerprints[cell.model] = open_model(cell.model).digest


def _pretraining_data(experiment: Experiment, options: ReproduceOptions) -> str:
    if not experiment.needs.pretraining:
        return ""
    return options.data or (TINY_DATA if options.scale == "tiny" else "")


WHERE = {
    "small": "a data set of photographs with at least 10 classes, such as mini-ImageNet (100 classes; from the Hugging"
    " Face hub: hf://timm/mini-imagenet)",
    "paper": "ImageNet-21k (image-net.org) or data of similar size",
}


def _check_needs(name: str, experiment: Experiment, options: ReproduceOptions) -> None:
    """Raise an error if data is missing, with the data and the flag that takes it."""
    needs, scale = experiment.needs, options.scale
    given = options.model is not None and needs.model
    if given and not _pretraining_data(experiment, options):
        raise VitreousError(
            f"{name} at scale {scale} needs images to show to the model: give some with --data DATA (a folder with one"
            " folder per class, .npz, tar shards, Parquet ...). --scale tiny shows it handwritten digits"
        )
    if needs.pretraining and not _pretraining_data(experiment, options):
        raise VitreousError(
            f"{name} at scale {scale} needs images to pre-train on: give {WHERE[scale]} with --data DATA (a folder with"
            " one folder per class, .npz, tar shards, Parquet ...; `vitreous data DATA` describes it). --scale tiny"
            " needs no data"
        )
    if scale == "paper" and needs.pretraining and not needs.model and not options.transfer:
        raise VitreousError(
            f"{name} at scale paper needs a data set to measure on: give ImageNet (ILSVRC 2012, image-net.org) with"
            " --transfer DATA"
        )
    if needs.transfer and scale == "small" and not options.transfer:
        raise VitreousError(
            f"{name} at scale small needs another data set to fine-tune on: give one with --transfer DATA, such as"
            " CIFAR-10, or with larger images Imagenette at 160 px (github.com/fastai/imagenette)"
        )
    if options.model is not None and not needs.model:
        raise VitreousError(f"{name} trains its own models: it takes no --model (figure6 and figure7 do)")


def _check_folder(plan: PlannedExperiment, options: ReproduceOptions) -> None:
    """Raise an error if the output folder holds something else than the output of the same grid."""
    continued = not options.overwrite and (plan.folder / "result.json").is_file()
    check_result_folder(plan.name, plan.folder, options.overwrite or continued)
    if not continued:
        return
    earlier = ExperimentResult.read(plan.folder / "result.json", plan.experiment)
    if not {cell.key for cell in earlier.records} <= set(plan.keys):  # more seeds are no other settings
        raise VitreousError(
            f"{plan.folder} holds the result of other settings or data: give another --out, or replace it with"
            " --overwrite"
        )


def _make_sweep(
    planned: Sequence[PlannedExperiment], options: ReproduceOptions, reporter: ProgressReporter, imports: Sequence[str]
) -> Sweep:
    """Collect the different cells of experiments, and those that they start from."""
    tasks: dict[str, CellTask] = {}
    starts: dict[str, str] = {}
    work: dict[str, float] = {}
    rates: dict[str, str] = {}
    for plan in planned:
        pairs = list(zip(plan.keys, plan.cells, strict=True))
        for key, cell in pairs:
            tasks.setdefault(key, _task(plan, key, cell, options))
            work[key] = expected_work(cell)
            for other, use, places in ((cell.start, "starts", starts), (cell.lr_of, "takes its learning rate", rates)):
                if other is not None:
                    places[key] = _place_in_grid(plan.name, f"a cell {use} from", other, pairs)
    return Sweep(tasks, starts, work, reporter, imports, rates=rates)


def _place_in_grid(name: str, use: str, needed: Cell, pairs: Sequence[tuple[str, Cell]]) -> str:
    """Return the key of a cell that another one needs."""
    place = next((key for key, other in pairs if other is needed), None)
    if place is None:
        raise VitreousError(f"{name}: {use} another one that is not part of the grid")
    if needed.alone:
        raise VitreousError(f"{name}: {use} a timed one (alone), which runs after all others")
    return place


def _task(plan: PlannedExperiment, key: str, cell: Cell, options: ReproduceOptions) -> CellTask:
    folder = (Path(options.out) / "cells").absolute()
    return CellTask(cell, key, plan.name, folder, plan.setting.data, options.device)


def _result(plan: PlannedExperiment, records: Mapping[str, CellRecord], device: torch.device) -> ExperimentResult:
    cells = [
        CellRecord(**{**vars(records[key]), "factors": dict(cell.factors), "seed": cell.seed})
        for key, cell in zip(plan.keys, plan.cells, strict=True)
    ]
    setting = plan.setting
    description = {
        "date": date.today().isoformat(),
        "command": command(),
        "environment": environment(device),
        "data": Path(setting.data).name if setting.data else "",
        "transfer": [Path(source).name for source in setting.transfer],
        "classes": len(setting.classes),
        "unseen": list(setting.unseen),
        "seeds": setting.seeds,
        "model": "" if setting.model is None else display_name(setting.model),
    }
    records_ = CellRecords(setting.scale, tuple(cells))
    return ExperimentResult(plan.name, plan.experiment, records_, description, plan.folder)
