"""Feature quality: few-shot, k-NN and linear-probe accuracy, computed from the same features."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vitreous.data.splits import stratified_split
from vitreous.errors import VitreousError
from vitreous.evaluation import knn, probe
from vitreous.evaluation.fewshot import check_features, check_shots, fewshot
from vitreous.utils.device import float64_device
from vitreous.utils.limits import check_count

Method = Literal["fewshot", "knn", "probe"]
METHODS: tuple[Method, ...] = get_args(Method)
VERSION = 2  # of the measures; cached results of another version are not used
FEW_IMAGES, MAX_DEVELOPMENT = 10_000, 5000  # up to FEW_IMAGES, the development split is a larger share


@dataclass(frozen=True)
class MeasureSettings:
    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: int = 3
    neighbours: tuple[int, ...] = knn.NEIGHBOURS
    temperature: float = knn.TEMPERATURE
    development: int | None = None  # training images that select k and the probe's settings; None: a share of them

    def __post_init__(self) -> None:
        for name, values in (("shots", self.shots), ("neighbours", self.neighbours), ("seeds", (self.seeds,))):
            if not values:
                raise VitreousError(f"{name} = {values}: must be 1 or more")
            for value in values:
                check_count(name, value)


@dataclass(frozen=True)
class Measure:
    """An accuracy on the test images, from 0 to 1: one value per seed, or a single one."""

    method: Method
    name: str  # "10-shot", "k-NN", "probe"
    each: tuple[float, ...]
    details: dict[str, Any]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.each)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None without seeds."""
        return statistics.stdev(self.each) if len(self.each) > 1 else None

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}" + ("" if self.spread is None else f" ± {100 * self.spread:.1f}")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mean": self.mean, "spread": self.spread}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Measure:
        return cls(values["method"], values["name"], tuple(values["each"]), values["details"])


@dataclass(frozen=True)
class TrainTestFeatures:
    """Features and labels of the training and test images."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @property
    def classes(self) -> int:
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    def to(self, device: torch.device) -> TrainTestFeatures:
        return TrainTestFeatures(*(tensor.to(device) for tensor in vars(self).values()))


def check_measures(
    methods: Sequence[Method],
    train_labels: Tensor,
    test_labels: Tensor,
    classes: Sequence[str],
    settings: MeasureSettings,
    name: str,
) -> None:
    """Raise the errors that follow from the labels alone, before any feature is computed."""
    if "fewshot" in methods:
        check_shots(train_labels, test_labels, classes, settings.shots, name)
    if {"knn", "probe"} & set(methods):
        try:
            development_split(train_labels, settings, 0)
        except VitreousError as error:
            raise VitreousError(f"{name}: {error}") from error


def measure_features(
    method: Method, features: TrainTestFeatures, settings: MeasureSettings, device: torch.device | str = "cpu"
) -> list[Measure]:
    """Return all measures of one method."""
    check_features("train", features.train, features.train_labels)
    check_features("test", features.test, features.test_labels)
    functions: dict[Method, Callable[[TrainTestFeatures, MeasureSettings], list[Measure]]] = {
        "fewshot": _measure_fewshot,
        "knn": _measure_knn,
        "probe": _measure_probe,
    }
    with torch.inference_mode():
        moved = features if method == "fewshot" else features.to(float64_device(torch.device(device)))
        return functions[method](moved, settings)


def _measure_fewshot(features: TrainTestFeatures, settings: MeasureSettings) -> list[Measure]:
    tensors = (features.train, features.train_labels, features.test, features.test_labels)
    results = [fewshot(*tensors, shots, range(settings.seeds)) for shots in settings.shots]
    return [Measure("fewshot", f"{one.shots}-shot", one.each, {"shots": one.shots}) for one in results]


def _measure_knn(features: TrainTestFeatures, settings: MeasureSettings) -> list[Measure]:
    """Select k on the development split, then classify with all training images. `details` has the results of all k."""
    device = features.train.device
    fit, dev = (rows.to(device) for rows in development_split(features.train_labels, settings, 0))
    candidates = [k for k in settings.neighbours if k <= len(fit)] or [1]
    options = (candidates, settings.temperature)
    tried = knn.knn_predictions(features.train[fit], features.train_labels[fit], features.train[dev], *options)
    dev_accuracy = {k: _accuracy(predicted, features.train_labels[dev]) for k, predicted in tried.items()}
    best = max(candidates, key=lambda k: dev_accuracy[k])  # the smallest k of a tie
    final = knn.knn_predictions(features.train, features.train_labels, features.test, *options)
    swept = {str(k): _accuracy(predicted, features.test_labels) for k, predicted in final.items()}
    return [Measure("knn", "k-NN", (swept[str(best)],), {"k": best, "swept": swept})]


def _measure_probe(features: TrainTestFeatures, settings: MeasureSettings) -> list[Measure]:
    """Per seed, select learning rate and weight decay on a development split, then fit on all training images."""
    chosen = []
    device = features.train.device
    for seed in range(settings.seeds):
        fit, dev = (rows.to(device) for rows in development_split(features.train_labels, settings, seed))
        chosen.append(probe.choose_head(features.train, features.train_labels, fit, dev, features.classes, seed))
    final = probe.fit_heads(features.train, features.train_labels, chosen, features.classes)
    accuracy, _ = final.scores(features.test, features.test_labels)
    return [Measure("probe", "probe", tuple(accuracy.tolist()), {"chosen": [asdict(head) for head in chosen]})]


def _accuracy(predicted: Tensor, truth: Tensor) -> float:
    return (predicted == truth).double().mean().item()


def development_split(labels: Tensor, settings: MeasureSettings, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows to fit on and the development rows, which select hyperparameters.

    The development rows are a share of each class, or `settings.development` random rows.
    """
    labels = labels.cpu()
    if (number := settings.development) is None:
        share = 0.2 if len(labels) <= FEW_IMAGES else min(0.1, MAX_DEVELOPMENT / len(labels))
        fit, dev = stratified_split(labels, share, seed)
    else:
        if not 0 < number < len(labels):
            raise VitreousError(f"development = {number}: must be less than the {len(labels)} training images")
        drawn = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
        fit, dev = drawn[number:].sort().values, drawn[:number].sort().values
    if not len(dev):
        raise VitreousError(
            "the development split would be empty: with one training image per class, none can be held out"
        )
    return fit, dev
