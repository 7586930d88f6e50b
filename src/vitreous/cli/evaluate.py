"""`vitreous evaluate`: the accuracy of a model on a data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.options import (
    BatchOptions,
    DataOptions,
    FeatureOptions,
    ModelOptions,
    OptionalFile,
    OptionalName,
    OutputOptions,
)
from vitreous.cli.output import (
    exit_if_unreadable,
    interrupt_message,
    make_reporter,
    print_columns,
    print_facts,
    print_figure_paths,
    print_json,
    print_notes,
    print_warnings,
)
from vitreous.evaluation.progress_bar import image_progress_bar
from vitreous.utils.console import print_line, print_message, printable

if TYPE_CHECKING:
    from vitreous.evaluation.evaluate import Evaluation
    from vitreous.evaluation.report import EvaluationReport

MAX_CLASSES, MAX_CONFUSIONS = 20, 10  # rows that are printed; --json has all


@dataclass(frozen=True)
class LabelOptions:
    """The images to evaluate on, and their labels."""

    split: OptionalName = None
    """train, val, test or all. Default: the test split of the data, otherwise its val split, otherwise all images; if
    the model is a run directory, all images that it was not trained on."""
    real: OptionalFile = None
    """ReaL labels of ImageNet: a JSON file with a list of correct classes for each validation image. Images are matched
    by the number in their file name (ILSVRC2012_val_00000001 is the first)."""
    classes: Annotated[Path | None, tyro.conf.arg(metavar="MAP.json|MAP.csv")] = None
    """Mapping from the classes of the data to those of the model, if their names differ: a JSON object, or a CSV with
    two columns, from the name in the data to the name or index in the model."""


def evaluate_command(  # noqa: PLR0913 (each is a flag or a group of flags)
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    *,
    model: ModelOptions,
    size: Annotated[tuple[int, ...], tyro.conf.arg(metavar="PX ...", help_behavior_hint="")] = (),
    csv: OptionalFile = None,
    data: DataOptions = DataOptions(),  # noqa: B008 (these are frozen)
    labels: Annotated[LabelOptions, tyro.conf.arg(name="label")] = LabelOptions(),
    features: Annotated[FeatureOptions, tyro.conf.arg(name="feature")] = FeatureOptions(),  # noqa: B008
    batches: Annotated[BatchOptions, tyro.conf.arg(name="device")] = BatchOptions(),  # noqa: B008
    output: OutputOptions = OutputOptions(),  # noqa: B008
) -> None:
    """Evaluate a model on a data set: accuracy, loss and calibration, for all images and per class.

    The output folder contains evaluation.json, precision-recall curves (precision_recall.png and .svg), and with
    several sizes a figure of the accuracy by size (resolution.png and .svg).

    Args:
        source: Data as in `vitreous data`: a folder, a manifest, arrays, tar shards, Parquet or a name.
        size: Image sizes in pixels; the model is evaluated at each. Default: the size of the model.
        csv: Write the result of each image to this CSV file: label, prediction, their probabilities, the rank of the
            label, and whether the prediction is rejected. For one image size.
    """
    from vitreous.evaluation.evaluate_model import check_evaluation_output, evaluate_and_report
    from vitreous.evaluation.measures import MeasureSettings
    from vitreous.evaluation.report import EvaluationRequest

    check_evaluation_output(output.out, csv, size, output.overwrite)
    reporter = make_reporter(output.json)
    options = batches.inference_options(reporter)
    settings, curves = MeasureSettings(tuple(features.shots)), output.json or output.out is not None
    request = EvaluationRequest(
        labels.split, size, tuple(features.methods), settings, labels.real, labels.classes, curves
    )
    with interrupt_message(resumable=bool(features.methods)):
        found = evaluate_and_report(
            model.model,
            source,
            request,
            options,
            heads=model.heads,
            preprocessing=model.preprocessing,
            trust_code=model.trust_code,
            reading=data.reading(model.model),
            cache=features.cache,
            bar=image_progress_bar(reporter),
            note=lambda notes: print_notes(reporter, notes),
        )
    print_warnings(reporter, found.warnings)
    if csv is not None:
        found.to_csv(csv, output.overwrite)
    if output.json:
        print_json(found.to_json())
    else:
        print_evaluation(found)
    write_results(found, output)
    exit_if_unreadable(reporter, found.all_unreadable)


def write_results(found: "EvaluationReport", output: OutputOptions) -> None:
    from vitreous.evaluation.evaluation_files import write_evaluation
    from vitreous.utils.figures import matplotlib_is_installed

    if output.out is None:
        return
    if figures := write_evaluation(found, output.out, output.overwrite):
        print_figure_paths(figures, output.json)
    elif found.scores and not matplotlib_is_installed():
        print_message('no figures: drawing needs matplotlib: pip install "vitreous[plot]"', "note: ")


def print_evaluation(found: "EvaluationReport") -> None:
    from vitreous.evaluation.report import format_size

    shown = [str(one) for one in found.preprocessing]
    sized = list(zip(found.preprocessing, found.scores, strict=False))
    rows = [
        ("data", f"{printable(found.data)}: {found.split}, {found.images:,} images"),
        ("model", f"{found.evaluated.name}, content hash {found.evaluated.digest}"),
        ("weights", printable(found.evaluated.selection)),
        ("preprocessing", shown[0] + (f"; and {len(shown) - 1} more sizes" if shown[1:] else "")),
    ]
    if found.left_out:
        rows.append(("left out", found.left_out))
    if found.mapping is not None:
        named = found.evaluated.model.labels is not None or found.labels is None
        assumed = "" if named else "; the model has no class names, its 1,000 classes are assumed to be ImageNet-1k's"
        rows.append(("classes", f"matched {found.mapping.rule}{assumed}"))
    if found.calibration is not None:
        rows.append(("calibration", str(found.calibration)))
        rows += [("", f"at {format_size(p)}: {one.calibration_note}") for p, one in sized if one.calibration_note]
    if found.not_scored:
        rows.append(("head", f"not evaluated: {printable(found.not_scored)}"))
    if found.feature_images:
        rows.append(("features", found.feature_images))
    print_facts(rows)
    if found.scores:
        print_scores(found)
    if len(found.scores) == 1:
        print_classes(found)
    if found.measures:
        print_measures(found)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def print_scores(found: "EvaluationReport") -> None:
    from vitreous.evaluation.metrics import format_interval
    from vitreous.evaluation.report import format_size

    results = [one.result for one in found.scores]
    columns = [
        ("size", [format_size(one) for one in found.preprocessing]),
        ("top-1", [_percent(one.top1) for one in results]),
        ("95% interval, Wilson", [format_interval(one.interval) if one.interval else "" for one in results]),
        ("top-5", [_percent(one.top5) for one in results]),
        ("mAP", [_percent(one.map) for one in results]),
        ("ReaL", [_percent(one.real.top1) if one.real else "" for one in found.scores]),
        ("loss", [f"{one.loss:.4f}" for one in results]),
        ("calibration error", [_percent(one.calibration) for one in results]),
        ("images/s", [f"{one.images_per_second:,.0f}" for one in found.scores]),
    ]
    print_columns([(name, cells) for name, cells in columns if any(cells)])
    first = found.scores[0]
    if first.real is not None and first.real.left_out:
        print_line(f"ReaL: {first.real.images:,} images; {first.real.left_out:,} without labels are left out")
    if first.result.invalid:
        print_line(f"{first.result.invalid:,} images have NaN logits and count as wrong")
    if len(found.scores) == 1:
        print_intervals(first)


def print_intervals(evaluation: "Evaluation") -> None:
    """Print the intervals that are not in the table, and coverage and precision with the model's thresholds."""
    from vitreous.evaluation.intervals import result_intervals
    from vitreous.evaluation.metrics import format_interval

    assert evaluation.images is not None
    intervals = result_intervals(evaluation.result, evaluation.images, evaluation.real)
    titles = {"top5": "top-5", "real": "ReaL", "balanced": "balanced accuracy", "map": "mAP", "loss": "loss"}
    texts: dict[str, list[str]] = {}
    for name, title in titles.items():
        if (one := intervals.get(name)) is not None:
            pair = f"{one.low:.4f} to {one.high:.4f}" if name == "loss" else format_interval((one.low, one.high))
            texts.setdefault(one.method, []).append(f"{title} {pair}")
    for method, parts in texts.items():
        print_line(f"95% interval, {method}: {'; '.join(parts)}")
    if (rejection := evaluation.images.rejection()) is not None:
        precision = "no prediction is accepted"
        if rejection.precision is not None and rejection.interval is not None:
            interval = f"95% interval, Wilson: {format_interval(rejection.interval)}"
            precision = f"precision {rejection.precision:.1%} ({interval})"
        count = f"{rejection.accepted:,} of {rejection.images:,} images"
        print_line(
            f"with the thresholds of the model (requested precision {rejection.wanted:.4g}): coverage"
            f" {rejection.coverage:.1%} ({count} accepted), {precision}"
        )


def print_classes(found: "EvaluationReport") -> None:
    """Print recall, precision and F1 of each class, and the most frequent confusions."""
    from vitreous.evaluation.metrics import format_interval, wilson_interval

    assert found.mapping is not None
    result = found.scores[0].result
    scores = [(name, result.per_class[place]) for name, place in zip(found.classes, found.mapping.indices, strict=True)]
    scores = [(name, score) for name, score in scores if score.images]
    if len(scores) > MAX_CLASSES:
        print_line(f"\nthe {MAX_CLASSES} worst of {len(scores):,} classes; --json has all")
        scores = sorted(scores, key=lambda one: one[1].f1 or 0.0)[:MAX_CLASSES]
    labels = [found.label(score.index) for _, score in scores]
    names = [
        name if name == label or found.labels is None else f"{name} ({label})"
        for (name, _), label in zip(scores, labels, strict=True)
    ]
    columns = [
        ("class", [printable(name) for name in names]),
        ("images", [f"{score.images:,}" for _, score in scores]),
        ("recall", [_percent(score.recall) for _, score in scores]),
        ("95% interval, Wilson", [format_interval(wilson_interval(s.recall or 0.0, s.images)) for _, s in scores]),
        ("precision", [_percent(score.precision) for _, score in scores]),
        ("F1", [_percent(score.f1) for _, score in scores]),
    ]
    print_columns(columns)
    if confusions := found.confusions(found.scores[0])[:MAX_CONFUSIONS]:
        titles = (("class", "truth"), ("predicted as", "answer"), ("images", "images"))
        cells = [(title, [printable(confusion[key]) for confusion in confusions]) for title, key in titles]
        print_columns(cells, text_columns=2)


def print_measures(found: "EvaluationReport") -> None:
    """Print the accuracy of few-shot classification, k-NN and linear probe."""
    from vitreous.evaluation.report import format_size

    names = [one.name for one in found.measures[0]]
    columns = [("size", [format_size(one) for one in found.preprocessing])]
    columns += [(name, [str(row[place]) for row in found.measures]) for place, name in enumerate(names)]
    print_columns(columns)
    for one in found.measures[0]:
        if one.method == "knn":
            accuracies = ", ".join(f"{k}: {100 * value:.1f}" for k, value in one.details["swept"].items())
            print_line(f"k-NN: k = {one.details['k']}, selected on training images; accuracy for each k: {accuracies}")
