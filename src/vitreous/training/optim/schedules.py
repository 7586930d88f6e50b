"""Learning-rate schedules: a factor of the peak learning rate, as a pure function of the step."""

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
    """`schedule(step)`: the factor of a step from 0 to `total` - 1. Later steps have the factor of the last one."""

    shape: Shape
    total: int
    warmup: int = 0  # steps; the last of them has the peak learning rate
    cooldown: int = 0  # steps; the last of them has the factor `final`
    final: float = 0.0
    timescale: float = 1.0  # of rsqrt: steps from 1 to 1/sqrt(2)

    def __call__(self, step: int) -> float:
        step = min(step, self.total - 1)
        if step < self.warmup:
            return (step + 1) / self.warmup
        if step > (start := self.total - 1 - self.cooldown):
            return _interpolate(self.without_cooldown(start), self.final, (step - start) / self.cooldown)
        return self.without_cooldown(step)

    def without_cooldown(self, step: int) -> float:
        """The factor without a cool-down, from the last step of the warm-up on, where it is 1."""
        peak = max(self.warmup - 1, 0)
        since = max(step - peak, 0)  # a cool-down may start at the end of the warm-up
        fraction = since / max(self.total - 1 - peak, 1)
        match self.shape:
            case "cosine":
                return _interpolate(self.final, 1.0, (1 + math.cos(math.pi * fraction)) / 2)
            case "linear":
                return _interpolate(1.0, self.final, fraction)
            case "rsqrt":
                return math.sqrt(self.timescale / (self.timescale + since))
            case "constant":
                return 1.0


def build_schedule(options: config.Schedule, total_steps: int, batch_size: int, images: int) -> Callable[[int], float]:
    """Return the factor of the learning rate as a function of the step.

    Step 0 has 1/warmup of the peak, and the last step of the warm-up has the peak. Cosine, linear and cool-down reach
    `final_lr` at the last step of the run. Options that would have no effect are an error.
    """
    if options.schedule is None or options.warmup is None:
        raise VitreousError("Schedule.schedule and .warmup have to be chosen before the schedule is built")
    if total_steps < 1:
        raise VitreousError(f"total_steps = {total_steps}: a run has at least one step")
    length = partial(duration_steps, batch_size=batch_size, images=images, total_steps=total_steps)
    warmup = length(options.warmup, name="warmup")
    cooldown = length(options.cooldown, name="cooldown")
    timescale = length(options.rsqrt_timescale, name="rsqrt_timescale")
    _check_schedule(options, cooldown, timescale)
    if warmup + cooldown > total_steps:
        parts = f"a warm-up of {warmup}" + (f" and a cool-down of {cooldown}" if cooldown else "")
        raise VitreousError(
            f"Schedule: {parts} steps, but the whole run has {total_steps}; lengthen the run, or shorten them"
        )
    schedule = LearningRateSchedule(options.schedule, total_steps, warmup, cooldown, options.final_lr, timescale)
    if cooldown and options.final_lr > (before := schedule.without_cooldown(total_steps - 1 - cooldown)):
        raise VitreousError(f"final_lr = {options.final_lr}: higher than {before:.3g}, where the cool-down starts")
    return schedule


def _check_schedule(options: config.Schedule, cooldown: int, timescale: int) -> None:
    if options.schedule not in get_args(Shape):
        raise VitreousError(f"schedule = {options.schedule!r}: expected one of {', '.join(get_args(Shape))}")
    decays = options.schedule in ("cosine", "linear")
    if not 0 <= options.final_lr <= 1:
        raise VitreousError(f"final_lr = {options.final_lr}: expected a fraction of the peak learning rate, 0 to 1")
    if decays and cooldown:
        raise VitreousError(
            f"cooldown = {options.cooldown!r}: {options.schedule} decays over the whole run; a cool-down is for"
            " constant and rsqrt"
        )
    if not decays and not cooldown and options.final_lr:
        raise VitreousError(
            f"final_lr = {options.final_lr}: has no effect, since {options.schedule} reaches it in a cool-down, and"
            " cooldown = 0"
        )
    if options.schedule == "rsqrt" and not timescale:
        raise VitreousError(f"rsqrt_timescale = {options.rsqrt_timescale!r}: expected more than 0")
    if options.schedule != "rsqrt" and options.rsqrt_timescale != config.Schedule().rsqrt_timescale:
        raise VitreousError(
            f"rsqrt_timescale = {options.rsqrt_timescale!r}: has no effect, since schedule = {options.schedule}"
        )


def _interpolate(start: float, end: float, fraction: float) -> float:
    """Exactly `start` at 0 and `end` at 1."""
    return start * (1 - fraction) + end * fraction
