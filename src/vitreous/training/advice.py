"""Advice at the end of a run: the two changes that are most likely to improve the result, each with its command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vitreous.data.dataset import DataSet
from vitreous.data.statistics import class_counts
from vitreous.errors import brief
from vitreous.evaluation.extremes import Example
from vitreous.models.custom import CustomConfig
from vitreous.training.config import Architecture, TrainConfig
from vitreous.training.defaults import (
    DEFAULT_WEIGHTS,
    FEW_FOR_WEIGHTS,
    FROM_SCRATCH,
    IMBALANCE,
    MIN_SIDE_FOR_WEIGHTS,
    size_step,
)
from vitreous.training.durations import parse_time
from vitreous.training.initial_weights import DROP_RATES
from vitreous.training.outcome import Outcome
from vitreous.training.plan import Plan
from vitreous.training.recipes import RECIPES, recipe
from vitreous.utils.environment import program
from vitreous.utils.import_path import is_import_path
from vitreous.utils.sizes import pair

STRONGER_WEIGHTS = "deit-tiny"  # in `vitreous models --weights`: trained on 1.3 million photographs
GOOD = 0.97  # accuracy from which on no change is suggested that costs time
SURE = 0.8  # probability of a wrong class from which on the label is suspicious
RECENT = 0.2  # part of the run in which the best evaluation means that the model was still improving
LARGER = 1.5  # ratio of the size of the images to the input size from which on a higher resolution may help
FEW_EPOCHS = 5
MAX_ADVICE = 2
SIZE_FLAGS = ("--size", "--image-size")
ALIASES = {"--size": SIZE_FLAGS}
CHECK_FIELDS = (
    *("data_dir", "image_column", "label_column", "only_classes", "class_level", "allow_outside_files", "max_pixels"),
)
BUDGETS = ("1h", "3h", "10h", "30h", "100h")


@dataclass(frozen=True)
class Advice:
    """A suggested change."""

    reason: str
    command: str


@dataclass(frozen=True)
class _Command:
    """The command that started the run, to show it with one flag changed."""

    tokens: tuple[str, ...]

    @classmethod
    def of_run(cls, description: dict[str, Any], config: TrainConfig) -> _Command:
        """For a run that was started from Python: a command with the same settings."""
        tokens = tuple(shlex.split(description["command"]))
        typed = tokens[:2] in (("vitreous", "train"), ("vitreous", "finetune"))
        if typed and not any(token.startswith("--resume") for token in tokens):
            return cls(tokens)
        chosen = {choice["field"] for choice in description["choices"]}
        own = [name for name in config.flat() if name not in chosen]
        from_scratch = ["--from", FROM_SCRATCH] if config.architecture.start is None and "start" in own else []
        return cls(("vitreous", "train", description["data"], *_flags(config, own), *from_scratch))

    def with_flag(self, flag: str, value: str, without: Sequence[str] = ()) -> str:
        """Return the command with this flag, and without the flags that name its run directory and those listed."""
        dropped = {"--out", *ALIASES.get(flag, (flag,)), *without}
        kept, position = list[str](), 0
        while position < len(self.tokens):
            token = self.tokens[position]
            name, equals, _ = token.partition("=")
            name = name.replace("_", "-")
            position += 1
            if name in dropped and not equals:
                position += 1  # its value
                while name in SIZE_FLAGS and "".join(self.tokens[position : position + 1]).isdecimal():
                    position += 1  # the width, after the height
            elif name not in (*dropped, "--overwrite"):
                kept.append(token)
        return f"{program()} {shlex.join([*kept[1:], flag, value])}"

    def with_weights(self, weights: str) -> str:
        """Return the command with other initial weights, without the options that describe another model or size."""
        fields = [name for name in vars(Architecture()) if name not in DROP_RATES]
        without = [f"--{name.replace('_', '-')}" for name in fields] + ["--size"]
        name = next((b for a, b in pairwise(self.tokens) if a == "--recipe"), None)
        name = next((t.partition("=")[2] for t in self.tokens if t.startswith("--recipe=")), name)
        if name is not None and (name in RECIPES or is_import_path(name)):
            architecture = recipe(name).architecture
            if any(getattr(architecture, field) is not None for field in fields if field != "start"):
                without.append("--recipe")
        return self.with_flag("--from", weights, without)


def _flags(config: TrainConfig, names: Sequence[str]) -> Iterator[str]:
    """The flags of those fields that differ from their defaults."""
    values, defaults = config.flat(), TrainConfig().flat()
    for name in names:
        value = values[name]
        if value == defaults[name]:
            continue
        yield "--from" if name == "start" else f"--{name.replace('_', '-')}"
        if not isinstance(defaults[name], bool):  # a switch has no value
            yield from map(str, value if isinstance(value, tuple) else (value,))


def _check_command(source: str, config: TrainConfig) -> str:
    return f"{program()} data {shlex.join([source, *_flags(config, CHECK_FIELDS)])} --check"


def give_advice(
    data: DataSet,
    plan: Plan,
    description: dict[str, Any],
    outcome: Outcome,
    records: Sequence[dict[str, Any]],
    worst: Sequence[Example],
) -> tuple[Advice, ...]:
    """Return up to two changes, the most promising first. `worst`: images of the result with the highest loss."""
    result = outcome.result
    if result is None or outcome.split == "train" or description.get("data_in_memory"):  # commands need a path
        return ()
    if result.top1 is not None and result.top1 >= GOOD:
        return ()
    start = _Command.of_run(description, plan.config)
    check = _check_command(description["data"], plan.config)
    if not data.classes:  # the other rules are about labels and accuracy
        return (*_larger_budget(plan, start), *_more_epochs(plan, outcome, records))
    rules = (
        _larger_budget(plan, start),
        _better_weights(plan, start),
        _more_epochs(plan, outcome, records),
        _suspicious_labels(data, outcome, worst, check),
        _class_balance(data, plan, outcome, start),
        _higher_resolution(plan, start),
        _more_images(data, outcome, check),
    )
    found = [advice for rule in rules for advice in rule]
    return tuple(found[:MAX_ADVICE])


def _larger_budget(plan: Plan, start: _Command) -> Iterator[Advice]:
    epochs = plan.steps * plan.batch_size / plan.facts.images
    by_budget = plan.seconds is not None and any(choice.field == "duration" for choice in plan.choices)
    larger = next((text for text in BUDGETS if parse_time(text, "budget") >= 3 * (plan.seconds or 0)), None)
    if by_budget and epochs < FEW_EPOCHS and larger is not None:
        number = f"{epochs:.2g}"
        fit = "1 epoch fits" if number == "1" else f"{number} epochs fit"
        yield Advice(f"only {fit} into the time budget", start.with_flag("--budget", larger))


def _better_weights(plan: Plan, start: _Command) -> Iterator[Advice]:
    """Pre-trained weights, or better ones: with few images, no other change helps as much."""
    config, images = plan.config, plan.facts.images
    if plan.facts.start is None and images < FEW_FOR_WEIGHTS and plan.facts.side >= MIN_SIDE_FOR_WEIGHTS:
        reason = f"the run started from random weights; {images:,} images are few for that"
        yield Advice(reason, start.with_weights(DEFAULT_WEIGHTS))
    elif plan.facts.start is not None and config.architecture.start == DEFAULT_WEIGHTS:
        reason = f"{DEFAULT_WEIGHTS} is small; weights trained on more photographs are usually a much better start"
        yield Advice(f"{reason} (downloaded once)", start.with_weights(STRONGER_WEIGHTS))


def _more_epochs(plan: Plan, outcome: Outcome, records: Sequence[dict[str, Any]]) -> Iterator[Advice]:
    """A longer run, if the best evaluation is one of the last."""
    name = plan.config.run.best_by or "top1"
    sign = -1 if name == "loss" else 1
    found = [(sign * r[name], r["step"]) for r in records if r.get("kind") == "eval" and name in r]
    if len({step for _, step in found}) < 4:
        return
    best = max(value for value, _ in found)
    if min(step for value, step in found if value == best) < (1 - RECENT) * plan.steps:
        return
    epochs = plan.steps * plan.batch_size / plan.facts.images
    command = f"{program()} train --resume {shlex.quote(str(outcome.run))} --epochs {math.ceil(2 * epochs)}"
    yield Advice("the model was still improving on the validation images at the end of the run", command)


def _suspicious_labels(data: DataSet, outcome: Outcome, worst: Sequence[Example], check: str) -> Iterator[Advice]:
    """Wrong predictions with a high probability are often wrong labels."""
    if data.multi_label:
        return
    sure = [e for e in worst if e.answers and e.answers[0][0] not in e.truth and e.answers[0][1] >= SURE]
    if len(sure) >= 2:
        reason = f"{len(sure)} {outcome.split} images contradict their label with a probability of {SURE:.0%} or more"
        yield Advice(f"{reason}; some labels may be wrong", check)


def _class_balance(data: DataSet, plan: Plan, outcome: Outcome, start: _Command) -> Iterator[Advice]:
    config, ratio = plan.config, plan.facts.imbalance
    off = not config.reading.balanced and config.objective.class_weights == "none"
    if ratio > IMBALANCE and off and not data.multi_label:
        reason = f"the largest class has {ratio:.3g} times the images of the smallest, and nothing compensates for it"
        yield Advice(reason, start.with_flag("--class-weights", "balanced"))


def _higher_resolution(plan: Plan, start: _Command) -> Iterator[Advice]:
    side = min(pair(plan.size))
    if plan.facts.side < LARGER * side or isinstance(plan.model, CustomConfig):
        return
    step = size_step(plan.model)
    size = max(step, round(min(LARGER * side, plan.facts.side) / step) * step)
    reason = f"the images have about {plan.facts.side} px on their short side, and the model sees {side} px"
    yield Advice(f"{reason}; details may be lost", start.with_flag("--size", str(size)))


def _more_images(data: DataSet, outcome: Outcome, check: str) -> Iterator[Advice]:
    """The class with the lowest recall."""
    assert outcome.result is not None
    counts = class_counts(data.train, len(data.classes))
    scores = [
        (score.recall, number) for number, score in enumerate(outcome.result.per_class) if score.recall is not None
    ]
    if not scores:
        return
    recall, number = min(scores)
    name = brief(data.classes[number])
    images = f"{recall:.0%} of its {outcome.split} images, trained on {counts[number]:,}"
    reason = f"{name} has the lowest recall ({images})"
    yield Advice(f"{reason}; the learning curve of the check says which class needs more images", check)
