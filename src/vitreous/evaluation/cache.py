"""A cache of features and of the measures computed from them, keyed by content: model, images and settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

from vitreous.data.dataset import Source
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.evaluation_images import TrainTestImages
from vitreous.evaluation.features import HEAD
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.measures import (
    VERSION,
    Measure,
    MeasureSettings,
    Method,
    TrainTestFeatures,
    check_measures,
    measure_features,
)
from vitreous.evaluation.store import Features, Origin, read_features, write_features
from vitreous.preprocessing import Preprocessing
from vitreous.utils.atomic import atomic_file
from vitreous.utils.json_files import dump_json
from vitreous.utils.regular_files import read_text


def default_cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitreous"


@dataclass(frozen=True)
class MeasureResults:
    """Measures of a model, and the errors of the unreadable images that are left out."""

    measures: tuple[Measure, ...]
    train_unreadable: tuple[str, ...] = ()
    test_unreadable: tuple[str, ...] = ()

    def describe_images(self, images: TrainTestImages) -> str:
        """Return how many images the measures were fitted and tested on, and the test split."""
        train, test = len(images.train) - len(self.train_unreadable), len(images.test) - len(self.test_unreadable)
        return f"fitted on {train:,} images; tested on {test:,}: {images.description}"


@dataclass(frozen=True)
class FeatureCache:
    folder: Path

    def features(
        self,
        evaluated: EvaluatedModel,
        source: Source,
        preprocessing: Preprocessing,
        options: InferenceOptions,
        tick: Callable[[int], None],
    ) -> Features:
        """Return the features of a model for some images. Only missing ones are computed."""
        folder = self.folder / "features" / Origin.of(evaluated, source, preprocessing, options).key
        write_features(evaluated, source, folder, preprocessing, options, HEAD, tick=tick)
        return read_features(folder)

    def measures(
        self,
        evaluated: EvaluatedModel,
        images: TrainTestImages,
        methods: Sequence[Method],
        settings: MeasureSettings,
        preprocessing: Preprocessing,
        options: InferenceOptions,
        tick: Callable[[int], None] = lambda images: None,
    ) -> MeasureResults:
        """Return all measures of a model on a data set. Only missing ones are computed."""
        sources = (images.train, images.test)
        origins = [Origin.of(evaluated, source, preprocessing, options).key for source in sources]
        paths = {method: self._path(origins, method, settings) for method in methods}
        cached = {method: _read_results(paths[method]) for method in methods}
        results = {method: result for method, result in cached.items() if result is not None}
        if len(results) < len(methods):
            train, test = (self.features(evaluated, source, preprocessing, options, tick) for source in sources)
            features = TrainTestFeatures(train.features, train.labels, test.features, test.labels)
            unreadable = [tuple(part.unreadable.values()) for part in (train, test)]
            for method in methods:
                if method not in results:
                    check_measures(methods, train.labels, test.labels, images.classes, settings, images.name)
                    measures = measure_features(method, features, settings, options.device)
                    results[method] = MeasureResults(tuple(measures), *unreadable)
                    _write_results(paths[method], results[method])
        measures = [measure for method in methods for measure in results[method].measures]
        return replace(results[methods[0]], measures=tuple(measures))

    def _path(self, origins: list[str], method: str, settings: MeasureSettings) -> Path:
        text = json.dumps([VERSION, origins, method, asdict(settings)], sort_keys=True)
        return self.folder / "measures" / f"{blake2b(text.encode(), digest_size=16).hexdigest()}.json"


def _read_results(path: Path) -> MeasureResults | None:
    """Return cached measures. None if they are missing or damaged: they are then computed again."""
    try:
        stored = json.loads(read_text(path))
        measures = tuple(Measure.from_json(values) for values in stored["measures"])
        return MeasureResults(measures, tuple(stored["train_unreadable"]), tuple(stored["test_unreadable"]))
    except (
        VitreousError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):
        return None


def _write_results(path: Path, results: MeasureResults) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        dump_json(
            temporary,
            {
                "measures": [measure.to_json() for measure in results.measures],
                "train_unreadable": results.train_unreadable,
                "test_unreadable": results.test_unreadable,
            },
        )
