"""Durations as text: "30 epochs", "500 steps", "300k examples", "5%". This module does not import torch."""

import math
import re
from numbers import Real
from typing import Literal

from vitreous.errors import VitreousError, brief

Unit = Literal["epochs", "steps", "examples", "percent"]

UNIT_NAMES: dict[str, Unit] = {
    **dict.fromkeys(("epochs", "epoch", "ep"), "epochs"),
    **dict.fromkeys(("steps", "step"), "steps"),
    **dict.fromkeys(("examples", "example", "ex", "images", "image"), "examples"),
    **dict.fromkeys(("%", "percent"), "percent"),
}
PREFIXES = {"k": 1e3, "m": 1e6}
NUMBER = re.compile(r"\s*([+-]?(?:nan|inf|(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:e[+-]?\d+)?))\s*(.*?)\s*", re.I | re.S)
MAX_EXAMPLES = 2**63 - 1  # positions in the training stream are 64-bit integers


def duration_steps(
    duration: str | float,
    *,
    batch_size: int,
    images: int,
    total_steps: int | None = None,
    name: str = "warmup",
    default_unit: Unit = "epochs",
) -> int:
    """Return the number of optimiser steps of a duration, rounded; at least 1 unless the duration is 0.

    An epoch is `images` examples. A percentage refers to `total_steps`. `default_unit`: for a number without a unit.
    `name`: the name of the duration in error messages.
    """
    number, unit = _parse_duration(duration, name, default_unit)
    if batch_size < 1:
        raise VitreousError(f"batch_size = {brief(batch_size)}: expected 1 or more")
    if unit == "percent":
        if total_steps is None:
            raise VitreousError(
                f"{name} = {brief(duration)}: a percentage refers to the whole run, whose own length has to be in "
                "epochs, steps or examples"
            )
        exact = number * total_steps / 100
    elif unit == "epochs":
        if images < 1:
            raise VitreousError(f"{name} = {brief(duration)}: there are no training images, so an epoch has no length")
        exact = number * images / batch_size
    else:
        exact = number if unit == "steps" else number / batch_size
    if exact > MAX_EXAMPLES / batch_size:
        raise VitreousError(f"{name} = {brief(duration)}: longer than any run can be")
    return max(round(exact), 1) if exact > 0 else 0


def with_unit(duration: str | float) -> str:
    """Return the duration as text with a unit: a number alone means epochs. Text that is no duration is unchanged."""
    text = str(duration)
    match = NUMBER.fullmatch(text)
    if match is None or match[2]:
        return text
    return f"{match[1]} {'epoch' if float(match[1]) == 1 else 'epochs'}"


def is_percentage(duration: str) -> bool:
    """Whether a duration is a percentage of the whole run."""
    return _parse_duration(duration, "duration", "epochs")[1] == "percent"


def run_length(duration: str | float, *, batch_size: int, images: int, name: str = "duration") -> int:
    """Return the number of steps of a whole run: not a percentage, and not 0."""
    total = duration_steps(duration, batch_size=batch_size, images=images, name=name)
    if total == 0:
        raise VitreousError(f"{name} = {brief(duration)}: expected a run of at least one step")
    return total


def evaluation_interval(duration: str | None, steps: int, batch_size: int, images: int) -> int:
    """Return the steps between evaluations. None: 20 evaluations per run, at most one per epoch."""
    if duration is None:
        return max(1, round(images / batch_size), steps // 20)
    every = duration_steps(duration, batch_size=batch_size, images=images, total_steps=steps, name="evaluate_every")
    if every == 0:
        raise VitreousError(f"evaluate_every = {duration!r}: expected more than 0")
    return every


def _parse_duration(duration: object, name: str, default_unit: Unit) -> tuple[float, Unit]:
    """Return a finite number of 0 or more, and its unit."""
    given = f"{name} = {brief(duration)}"
    expected = "expected a number and a unit, such as '30 epochs', '500 steps', '64000 examples' or '5%'"
    if isinstance(duration, str):
        if not (match := NUMBER.fullmatch(duration)):
            raise VitreousError(f"{given}: {expected}")
        number = float(match[1])
        factor, unit = _parse_unit(match[2].casefold(), default_unit)
        if unit is None:
            raise VitreousError(f"{given}: {match[2]!r} is not a unit; use epochs, steps, examples or %")
        number *= factor
    elif isinstance(duration, Real) and not isinstance(duration, bool):
        try:
            number, unit = float(duration), default_unit
        except OverflowError:
            number, unit = math.inf, default_unit
    else:
        raise VitreousError(f"{given}: {expected}")
    if not math.isfinite(number):
        raise VitreousError(f"{given}: expected a finite number")
    if number < 0:
        raise VitreousError(f"{given}: expected 0 or more")
    return number, unit


def _parse_unit(word: str, default_unit: Unit) -> tuple[float, Unit | None]:
    """Return the factor and the unit of the word after a number. "k" and "m" may precede all units except percent."""
    if not word:
        return 1.0, default_unit
    if word in UNIT_NAMES:
        return 1.0, UNIT_NAMES[word]
    factor, unit = PREFIXES.get(word[0]), UNIT_NAMES.get(word[1:].strip())
    if factor is None or unit is None or unit == "percent":
        return 1.0, None
    return factor, unit


TIME_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.I)
TIME_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
MAX_SECONDS = 10 * 365 * 86400.0


def parse_time(text: str, name: str) -> float:
    """Return the seconds of a time such as "10m", "1h 30m", "90 s" or "2 days". `name`: for error messages."""
    problem = f"{name} = {brief(text)}: expected a time with a unit, such as '10m', '90s' or '3h'"
    if not text.strip():
        raise VitreousError(problem)
    seconds, position = 0.0, 0
    while position < len(text):
        part = TIME_PART.match(text, position)
        unit = TIME_UNITS.get(part[2].casefold()) if part else None
        if part is None or unit is None:
            raise VitreousError(problem)
        seconds, position = seconds + float(part[1]) * unit, part.end()
    if not 0 < seconds <= MAX_SECONDS:
        raise VitreousError(f"{name} = {brief(text)}: expected more than 0 and at most 10 years")
    return seconds
