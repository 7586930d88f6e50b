"""The learning rate at each step, as a share of the highest. Pure functions of the step: resuming needs no state."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from vitreous.errors import VitreousError
from vitreous.training import config
from vitreous.training.durations import duration_steps

Shape = Literal["cosine", "linear", "constant", "rsqrt"]


@dataclass(frozen=True)
class LearningRateSchedule:
    """Calling it gives the factor of a step, from 0 to `total` - 1. The last step's goes on behind the end."""

    shape: Shape
    total: int
    warmup: int = 0  # steps; the last of them is the first at the highest learning rate
    cooldown: int = 0  # steps; the last of them is at `final`
    final: float = 0.0
    timescale: float = 1.0  # of rsqrt: steps from 1 to 1/sqrt(2)

    def __call__(self, step: int) -> float:
        step = min(step, self.total - 1)
        if step < self.warmup:
            return (step + 1) / self.warmup
        if step > (start := self.total - 1 - self.cooldown):
            return _line(self.shape_at(start), self.final, (step - start) / self.cooldown)
        return self.shape_at(step)

    def shape_at(self, step: int) -> float:
        """Without a cool-down, and from the last step of the warm-up on, where it is 1."""
        top = max(self.warmup - 1, 0)
        since = max(step - top, 0)  # a cool-down may start right at the warm-up's end
        share = since / max(self.total - 1 - top, 1)
        match self.shape:
            case "cosine":
                return _line(self.final, 1.0, (1 + math.cos(math.pi * share)) / 2)
            case "linear":
                return _line(1.0, self.final, share)
            case "rsqrt":
                return math.sqrt(self.timescale / (self.timescale + since))
            case "constant":
                return 1.0


def build_schedule(options: config.Schedule, total_steps: int, batch_size: int, images: int) -> Callable[[int], float]:
    """The factor of the learning rate as a function of the step.

    Step 0 has 1/warmup of the highest rate, the warm-up's last step all of it. Cosine, line and cool-down arrive at
    `final_lr` at the last step of the run. Options that would change nothing are refused.
    """
    if options.schedule is None or options.warmup is None:
        raise VitreousError("Schedule.schedule and .warmup have to be chosen before the schedule is built")
    if total_steps < 1:
        raise VitreousError(f"total_steps = {total_steps}: a run has at least one step")
    length = partial(duration_steps, batch_size=batch_size, images=images, total_steps=total_steps)
    warmup = length(options.warmup, name="warmup")
    cooldown = length(options.cooldown, name="cooldown")
    timescale = length(options.rsqrt_timescale, name="rsqrt_timescale")
    _check(options, cooldown, timescale)
    if warmup + cooldown > total_steps:
        parts = f"a warm-up of {warmup}" + (f" and a cool-down of {cooldown}" if cooldown else "")
        raise VitreousError(
            f"Schedule: {parts} steps, but the whole run has {total_steps}; make it longer, or them shorter"
        )
    curve = LearningRateSchedule(options.schedule, total_steps, warmup, cooldown, options.final_lr, timescale)
    if cooldown and options.final_lr > (before := curve.shape_at(total_steps - 1 - cooldown)):
        raise VitreousError(
            f"final_lr = {options.final_lr}: higher than the {before:.3g} that the cool-down begins with"
        )
    return curve


def _check(options: config.Schedule, cooldown: int, timescale: int) -> None:
    if options.schedule not in get_args(Shape):
        raise VitreousError(f"schedule = {options.schedule!r}: there is {', '.join(get_args(Shape))}")
    falls = options.schedule in ("cosine", "linear")
    if not 0 <= options.final_lr <= 1:
        raise VitreousError(f"final_lr = {options.final_lr}: expected a share of the highest learning rate, 0 to 1")
    if falls and cooldown:
        raise VitreousError(
            f"cooldown = {options.cooldown!r}: {options.schedule} falls all the way by itself; "
            "a cool-down is for constant and rsqrt"
        )
    if not falls and not cooldown and options.final_lr:
        raise VitreousError(
            f"final_lr = {options.final_lr}: {options.schedule} goes there in its cool-down, and it has none"
        )
    if options.schedule == "rsqrt" and not timescale:
        raise VitreousError(f"rsqrt_timescale = {options.rsqrt_timescale!r}: expected more than 0")
    if options.schedule != "rsqrt" and options.rsqrt_timescale != config.Schedule().rsqrt_timescale:
        raise VitreousError(f"rsqrt_timescale = {options.rsqrt_timescale!r}: means nothing to {options.schedule}")


def _line(start: float, end: float, share: float) -> float:
    """Exactly `start` at 0 and `end` at 1."""
    return start * (1 - share) + end * share
