"""Durations as text: "30 epochs", "500 steps", "300k examples", "5%". No torch here."""

import math
import re
from numbers import Real
from typing import Literal

from vitreous.errors import VitreousError, brief

Unit = Literal["epochs", "steps", "examples", "percent"]

NAMES: dict[str, Unit] = {
    **dict.fromkeys(("epochs", "epoch", "ep"), "epochs"),
    **dict.fromkeys(("steps", "step"), "steps"),
    **dict.fromkeys(("examples", "example", "ex", "images", "image"), "examples"),
    **dict.fromkeys(("%", "percent"), "percent"),
}
THOUSANDS = {"k": 1e3, "m": 1e6}
NUMBER = re.compile(r"\s*([+-]?(?:nan|inf|(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:e[+-]?\d+)?))\s*(.*?)\s*", re.I | re.S)
MOST_EXAMPLES = 2**63 - 1  # positions in the training stream are 64-bit numbers


def duration_steps(
    duration: str | float,
    *,
    batch_size: int,
    images: int,
    total_steps: int | None = None,
    name: str = "warmup",
    bare: Unit = "epochs",
) -> int:
    """Optimiser steps of a duration, to the nearest; at least 1 unless the duration is 0.

    An epoch is `images` examples. A percentage is one of `total_steps`. `bare` is the unit of a number without one,
    `name` what an error calls the duration.
    """
    number, unit = _parsed(duration, name, bare)
    if batch_size < 1:
        raise VitreousError(f"batch_size = {brief(batch_size)}: expected 1 or more")
    if unit == "percent":
        if total_steps is None:
            raise VitreousError(
                f"{name} = {brief(duration)}: a percentage is of the whole run, whose own length has to be in "
                "epochs, steps or examples"
            )
        exact = number * total_steps / 100
    elif unit == "epochs":
        if images < 1:
            raise VitreousError(f"{name} = {brief(duration)}: there are no training images to make an epoch of")
        exact = number * images / batch_size
    else:
        exact = number if unit == "steps" else number / batch_size
    if exact > MOST_EXAMPLES / batch_size:
        raise VitreousError(f"{name} = {brief(duration)}: longer than any run can be")
    return max(round(exact), 1) if exact > 0 else 0


def with_unit(duration: str | float) -> str:
    """The duration as text that names its unit: a number alone means epochs. What is not a duration stays as it is."""
    text = str(duration)
    match = NUMBER.fullmatch(text)
    if match is None or match[2]:
        return text
    return f"{match[1]} {'epoch' if float(match[1]) == 1 else 'epochs'}"


def run_length(duration: str | float, *, batch_size: int, images: int, name: str = "duration") -> int:
    """Steps of a run from its first to its last: never a percentage, never 0."""
    total = duration_steps(duration, batch_size=batch_size, images=images, name=name)
    if total == 0:
        raise VitreousError(f"{name} = {brief(duration)}: the whole run has to be longer than nothing")
    return total


def _parsed(duration: object, name: str, bare: Unit) -> tuple[float, Unit]:
    """A finite number, 0 or more, and its unit."""
    wrong = f"{name} = {brief(duration)}"
    expected = "expected a number and a unit, such as '30 epochs', '500 steps', '64000 examples' or '5%'"
    if isinstance(duration, str):
        if not (match := NUMBER.fullmatch(duration)):
            raise VitreousError(f"{wrong}: {expected}")
        number = float(match[1])
        scale, unit = _unit(match[2].casefold(), bare)
        if unit is None:
            raise VitreousError(f"{wrong}: {match[2]!r} is not a unit; there are epochs, steps, examples and %")
        number *= scale
    elif isinstance(duration, Real) and not isinstance(duration, bool):
        try:
            number, unit = float(duration), bare
        except OverflowError:
            number, unit = math.inf, bare
    else:
        raise VitreousError(f"{wrong}: {expected}")
    if not math.isfinite(number):
        raise VitreousError(f"{wrong}: expected a finite number")
    if number < 0:
        raise VitreousError(f"{wrong}: expected 0 or more")
    return number, unit


def _unit(word: str, bare: Unit) -> tuple[float, Unit | None]:
    """What a word behind a number means; "k" and "m" may stand in front of the units that are counts."""
    if not word:
        return 1.0, bare
    if word in NAMES:
        return 1.0, NAMES[word]
    scale, unit = THOUSANDS.get(word[0]), NAMES.get(word[1:].strip())
    if scale is None or unit is None or unit == "percent":
        return 1.0, None
    return scale, unit
