"""Legs of a run: `--resume RUN --epochs 150` gives a run another length, and config.json lists one leg per length."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.metrics import result_from_json
from vitreous.training import durations, state
from vitreous.training.config import TrainConfig
from vitreous.training.optim.schedules import build_schedule
from vitreous.training.resume_checks import CHANGEABLE_FIELDS
from vitreous.training.run_directory import RunDirectory
from vitreous.training.run_progress import RunProgress
from vitreous.utils.environment import command, program

LENGTH_FIELDS = ("duration", "warmup", "progressive", "rsqrt_timescale")  # fields that a new length changes


@dataclass(frozen=True)
class Leg:
    """One leg of a run. The names of the fields are those in config.json and result.json."""

    duration: str  # length of the whole run in this leg, as given
    steps: int  # the same in steps
    first_step: int = 0  # the leg continues from the state after this many steps
    before_cooldown: bool = False  # that is the state before the cool-down of the previous leg
    command: str = ""
    text: str = ""  # what changed, in one sentence
    trained: int | None = None  # steps at the end of the leg; None: it is the current one
    result: dict[str, Any] | None = None  # split, images and metrics at the end of the leg; None: it had no result
    dropped_evaluations: int = 0  # evaluations of the leg that the next leg has repeated: `before_cooldown`


@dataclass(frozen=True)
class Extension:
    """A new leg that has not started yet."""

    config: TrainConfig
    legs: tuple[Leg, ...]


def read_legs(description: dict[str, Any]) -> tuple[Leg, ...]:
    """The legs in config.json or result.json; empty if the length of the run was never changed."""
    try:
        legs = tuple(Leg(**values) for values in description.get("legs") or ())
    except TypeError as error:
        raise VitreousError("config.json or result.json: the legs are damaged") from error
    if not all(type(leg.steps) is type(leg.first_step) is int and isinstance(leg.duration, str) for leg in legs):
        raise VitreousError("config.json or result.json: the legs are damaged")
    return legs


def leg_number(directory: RunDirectory) -> int:
    """The number of the current leg, from 0."""
    return max(0, len(read_legs(directory.description())) - 1)


def plan_extension(
    directory: RunDirectory, stored: TrainConfig, requested: TrainConfig, images: int, complete: bool
) -> Extension | None:
    """Check that the run can have the requested length. None: it has that length already. Nothing is written yet."""
    batch = stored.schedule.batch_size or 0
    old, new = (
        durations.run_length(config.schedule.duration or "", batch_size=batch, images=images)
        for config in (stored, requested)
    )
    if old == new:
        return None
    given = f"duration = {requested.schedule.duration!r}"
    if stored.optimiser.lr is None and stored.finetuning.lr_candidates:
        raise VitreousError(
            f"{given}: {directory.path} is still searching its learning rate with candidates of the old length"
            f" ({stored.schedule.duration}); resume it without a new length first"
        )
    trained, pending = _position(directory, complete)
    if new <= trained:
        epochs = f"{trained * batch / images:.4g}"
        raise VitreousError(
            f"{given} is {format_count(new, 'step')}, and {directory.path} has trained {format_count(trained, 'step')}"
            f" ({epochs} epochs) already: give a longer duration"
        )
    now = requested.flat()
    changes = {name: now[name] for name in ("duration", *CHANGEABLE_FIELDS)}
    config = _with_fixed_parts(stored, old, images).with_(**changes)
    first = trained if pending else _step_before_cooldown(directory, stored, old, trained, images)
    rewound = pending or first < trained
    earlier = list(read_legs(directory.description())) or [Leg(stored.schedule.duration or "", old)]
    dropped = sum(r["kind"] == "eval" and r["step"] > first for r in directory.records()) if rewound else 0
    result = _result_so_far(directory) if complete else None
    earlier[-1] = replace(earlier[-1], trained=trained, result=result, dropped_evaluations=dropped)
    leg = Leg(config.schedule.duration or "", new, first, rewound, command())
    rates = [_learning_rate(stored, old, images)(max(trained - 1, 0)), _learning_rate(config, new, images)(first)]
    text = _describe_change(stored, config, (old, new), (trained, first), (rates[0], rates[1]))
    return Extension(config, (*earlier, replace(leg, text=text)))


def begin_leg(directory: RunDirectory, extension: Extension) -> None:
    """Write the new length to config.json. result.json and report.html of the earlier leg stay until the new ones are
    complete."""
    description, leg, number = directory.description(), extension.legs[-1], len(extension.legs) - 1
    if leg.before_cooldown and directory.metrics.is_file():
        shutil.copyfile(directory.metrics, directory.path / f"metrics-{number}.jsonl")
    why = f"given when the run was extended; before: {extension.legs[-2].duration}"
    choices = [c for c in description["choices"] if c["field"] != "duration"]
    choices.append({"field": "duration", "value": leg.duration, "why": why})
    legs = [asdict(one) for one in extension.legs]
    new = extension.config.flat()
    config = {**description["config"], **{name: new[name] for name in LENGTH_FIELDS}}
    directory.write_description({**description, "config": config, "choices": choices, "legs": legs})


def find_start_state(directory: RunDirectory) -> tuple[Path, RunProgress, Path]:
    """The state that the current leg continues from: its folder, its progress, and the folder with the best weights.

    A state of an earlier leg becomes the first state of this one: the run has not ended, and the counter of `patience`
    starts again.
    """
    legs = read_legs(directory.description())
    number = max(0, len(legs) - 1)
    path, values = state.newest_state(directory.state)
    best, progress = path, RunProgress.from_json(values)
    if progress.leg == number:
        return path, progress, best
    if legs[-1].before_cooldown:
        path, values = state.newest_state(directory.before_cooldown)
        before = RunProgress.from_json(values)
        weights = {**before.weights, **{n: d for n, d in progress.weights.items() if n == directory.best.name}}
        # The best weights so far and the time of the cool-down count, although its steps are repeated.
        progress = replace(before, best=progress.best, seconds=progress.seconds, weights=weights)
    return path, replace(progress, leg=number, ended=False, stale=0, stop_reason=""), best


def current_change(directory: RunDirectory, step: int) -> tuple[str, ...]:
    """What the current leg has changed, if it continues from this step and the log does not say so yet."""
    changed = read_legs(directory.description())[1:][-1:]
    logged = {record["text"] for record in directory.records() if record["kind"] == "event"}
    return tuple(leg.text for leg in changed if leg.first_step == step and leg.text not in logged)


def describe_legs(legs: Sequence[Leg], best_leg: int | None, split: str) -> tuple[str, ...]:
    """Remarks on the result of an extended run: earlier results on the same images, and weights of an earlier leg."""
    remarks = []
    for leg in legs[:-1]:
        if (result := leg.result) is not None and result.get("split") == split and split != "train":
            name = next((name for name in ("top1", "map") if name in result), "loss")
            value = f"{result[name]:.1%}" if name != "loss" else f"{result[name]:.4f}"
            remarks.append(
                f"the length of the run was changed after {leg.duration} with {name} {value} on {result['images']:,}"
                f" {split} images, so these images may have decided its length"
            )
    if legs and best_leg is not None and best_leg < len(legs) - 1:
        remarks.append(f"no evaluation after {legs[best_leg].duration} was better than the best before")
    return tuple(remarks)


def length_change(legs: Sequence[Leg]) -> str:
    """ "extended from 100 epochs", or "" for a run with one leg."""
    if len(legs) < 2:
        return ""
    return f"{'extended' if legs[-1].steps > legs[-2].steps else 'shortened'} from {legs[-2].duration}"


def _position(directory: RunDirectory, complete: bool) -> tuple[int, bool]:
    """The steps trained so far, and whether they end before a cool-down that the current leg has yet to repeat."""
    if not state.list_states(directory.state):
        if not complete:
            return 0, False  # the run starts from the beginning
        raise VitreousError(
            f"{directory.path} cannot be extended: it has no saved training state ({directory.state} is missing or"
            f" empty); to train its weights further, start a new run: {program()} train DATA --from {directory.path}"
        )
    path, progress, best = find_start_state(directory)
    return progress.step, path != best


def _step_before_cooldown(directory: RunDirectory, config: TrainConfig, total: int, trained: int, images: int) -> int:
    """The step at which the cool-down started, if the run has started it and the state of that step is saved.
    Otherwise the last step."""
    cooldown = _steps(config, config.schedule.cooldown, total, images)
    if cooldown and trained > total - cooldown:
        with suppress(VitreousError):  # an older version did not save it, or it is damaged
            return int(state.newest_state(directory.before_cooldown)[1]["step"])
    return trained


def _with_fixed_parts(config: TrainConfig, total: int, images: int) -> TrainConfig:
    """The config with those percentages of the old length as steps that have determined the steps so far."""

    def fixed(duration: str) -> str:
        return f"{_steps(config, duration, total, images)} steps" if durations.is_percentage(duration) else duration

    schedule = config.schedule
    stages = [text.partition("@") for text in schedule.progressive]
    return config.with_(
        warmup=fixed(schedule.warmup or "0 steps"),
        progressive=tuple(f"{size}@{fixed(length)}" for size, _, length in stages),
        **({"rsqrt_timescale": fixed(schedule.rsqrt_timescale)} if schedule.schedule == "rsqrt" else {}),
    )


def _steps(config: TrainConfig, duration: str, total: int, images: int) -> int:
    batch = config.schedule.batch_size or 0
    return durations.duration_steps(duration, batch_size=batch, images=images, total_steps=total)


def _learning_rate(config: TrainConfig, steps: int, images: int) -> Callable[[int], float]:
    factor = build_schedule(config.schedule, steps, config.schedule.batch_size or 0, images)
    return lambda step: factor(step) * (config.optimiser.lr or 0.0)


def _describe_change(
    before: TrainConfig, after: TrainConfig, steps: tuple[int, int], at: tuple[int, int], rates: tuple[float, float]
) -> str:
    """One sentence: old and new length, the step to continue from, and the learning rate before and after it."""
    (old, new), (trained, first), (last, following) = steps, at, rates
    verb = "extended" if new > old else "shortened"
    text = f"{verb} from {_length(before, old)} to {_length(after, new)}"
    rate = f"the learning rate goes from {last:.3g} to {following:.3g}"
    if first < trained:
        text += f", from step {first:,}, the state before the cool-down; the {trained - first:,} steps after it are"
        return f"{text} replaced; {rate}"
    text += f", from step {first:,}"
    if not first:
        return text
    if abs(following - last) <= 0.05 * max(following, last):
        return f"{text}; the learning rate continues at {following:.3g}"
    peak = f"{following / (after.optimiser.lr or 1.0):.0%} of its peak"
    return f"{text}; {rate} ({peak}): from here on it follows the {after.schedule.schedule} schedule of the new length"


def _length(config: TrainConfig, steps: int) -> str:
    count, duration = format_count(steps, "step"), config.schedule.duration or ""
    return count if "step" in duration else f"{duration} ({count})"


def _result_so_far(directory: RunDirectory) -> dict[str, Any] | None:
    """Split, images and metrics of result.json."""
    values = directory.result()
    if not values.get("result"):
        return None
    try:
        result = result_from_json(values["result"])
    except VitreousError as error:
        raise directory.damaged_result(error) from error
    return {"split": str(values.get("split", "")), "images": result.images, **result.summary()}
