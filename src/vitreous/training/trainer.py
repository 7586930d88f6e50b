"""Build the engine of a run from its plan, train to the end, and evaluate the result."""

from __future__ import annotations

from signal import SIGINT

import torch
from torch import Tensor

from vitreous.data.dataset import DataSet
from vitreous.errors import VitreousError
from vitreous.models.masked import patch_tensors
from vitreous.training import legs, lora, state
from vitreous.training.engine import BatchPreparation, Engine
from vitreous.training.final_evaluation import finish_run
from vitreous.training.loaders import RunLoaders
from vitreous.training.loop import TrainingLoop
from vitreous.training.masked_patches import patch_targets
from vitreous.training.metric_loggers import MetricLogger, TensorBoardLogger, WandbLogger
from vitreous.training.optim.ema import Ema
from vitreous.training.outcome import Outcome
from vitreous.training.plan import Plan
from vitreous.training.run_directory import RunDirectory
from vitreous.training.signals import Stopped
from vitreous.training.user_parts import build_initial_model, build_run_loss, build_run_optimisers, user_augment
from vitreous.utils.device import float64_device
from vitreous.utils.environment import program
from vitreous.utils.torch_settings import seed
from vitreous.weights.tensor_map import State


def build_engine(data: DataSet, plan: Plan, loaders: RunLoaders, weights: State | None = None) -> Engine:
    """Model, loss, optimisers and EMA of a run, before its first step. `weights`: the initial weights, if not random;
    the dict is emptied, to free the memory."""
    config = plan.config
    seed(config.run.seed, plan.device)
    parts = plan.facts.parts
    # Initialised on the CPU, so that all devices start from the same weights.
    model = build_initial_model(plan.model, parts, config)
    if weights:
        missing = patch_tensors(model.state_dict())  # weights of another pre-training do not have these
        model.load_state_dict({**missing, **weights})
        weights.clear()
    lora.add_adapters_(model, config.finetuning)
    model.preprocessing, model.labels, model.multi_label = plan.preprocessing, data.classes, data.multi_label
    model.to(plan.device)
    loss = build_run_loss(config, parts, data.train.labels, data.multi_label, plan.facts.classes, plan.device)
    mean, std = _mean_and_std(plan)
    engine = Engine(
        model,
        loss,
        BatchPreparation(
            loaders.train.cropper,
            config.augmentation,
            mean,
            std,
            loss,
            user_augment(config, parts),
            patch_targets(config, plan.model) if config.masks_patches else None,
        ),
        build_run_optimisers(model, config.optimiser, parts),
        Ema(model, config.optimiser.ema) if config.optimiser.ema else None,
        config.optimiser.clip,
        plan.micro_batch,
        plan.precision,
    )
    if config.run.compile == "yes" or (config.run.compile == "auto" and plan.device.type == "cuda"):
        engine.compile()
    return engine


def _mean_and_std(plan: Plan) -> list[Tensor]:
    """Mean and standard deviation of the preprocessing, (channels, 1, 1) on the device that prepares batches."""
    values = (plan.preprocessing.mean, plan.preprocessing.std)
    return [torch.tensor(numbers, device=float64_device(plan.device)).view(-1, 1, 1) for numbers in values]


def train_to_end(data: DataSet, loop: TrainingLoop, resumed: bool) -> Outcome:
    """Train from the first step, or the last saved state, to the end; evaluate the weights and write the report."""
    if resumed:
        _restore(loop)
    try:
        loop.metric_loggers = _open_loggers(loop.plan, loop.directory, loop.progress.step) if loop.world.is_main else []
    except VitreousError:
        if not resumed and not loop.plan.config.finetuning.lr_candidates:  # keep the results of a learning-rate search
            loop.directory.discard()
        raise
    try:
        loop.run()
    finally:
        for logger in loop.metric_loggers:
            logger.close()
    try:
        return finish_run(data, loop)
    except KeyboardInterrupt as stop:
        command = f"{program()} train --resume {loop.directory.path}"
        number = stop.number if isinstance(stop, Stopped) else SIGINT
        raise Stopped(f"stopped after training, during the final evaluation; to finish: {command}", number) from None


def _restore(loop: TrainingLoop) -> None:
    """Restore the newest saved state, and remove later lines from the log."""
    directory, reporter = loop.directory, loop.reporter
    if not state.list_states(directory.state):
        reporter.note("no state was saved before the run was interrupted: starting from the beginning")
        loop.progress.leg = legs.leg_number(directory)
        if loop.world.is_main:
            directory.rewind(-1, -1)
        return
    path, progress, best = legs.find_start_state(directory)
    loop.restore(path, progress, best)
    if loop.world.is_main:
        (directory.path / "bad_batch.txt").unlink(missing_ok=True)  # of a divergence before this state
        directory.rewind(progress.step, progress.evaluated)
        for text in (*legs.current_change(directory, progress.step), f"resumed from {path.name}"):
            directory.record({"kind": "event", "step": progress.step, "text": text})
    reporter.note(f"continuing from step {loop.progress.step:,} of {loop.plan.steps:,}")


def _open_loggers(plan: Plan, directory: RunDirectory, step: int) -> list[MetricLogger]:
    loggers: list[MetricLogger] = []
    if plan.config.run.tensorboard:
        loggers.append(TensorBoardLogger(directory.path, step))
    if plan.config.run.wandb:
        loggers.append(WandbLogger(plan.config.run.wandb, directory.path, plan.config.flat()))
    return loggers
