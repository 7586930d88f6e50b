"""From data and settings to a checked plan of a run: errors in either are raised before training starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import torch

from vitreous.data.dataset import DataSet
from vitreous.data.sampling import TrainingSampler
from vitreous.errors import VitreousError, format_count
from vitreous.models.cost import cost
from vitreous.models.custom import AnyModel, CustomConfig
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.training import budget, defaults, durations, lora, metric_loggers
from vitreous.training.config import TrainConfig
from vitreous.training.defaults import Choice
from vitreous.training.distributed import World
from vitreous.training.facts import NO_PARTS, Facts, collect_facts
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.masked_patches import check_options, prediction_bytes
from vitreous.training.memory_estimate import estimate_training_memory
from vitreous.training.optim import schedules
from vitreous.training.optim.parameters import TrainablePart, trainable_part
from vitreous.training.option_checks import check_config, check_unused_options, mixes_pairs, unused_option_notes
from vitreous.training.user_parts import (
    AnyModelConfig,
    UserParts,
    build_initial_model,
    build_run_loss,
    build_run_optimisers,
)
from vitreous.utils.device import pick_device, pick_precision
from vitreous.utils.memory import free_memory, size_text
from vitreous.utils.sizes import pair

LOG_LINES = 500  # of a run in metrics.jsonl, approximately


@dataclass(frozen=True)
class Plan:
    """A run before it starts. All fields of `config` that can be chosen from the data are set."""

    config: TrainConfig
    facts: Facts
    choices: tuple[Choice, ...]
    model: AnyModelConfig
    preprocessing: Preprocessing  # in evaluation, and of the trained model
    device: torch.device
    precision: str
    steps: int
    evaluate_every: int  # steps
    log_every: int
    micro_batch: int
    memory: int  # estimated bytes of a step
    trainable: TrainablePart
    schedule: Callable[[int], float]
    stages: tuple[tuple[int, tuple[int, int]], ...]  # of progressive training: first step after the stage, image size
    notes: tuple[str, ...]
    seconds: float | None = None  # estimated time of the run, if it was measured

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        own = isinstance(self.model, CustomConfig) or self.config.masks_patches
        return self.trainable.all_parameters if own else cost(cast(ViTConfig | BiTConfig, self.model)).parameters

    @property
    def batch_size(self) -> int:
        return self.config.schedule.batch_size or 0

    @property
    def lr_candidates(self) -> tuple[float, ...]:
        """Learning rates of which one has to be selected before training."""
        return self.config.finetuning.lr_candidates or () if self.config.optimiser.lr is None else ()

    @property
    def size(self) -> tuple[int, int]:
        size = self.preprocessing.size
        assert isinstance(size, tuple)
        return size

    def size_at(self, step: int) -> tuple[int, int] | None:
        """Image size at this step of progressive training. None: the size of the model."""
        return next((size for last, size in self.stages if step < last), None)


def make_plan(
    data: DataSet,
    config: TrainConfig,
    world: World,
    start: InitialWeights | None = None,
    resumed: bool = False,
    facts: Facts | None = None,
    parts: UserParts = NO_PARTS,
) -> Plan:
    """Choose the settings that are not given, and check all. `start`: the initial weights.

    `resumed`: all settings were chosen and checked when the run was started. `facts`: of these data, if known.
    `parts`: those of the user's own, if `facts` are not given.
    """
    check_options(config)
    facts = collect_facts(data, start, parts) if facts is None else replace(facts, start=start)
    given = config
    config, choices = defaults.choose_defaults(config, facts)
    fitted = None
    check_config(config, data, world)
    if not resumed and _needs_budget(given):
        # Check the memory first: the measurement builds the model and runs it.
        micro = _check_memory(config, data, facts)
        fitted = budget.fit_to_budget(given, data, facts, world, micro)
        config, choices = fitted.config, fitted.choices
        check_config(config, data, world)
    if not resumed:
        check_unused_options(given, config, data)
    model_config = defaults.make_model_config(config, facts)
    device = pick_device(config.run.device)
    precision, precision_note = pick_precision(config.run.precision, device)
    batch, images = config.schedule.batch_size or 0, facts.images
    steps = durations.run_length(config.schedule.duration or "", batch_size=batch, images=images)
    schedule = schedules.build_schedule(config.schedule, steps, batch, images)
    evaluate_every = durations.evaluation_interval(config.run.evaluate_every, steps, batch, images)
    model = _check_buildable(config, data, model_config, facts)
    part = trainable_part(model)
    micro, memory, memory_note = _choose_micro_batch(config, model_config, precision, part, device)
    notes = [precision_note, facts.parts.note, memory_note, fitted and fitted.note, *(start.guesses if start else ())]
    if not resumed:
        notes += unused_option_notes(given, config, data, model, -(-steps // evaluate_every))
    return Plan(
        config,
        facts,
        tuple(choices),
        model_config,
        defaults.evaluation_preprocessing(config, facts),
        device,
        precision,
        steps,
        evaluate_every,
        max(1, min(50, steps // LOG_LINES)),
        micro,
        memory,
        part,
        schedule,
        _progressive_stages(config, model_config, steps, batch, images),
        tuple(note for note in notes if note),
        fitted.seconds if fitted else None,
    )


def _check_memory(config: TrainConfig, data: DataSet, facts: Facts) -> int:
    """Return the number of images per pass. A model that is too large for the memory of a CPU is an error."""
    model_config = defaults.make_model_config(config, facts)
    device = pick_device(config.run.device)
    precision, _ = pick_precision(config.run.precision, device)
    part = trainable_part(_check_buildable(config, data, model_config, facts))
    return _choose_micro_batch(config, model_config, precision, part, device)[0]


def _needs_budget(given: TrainConfig) -> bool:
    """Whether the length of the run is fitted to a budget: it is not given, and not taken from the paper."""
    own = given.finetuning.rules == "ours" or given.schedule.budget is not None
    return given.schedule.duration is None and own


def _check_buildable(config: TrainConfig, data: DataSet, model_config: AnyModelConfig, facts: Facts) -> AnyModel:
    """Build loss, optimiser and sampler, and the model without memory, so that errors in their options are raised
    before images are read. Returns the model, with adapters and frozen parameters."""
    rates = config.finetuning.lr_candidates
    options = config.optimiser if config.optimiser.lr or not rates else replace(config.optimiser, lr=max(rates))
    build_run_loss(config, facts.parts, data.train.labels, data.multi_label, facts.classes, "cpu")
    # The user's own code may not run on the meta device.
    with torch.device("meta") if facts.parts.model is None else nullcontext():
        model = build_initial_model(model_config, facts.parts, config)
        lora.add_adapters_(model, config.finetuning)
        build_run_optimisers(model, options, facts.parts, fused=False)
    if config.finetuning.lora and not any(p.requires_grad for name, p in model.named_parameters() if "lora_" in name):
        raise VitreousError(
            f"lora = {config.finetuning.lora} and freeze = {' '.join(options.freeze)}: the adapters would be frozen too"
        )
    TrainingSampler(facts.images, 0, data.train.labels if config.reading.balanced else None)
    metric_loggers.check_installed(config.run.tensorboard, config.run.wandb)
    return model


def _progressive_stages(
    config: TrainConfig, model: AnyModelConfig, steps: int, batch: int, images: int
) -> tuple[tuple[int, tuple[int, int]], ...]:
    """For each stage of progressive training, the first step after it and its image size."""
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
        texts = " ".join(config.schedule.progressive)
        raise VitreousError(f"progressive = {texts!r}: no steps are left for the full size, {full[0]} px")
    return tuple(stages)


def _choose_micro_batch(
    config: TrainConfig, model: AnyModelConfig, precision: str, part: TrainablePart, device: torch.device
) -> tuple[int, int, str | None]:
    """Images per pass: `micro_batch`, or the whole batch if memory allows, or less. With the memory and a note."""
    pairs = mixes_pairs(config)
    micro = min(config.schedule.micro_batch or config.schedule.batch_size or 1, config.schedule.batch_size or 1)
    if isinstance(model, CustomConfig):
        weights = 4 * 5 * part.parameters  # with gradients, optimiser state and EMA; activations are not known
        micro += micro % 2 if pairs else 0
        return micro, weights, None
    free = free_memory(device)
    copies = (3 if config.optimiser.optimiser == "sgd" else 4) + bool(config.optimiser.ema)

    def needed(count: int) -> int:
        predictions = count * prediction_bytes(config, model)
        return estimate_training_memory(model, count, precision, copies, part) + predictions

    least = (2 if pairs else 1) if config.schedule.micro_batch is None else micro
    if needed(least) > free and device.type == "cpu":  # the system would kill the process without a message
        smaller = "a smaller model or image_size" + (", or fewer images at a time (micro_batch)" if least > 2 else "")
        raise VitreousError(
            f"this run would take about {size_text(needed(least))} of memory with {format_count(least, 'image')} at a"
            f" time, and {size_text(free)} are free: use {smaller}"
        )
    if needed(1) > free:
        one = f"one image needs about {size_text(needed(1))}"
        note = f"memory may run out: {one}, and {device} has {size_text(free)} free"
        return max(micro, 2) if pairs else micro, needed(micro), note
    if config.schedule.micro_batch is None:
        while needed(micro) > 0.9 * free and micro > 2:
            micro = -(-micro // 2)
    if pairs and micro % 2:
        micro += 1
    return micro, needed(micro), None
