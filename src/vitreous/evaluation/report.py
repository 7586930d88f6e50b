"""`run_evaluation`: everything that `vitreous evaluate` measures of a model on a data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.data.dataset import DataSet, Source
from vitreous.data.digests import image_digests
from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.cache import FeatureCache
from vitreous.evaluation.calibration_images import calibration_images
from vitreous.evaluation.evaluate import Evaluation, check_head, evaluate_source
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.evaluation_images import seen_warnings, select_evaluation_images, train_and_test_images
from vitreous.evaluation.image_results import CSV_COLUMNS
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.intervals import class_intervals, result_intervals
from vitreous.evaluation.matching import ClassMapping, match_classes, read_class_map
from vitreous.evaluation.measures import Measure, MeasureSettings, Method, check_measures
from vitreous.evaluation.metrics import Result, format_interval
from vitreous.evaluation.precision_recall import PrecisionRecall, precision_recall
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar
from vitreous.evaluation.real_labels import read_real_labels
from vitreous.models.calibration import Calibration
from vitreous.preprocessing import Preprocessing
from vitreous.utils.csv_files import csv_file
from vitreous.weights.model_info import labels_of


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate."""

    split: str | None = None  # None: test, else val, else all images that the model has not seen in training
    sizes: tuple[int, ...] = ()  # image sizes; empty: the model's own
    methods: tuple[Method, ...] = ()  # feature measures
    settings: MeasureSettings = field(default_factory=MeasureSettings)
    real: Path | None = None  # ImageNet ReaL labels
    classes: Path | None = None  # file that maps the data's classes to the model's
    curves: bool = False  # compute precision-recall curves


@dataclass(repr=False)
class EvaluationReport:
    """The results, one per image size."""

    split: str  # evaluated images: train, val, test, all; unseen: all but the training images of the model
    images: int  # number of evaluated images
    evaluated: EvaluatedModel  # the model
    classes: tuple[str, ...]  # class names of the data
    labels: tuple[str, ...] | None  # class names of the model
    preprocessing: list[Preprocessing]  # one per image size
    mapping: ClassMapping | None  # None: predictions are not scored, see `not_scored`
    not_scored: str = ""  # why predictions are not scored
    left_out: str = ""  # images that are left out because the model has seen them in training
    warnings: tuple[str, ...] = ()  # about evaluated images that the model has seen in training
    feature_images: str = ""  # images that the feature measures were trained and tested on
    unreadable: list[str] = field(default_factory=list)  # errors of images without features
    scores: list[Evaluation] = field(default_factory=list)  # scores of the predictions, one per image size
    measures: list[list[Measure]] = field(default_factory=list)  # measures of the features, one list per image size
    source: Source | None = None  # the evaluated images
    curves: list[PrecisionRecall | None] = field(default_factory=list)  # one per image size, if requested
    data: str = ""  # path or name of the data
    notes: tuple[str, ...] = ()  # about model and data, such as guessed settings

    @property
    def result(self) -> Result:
        """The scores at the first image size: top1, top5, loss, calibration, per_class, confusion, interval..."""
        if not self.scores:
            raise VitreousError(f"no predictions were scored: {self.not_scored}")
        return self.scores[0].result

    @property
    def all_unreadable(self) -> list[str]:
        """The errors of all images that were left out because they cannot be read."""
        scored = self.scores[0].unreadable.values() if self.scores else ()
        return list(dict.fromkeys((*scored, *self.unreadable)))

    def to_csv(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the result of each image: label, prediction, probabilities, rank, and whether it is rejected."""
        self.result  # noqa: B018 (an error if there is none)
        results, source = self.scores[0].images, self.source
        assert results is not None
        assert source is not None
        names = [self.label(index) for index in range(self.evaluated.model.config.num_classes)]
        with csv_file(Path(path), CSV_COLUMNS, overwrite) as write:
            for row in results.csv_rows(source, self.split, names):
                write(row)

    def __repr__(self) -> str:
        return evaluation_summary(self)

    def label(self, index: int) -> str:
        """Return the name of a class of the model."""
        return f"class {index}" if self.labels is None else self.labels[index]

    def confusions(self, evaluation: Evaluation) -> list[dict[str, Any]]:
        """Return all pairs of a true and a wrongly predicted class that occur, the most frequent first."""
        table = evaluation.result.confusion or ()
        pairs = [(count, i, j) for i, row in enumerate(table) for j, count in enumerate(row) if count and i != j]
        return [
            {"truth": self.label(i), "answer": self.label(j), "images": count}
            for count, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what `vitreous evaluate --json` prints."""
        sizes = [list(one.size) for one in self.preprocessing if isinstance(one.size, tuple)]
        measures = [[measure.to_json() for measure in row] for row in self.measures]
        return {
            "data": self.data,
            "split": self.split,
            "images": self.images,
            "left_out": self.left_out or None,
            "warnings": list(self.warnings),
            "model": {
                "name": self.evaluated.name,
                "content_hash": self.evaluated.digest,
                "selection": self.evaluated.selection,
            },
            "preprocessing": [one.to_json() for one in self.preprocessing],
            "classes": None if self.mapping is None else self.mapping.rule,
            "not_scored": self.not_scored or None,
            "calibration": None if self.calibration is None else str(self.calibration),
            "scores": [self._scores_json(place) for place in range(len(self.scores))],
            "features": [{"size": s, "measures": row} for s, row in zip(sizes, measures, strict=False)],
            "learnt": self.feature_images or None,
            "features_unreadable": self.unreadable,
        }

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the model."""
        return self.evaluated.model.calibration

    def _scores_json(self, place: int) -> dict[str, Any]:
        evaluation, curves = self.scores[place], self.curves[place] if self.curves else None
        result = evaluation.result.to_json()
        names = {} if self.mapping is None else dict(zip(self.mapping.indices, self.classes, strict=True))
        result["per_class"] = [
            {"data_class": names[score.index], "model_class": self.label(score.index), **row, **class_intervals(score)}
            for row, score in zip(result["per_class"], evaluation.result.per_class, strict=True)
            if score.index in names
        ]
        result["confusion"] = self.confusions(evaluation)
        real = evaluation.real
        return {
            "size": list(evaluation.size),
            **result,
            **_image_results_json(evaluation),
            "precision_recall": curves and curves.to_json(),
            "real": real and {"top1": real.top1, "images": real.images, "left_out": real.left_out},
            "seconds": evaluation.seconds,
            "images_per_second": evaluation.images_per_second,
            "unreadable": list(evaluation.unreadable.values()),
        }


def _image_results_json(evaluation: Evaluation) -> dict[str, Any]:
    if evaluation.images is None:
        return {}
    intervals = result_intervals(evaluation.result, evaluation.images, evaluation.real)
    calibration, rejection = evaluation.images.calibration, evaluation.images.rejection()
    return {
        "intervals": {name: interval.to_json() for name, interval in intervals.items()},
        "temperature": None if calibration is None else calibration.temperature,
        "calibration_note": evaluation.calibration_note or None,
        "rejection": rejection and rejection.to_json(),
    }


def run_evaluation(
    evaluated: EvaluatedModel,
    data: DataSet,
    request: EvaluationRequest,
    options: InferenceOptions,
    cache: FeatureCache,
    bar: ProgressBar = no_progress_bar,
) -> EvaluationReport:
    """Score the predictions and measure the features of a model.

    If features are measured, a head that cannot be scored is reported instead of raising an error.
    """
    selected = select_evaluation_images(data, evaluated, request.split, bar)
    images = selected.images
    preprocessing = [evaluated.preprocessing(size) for size in request.sizes or (None,)]
    labels, classes = labels_of(evaluated.model), evaluated.model.config.num_classes
    report = EvaluationReport(selected.split, len(images), evaluated, data.classes, labels, preprocessing, None)
    report.left_out, report.warnings, report.source = selected.left_out, selected.warnings, images
    try:
        check_head(evaluated)
        report.mapping = _map_classes(request, data.classes, labels, classes)
    except VitreousError as error:
        if not request.methods or request.classes is not None:
            raise
        report.not_scored = str(error)
    real = None
    if request.real is not None and report.mapping is None:
        raise VitreousError(f"{request.real}: labels can only be used if predictions are scored: {report.not_scored}")
    if request.real is not None:
        real = read_real_labels(request.real, images, labels, classes)
    if request.methods:
        _measure(report, data, request, options, cache, bar)
    for one in preprocessing if report.mapping is not None else ():
        assert report.mapping is not None
        with bar(f"{evaluated.name} at {format_size(one)}", len(images)) as tick:
            found = evaluate_source(evaluated, images, report.mapping, one, options, real, tick, request.curves)
        report.scores.append(found)
        report.curves.append(_curves(report, found) if request.curves else None)
    report.warnings = (*report.warnings, *_calibration_warnings(report))
    return report


def _curves(report: EvaluationReport, evaluation: Evaluation) -> PrecisionRecall | None:
    assert report.mapping is not None
    assert evaluation.images is not None
    return precision_recall(evaluation.images, report.mapping.indices, report.classes)


def _calibration_warnings(report: EvaluationReport) -> tuple[str, ...]:
    """Return a warning if the temperature and the thresholds were chosen on some of the evaluated images."""
    calibration = report.evaluated.model.calibration
    if calibration is None or report.source is None or all(one.calibration_note for one in report.scores):
        return ()
    count = int(calibration_images(calibration, image_digests(report.source)).sum())
    if not count:
        return ()
    return (
        f"{count:,} of the {report.images:,} evaluated images were used to calibrate this model: its loss, calibration"
        " error, coverage and precision are too optimistic; its accuracy is not affected",
    )


def _map_classes(
    request: EvaluationRequest, data: Sequence[str], labels: tuple[str, ...] | None, classes: int
) -> ClassMapping:
    if request.classes is None:
        return match_classes(data, labels, classes)
    return read_class_map(request.classes, data, labels, classes)


def _measure(
    report: EvaluationReport,
    data: DataSet,
    request: EvaluationRequest,
    options: InferenceOptions,
    cache: FeatureCache,
    bar: ProgressBar,
) -> None:
    """Add the feature measures to the report."""
    images, methods, settings = train_and_test_images(data, request.split), request.methods, request.settings
    digests = image_digests(images.test) if report.evaluated.seen is not None else None
    warnings = (f"features: {text}" for text in seen_warnings(report.evaluated, digests))
    report.warnings = (*report.warnings, *warnings)
    check_measures(methods, images.train.labels, images.test.labels, images.classes, settings, images.name)
    for one in report.preprocessing:
        with bar(f"features at {format_size(one)}", len(images.train) + len(images.test)) as tick:
            results = cache.measures(report.evaluated, images, methods, settings, one, options, tick)
        report.measures.append(list(results.measures))
        report.feature_images = results.describe_images(images)
        report.unreadable = list(dict.fromkeys((*results.train_unreadable, *results.test_unreadable)))


def evaluation_summary(report: EvaluationReport) -> str:
    """Return the main results as a few lines of text."""
    lines = [f"{report.evaluated.name} on {report.data or 'data'}: {report.split}, {report.images:,} images"]
    for one, preprocessing in zip(report.scores, report.preprocessing, strict=False):
        parts = []
        if one.result.top1 is not None:
            interval = f" (95% interval, Wilson: {format_interval(one.result.interval)})" if one.result.interval else ""
            parts.append(f"top-1 {one.result.top1:.2%}{interval}")
        parts += [] if one.result.map is None else [f"mAP {one.result.map:.2%}"]
        lines.append(f"  at {format_size(preprocessing)} px: {', '.join([*parts, f'loss {one.result.loss:.4f}'])}")
    for row, preprocessing in zip(report.measures, report.preprocessing, strict=False):
        lines.append(f"  at {format_size(preprocessing)} px: {', '.join(f'{one.name} {one}' for one in row)}")
    if report.not_scored:
        lines.append(f"  head not evaluated: {report.not_scored}")
    lines.append(f"  weights: {report.evaluated.selection}")
    lines += [f"  left out: {report.left_out}"] if report.left_out else []
    lines += [f"  WARNING: {text}" for text in report.warnings]
    if bad := report.all_unreadable:
        lines.append(f"  left out: {format_count(len(bad), 'image')} that cannot be read")
    return "\n".join(lines)


def format_size(preprocessing: Preprocessing) -> str:
    """Return the image size as text: "224", or "224 x 320"."""
    assert isinstance(preprocessing.size, tuple)
    height, width = preprocessing.size
    return str(height) if height == width else f"{height} x {width}"
