"""`vitreous runs`: a table of training runs, with their results and the settings that differ."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.cli.options import OptionalFile, Switch
from vitreous.cli.output import make_reporter, print_json, print_table
from vitreous.utils.console import STDOUT, console, print_line, printable
from vitreous.utils.output_paths import check_output_paths

if TYPE_CHECKING:
    from vitreous.training.run_table import RunRow

PIPE_WIDTH = 120  # columns, if the output is not a terminal and COLUMNS is not set
MAX_CELL = 28  # columns; longer cells are folded
MAX_PATH = 50  # characters
MAX_LISTED = 20  # damaged runs and groups of images
MAX_SETTINGS = 40  # different settings
RESULT_TITLES = {"top1": "accuracy", "map": "mAP", "loss": "loss"}
Column = tuple[str, list[str]]
CSV_COLUMNS = (
    *("name", "path", "data", "status", "detail", "metric", "value", "interval_low", "interval_high", "split"),
    *("images", "measured_on", "best_metric", "best_value", "best_step", "steps", "total_steps", "epochs"),
    *("seconds", "device", "version", "changed"),
)


def runs_command(
    folders: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER ...]", help_behavior_hint="")
    ] = (),
    /,
    *,
    sort: Literal["name", "accuracy", "best", "epochs", "time", "date", "status"] = "name",
    json: Switch = False,
    csv: OptionalFile = None,
    overwrite: Switch = False,
) -> None:
    """List training runs: status, result, best validation metric, and only those settings that differ between them.

    Accuracies that were measured on different images are marked with different letters: they cannot be compared.

    Args:
        folders: Folders of runs, run directories, or patterns in quotes ("runs/photos-*"). Default: runs.
        sort: Order of the runs. accuracy: best first, one data set after the other. best: by the best validation
            metric. date: time of the last change, newest first.
        json: Print one JSON object with all columns and all settings instead of a table.
        csv: Also write the table with all columns to this file.
        overwrite: Replace the file of --csv, if it exists.
    """
    from vitreous.training.run_table import list_runs

    check_output_paths(None, lambda folder: (), csv, overwrite=overwrite, figures=False)
    reporter = make_reporter(json)
    rows = list_runs(folders or ("runs",), sort, reporter)
    if csv is not None:
        _write_csv(csv, rows, overwrite)
    if json:
        print_json({"runs": [row.to_json() for row in rows], "different_settings": _different_settings(rows)})
    elif not rows:
        print_line(f"no runs in {printable(' '.join(folders) or 'runs')}")
    else:
        _print_runs(rows)


def _print_runs(rows: "Sequence[RunRow]") -> None:
    """Print the table, what is equal in all rows, the images of the results, and what is wrong with damaged runs."""
    settings = _setting_columns(rows)
    columns, equal = _split_equal([*_fixed_columns(rows), *settings[:MAX_SETTINGS]])
    for block in _fit(columns, _width()):
        _print_block(block)
        print_line()
    if len(settings) > MAX_SETTINGS:
        print_line(f"{len(settings) - MAX_SETTINGS:,} more settings differ: --csv and --json have all")
    if equal:
        print_line("equal in all runs: " + ", ".join(f"{name} {value}" for name, value in equal))
    _print_images(rows)
    damaged = [row for row in rows if row.status == "damaged"]
    for row in damaged[:MAX_LISTED]:
        print_line(f"{printable(row.name)} is damaged: {printable(row.detail)}")
    if len(damaged) > MAX_LISTED:
        print_line(f"{len(damaged) - MAX_LISTED:,} more damaged runs: --csv and --json have the reasons")


def _fixed_columns(rows: "Sequence[RunRow]") -> list[Column]:
    from vitreous.evaluation.metrics import format_interval
    from vitreous.utils.progress import format_duration

    several = len({row.measured_on for row in rows if row.measured_on}) > 1
    metrics = {row.metric for row in rows if row.metric}
    result = (
        RESULT_TITLES.get(metrics.copy().pop(), "result") if len(metrics) == 1 else "result" if metrics else "accuracy"
    )
    bests = {row.best_metric for row in rows if row.best_value is not None}
    best = f"best val {bests.pop()}" if len(bests) == 1 else "best val"
    return [
        ("run", [row.name for row in rows]),
        ("status", [_status(row) for row in rows]),
        (result, [_result(row, several, len(metrics) > 1) for row in rows]),
        ("95% interval", [format_interval(row.interval) if row.interval else "-" for row in rows]),
        (best, [_best(row, best == "best val") for row in rows]),
        ("epochs", ["-" if row.epochs is None else f"{row.epochs:.3g}" for row in rows]),
        ("time", ["-" if row.seconds is None else format_duration(row.seconds) for row in rows]),
        ("data", [_short(row.data) or "-" for row in rows]),
        ("device", [row.device or "-" for row in rows]),
    ]


def _different_settings(rows: "Sequence[RunRow]") -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.differences))


def _setting_columns(rows: "Sequence[RunRow]") -> list[Column]:
    from vitreous.training.setting_differences import setting_text

    names = _different_settings(rows)
    return [(name, [setting_text(row.differences.get(name)) for row in rows]) for name in names]


def _status(row: "RunRow") -> str:
    return row.status if row.status == "damaged" or not row.detail else f"{row.status}: {row.detail}"


def _result(row: "RunRow", several: bool, named: bool) -> str:
    """The result, with a letter for its images if there are several, and with the metric if there are several."""
    if row.value is None:
        return "-"
    value = f"{row.value:.4f}" if row.metric == "loss" else f"{row.value:.1%}"
    return " ".join(filter(None, (value, row.metric if named else "", row.measured_on if several else "")))


def _best(row: "RunRow", named: bool) -> str:
    if row.best_value is None:
        return "-"
    value = f"{row.best_value:.4f}" if row.best_metric == "loss" else f"{row.best_value:.1%}"
    return f"{value} {row.best_metric}" if named else value


def _split_equal(columns: Sequence[Column]) -> tuple[list[Column], list[tuple[str, str]]]:
    """Move data and device out of the table if all runs have the same."""
    kept, equal = [], []
    for name, cells in columns:
        same = name in ("data", "device") and len(set(cells)) == 1
        if same:
            equal.append((name, cells[0]))
        else:
            kept.append((name, cells))
    return kept, equal


def _print_images(rows: "Sequence[RunRow]") -> None:
    """Print on which images the results were measured."""
    letters = sorted({row.measured_on for row in rows if row.measured_on}, key=lambda letter: (len(letter), letter))
    groups = {letter: next(row for row in rows if row.measured_on == letter) for letter in letters}
    texts = {
        letter: f"{row.images:,} {printable(row.split)} images of {_short(row.data)}" for letter, row in groups.items()
    }
    if len(texts) == 1:
        print_line(f"results: measured on {''.join(texts.values())}")
    elif texts:
        print_line("results with different letters were measured on different images and cannot be compared:")
    for letter in list(groups)[:MAX_LISTED] if len(texts) > 1 else ():
        row = groups[letter]
        identity = (row.held_out or row.fingerprint)[:8]
        data = f"data {printable(identity)}" if identity else "data of an older version, not identified"
        print_line(f"  {letter}: {texts[letter]} ({data})")
    if len(texts) > MAX_LISTED:
        print_line(f"  {len(texts) - MAX_LISTED:,} more: --csv and --json have all")
    measured = [row for row in rows if row.best_value is not None]
    if measured:
        several = len({(row.fingerprint, row.held_out) for row in measured}) > 1
        other = "; of different data, these values cannot be compared either" if several else ""
        print_line(f"best val: on the validation images that selected the weights, so expect less on new images{other}")


def _short(path: str) -> str:
    """The end of a long path."""
    text = printable(path)
    return text if len(text) <= MAX_PATH else f"...{text[3 - MAX_PATH :]}"


def _width() -> int:
    """Columns of the terminal, or of the lines in a pipe."""
    if STDOUT.isatty():
        return console(STDOUT).width
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and 0 < int(given) < 10_000 else PIPE_WIDTH


def _fit(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Fold columns that do not fit into the width into further tables, each with the names of the runs."""
    from rich.cells import cell_len

    def needed(column: Column) -> int:
        return 2 + min(MAX_CELL, max(cell_len(printable(cell)) for cell in (column[0], *column[1])))

    first, *others = columns
    blocks: list[list[Column]] = [[first]]
    used = needed(first)
    for column in others:
        if used + needed(column) > width + 2 and len(blocks[-1]) > 1:
            blocks.append([first])
            used = needed(first)
        blocks[-1].append(column)
        used += needed(column)
    return blocks


def _print_block(columns: Sequence[Column]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, _ in columns:
        table.add_column(Text(printable(name)), overflow="fold", max_width=MAX_CELL)
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_table(table, fold=False)


def _write_csv(path: Path, rows: "Sequence[RunRow]", overwrite: bool) -> None:
    from vitreous.utils.csv_files import csv_file

    names = _different_settings(rows)
    with csv_file(path, [*CSV_COLUMNS, *names], overwrite) as write:
        for row in rows:
            low, high = row.interval or (None, None)
            values = {**row.to_json(), "interval_low": low, "interval_high": high}
            settings = [_setting_cell(row.differences.get(name)) for name in names]
            write([*(values[name] for name in CSV_COLUMNS), *settings])


def _setting_cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value
