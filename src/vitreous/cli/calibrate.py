"""`vitreous calibrate`: temperature and thresholds of a model, stored with it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.options import DataOptions, DeviceName, OptionalInt, OptionalName, PreprocessingName, Switch
from vitreous.cli.output import (
    exit_if_unreadable,
    interrupt_message,
    make_reporter,
    print_columns,
    print_facts,
    print_json,
    print_notes,
    print_warnings,
)
from vitreous.errors import format_count
from vitreous.evaluation.progress_bar import image_progress_bar
from vitreous.utils.console import print_line, printable
from vitreous.utils.output_paths import check_output_paths

if TYPE_CHECKING:
    from vitreous.evaluation.calibration import CalibrationReport

MAX_GROUPS, MAX_CLASSES = 20, 4  # rows of the table of thresholds, and class names of a row; --json has all


@dataclass(frozen=True)
class CheckpointOptions:
    """Settings that the checkpoint may lack."""

    heads: OptionalInt = None
    """Number of attention heads, if the checkpoint does not contain it. Default: the usual number for its width."""
    preprocessing: PreprocessingName = None
    """Preprocessing that the model was trained with, if the checkpoint does not contain it. Default: the usual
    one of its format."""


@dataclass(frozen=True)
class ThresholdOptions:
    """Thresholds below which predictions are rejected."""

    precision: Annotated[float | None, tyro.conf.arg(metavar="P", help_behavior_hint="")] = None
    """Precision that accepted predictions must reach, such as 0.95. Chooses the smallest threshold for each class that
    has enough images, and a common one for the other classes. Default: no thresholds."""
    confidence: Annotated[float, tyro.conf.arg(metavar="C")] = 0.95
    """Probability, for each threshold, that the precision is reached on new images of the same kind. 0: it is reached
    on the images of DATA only, without a guarantee."""


@dataclass(frozen=True)
class CalibrationImageOptions:
    """The images to calibrate on, and their labels."""

    split: OptionalName = None
    """train, val, test or all. Default: the val split (of the data, or held out by the model's run if the data has a
    test split), otherwise the test split, otherwise all images. Training images of the model's run are left out."""
    classes: Annotated[Path | None, tyro.conf.arg(metavar="MAP.json|MAP.csv", help_behavior_hint="")] = None
    """Mapping from the classes of the data to those of the model, if their names differ, as in evaluate."""


@dataclass(frozen=True)
class LoadingOptions:
    """Device and loading of images. Matmuls are in fp32: --precision is the precision of predictions here."""

    device: DeviceName = "auto"
    """cpu, cuda, cuda:1 ...; auto: a GPU if there is one."""
    batch_size: int = 64
    """Images per forward pass."""
    workers: int | None = None
    """Number of worker processes that decode images. Default: one per CPU core, up to 16; 0 for few images and for
    images in memory."""


def calibrate_command(  # noqa: PLR0913 (each is a flag)
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.safetensors")],
    thresholds: Annotated[ThresholdOptions, tyro.conf.arg(name="threshold")] = ThresholdOptions(),
    labels: Annotated[CalibrationImageOptions, tyro.conf.arg(name="label")] = CalibrationImageOptions(),
    json: Switch = False,
    overwrite: Switch = False,
    checkpoint: CheckpointOptions = CheckpointOptions(),
    data: DataOptions = DataOptions(),  # noqa: B008 (these are frozen)
    loading: Annotated[LoadingOptions, tyro.conf.arg(name="device")] = LoadingOptions(),
) -> None:
    """Calibrate a model: fit a temperature, so that its probabilities agree with its accuracy, and choose thresholds
    below which predictions are rejected.

    Both are chosen on images that the model was not trained on, and stored with the model: predict and evaluate apply
    them. Logits do not change.

    Args:
        model: Checkpoint of any supported format, or a run directory, whose training images are left out.
        source: Labelled images as in `vitreous data`. A few hundred or more give reliable results.
        out: File to write: the same weights in the native format, with the calibration.
        json: Print one JSON object instead of tables.
        overwrite: Replace the output file, once the new one is complete.
    """
    check_output_paths(None, lambda folder: (), out, overwrite=overwrite)

    from vitreous.evaluation.calibration import calibrate
    from vitreous.evaluation.inference_options import InferenceOptions
    from vitreous.utils.device import pick_device

    reporter = make_reporter(json)
    options = InferenceOptions(pick_device(loading.device), loading.batch_size, loading.workers)
    with interrupt_message(resumable=False):
        report = calibrate(
            model,
            source,
            out,
            **asdict(thresholds),
            **asdict(labels),
            overwrite=overwrite,
            **asdict(checkpoint),
            reading=data.reading(model),
            options=options,
            bar=image_progress_bar(reporter),
        )
    print_warnings(reporter, report.warnings)
    if json:
        print_json({"model": model, "source": source, **report.to_json()})
    else:
        print_calibration(report)
        print_notes(reporter, report.notes)
    exit_if_unreadable(reporter, report.unreadable)


def print_calibration(report: "CalibrationReport") -> None:
    from vitreous.evaluation.metrics import format_interval, wilson_interval

    calibration = report.calibration
    rows = [("data", f"{calibration.data}: {calibration.split}, {format_count(calibration.images, 'image')}")]
    if report.left_out:
        rows.append(("left out", report.left_out))
    if report.accuracy is not None:
        interval = format_interval(wilson_interval(report.accuracy, calibration.images))
        rows.append(
            ("top-1", f"{report.accuracy:.1%} (95% interval, Wilson: {interval}); calibration does not change it")
        )
    rows.append(("temperature", f"{calibration.temperature:.4g}"))
    print_facts(rows)
    columns = [
        ("", ["before", "after, 5-fold cross-validated"]),
        ("log-loss", [f"{one.loss:.4f}" for one in (report.before, report.after)]),
        ("calibration error", [f"{one.error:.2%}" for one in (report.before, report.after)]),
    ]
    print_columns(columns)
    if report.rejection is not None:
        print_thresholds(report)
    print_line(f"\nwritten: {printable(report.out)}")


def print_thresholds(report: "CalibrationReport") -> None:
    from vitreous.evaluation.metrics import format_interval
    from vitreous.models.calibration import format_confidence

    groups = sorted(report.groups, key=lambda group: (group.threshold is not None, group.precision or 0))
    if len(groups) > MAX_GROUPS:
        print_line(f"\nthe {MAX_GROUPS} worst of {len(groups):,} thresholds; --json has all")
        groups = groups[:MAX_GROUPS]
    names = [[printable(report.names[index]) for index in group.classes] for group in groups]
    texts = [
        ", ".join(row[:MAX_CLASSES]) + (f" and {len(row) - MAX_CLASSES:,} more" if len(row) > MAX_CLASSES else "")
        for row in names
    ]
    columns = [
        ("class", texts),
        ("threshold", ["all rejected" if one.threshold is None else f"{one.threshold:.1%}" for one in groups]),
        ("accepted", [f"{one.accepted:,} of {one.predictions:,}" for one in groups]),
        ("precision", ["" if one.precision is None else f"{one.precision:.1%}" for one in groups]),
    ]
    print_columns(columns)
    found, calibration = report.rejection, report.calibration
    assert found is not None
    precision = "no prediction is accepted"
    if found.precision is not None and found.interval is not None:
        precision = f"{found.precision:.1%} (95% interval, Wilson: {format_interval(found.interval)})"
    sure = (
        f"with {format_confidence(calibration.confidence)} for new images of the same kind (exact binomial test)"
        if calibration.confidence
        else "measured on these images: NOT guaranteed for new ones"
    )
    print_line(f"\nrequested precision: {found.wanted:.4g} for each row of the table, {sure}")
    print_line("precision in the table: measured on the images above, which the thresholds were chosen on")
    print_line(f"5-fold cross-validated: coverage {found.coverage:.1%} of the images, precision {precision}")
