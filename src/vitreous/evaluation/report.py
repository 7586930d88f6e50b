"""`run_evaluation`: everything that `vitreous evaluate` measures of a model on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.data.dataset import DataSet, Source
from vitreous.data.digests import image_digests
from vitreous.errors import VitreousError
from vitreous.evaluation.cache import FeatureCache
from vitreous.evaluation.calibration_images import calibration_images
from vitreous.evaluation.evaluate import Evaluation, check_head, evaluate
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.evaluation_images import seen_warnings, select_evaluation_images, train_and_test_images
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.intervals import class_intervals, result_intervals
from vitreous.evaluation.matching import ClassMapping, match_classes, read_class_map
from vitreous.evaluation.measures import Measure, MeasureSettings, Method, check_measures
from vitreous.evaluation.precision_recall import PrecisionRecall, precision_recall
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar
from vitreous.evaluation.real_labels import read_real_labels
from vitreous.models.calibration import Calibration
from vitreous.preprocessing import Preprocessing
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


@dataclass
class EvaluationReport:
    """The results, one per image size."""

    split: str
    images: int
    evaluated: EvaluatedModel
    classes: tuple[str, ...]  # of the data
    labels: tuple[str, ...] | None  # class names of the model
    preprocessing: list[Preprocessing]  # one per image size
    mapping: ClassMapping | None  # None: predictions are not scored, see `not_scored`
    not_scored: str = ""  # why predictions are not scored
    left_out: str = ""  # images that are left out because the model has seen them in training
    warnings: tuple[str, ...] = ()  # about evaluated images that the model has seen in training
    feature_images: str = ""  # images that the feature measures were trained and tested on
    unreadable: list[str] = field(default_factory=list)  # errors of images without features
    scores: list[Evaluation] = field(default_factory=list)
    measures: list[list[Measure]] = field(default_factory=list)
    source: Source | None = None  # the evaluated images
    curves: list[PrecisionRecall | None] = field(default_factory=list)  # one per image size, if requested

    def label(self, index: int) -> str:
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
        sizes = [list(one.size) for one in self.preprocessing if isinstance(one.size, tuple)]
        measures = [[measure.to_json() for measure in row] for row in self.measures]
        return {
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
            found = evaluate(evaluated, images, report.mapping, one, options, real, tick, request.curves)
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


def format_size(preprocessing: Preprocessing) -> str:
    """Return the image size as text: "224", or "224 x 320"."""
    assert isinstance(preprocessing.size, tuple)
    height, width = preprocessing.size
    return str(height) if height == width else f"{height} x {width}"
