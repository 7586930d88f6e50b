"""From data and settings to a checked plan: whatever is wrong with them is an error before anything long begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from vitreous.data.dataset import DataSet
from vitreous.data.sampling import TrainingSampler
from vitreous.errors import VitreousError
from vitreous.models.checks import pair
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.models.zoo import build
from vitreous.preprocessing import Preprocessing
from vitreous.training import defaults, durations, lora, metric_loggers
from vitreous.training.config import Finetuning, TrainConfig
from vitreous.training.defaults import Choice, Facts
from vitreous.training.distributed import World
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.memory_estimate import estimate_training_memory
from vitreous.training.optim import losses, optimisers, schedules
from vitreous.training.optim.parameters import TrainablePart, trainable_part
from vitreous.utils.device import pick_device, pick_precision
from vitreous.utils.limits import MAX_COUNT, MAX_WORKERS, SEED_LIMIT
from vitreous.utils.memory import free_memory, size_text

LINES = 500  # of a run in metrics.jsonl, about


@dataclass(frozen=True)
class Plan:
    """A run before it begins. Every field of `config` that can be chosen by the data is set."""

    config: TrainConfig
    facts: Facts
    choices: tuple[Choice, ...]
    model: ViTConfig | BiTConfig
    preprocessing: Preprocessing  # of evaluation, and of the trained model
    device: torch.device
    precision: str
    steps: int
    evaluate_every: int  # steps
    log_every: int
    micro_batch: int
    memory: int  # bytes of a step, about
    trainable: TrainablePart
    schedule: Callable[[int], float]
    stages: tuple[tuple[int, tuple[int, int]], ...]  # of progressive training: before which step, at which size
    notes: tuple[str, ...]

    @property
    def batch_size(self) -> int:
        return self.config.schedule.batch_size or 0

    @property
    def lr_candidates(self) -> tuple[float, ...]:
        """Learning rates of which one has to be selected before the run can begin."""
        return self.config.finetuning.lr_candidates or () if self.config.optimiser.lr is None else ()

    @property
    def size(self) -> tuple[int, int]:
        size = self.preprocessing.size
        assert isinstance(size, tuple)
        return size

    def size_at(self, step: int) -> tuple[int, int] | None:
        """Size of the images at this step; None: the model's."""
        return next((size for last, size in self.stages if step < last), None)


def make_plan(
    data: DataSet, config: TrainConfig, world: World, start: InitialWeights | None = None, again: bool = False
) -> Plan:
    """`start`: the model to start from. `again`: for a run that is resumed, whose fields were all set when it began."""
    facts = defaults.collect_facts(data, start)
    given = config
    config, choices = defaults.choose_defaults(config, facts)
    check_config(config, data, world)
    if not again:
        _no_idle_options(given, config, data)
    model = defaults.make_model_config(config, facts)
    device = pick_device(config.run.device)
    precision, note = pick_precision(config.run.precision, device)
    batch, images = config.schedule.batch_size or 0, facts.images
    steps = durations.run_length(config.schedule.duration or "", batch_size=batch, images=images)
    schedule = schedules.build_schedule(config.schedule, steps, batch, images)
    part = _try_out(config, data, model, facts)
    copies = (3 if config.optimiser.optimiser == "sgd" else 4) + bool(config.optimiser.ema)
    micro, memory, tight = _passes(config, model, precision, copies, part, device)
    return Plan(
        config,
        facts,
        tuple(choices),
        model,
        defaults.evaluation_preprocessing(config, facts),
        device,
        precision,
        steps,
        _every(config, steps, batch, images),
        max(1, min(50, steps // LINES)),
        micro,
        memory,
        part,
        schedule,
        _stages(config, model, steps, batch, images),
        tuple(text for text in (note, tight, *(start.guesses if start else ())) if text),
    )


def _try_out(config: TrainConfig, data: DataSet, model: ViTConfig | BiTConfig, facts: Facts) -> TrainablePart:
    """Build loss, optimiser and stream without memory, so that they refuse wrong options before images are read."""
    rates = config.finetuning.lr_candidates
    options = config.optimiser if config.optimiser.lr or not rates else replace(config.optimiser, lr=max(rates))
    losses.build_loss(config.objective, data.train.labels, facts.classes, "cpu")
    with torch.device("meta"):
        drawn = build(model)
        lora.add_adapters_(drawn, config.finetuning)
        optimisers.build_optimisers(drawn, options, fused=False)
    if config.finetuning.lora and not any(p.requires_grad for name, p in drawn.named_parameters() if "lora_" in name):
        raise VitreousError(
            f"lora = {config.finetuning.lora} and freeze = {' '.join(options.freeze)}: the adapters would be frozen too"
        )
    TrainingSampler(facts.images, 0, data.train.labels if config.reading.balanced else None)
    metric_loggers.check_installed(config.run.tensorboard, config.run.wandb)
    return trainable_part(drawn)


def _stages(
    config: TrainConfig, model: ViTConfig | BiTConfig, steps: int, batch: int, images: int
) -> tuple[tuple[int, tuple[int, int]], ...]:
    """Progressive training: before which step images have which size."""
    stages: list[tuple[int, tuple[int, int]]] = []
    last, full = 0, pair(model.image_size)
    for text in config.schedule.progressive:
        side, _, length = text.partition("@")
        if not side.isdecimal() or not length:
            raise VitreousError(f"progressive = {text!r}: expected PX@DURATION, such as 24@50%")
        last += durations.duration_steps(length, batch_size=batch, images=images, total_steps=steps, name="progressive")
        size = (int(side), round(int(side) * full[1] / full[0]))
        if not 0 < size[0] < full[0]:
            raise VitreousError(f"progressive = {text!r}: expected a size smaller than the model's, {full[0]} px")
        if isinstance(model, ViTConfig):
            try:
                model.grid_at(size)
            except VitreousError as error:
                raise VitreousError(f"progressive = {text!r}: {error}") from error
        stages.append((last, size))
    if stages and last >= steps:
        stretches = " ".join(config.schedule.progressive)
        raise VitreousError(f"progressive = {stretches!r}: no steps are left for the full size, {full[0]} px")
    return tuple(stages)


def _every(config: TrainConfig, steps: int, batch: int, images: int) -> int:
    """Steps between evaluations."""
    wish = config.run.evaluate_every
    if wish is None:
        return max(1, round(images / batch), steps // 20)
    every = durations.duration_steps(wish, batch_size=batch, images=images, total_steps=steps, name="evaluate_every")
    if every == 0:
        raise VitreousError(f"evaluate_every = {wish!r}: expected more than 0")
    return every


def _passes(
    config: TrainConfig,
    model: ViTConfig | BiTConfig,
    precision: str,
    copies: int,
    part: TrainablePart,
    device: torch.device,
) -> tuple[int, int, str | None]:
    """Images per pass: the whole batch, or as many as memory seems to allow."""
    paired = bool(config.augmentation.mixup or config.augmentation.cutmix)
    micro = min(config.schedule.micro_batch or config.schedule.batch_size or 1, config.schedule.batch_size or 1)
    free = free_memory(device)

    def needed(count: int) -> int:
        return estimate_training_memory(model, count, precision, copies, part)

    least = (2 if paired else 1) if config.schedule.micro_batch is None else micro
    if needed(least) > free and device.type == "cpu":  # the system would end the process, without a word
        smaller = "a smaller model or image_size" + (", or fewer images at a time (micro_batch)" if least > 2 else "")
        raise VitreousError(
            f"this run would take about {size_text(needed(least))} of memory with {least:,} image{'s' * (least > 1)} at"
            f" a time, and {size_text(free)} are free: take {smaller}"
        )
    if needed(1) > free:
        note = (
            f"memory may run out: one image needs about {size_text(needed(1))}, and {device} has {size_text(free)} free"
        )
        return max(micro, 2) if paired else micro, needed(micro), note
    if config.schedule.micro_batch is None:
        while needed(micro) > 0.9 * free and micro > 2:
            micro = -(-micro // 2)
    if paired and micro % 2:
        micro += 1
    return micro, needed(micro), None


# ---------------------------------------------------------------- checks of settings

RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "batch_size": (lambda x: 1 <= x <= MAX_COUNT, f"1 to {MAX_COUNT:,}"),
    "micro_batch": (lambda x: 1 <= x <= MAX_COUNT, f"1 to {MAX_COUNT:,}"),
    "workers": (lambda x: 0 <= x <= MAX_WORKERS, f"0 to {MAX_WORKERS:,}"),
    "max_bad": (lambda x: 0 <= x <= 1, "a fraction, 0 to 1"),
    "crop": (lambda x: 0 < x <= 1, "a fraction of the area, above 0 and up to 1"),
    "aspect": (lambda x: x >= 1, "1 or more"),
    "shift": (lambda x: 0 <= x < 1, "a fraction of the side, 0 to below 1"),
    "randaugment": (lambda x: 0 <= x <= 100, "0 to 100 operations"),
    "magnitude": (lambda x: 0 <= x <= 10, "0 to 10"),
    "jitter": (lambda x: 0 <= x <= 1, "0 to 1"),
    "erase": (lambda x: 0 <= x <= 1, "a probability, 0 to 1"),
    "mixup": (lambda x: x >= 0, "0 or more"),
    "cutmix": (lambda x: x >= 0, "0 or more"),
    "dev_fraction": (lambda x: 0 < x < 1, "a fraction of the training images, above 0 and below 1"),
    "lr_candidates": (lambda x: len(x) > 1 and all(0 < rate < math.inf for rate in x), "two positive numbers or more"),
    "ema": (lambda x: 0 <= x < 1, "a decay, 0 to below 1"),
    "patience": (lambda x: x >= 1, "1 or more evaluations"),
    "save_minutes": (lambda x: x > 0, "more than 0"),
    "seed": (lambda x: 0 <= x < SEED_LIMIT, "0 or more, and below 2**62"),
    "split_seed": (lambda x: -SEED_LIMIT < x < SEED_LIMIT, "a number below 2**62"),
}


def check_config(config: TrainConfig, data: DataSet, world: World) -> None:
    values = config.flat()
    for name, (holds, expected) in RANGES.items():
        if values[name] is not None and not holds(values[name]):
            raise VitreousError(f"{name} = {values[name]!r}: expected {expected}")
    if config.schedule.batch_size is not None and config.schedule.batch_size % world.size:
        raise VitreousError(
            f"batch_size = {config.schedule.batch_size}: expected a multiple of the {world.size} processes"
        )
    paired = config.augmentation.mixup or config.augmentation.cutmix
    if paired and world.size > 1 and (config.schedule.batch_size or 0) // world.size % 2:
        raise VitreousError(
            f"batch_size = {config.schedule.batch_size}: mixup and cutmix mix pairs of images, so each of the"
            f" {world.size} processes needs an even number of images"
        )
    best_by, classes = config.run.best_by, len(data.classes)
    if data.multi_label and best_by not in ("map", "loss"):
        raise VitreousError(f"best_by = {best_by!r}: images have several labels; use map or loss")
    if not data.multi_label and (best_by == "map" or (best_by == "top5" and classes < 6)):
        raise VitreousError(f"best_by = {best_by!r}: images have one of {classes} labels; use top1, balanced or loss")
    micro, batch = config.schedule.micro_batch, config.schedule.batch_size or 0
    if micro is not None and micro > batch:
        raise VitreousError(f"micro_batch = {micro}: larger than batch_size = {batch}")
    if config.reading.balanced and config.objective.class_weights == "balanced":
        raise VitreousError("balanced and class_weights: both compensate for rare classes; use one of them")
    if data.val is None and config.run.patience is not None:
        raise VitreousError("patience: there are no validation images (val_fraction = 0)")
    if data.val is None and config.run.evaluate_every is not None:
        raise VitreousError("evaluate_every: there are no validation images (val_fraction = 0)")


def _no_idle_options(given: TrainConfig, settled: TrainConfig, data: DataSet) -> None:
    """Refuse options that would have no effect."""
    asked, now, tuning = given.augmentation, settled.augmentation, given.finetuning
    if given.optimiser.lr is not None and tuning.lr_candidates:
        raise VitreousError("lr and lr_candidates: give one learning rate, or several to select from")
    for name in ("dev_fraction", "candidate_duration"):
        if getattr(tuning, name) != getattr(Finetuning(), name) and not settled.finetuning.lr_candidates:
            raise VitreousError(f"{name}: has no effect without lr_candidates")
    if given.architecture.start is None and given.architecture.preprocessing is not None:
        raise VitreousError("preprocessing: describes the weights to start from, and none are given (--from)")
    if given.architecture.start is None and (tuning.lora or tuning.rules == "paper"):
        asks = f"lora = {tuning.lora}" if tuning.lora else "rules = 'paper'"
        raise VitreousError(f"{asks}: adapts the weights to start from, and none are given (--from)")
    if asked.magnitude and now.randaugment == 0:
        raise VitreousError(f"magnitude = {asked.magnitude}: has no effect, since randaugment = 0 (RandAugment is off)")
    if (asked.aspect or 1) != 1 and now.crop == 1:
        raise VitreousError(f"aspect = {asked.aspect}: has no effect, since crop = 1 (there are no crops)")
    if given.run.best_by is not None and data.val is None and not settled.finetuning.lr_candidates:
        raise VitreousError("best_by: there are no validation images to select by (val_fraction = 0)")
