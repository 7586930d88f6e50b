"""What features are worth: few-shot, k-NN and a linear probe, all from the same ones."""

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
from vitreous.utils.limits import check_count

Method = Literal["fewshot", "knn", "probe"]
METHODS: tuple[Method, ...] = get_args(Method)
VERSION = 2  # of the measures: another one makes what was kept of them worthless
FEW, MOST_JUDGES = 10_000, 5000  # of few images a larger share is chosen by; of many, so many are enough


@dataclass(frozen=True)
class Settings:
    """How the measures are taken."""

    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: int = 3
    neighbours: tuple[int, ...] = knn.NEIGHBOURS
    temperature: float = knn.TEMPERATURE
    development: int | None = None  # training images that k and the probe are chosen by; None: a share of them

    def __post_init__(self) -> None:
        for name, values in (("shots", self.shots), ("neighbours", self.neighbours), ("seeds", (self.seeds,))):
            if not values:
                raise VitreousError(f"{name} = {values}: must be 1 or more")
            for value in values:
                check_count(name, value)


@dataclass(frozen=True)
class Measure:
    """One number, from 0 to 1; where it was drawn several times, all of them."""

    method: Method
    name: str  # "10-shot", "k-NN", "probe"
    each: tuple[float, ...]
    details: dict[str, Any]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.each)

    @property
    def spread(self) -> float | None:
        """The standard deviation between seeds; None for what is not drawn."""
        return statistics.stdev(self.each) if len(self.each) > 1 else None

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}" + ("" if self.spread is None else f" ± {100 * self.spread:.1f}")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mean": self.mean, "spread": self.spread}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Measure:
        return cls(values["method"], values["name"], tuple(values["each"]), values["details"])


@dataclass(frozen=True)
class Bank:
    """Features and labels of the images to learn from and of those to measure on."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @property
    def classes(self) -> int:
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    def to(self, device: torch.device) -> Bank:
        return Bank(*(tensor.to(device) for tensor in vars(self).values()))


def check(
    methods: Sequence[Method], labels: Tensor, tests: Tensor, classes: Sequence[str], settings: Settings, name: str
) -> None:
    """What can be known to fail before a feature is computed, by the labels to learn from and those to measure on."""
    if "fewshot" in methods:
        check_shots(labels, tests, classes, settings.shots, name)
    if {"knn", "probe"} & set(methods):
        try:
            learn_and_judge(labels, settings, 0)
        except VitreousError as error:
            raise VitreousError(f"{name}: {error}") from error


def measure(method: Method, bank: Bank, settings: Settings, device: torch.device | str = "cpu") -> list[Measure]:
    """All that a method says of features."""
    check_features("train", bank.train, bank.train_labels)
    check_features("test", bank.test, bank.test_labels)
    takers: dict[Method, Callable[[Bank, Settings], list[Measure]]] = {
        "fewshot": _fewshot,
        "knn": _knn,
        "probe": _probe,
    }
    with torch.inference_mode():
        return takers[method](bank if method == "fewshot" else bank.to(torch.device(device)), settings)


def _fewshot(bank: Bank, settings: Settings) -> list[Measure]:
    given = (bank.train, bank.train_labels, bank.test, bank.test_labels)
    found = [fewshot(*given, shots, range(settings.seeds)) for shots in settings.shots]
    return [Measure("fewshot", f"{one.shots}-shot", one.each, {"shots": one.shots}) for one in found]


def _knn(bank: Bank, settings: Settings) -> list[Measure]:
    """k is chosen by training images that are set aside; all k are told."""
    learn, judge = (part.to(bank.train.device) for part in learn_and_judge(bank.train_labels, settings, 0))
    known = [k for k in settings.neighbours if k <= len(learn)] or [1]
    options = (known, settings.temperature)
    tried = knn.nearest_classes(bank.train[learn], bank.train_labels[learn], bank.train[judge], *options)
    judged = {k: _share(found, bank.train_labels[judge]) for k, found in tried.items()}
    best = max(known, key=lambda k: judged[k])  # of equals the smaller
    found = knn.nearest_classes(bank.train, bank.train_labels, bank.test, *options)
    swept = {str(k): _share(answers, bank.test_labels) for k, answers in found.items()}
    return [Measure("knn", "k-NN", (swept[str(best)],), {"k": best, "swept": swept})]


def _probe(bank: Bank, settings: Settings) -> list[Measure]:
    """For each seed, rate and decay are chosen by training images that are set aside; then all of them are learnt."""
    chosen = []
    for seed in range(settings.seeds):
        learn, judge = (part.to(bank.train.device) for part in learn_and_judge(bank.train_labels, settings, seed))
        chosen.append(probe.choose(bank.train, bank.train_labels, learn, judge, bank.classes, seed))
    final = probe.fit(bank.train, bank.train_labels, chosen, bank.classes)
    right, _ = final.scores(bank.test, bank.test_labels)
    return [Measure("probe", "probe", tuple(right.tolist()), {"chosen": [asdict(head) for head in chosen]})]


def _share(found: Tensor, truth: Tensor) -> float:
    return (found == truth).double().mean().item()


def learn_and_judge(labels: Tensor, settings: Settings, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to learn from and rows to choose by: of each class its share, or exactly so many rows, drawn."""
    labels = labels.cpu()
    if (number := settings.development) is None:
        share = 0.2 if len(labels) <= FEW else min(0.1, MOST_JUDGES / len(labels))
        learn, judge = stratified_split(labels, share, seed)
    else:
        if not 0 < number < len(labels):
            raise VitreousError(f"development = {number}: there are {len(labels)} training images to take that from")
        drawn = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
        learn, judge = drawn[number:].sort().values, drawn[:number].sort().values
    if not len(judge):
        raise VitreousError(
            "the development split would be empty: of one training image of each class none can be set aside"
        )
    return learn, judge
