"""Checks of the settings of a run: values out of range, contradictions, and options that would have no effect.

An option that has no effect is an error if the user gave it against another setting. It is a note if a recipe or a
default may have set it, or if the run is still the one that was requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from vitreous.data.dataset import DataSet
from vitreous.errors import VitreousError, format_count
from vitreous.models.custom import AnyModel
from vitreous.training.config import Finetuning, Optimiser, TrainConfig
from vitreous.training.distributed import World
from vitreous.training.optim.parameters import matching_names, muon_matrices, takes_weight_decay
from vitreous.utils.import_path import is_user_code
from vitreous.utils.limits import MAX_COUNT, MAX_WORKERS, SEED_LIMIT

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
    "mask_ratio": (lambda x: 0 < x < 1, "a fraction of the patches, above 0 and below 1"),
    "dev_fraction": (lambda x: 0 < x < 1, "a fraction of the training images, above 0 and below 1"),
    "lr_candidates": (lambda x: len(x) > 1 and all(0 < rate < math.inf for rate in x), "two positive numbers or more"),
    "ema": (lambda x: 0 <= x < 1, "a decay, 0 to below 1"),
    "patience": (lambda x: x >= 1, "1 or more evaluations"),
    "save_minutes": (lambda x: x > 0, "more than 0"),
    "seed": (lambda x: 0 <= x < SEED_LIMIT, "0 or more, and below 2**62"),
    "split_seed": (lambda x: -SEED_LIMIT < x < SEED_LIMIT, "a number below 2**62"),
    "wandb": (lambda x: x.strip() != "", "the name of a project"),
}


def check_config(config: TrainConfig, data: DataSet, world: World) -> None:
    """Raise an error for a value out of its range, or one that does not fit the data or the other settings."""
    values = config.flat()
    for name, (is_valid, expected) in RANGES.items():
        if values[name] is not None and not is_valid(values[name]):
            raise VitreousError(f"{name} = {values[name]!r}: expected {expected}")
    _check_batch(config, world)
    best_by, classes = config.run.best_by, len(data.classes)
    if data.multi_label and best_by not in ("map", "loss"):
        raise VitreousError(f"best_by = {best_by!r}: images have several labels; use map or loss")
    if data.classes and not data.multi_label and (best_by == "map" or (best_by == "top5" and classes < 6)):
        raise VitreousError(f"best_by = {best_by!r}: images have one of {classes} labels; use top1, balanced or loss")
    if config.reading.balanced and config.objective.class_weights == "balanced":
        raise VitreousError("balanced and class_weights: both compensate for rare classes; use one of them")
    if data.val is None and config.run.patience is not None:
        raise VitreousError("patience: there are no validation images (val_fraction = 0)")
    if data.val is None and config.run.evaluate_every is not None:
        raise VitreousError("evaluate_every: there are no validation images (val_fraction = 0)")


def _check_batch(config: TrainConfig, world: World) -> None:
    batch, micro = config.schedule.batch_size or 0, config.schedule.micro_batch
    if batch % world.size:
        raise VitreousError(f"batch_size = {batch}: expected a multiple of the {world.size} processes")
    if micro is not None and micro > batch:
        raise VitreousError(f"micro_batch = {micro}: larger than batch_size = {batch}")
    if mixes_pairs(config) and world.size > 1 and batch // world.size % 2:
        raise VitreousError(
            f"batch_size = {batch}: mixup and cutmix mix pairs of images, so each of the {world.size} processes needs"
            " an even number of images"
        )


def mixes_pairs(config: TrainConfig) -> bool:
    """Whether mixup or CutMix is on: then a pass needs an even number of images."""
    return bool(config.augmentation.mixup or config.augmentation.cutmix)


def check_unused_options(given: TrainConfig, config: TrainConfig, data: DataSet) -> None:
    """Raise an error for options that would have no effect. `config`: `given` with defaults chosen from the data."""
    requested, augmentation, tuning = given.augmentation, config.augmentation, given.finetuning
    own_model = is_user_code(config.architecture.model)
    _check_own_code(given, config)
    if given.optimiser.lr is not None and tuning.lr_candidates:
        raise VitreousError("lr and lr_candidates: give one learning rate, or several to select from")
    if given.schedule.budget is not None and given.schedule.duration is not None:
        both = f"budget = {given.schedule.budget!r} and duration = {given.schedule.duration!r}"
        raise VitreousError(f"{both}: give the time or the length of the run, not both; a recipe may set the length")
    for name in ("dev_fraction", "candidate_duration"):
        if getattr(tuning, name) != getattr(Finetuning(), name) and not config.finetuning.lr_candidates:
            raise VitreousError(f"{name}: has no effect without lr_candidates")
    if given.architecture.start is None and given.architecture.preprocessing is not None and not own_model:
        raise VitreousError("preprocessing: describes the weights to start from, and none are given (--from)")
    if given.architecture.start is None and (tuning.lora or tuning.rules == "paper"):
        option = f"lora = {tuning.lora}" if tuning.lora else "rules = 'paper'"
        raise VitreousError(f"{option}: adapts the weights to start from, and none are given (--from)")
    if requested.magnitude and augmentation.randaugment == 0:
        raise VitreousError(
            f"magnitude = {requested.magnitude}: has no effect, since randaugment = 0 (RandAugment is off)"
        )
    if (requested.aspect or 1) != 1 and augmentation.crop == 1:
        raise VitreousError(f"aspect = {requested.aspect}: has no effect, since crop = 1 (there are no crops)")
    if given.run.best_by is not None and data.val is None and not config.finetuning.lr_candidates:
        raise VitreousError("best_by: there are no validation images to select by (val_fraction = 0)")


def _check_own_code(given: TrainConfig, config: TrainConfig) -> None:
    """Raise an error for options that the user's own model or loss does not use."""
    if is_user_code(config.objective.loss):
        for name in ("label_smoothing", "class_weights"):
            if getattr(config.objective, name) not in (0, "none"):
                raise VitreousError(f"{name} = {getattr(given.objective, name)}: has no effect on a loss of your own")


def unused_option_notes(
    given: TrainConfig, config: TrainConfig, data: DataSet, model: AnyModel, evaluations: int
) -> Iterator[str]:
    """Notes about options that have no effect in this run. `model`: with adapters, and frozen as in training."""
    yield from _unused_optimiser_options(given, config, model)
    patience = config.run.patience
    if patience is not None and patience >= evaluations - 1:
        count = format_count(evaluations, "evaluation")
        yield f"patience = {patience} has no effect: the run has {count}, too few to stop before the end"
    held_out = data.held_out or config.finetuning.lr_candidates or config.reading.train_fraction is not None
    if config.reading.split_seed != 0 and not held_out and data.val is None:
        yield f"split_seed = {config.reading.split_seed} has no effect: no split is held out from train"
    if config.schedule.batch_size == 1 and mixes_pairs(config):
        yield "mixup and cutmix have no effect: they mix pairs of images, and batch_size = 1"
    micro = config.schedule.micro_batch
    if micro is not None and micro % 2 and mixes_pairs(config) and config.schedule.batch_size != 1:
        yield f"micro_batch = {micro}: passes have {micro + 1} images, since mixup and cutmix mix pairs"


def _unused_optimiser_options(given: TrainConfig, config: TrainConfig, model: AnyModel) -> Iterator[str]:
    options = config.optimiser
    names = {name for name, _ in model.named_parameters()}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if config.finetuning.lora:
        adapters = {name for name in names if "lora_" in name or name.startswith("head.")}
        for pattern in options.freeze:
            if not adapters & matching_names(pattern, names):
                yield f"freeze = {pattern} has no effect: with lora, only the adapters and the head are trained"
    if options.layer_decay != 1 and all(name.startswith("head.") for name in trained):
        yield f"layer_decay = {options.layer_decay:g} has no effect: only the head is trained, which has the full rate"
    if given.optimiser.weight_decay and not any(takes_weight_decay(name, p) for name, p in trained.items()):
        yield f"weight_decay = {options.weight_decay:g} has no effect: it is for weight matrices, and none is trained"
    if options.optimiser == "muon" and trained.keys() <= muon_matrices(model).keys():
        unused = {"lr": given.optimiser.lr is not None, "betas": options.betas != Optimiser().betas}
        for name in (name for name, is_given in unused.items() if is_given):
            yield f"{name} = {getattr(options, name)} has no effect: Muon trains all parameters that are not frozen"
