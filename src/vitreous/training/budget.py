"""The time of a run, estimated before it starts from a measurement on this device, and fitted to a budget.

The number of epochs is chosen to fit the budget. If only a few epochs fit, the image size or the model is reduced.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vitreous.data.dataset import DataSet
from vitreous.models.masked import keyed_corruption
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.training import defaults, durations, lora
from vitreous.training.config import TrainConfig
from vitreous.training.defaults import Choice
from vitreous.training.distributed import World
from vitreous.training.facts import Facts
from vitreous.training.user_parts import AnyModelConfig, UserParts, build_initial_model, build_run_optimisers
from vitreous.utils.device import float64_device, pick_device, pick_precision
from vitreous.utils.sizes import pair

DEFAULT_BUDGET = "10 min"
SAFETY = 0.85  # part of the budget that the estimate may fill: other programs and rare pauses take time, too
ENOUGH_EPOCHS = {"fine-tuning": 5, "from scratch": 10}  # with fewer, a smaller image size or model is used first
STARTUP_SECONDS = {"cpu": 5.0, "cuda": 45.0}  # other devices: as on a CPU. On a GPU, kernels are compiled
MEASURED_IMAGES = 32  # per pass, at most, on a CPU
MEASURED_SECONDS = 0.8  # of repeated passes
MIN_SIDE = 48  # px: image sizes are not reduced below


@dataclass(frozen=True)
class RunTime:
    """The seconds that the parts of a run take on this device, and how often it is evaluated."""

    train_image: float  # forward and backward pass of one image
    evaluate_image: float
    once: float  # reading the images, compiling, the final evaluation
    train_images: int
    val_images: int
    weights_evaluated: int  # 2 with an EMA
    repeats: float  # runs of this length: more than 1 with a learning-rate search
    device: torch.device
    batch_size: int
    evaluate_every: str | None = None

    def evaluations(self, epochs: float) -> float:
        steps = max(1, round(epochs * self.train_images / self.batch_size))
        every = durations.evaluation_interval(self.evaluate_every, steps, self.batch_size, self.train_images)
        return -(-steps // every)

    def of_epochs(self, epochs: float) -> float:
        """Return the seconds of a run of this many epochs."""
        evaluations = self.evaluations(epochs) if self.val_images else 0
        training = epochs * self.train_images * self.train_image
        evaluating = evaluations * self.val_images * self.weights_evaluated * self.evaluate_image
        return self.once + self.repeats * (training + evaluating)

    def epochs_within(self, seconds: float) -> float:
        """Return how many epochs fit: whole epochs, or less than one. 0 if there is no time to train."""
        one = self.of_epochs(1)
        if one > seconds:
            return max(0.0, (seconds - self.once) / (one - self.once))
        low, high = 1, 2
        while self.of_epochs(high) <= seconds and high < 2**40:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.of_epochs(middle) <= seconds else (low, middle)
        return float(low)

    @property
    def rate(self) -> str:
        speed = 1 / self.train_image
        return f"{speed:,.0f} images/s" if speed >= 10 else f"{speed:.1f} images/s"


@dataclass(frozen=True)
class FittedSettings:
    """Settings that fit the budget, with the choices that led to them and the estimate of the whole run in seconds."""

    config: TrainConfig
    choices: list[Choice]
    seconds: float
    note: str


def fit_to_budget(given: TrainConfig, data: DataSet, facts: Facts, world: World, micro_batch: int) -> FittedSettings:
    """Choose the settings that are not given, with a number of epochs that fits the budget. `micro_batch`: images per
    pass that fit into memory."""
    text = given.schedule.budget or DEFAULT_BUDGET
    seconds = durations.parse_time(text, "budget")
    enough = ENOUGH_EPOCHS["from scratch" if facts.start is None else "fine-tuning"]
    for candidate, reduced, why in _candidates(given, facts):
        config, choices = defaults.choose_defaults(candidate, facts)
        choices = [Choice(f, v, why.format(text)) for f, v in reduced.items()] + choices
        run_time = estimate_run_time(config, data, facts, world, micro_batch)
        epochs = run_time.epochs_within(SAFETY * seconds)
        if epochs >= enough:
            break
    return _with_duration(candidate, config, choices, facts, run_time, epochs, text)


def _candidates(given: TrainConfig, facts: Facts) -> Iterator[tuple[TrainConfig, dict[str, Any], str]]:
    """The given settings, then cheaper ones: the config, what it reduces, and the reason ({} is the budget)."""
    yield given, {}, ""
    architecture = given.architecture
    if given.schedule.progressive:  # its sizes are relative to the image size
        return
    if facts.start is not None and architecture.image_size is None:
        for size in _smaller_sizes(facts.start.model):
            reduced = {"image_size": size}
            yield given.with_(**reduced), reduced, f"smaller than that of {facts.start.name}, to fit into {{}}"
    elif facts.start is None and defaults.may_use_smaller_model(given, facts):
        small: dict[str, Any] = dict(defaults.SMALL_MODEL)
        yield given.with_(**small), small, "a small model, to fit into {}"


def _smaller_sizes(model: ViTConfig | BiTConfig) -> Iterator[int | tuple[int, int]]:
    step, full = defaults.size_step(model), pair(model.image_size)
    previous = full
    for factor in (0.75, 0.5):
        size = (round(full[0] * factor / step) * step, round(full[1] * factor / step) * step)
        if min(size) >= MIN_SIDE and size != previous:
            yield size[0] if size[0] == size[1] else size
            previous = size


def _with_duration(
    given: TrainConfig,
    config: TrainConfig,
    choices: list[Choice],
    facts: Facts,
    run_time: RunTime,
    epochs: float,
    budget: str,
) -> FittedSettings:
    """Shorten the default duration if it does not fit, and explain the choice. `config`: `given` with `choices`."""
    default = next(choice for choice in choices if choice.field == "duration")
    batch, images = config.schedule.batch_size or 1, facts.images
    default_epochs = durations.run_length(str(default.value), batch_size=batch, images=images) * batch / images
    speed = f"{run_time.rate} measured on {run_time.device}"
    note = ""
    if epochs >= default_epochs:
        value, chosen = default.value, default_epochs
        why = f"{default.why}; fits into {budget} ({speed})"
    elif epochs >= 1:
        value, chosen = f"{epochs:.0f} epoch{'' if epochs == 1 else 's'}", epochs
        why = f"fits into {budget} ({speed}); without a budget: {default.value}"
    else:
        steps = max(1, math.floor(epochs * images / batch))
        value, chosen = f"{steps} step{'' if steps == 1 else 's'}", steps * batch / images
        why = f"all that fits into {budget} ({speed}); without a budget: {default.value}"
    if chosen < min(default_epochs, ENOUGH_EPOCHS["from scratch" if facts.start is None else "fine-tuning"]):
        fit = "1 epoch fits" if f"{chosen:.3g}" == "1" else f"{chosen:.3g} epochs fit"
        longer = f"use a larger --budget, or --epochs {shlex.quote(str(default.value).removesuffix(' epochs'))}"
        note = f"only {fit} into {budget}, which is too short for a good result: {longer}"
    # Choose again: other settings, such as the warm-up in the paper, depend on the duration.
    fitted, again = defaults.choose_defaults(given.with_(duration=value, budget=None), facts)
    by_field = {choice.field: choice for choice in (*again, Choice("duration", value, why))}
    choices = [by_field.get(choice.field, choice) for choice in choices]
    return FittedSettings(fitted, choices, run_time.of_epochs(chosen), note)


def estimate_run_time(config: TrainConfig, data: DataSet, facts: Facts, world: World, micro_batch: int) -> RunTime:
    """Measure forward and backward passes of the model on this device, and estimate everything else from that."""
    device = pick_device(config.run.device)
    precision, _ = pick_precision(config.run.precision, device)
    model_config = defaults.make_model_config(config, facts)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # a model draws its initial weights
        train_image, evaluate_image = measure_speed(config, model_config, device, precision, micro_batch, facts.parts)
    times = torch.tensor([train_image, evaluate_image, facts.decode_seconds], device=device)
    world.all_reduce([times])  # all processes must choose the same number of epochs
    train_image, evaluate_image, decode = (times / world.size).tolist()
    train_image, evaluate_image = train_image / world.size, evaluate_image / world.size  # the processes share the work
    splits = {name: len(source) for name, source in data.splits.items()}
    reading = sum(splits.values()) * decode / max(1, min(16, os.cpu_count() or 1))
    last = splits.get("test", splits.get("val", 0)) * evaluate_image
    return RunTime(
        train_image,
        evaluate_image,
        STARTUP_SECONDS.get(device.type, STARTUP_SECONDS["cpu"]) + reading + last,
        facts.images,
        splits.get("val", 0),
        2 if config.optimiser.ema else 1,
        1 + _search_runs(config, facts),
        device,
        config.schedule.batch_size or 1,
        config.run.evaluate_every,
    )


def _search_runs(config: TrainConfig, facts: Facts) -> float:
    """The learning-rate search as a multiple of the run."""
    candidates = config.finetuning.lr_candidates or () if config.optimiser.lr is None else ()
    if not candidates:
        return 0.0
    batch, total = config.schedule.batch_size or 1, 10_000
    each = durations.duration_steps(
        config.finetuning.candidate_duration, batch_size=batch, images=facts.images, total_steps=total
    )
    return len(candidates) * min(1.0, each / total)


def measure_speed(
    config: TrainConfig,
    model_config: AnyModelConfig,
    device: torch.device,
    precision: str,
    micro_batch: int,
    parts: UserParts,
) -> tuple[float, float]:
    """Return the seconds per image in training and in evaluation."""
    model = build_initial_model(model_config, parts, config).to(device)
    lora.add_adapters_(model, config.finetuning)
    rates = config.finetuning.lr_candidates
    options = config.optimiser if config.optimiser.lr or not rates else replace(config.optimiser, lr=max(rates))
    build_run_optimisers(model, options, parts, fused=False)  # freezes parameters
    count = min(micro_batch, MEASURED_IMAGES if device.type == "cpu" else 8 * MEASURED_IMAGES)
    keys = torch.arange(count, device=float64_device(device))
    images = torch.zeros(count, model_config.channels, *pair(model_config.image_size), device=device)

    def forward(model: nn.Module) -> torch.Tensor:
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
        with autocast, keyed_corruption(model, keys):  # the latter for a model that predicts masked patches
            logits: torch.Tensor = model(images)
        return logits.float().square().mean()

    def train() -> None:
        forward(model).backward()

    @torch.no_grad()
    def evaluate() -> None:
        forward(model)

    model.train()
    training = _seconds_per_call(train, device) / count
    model.eval()
    return training, _seconds_per_call(evaluate, device) / count


def _seconds_per_call(call: Callable[[], None], device: torch.device) -> float:
    """Return the mean time of a call, after one to warm up."""

    def synchronise() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    call()
    synchronise()
    started, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - started < MEASURED_SECONDS:
        call()
        synchronise()
        calls += 1
    return (time.perf_counter() - started) / calls
