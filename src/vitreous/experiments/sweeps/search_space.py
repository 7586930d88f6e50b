"""The settings of a sweep: a grid of values, or random draws. This module does not import torch."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from vitreous.errors import VitreousError, brief, format_count
from vitreous.experiments.grid.experiment import Factor
from vitreous.training.config import TrainConfig, field_types
from vitreous.training.config_file import GROUPS, OTHER_NAMES, is_none_text

MAX_SETTINGS = 10_000  # combinations of a sweep
LOG_SETTINGS = ("lr", "muon_lr", "weight_decay")  # ranges of these are log-uniform by default
DIGITS = 3  # significant digits of numbers that are drawn
ATTEMPTS = 50  # draws per requested one, to find different combinations
RANGE = re.compile(r"(?:(?P<scale>log|linear):)?(?P<low>[^.:][^:]*?|\.\d[^:]*?)\.\.(?P<high>.+)")
BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}

NO_EFFECT = ("out", "device", "workers", "save_minutes", "tensorboard", "wandb", "compare_with", "profile", "cache")
OTHER_IMAGES = "another value changes the validation images, and results on different images cannot be compared"
NOT_SWEPT = {
    "seed": "--seeds N trains every setting with N seeds",
    "best_by": "it is the metric that selects the setting",
    "budget": "all runs have the same length; sweep the duration instead",
    "lr_candidates": "sweep lr instead",
    **dict.fromkeys(NO_EFFECT, "it has no effect on the weights"),
    **dict.fromkeys((name for name in GROUPS["reading"] if name not in ("balanced", *NO_EFFECT)), OTHER_IMAGES),
}


@dataclass(frozen=True)
class ValueRange:
    """Numbers between two bounds, from which values are drawn."""

    low: float
    high: float
    scale: Literal["log", "linear"]
    whole: bool  # integers

    def draw(self, generator: random.Random) -> float:
        if self.scale == "log":
            value = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        elif self.whole:
            return generator.randint(int(self.low), int(self.high))
        else:
            value = generator.uniform(self.low, self.high)
        value = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(value, self.low), self.high)

    def __str__(self) -> str:
        kind = "whole numbers " if self.whole else ""
        law = "log-uniform" if self.scale == "log" else "uniform"
        return f"{kind}{self.low:g} to {self.high:g}, {law}"


@dataclass(frozen=True)
class SearchSpace:
    """The settings that a sweep varies, and how their combinations are made."""

    kind: Literal["grid", "random"]
    values: Mapping[str, tuple[Any, ...] | ValueRange]
    draws: int = 0
    draw_seed: int = 0

    def combinations(self) -> list[dict[str, Any]]:
        """Return all combinations of a grid; or random draws, of which the first do not depend on their number."""
        if self.kind == "grid":
            levels = [one for one in self.values.values() if not isinstance(one, ValueRange)]
            check_combinations(math.prod(map(len, levels)))
            return [dict(zip(self.values, chosen, strict=True)) for chosen in product(*levels)]
        check_combinations(self.draws)
        found: dict[str, dict[str, Any]] = {}
        for number in range(ATTEMPTS * self.draws):
            drawn = {name: self._draw(name, number) for name in self.values}
            found.setdefault(repr(drawn), drawn)
            if len(found) == self.draws:
                break
        return list(found.values())

    def _draw(self, name: str, number: int) -> Any:
        generator = random.Random(f"{self.draw_seed} {number} {name}")
        values = self.values[name]
        return values.draw(generator) if isinstance(values, ValueRange) else generator.choice(values)

    def describe(self) -> list[str]:
        """Return one line per setting."""
        return [
            f"{name}: {values if isinstance(values, ValueRange) else ', '.join(map(format_setting, values))}"
            for name, values in self.values.items()
        ]


def check_combinations(number: int) -> None:
    if number > MAX_SETTINGS:
        raise VitreousError(f"{number:,} combinations of settings are too many: the limit is {MAX_SETTINGS:,}")


def make_search_space(
    grid: Mapping[str, Any] | None, drawn: Mapping[str, Any] | None, draws: int, draw_seed: int
) -> SearchSpace:
    """Check names and values of all settings, before anything is trained."""
    if bool(grid) == bool(drawn):
        raise VitreousError(
            "give the settings to vary: grid (--grid lr=1e-3,3e-3 model=Ti/16,S/16), or random (--random"
            " lr=1e-4..1e-2)" + (", not both" if grid else "")
        )
    kind: Literal["grid", "random"] = "grid" if grid else "random"
    given = grid or drawn
    if not isinstance(given, Mapping):
        raise VitreousError(f"{kind} = {brief(given)}: expected a dict of settings and their values")
    values: dict[str, tuple[Any, ...] | ValueRange] = {}
    for name, these in given.items():
        field = swept_field(name, kind)
        if field in values:
            raise VitreousError(f"{kind}: {field} is given twice")
        values[field] = _values(field, these, kind)
    return SearchSpace(kind, values, draws, draw_seed)


def split_arguments(arguments: Sequence[str], flag: str) -> dict[str, str]:
    """Split arguments SETTING=VALUES of a flag."""
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, values = argument.partition("=")
        if not equals or not name or not values:
            number = "; --draws N sets the number of draws" if argument.isdecimal() else ""
            example = "lr=1e-3,3e-3" if flag == "--grid" else "lr=1e-4..1e-2"
            raise VitreousError(f"{flag} {argument}: expected SETTING=VALUES, such as {example}{number}")
        if name in found:
            raise VitreousError(f"{flag}: {name} is given twice")
        found[name] = values
    return found


def swept_field(name: object, where: str) -> str:
    """Return the field of TrainConfig with this name, or name of a flag. It must be one that can be swept."""
    known = [field for fields in GROUPS.values() for field in fields]
    field = str(name).removeprefix("--").replace("-", "_")
    field = OTHER_NAMES.get(field, field)
    if field not in known:
        near = get_close_matches(field, [*known, *OTHER_NAMES], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`vitreous train --help` lists all settings"
        raise VitreousError(f"{where}: unknown setting {brief(name)}; {hint}")
    if field in NOT_SWEPT:
        raise VitreousError(f"{where}: {field} cannot be swept: {NOT_SWEPT[field]}")
    return field


# ---------------------------------------------------------------- values


def _values(name: str, given: Any, kind: str) -> tuple[Any, ...] | ValueRange:
    found = _parse_range(name, given) if isinstance(given, str) else None
    if found is not None:
        if kind == "grid":
            raise VitreousError(f"grid: {name} = {given} is a range: list its values (1e-4,1e-3), or use random")
        return found
    if isinstance(given, str):
        given = [part.strip() for part in given.split(",")]
    if isinstance(given, range) or hasattr(given, "tolist"):  # an array
        given = list(given)
    if not isinstance(given, list | tuple) or not given:
        raise VitreousError(f"{kind}: {name} = {brief(given)}: expected a list of values")
    values = [_checked(name, parse_setting(name, one) if isinstance(one, str) else one, kind) for one in given]
    for place, value in enumerate(values):
        if value in values[:place]:
            raise VitreousError(f"{kind}: {name} = {format_setting(value)} is given twice")
    return tuple(values)


def _checked(name: str, value: Any, kind: str) -> Any:
    try:
        converted = TrainConfig().with_(**{name: value}).flat()[name]
    except VitreousError as error:
        raise error.at(kind) from error
    if isinstance(converted, float) and math.isnan(converted):
        raise VitreousError(f"{kind}: {name} = nan: expected a number")
    return converted


def _kinds(name: str) -> tuple[Any, ...]:
    """Return the types that the values of a setting may have."""
    hint = field_types()[name]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def parse_setting(name: str, text: str) -> Any:
    """Return the value that a text stands for, by the type of the setting. A text that fits no type is unchanged."""
    if is_none_text(name, text):
        return None
    for kind in _kinds(name):
        if kind is bool and text.casefold() in BOOLEANS:
            return BOOLEANS[text.casefold()]
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        if kind == tuple[int, int] and (pair := re.fullmatch(r"(\d+)x(\d+)", text)):
            return int(pair[1]), int(pair[2])
        if kind == tuple[str, ...]:
            return () if text == "none" else (text,)
    return text


def _parse_range(name: str, text: str) -> ValueRange | None:
    """Return the range that a text describes. None: it describes none."""
    kinds = _kinds(name)
    match = RANGE.fullmatch(text.strip())
    if match is None or not {int, float} & set(kinds):
        return None
    example = f"{name}=LOW..HIGH, {name}=log:LOW..HIGH or {name}=linear:LOW..HIGH"
    whole = float not in kinds
    try:
        low, high = (int(match[part]) if whole else float(match[part]) for part in ("low", "high"))
    except ValueError:
        expected = "two whole numbers" if whole else "two numbers"
        raise VitreousError(f"random: {name} = {text}: expected {expected}: {example}") from None
    scale: Any = match["scale"] or ("log" if name in LOG_SETTINGS else "linear")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise VitreousError(f"random: {name} = {text}: the first number must be below the second")
    if scale == "log" and low <= 0:
        raise VitreousError(
            f"random: {name} = {text}: a log-uniform range starts above 0;"
            f" {name}=linear:{match['low']}..{match['high']} draws uniformly"
        )
    return ValueRange(low, high, scale, whole)


# ---------------------------------------------------------------- texts


def format_setting(value: Any) -> str:
    """Return the value of a setting as it is given on the command line."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ("x" if isinstance(value[0], int) else " ").join(map(format_setting, value))
    return repr(value) if isinstance(value, float) else str(value)


def as_factor(value: Any) -> Factor:
    """Return the value of a setting as the factor of a cell: a number or a text."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else format_setting(value)


def combination_label(combination: Mapping[str, Any]) -> str:
    """Return "lr=0.001, model=S/16"."""
    return ", ".join(f"{name}={format_setting(value)}" for name, value in combination.items())


def describe_number(space: SearchSpace, combinations: int, seeds: int) -> str:
    """Return how many runs a sweep has."""
    few = ""
    if space.kind == "random" and combinations < space.draws:
        few = f" (there are no {space.draws:,} different ones)"
    each = "" if seeds == 1 else f", with {seeds} seeds each: {combinations * seeds:,} runs"
    return f"{format_count(combinations, 'combination')} of settings{few}{each}"
