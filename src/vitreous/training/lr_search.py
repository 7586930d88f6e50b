"""The learning rate, chosen among several: each trains on most of the training images and is measured on the rest."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf, isnan
from pathlib import Path
from signal import SIGINT

import torch

from vitreous.data.dataset import DataSet, Subset
from vitreous.data.splits import stratified_split
from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Result
from vitreous.training import durations
from vitreous.training.config import TrainConfig
from vitreous.training.defaults import Choice
from vitreous.training.distributed import World
from vitreous.training.loop import DivergenceError, format_metric
from vitreous.training.plan import Plan
from vitreous.training.run_directory import RunDirectory
from vitreous.training.signals import Stopped
from vitreous.utils.environment import program
from vitreous.utils.progress import ProgressReporter

Run = Callable[[DataSet, TrainConfig, RunDirectory], Result | None]
"""Begin a run in a folder, or go on with it; what it reached on the validation images."""


@dataclass(frozen=True)
class CandidateResult:
    """A learning rate, and what it reached on the development split."""

    lr: float
    steps: int
    images: int  # of the split
    metric: str
    value: float | None = None
    loss: float | None = None
    failure: str = ""  # where it did not come to an end

    @property
    def rank(self) -> tuple[float, float]:
        """The higher the better; of equal ones the smaller loss decides."""
        if self.value is None or isnan(self.value):
            return -inf, -inf
        loss = inf if self.loss is None or isnan(self.loss) else self.loss
        return (-self.value if self.metric == "loss" else self.value), -loss

    def __str__(self) -> str:
        return (
            f"{self.lr:g}: {format_metric(self.metric, self.value)}" if not self.failure else f"{self.lr:g}: diverged"
        )


def development_split(data: DataSet, config: TrainConfig) -> DataSet:
    """The training images alone: most of them to train with, and some to choose by."""
    fraction, seed = config.finetuning.dev_fraction or 0.0, config.reading.split_seed
    kept, aside = stratified_split(data.train.labels, fraction, seed)
    if not len(aside):
        raise VitreousError(
            f"the development split to choose the learning rate by would be empty: each class of the"
            f" {len(data.train):,} training images has one; add images, or give one lr"
        )
    how = f"{100 * fraction:.3g}% of train, stratified, seed {seed}"
    train, dev = Subset(data.train, kept), Subset(data.train, aside)
    return DataSet(data.name, data.classes, data.channels, train, dev, split=how)


def candidate_config(made: Plan, rate: float) -> TrainConfig:
    """The config of a run that tries one of the learning rates: the same run, all of it or a part."""
    config, wish = made.config, made.config.finetuning.candidate_duration
    steps = _steps(made, wish, "candidate_duration")
    if not 0 < steps <= made.steps:
        raise VitreousError(f"candidate_duration = {wish!r}: expected some of the {made.steps:,} steps of the run")
    warmup = _steps(made, config.schedule.warmup or "0%", "warmup")
    return config.with_(
        lr=rate,
        lr_candidates=None,
        dev_fraction=None,
        candidate_duration="100%",
        duration=f"{steps} steps",
        warmup=f"{round(warmup * steps / made.steps)} steps",
        evaluate_every="100%",  # of the run: as the run itself, it is judged by where it ends
        patience=None,
        tensorboard=False,
        wandb=None,
        compare_with=None,
        profile=False,
        out=None,
    )


def _steps(made: Plan, duration: str, name: str) -> int:
    images, total = made.facts.images, made.steps
    return durations.duration_steps(duration, batch_size=made.batch_size, images=images, total_steps=total, name=name)


def search_learning_rate(
    data: DataSet, made: Plan, folder: RunDirectory, run: Run, reporter: ProgressReporter, world: World
) -> Choice:
    """Try what was not tried before. What each reached is written to the run's config.json when it is known."""
    part = development_split(data, made.config)
    assert part.val is not None
    metric = made.config.run.best_by or "top1"
    for rate in made.lr_candidates:
        world.barrier()
        if rate in {one.lr for one in finished_candidates(folder)}:
            continue
        config, place = candidate_config(made, rate), RunDirectory(folder.path / "candidates" / f"lr-{rate!r}")
        facts = (rate, int((config.schedule.duration or "").split()[0]), len(part.val), metric)
        reporter.note(f"trying lr {rate:g} on all but {facts[2]:,} training images, for {_counted(facts[1])}")
        try:
            result = run(part, config, place)
            found = (
                CandidateResult(*facts, result.summary().get(metric), result.loss)
                if result
                else CandidateResult(*facts)
            )
        except DivergenceError as error:
            found = CandidateResult(*facts, failure=str(error))
        except KeyboardInterrupt as stop:
            again = f"{program()} train --resume {folder.path}"
            number = stop.number if isinstance(stop, Stopped) else SIGINT
            raise Stopped(f"stopped while trying lr {rate:g}; to go on: {again}", number) from None
        if world.is_main:
            folder.write_description(
                {**folder.description(), "rates": [asdict(one) for one in (*finished_candidates(folder), found)]}
            )
            _clear(place.path)
        _free(made.device)
    world.barrier()
    return _choose_best(finished_candidates(folder))


def finished_candidates(folder: RunDirectory) -> list[CandidateResult]:
    try:
        return [CandidateResult(**one) for one in folder.description().get("rates", [])]
    except TypeError as error:
        raise VitreousError(f"{folder.path / 'config.json'}: rates are damaged ({error})") from error


def _choose_best(found: list[CandidateResult]) -> Choice:
    best = max(found, key=lambda one: one.rank)
    if best.failure or best.value is None:
        raise VitreousError(
            f"none of the learning rates {', '.join(f'{one.lr:g}' for one in found)} came to an end on the development"
            f" split: {best.failure or 'its metric is not defined there'}; try lower lr_candidates in a new run"
        )
    length = f"{best.metric} on {best.images:,} development images after {_counted(best.steps)} each"
    return Choice("lr", best.lr, f"the best of {', '.join(map(str, found))}; {length}")


def _counted(steps: int) -> str:
    return f"{steps:,} steps" if steps != 1 else "1 step"


def _free(device: torch.device) -> None:
    """What the next run takes, and how much of it, goes by what is free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _clear(run: Path) -> None:
    """Its weights are of no use any more; its curve and its report may be."""
    shutil.rmtree(run / "state", ignore_errors=True)
    for weights in run.glob("*.safetensors"):
        weights.unlink()
