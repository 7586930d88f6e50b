"""The result of a sweep: combinations of settings, sorted by their validation metric, and the one that is selected."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.metrics import format_interval
from vitreous.experiments.grid.experiment import CellRecord
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.statistics import SeedSummary, summarize_seeds
from vitreous.experiments.grid.tables import Entry, ResultTable
from vitreous.experiments.sweeps.best_validation import VALUE
from vitreous.experiments.sweeps.search_space import as_factor, combination_label, format_setting
from vitreous.experiments.sweeps.sweep_figure import draw_sweep
from vitreous.training.log_format import format_metric
from vitreous.training.outcome import read_outcome
from vitreous.training.run_directory import RunDirectory
from vitreous.utils.atomic import atomic_folder, check_output
from vitreous.utils.console import printable
from vitreous.utils.environment import program
from vitreous.utils.json_files import dump_json, read_json
from vitreous.utils.progress import format_duration

FORMAT = "vitreous sweep result"
SELECTED = "selected.toml"
FILES = ("result.json", "table.md", "table.csv", "report.md", "sweep.png", "sweep.svg", SELECTED)
METRICS = {
    "top1": "validation accuracy",
    "top5": "validation top-5 accuracy",
    "balanced": "validation mean recall",
    "map": "validation mAP",
    "loss": "validation loss",
}


@dataclass(frozen=True)
class SweepRow:
    """One combination of settings in the result of a sweep."""

    settings: Mapping[str, Any]  # the swept settings, by name
    value: float | None  # validation metric of the best weights, mean over seeds; None: no run has a result
    std: float | None  # over seeds; None: one seed
    values: Mapping[int, float]  # by seed
    loss: float | None  # on the validation images, mean over seeds
    seconds: float  # of training, mean over seeds
    runs: tuple[Path, ...]  # run directories, in the order of the seeds
    errors: Mapping[int, str]  # why a run has no result, by seed


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep: what `vitreous.sweep` returns.

    >>> tiny = {"width": 16, "depth": 1, "heads": 2, "mlp_dim": 32, "patch_size": 4, "image_size": 8, "device": "cpu"}
    >>> found = vitreous.sweep("digits", grid={"lr": [1e-4, 3e-3]}, duration="1 epoch", out="lr", quiet=True, **tiny)
    >>> found.best.settings, found.images
    ({'lr': 0.003}, 144)
    >>> found.table.columns[:2]
    ('lr', 'validation accuracy (%)')
    """

    rows: tuple[SweepRow, ...]  # one per combination, sorted: the best is first, those without a result are last
    metric: str  # on the validation images, which selected the weights of every run and the settings
    images: int  # validation images
    folder: Path  # of the table and the figure
    records: CellRecords  # the results of all runs
    description: Mapping[str, Any]  # date, command, hardware, data, length of the runs

    @classmethod
    def from_records(
        cls,
        records: CellRecords,
        combinations: Sequence[Mapping[str, Any]],
        metric: str,
        folder: Path,
        cells: Path,
        description: Mapping[str, Any],
    ) -> SweepResult:
        """Return the result of these cells. `cells`: the folder of the runs."""
        rows = [_make_row(records, combination, cells) for combination in combinations]
        images = next((cell.values["images"] for cell in records if cell.values), 0)
        return cls(tuple(sorted(rows, key=_rank(metric))), metric, images, folder, records, description)

    @property
    def best(self) -> SweepRow | None:
        """The selected settings. None: no run has a result."""
        return self.rows[0] if self.rows and self.rows[0].value is not None else None

    @property
    def table(self) -> ResultTable:
        """The table, in the order of `rows`."""
        return self.make_table(with_runs=True)

    def make_table(self, with_runs: bool) -> ResultTable:
        """Return the table. The names of run directories are too long for a terminal."""
        names = list(self.rows[0].settings) if self.rows else []
        percent = "" if self.metric == "loss" else " (%)"
        loss = [] if self.metric == "loss" else ["validation loss"]
        columns = (*names, f"{METRICS[self.metric]}{percent}", *loss, "time", *(["run"] if with_runs else []))
        rows = []
        for row in self.rows:
            losses: list[Entry] = [] if self.metric == "loss" else [_four_digits(row.loss)]
            runs = [row.runs[0].name if row.runs else None] if with_runs else []
            time = None if row.value is None else format_duration(row.seconds)
            rows.append(
                (*map(format_setting, row.settings.values()), _metric_entry(self.metric, row), *losses, time, *runs)
            )
        return ResultTable(columns, tuple(rows), tuple(self.failures()))

    def failures(self) -> list[str]:
        """Return one sentence for each combination and reason why runs have no result."""
        found = []
        for row in self.rows:
            for error in dict.fromkeys(row.errors.values()):
                seeds = [str(seed) for seed, reason in row.errors.items() if reason == error]
                which = f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
                found.append(f"failed: {combination_label(row.settings)}, {which}: {error}")
        return found

    def sentences(self) -> list[str]:
        """Say which settings were selected, on which images, and what their test result is."""
        if self.best is None:
            return ["No run has a result: see the reasons above."]
        images = format_count(self.images, "validation image")
        several = "" if len(self.best.values) == 1 else f" (mean of {len(self.best.values)} seeds)"
        value = format_metric(self.metric, self.best.value)
        first = (
            f"Selected: {combination_label(self.best.settings)}: {METRICS[self.metric]} {value}{several} on {images}."
        )
        warning = (
            f"The same {images} selected the weights of every run and these settings, out of"
            f" {format_count(len(self.rows), 'combination')}: expect a lower value on new images."
        )
        seeds = (
            ""
            if self.description["seeds"] > 1
            else " Small differences may be chance: --seeds 3 shows how large it is."
        )
        return [first, warning + seeds, self.test_sentence()]

    def test_sentence(self) -> str:
        """Return the test result of the selected runs. Those of other runs are not shown: they must not select."""
        assert self.best is not None
        outcomes = [read_outcome(RunDirectory(run)) for run in self.best.runs]
        results = [one.result for one in outcomes if one.split == "test" and one.result is not None]
        if not results:
            return "There are no test images: the accuracy on new images was not measured."
        images = format_count(results[0].images, "test image")
        numbers = [value for one in results if (value := one.map if one.top1 is None else one.top1) is not None]
        kind = "mAP" if results[0].top1 is None else "accuracy"
        if len(numbers) > 1:
            summary = summarize_seeds([100 * number for number in numbers])
            return f"Test {kind} of the selected runs: {summary}% on {images}, which selected nothing."
        interval = results[0].interval
        text = f" (95% interval, Wilson: {format_interval(interval)})" if interval else ""
        return f"Test {kind} of the selected run: {numbers[0]:.1%}{text} on {images}, which selected nothing."

    def command(self) -> str:
        """Return the command that trains again with the selected settings."""
        return f"{program()} train --config {self.folder / SELECTED}"

    def measured_on(self) -> list[str]:
        """Return sentences on data, runs and hardware."""
        about = self.description
        machine = about["environment"]
        hardware = machine.get("gpu") or machine.get("cpu", "")
        seeds = f"{about['seeds']} seed{'s' * (about['seeds'] != 1)}"
        return [
            f"Data: {about['data']}. {METRICS[self.metric].capitalize()} of the best weights of each run,"
            f" {self.images:,} images, {seeds}.",
            f"{about['length'][:1].upper()}{about['length'][1:]}.",
            f"{about['date']}, {hardware}, torch {machine.get('torch', '?')}, vitreous {machine.get('vitreous', '?')}.",
        ]

    def markdown(self) -> str:
        """Return the report: table, selection, figure, how it was measured."""
        retrain = [f"Train again with these settings: `{printable(self.command())}`", ""] if self.best else []
        lines = [
            "# Sweep",
            "",
            self.table.markdown(),
            *(line for text in self.sentences() for line in (printable(text), "")),
            *retrain,
            "![validation metric by setting](sweep.png)",
            "",
            *(f"- {printable(text)}" for text in (*self.description["swept"], *self.measured_on())),
            "",
            f"Command: `{printable(self.description['command'])}`",
        ]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Values for `json.dumps`."""
        rows = [{**asdict(row), "runs": [str(run) for run in row.runs]} for row in self.rows]
        return {
            "format": FORMAT,
            "metric": self.metric,
            "validation_images": self.images,
            "selected": None if self.best is None else rows[0],
            "conclusions": self.sentences(),
            "train_again": None if self.best is None else self.command(),
            "rows": rows,
            "table": self.table.to_json(),
            "description": dict(self.description),
            "cells": [asdict(cell) for cell in self.records],
        }

    def write(self, folder: Path, selected: str | None) -> None:
        """Write table, figure, report and the config file of the selected settings."""
        with atomic_folder(folder, True, lambda _: FILES) as new:
            dump_json(new / "result.json", self.to_json())
            (new / "table.md").write_text(self.table.markdown(), encoding="utf-8")
            (new / "table.csv").write_text(self.table.csv(), encoding="utf-8", errors="replace")
            (new / "report.md").write_text(self.markdown(), encoding="utf-8")
            if selected is not None:
                (new / SELECTED).write_text(selected, encoding="utf-8")
            panels = {
                name: [(row.settings[name], list(row.values.values())) for row in self.rows] for name in self.names
            }
            failed = len(self.records.failed)
            caption = [*self.measured_on(), *([f"{failed} of {len(self.records)} runs failed."] if failed else [])]
            draw_sweep(panels, self.metric, METRICS[self.metric], caption, new)

    @property
    def names(self) -> list[str]:
        """The settings that were varied."""
        return list(self.rows[0].settings) if self.rows else []


def check_sweep_folder(folder: Path, overwrite: bool) -> None:
    """Raise an error if the result of a sweep may not be written to a folder."""
    check_output(folder, overwrite, lambda _: FILES)


def read_keys(path: Path) -> set[str]:
    """Return the keys of the cells of a stored result."""
    try:
        values = read_json(path)
        if values.get("format") != FORMAT:
            raise VitreousError(f"{path} was not written by `vitreous sweep`: give another --out")
        return {CellRecord.from_json(cell).key for cell in values["cells"]}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, VitreousError):
            raise
        raise VitreousError(
            f"{path} is damaged ({error}): give another --out, or replace it with --overwrite"
        ) from error


def _make_row(records: CellRecords, combination: Mapping[str, Any], cells: Path) -> SweepRow:
    factors = {name: as_factor(value) for name, value in combination.items()}
    chosen = records.where(**factors)
    done = [cell for cell in chosen if not cell.error]
    values = {cell.seed: float(cell.values[VALUE]) for cell in done}
    losses = [cell.values["loss"] for cell in done if cell.values["loss"] is not None]
    summary = summarize_seeds(list(values.values())) if values else None
    return SweepRow(
        dict(combination),
        None if summary is None else summary.mean,
        None if summary is None else summary.std,
        values,
        statistics.fmean(losses) if losses else None,
        statistics.fmean(cell.seconds for cell in done) if done else 0.0,
        tuple(cells / cell.run for cell in done),
        {cell.seed: cell.error for cell in chosen if cell.error},
    )


def _rank(metric: str) -> Any:
    """Return a key for sorting: the best first. Combinations with failed runs come after complete ones, since a mean
    over fewer seeds is no fair comparison; the lower loss decides between equal values."""

    def rank(row: SweepRow) -> tuple[bool, bool, float, float]:
        value = math.inf if row.value is None else row.value if metric == "loss" else -row.value
        return row.value is None, bool(row.errors), value, math.inf if row.loss is None else row.loss

    return rank


def _metric_entry(metric: str, row: SweepRow) -> Entry:
    if row.value is None:
        return None
    if metric == "loss":
        return _four_digits(row.value) if row.std is None else f"{row.value:.4f} ± {row.std:.4f}"
    return SeedSummary(100 * row.value, None if row.std is None else 100 * row.std, len(row.values))


def _four_digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"
