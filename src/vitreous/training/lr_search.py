"""Learning-rate search: train each candidate on part of the training images, and evaluate it on the rest."""

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
from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.metrics import Result
from vitreous.training import durations
from vitreous.training.config import TrainConfig
from vitreous.training.defaults import FROM_SCRATCH, Choice
from vitreous.training.distributed import World
from vitreous.training.log_format import format_metric
from vitreous.training.loop import DivergenceError
from vitreous.training.plan import Plan
from vitreous.training.run_directory import RunDirectory
from vitreous.training.signals import Stopped
from vitreous.utils.environment import program
from vitreous.utils.progress import ProgressReporter

RunCandidate = Callable[[DataSet, TrainConfig, RunDirectory], Result | None]
"""Start or continue the run of a candidate in its directory, and return its result on the development split."""


@dataclass(frozen=True)
class CandidateResult:
    """A learning rate and its result on the development split. The names of the fields are those in config.json."""

    lr: float
    steps: int
    images: int  # in the development split
    metric: str
    value: float | None = None
    loss: float | None = None
    failure: str = ""  # the error, if training diverged

    @property
    def rank(self) -> tuple[float, float]:
        """Higher is better. The lower loss decides between equal values."""
        if self.value is None or isnan(self.value):
            return -inf, -inf
        loss = inf if self.loss is None or isnan(self.loss) else self.loss
        return (-self.value if self.metric == "loss" else self.value), -loss

    def __str__(self) -> str:
        return f"{self.lr:g}: {'diverged' if self.failure else format_metric(self.metric, self.value)}"


def candidate_splits(data: DataSet, config: TrainConfig) -> DataSet:
    """Split the training images: most of them to train each candidate, the others to select the best."""
    fraction, seed = config.finetuning.dev_fraction or 0.0, config.reading.split_seed
    kept, held_out = stratified_split(data.train.labels, fraction, seed)
    if not len(held_out):
        raise VitreousError(
            f"the development split for selecting the learning rate would be empty: each class of the"
            f" {len(data.train):,} training images has one image; add images, or give one lr"
        )
    how = f"{100 * fraction:.3g}% of train, stratified, seed {seed}"
    train, dev = Subset(data.train, kept), Subset(data.train, held_out)
    return DataSet(data.name, data.classes, data.channels, train, dev, split=how)


def candidate_config(plan: Plan, lr: float) -> TrainConfig:
    """Return the config of the run of a candidate: that of the run itself, perhaps shortened."""
    config, duration = plan.config, plan.config.finetuning.candidate_duration
    steps = _steps(plan, duration, "candidate_duration")
    if not 0 < steps <= plan.steps:
        raise VitreousError(f"candidate_duration = {duration!r}: expected 1 to {plan.steps:,} steps, those of the run")
    warmup = _steps(plan, config.schedule.warmup or "0%", "warmup")
    return config.with_(
        start=config.architecture.start or FROM_SCRATCH,
        lr=lr,
        lr_candidates=None,
        dev_fraction=None,
        candidate_duration="100%",
        duration=f"{steps} steps",
        warmup=f"{round(warmup * steps / plan.steps)} steps",
        evaluate_every="100%",  # the final weights are compared
        patience=None,
        tensorboard=False,
        wandb=None,
        compare_with=(),
        profile=False,
        out=None,
    )


def _steps(plan: Plan, duration: str, name: str) -> int:
    return durations.duration_steps(
        duration, batch_size=plan.batch_size, images=plan.facts.images, total_steps=plan.steps, name=name
    )


def search_learning_rate(
    data: DataSet,
    plan: Plan,
    directory: RunDirectory,
    run_candidate: RunCandidate,
    reporter: ProgressReporter,
    world: World,
) -> Choice:
    """Run each candidate that has not finished, and return the best. Each result is stored in config.json at once."""
    part = candidate_splits(data, plan.config)
    assert part.val is not None
    metric = plan.config.run.best_by or "top1"
    for lr in plan.lr_candidates:
        world.barrier()
        if lr in {result.lr for result in finished_candidates(directory)}:
            continue
        config, place = candidate_config(plan, lr), RunDirectory(directory.path / "candidates" / f"lr-{lr!r}")
        steps, images = int((config.schedule.duration or "").split()[0]), len(part.val)
        length = format_count(steps, "step")
        reporter.note(f"trying lr {lr:g} for {length}, with {images:,} training images held out")
        new = CandidateResult(lr, steps, images, metric)
        try:
            result = run_candidate(part, config, place)
            if result is not None:
                new = CandidateResult(lr, steps, images, metric, result.summary().get(metric), result.loss)
        except DivergenceError as error:
            new = CandidateResult(lr, steps, images, metric, failure=str(error))
        except KeyboardInterrupt as stop:
            command = f"{program()} train --resume {directory.path}"
            number = stop.number if isinstance(stop, Stopped) else SIGINT
            raise Stopped(f"stopped while trying lr {lr:g}; to continue: {command}", number) from None
        if world.is_main:
            results = [asdict(result) for result in (*finished_candidates(directory), new)]
            directory.write_description({**directory.description(), "rates": results})
            _remove_weights(place.path)
        _free_memory(plan.device)
    world.barrier()
    return _choose_best(finished_candidates(directory))


def finished_candidates(directory: RunDirectory) -> list[CandidateResult]:
    """Read the results of the candidates that have finished."""
    try:
        return [CandidateResult(**values) for values in directory.description().get("rates", [])]
    except TypeError as error:
        raise VitreousError(f"{directory.path / 'config.json'}: rates are damaged ({error})") from error


def _choose_best(results: list[CandidateResult]) -> Choice:
    best = max(results, key=lambda result: result.rank)
    if best.failure or best.value is None:
        raise VitreousError(
            f"none of the learning rates {', '.join(f'{result.lr:g}' for result in results)} finished with a result on"
            f" the development split: {best.failure or 'its metric is undefined there'}; try lower lr_candidates in a"
            " new run"
        )
    length = f"{best.metric} on {best.images:,} development images after {format_count(best.steps, 'step')} each"
    return Choice("lr", best.lr, f"the best of {', '.join(map(str, results))}; {length}")


def _free_memory(device: torch.device) -> None:
    """Free the memory of a candidate: the next run chooses its micro-batch and cache by the free memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _remove_weights(run: Path) -> None:
    """Remove weights and states of a candidate. Its metrics and report are kept."""
    shutil.rmtree(run / "state", ignore_errors=True)
    for weights in run.glob("*.safetensors"):
        weights.unlink()
