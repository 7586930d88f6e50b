"""The end of a run: evaluate its weights, state how they were selected, and write the result and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitreous.data.dataset import DataSet
from vitreous.data.loading import EvalLoader
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluate import score
from vitreous.evaluation.evaluation_images import find_unseen
from vitreous.evaluation.extremes import Example, Extremes
from vitreous.evaluation.metrics import Result, Scores
from vitreous.evaluation.training_images import SeenImages
from vitreous.models import VisionTransformer
from vitreous.models.base import Model
from vitreous.models.custom import CustomConfig
from vitreous.models.masked import from_encoder
from vitreous.reports.masked_pictures import MaskedPicture
from vitreous.training import legs, lr_search, state
from vitreous.training.advice import give_advice
from vitreous.training.distributed import World
from vitreous.training.log_format import format_metric
from vitreous.training.loop import TrainingLoop
from vitreous.training.masked_patches import evaluate_patches, masked_pictures, patch_targets
from vitreous.training.optim.patch_targets import PatchLoss
from vitreous.training.outcome import Outcome, write_outcome
from vitreous.training.run_report import print_outcome, write_run_report
from vitreous.utils.environment import program
from vitreous.weights.custom import load_custom
from vitreous.weights.load import load

EXAMPLES = 12  # best and worst predictions in the report


def finish_run(data: DataSet, loop: TrainingLoop) -> Outcome:
    """Evaluate the weights, and write the report and result.json.

    With a test split, best.safetensors is evaluated on it. Without one, last.safetensors is evaluated on the validation
    images: they selected best.safetensors, so that its accuracy on them would be too high.
    """
    plan, loaders, directory, reporter = loop.plan, loop.loaders, loop.directory, loop.reporter
    split = "test" if loaders.test is not None else "val" if loaders.val is not None else "train"
    loader, remarks = _select_images(data, loop, split)
    result: Result | None = None
    examples: tuple[list[Example], list[Example]] = ([], [])
    pictures: list[MaskedPicture] = []
    loop.world.barrier()  # the main process has written the weights
    if loader is not None and loop.world.is_main:
        path = directory.best if split == "test" else directory.last
        if state.file_digest(path) != loop.progress.weights[path.name]:
            raise VitreousError(
                f"{path} was changed after it was written; {program()} train --resume {directory.path} restores it"
            )
        everywhere = replace(loader, rank=0, ranks=1)
        if plan.config.masks_patches:
            result, pictures = _evaluate_patch_file(path, everywhere, loop, split)
        else:
            result, examples = _evaluate_file(path, everywhere, loop, split)
    run_legs = legs.read_legs(directory.description())
    best_leg = loop.progress.best.leg if loop.progress.best else None
    selection = (*_describe_selection(loop, split), *legs.describe_legs(run_legs, best_leg, split), *remarks)
    outcome = Outcome(directory.path, split, result, loop.progress.step, loop.progress.seconds, selection, run_legs)
    if loop.world.is_main:
        advice = give_advice(data, plan, directory.description(), outcome, directory.records(), examples[1])
        source = loader.source if loader else data.train
        write_run_report(data, plan, directory, outcome, examples, source, advice, pictures)
        write_outcome(directory, outcome, loop.progress.best)
        directory.complete()
        print_outcome(plan, directory, outcome, reporter, advice)
    return outcome


def _select_images(data: DataSet, loop: TrainingLoop, split: str) -> tuple[EvalLoader | None, tuple[str, ...]]:
    """The images of the result, and remarks on copies of training images among them. Copies are left out of a split
    that was held out from the training images; a stored split is used completely, so that results can be compared."""
    loader, digests = loop.loaders.test or loop.loaders.val, loop.loaders.digests.get(split)
    seen = SeenImages.read(loop.directory.path)
    if loader is None or seen is None or digests is None:
        return loader, ()
    if split == "val":
        seen = replace(seen, val=seen.val[:0])
    unseen = find_unseen(seen, digests, leave_out=split in data.held_out)
    left_out = (f"left out of the {split} images: copies of {unseen.left_out}",) if unseen.left_out else ()
    return replace(loader, keep=unseen.keep), (*left_out, *(f"WARNING: {text}" for text in unseen.warnings))


def _evaluate_file(
    path: Path, loader: EvalLoader, loop: TrainingLoop, split: str
) -> tuple[Result, tuple[list[Example], list[Example]]]:
    """Evaluate the file of the weights in fp32, as a user who loads it would."""
    plan, loss, own = loop.plan, loop.eval_loss, loop.plan.facts.parts.model
    if own is not None and isinstance(plan.model, CustomConfig):
        model: Model = load_custom(path, own.source, plan.device)
    else:
        model = load(path, device=plan.device)
    scores = Scores(plan.facts.classes, plan.facts.multi_label, plan.device, loss.sigmoid)
    extremes = Extremes(EXAMPLES, plan.facts.multi_label, loss.sigmoid)
    with loop.reporter.bar(f"evaluating on {split}", len(loader.indices)) as advance:
        score(model, loader, loss, scores, extremes, advance)
    return scores.result(), extremes.result()


def _evaluate_patch_file(
    path: Path, loader: EvalLoader, loop: TrainingLoop, split: str
) -> tuple[Result, list[MaskedPicture]]:
    """Evaluate the file of a masked-patch pre-training in fp32, and draw some of its predictions."""
    config, encoder = loop.plan.config, load(path, device=loop.plan.device)
    assert isinstance(encoder, VisionTransformer)
    assert isinstance(loop.eval_loss, PatchLoss)
    model, targets = from_encoder(encoder, config.objective.mask_ratio), patch_targets(config, encoder.config)
    with loop.reporter.bar(f"evaluating on {split}", len(loader.indices)) as advance:
        result = evaluate_patches(model, model, loader, targets, loop.eval_loss, World(), advance)
    return result, masked_pictures(model, loader, targets)


def _describe_selection(loop: TrainingLoop, split: str) -> tuple[str, ...]:
    """How the evaluated weights, best.safetensors and the learning rate were selected: one sentence each.

    A sentence about a file starts with its name: `vitreous.evaluation.training_images` finds it by that.
    """
    best, loaders, config = loop.progress.best, loop.loaders, loop.plan.config
    learning_rate = _describe_learning_rate(loop)
    if best is None:
        averaged = ", averaged by EMA" if config.optimiser.ema else ""
        return (
            f"best.safetensors, the weights of the last step{averaged}; not selected with validation images",
            *learning_rate,
        )
    assert loaders.val is not None
    count = sum(record.get("kind") == "eval" for record in loop.directory.records())
    count += sum(leg.dropped_evaluations for leg in legs.read_legs(loop.directory.description()))
    metric = config.run.best_by or "top1"
    kind = "EMA weights" if best.weights == "ema" else "weights"
    evaluations = f"the best of {count} evaluations on" if count > 1 else "evaluated once on"
    everywhere = replace(loaders.val, rank=0, ranks=1)  # the images of all processes
    images = f"{len(everywhere.indices):,} validation images"
    how = f"{kind} of step {best.step:,}, selected by {metric}: {evaluations} {images}"
    if split == "test":
        return (f"best.safetensors, the {how}; not selected with the test images", *learning_rate)
    stopped_early = ", which also decided when to stop" if loop.progress.step < loop.plan.steps else ""
    return (
        f"last.safetensors, the weights of the last step, not selected with these images{stopped_early}",
        f"best.safetensors holds the {how} ({format_metric(metric, best.value)}); these images selected the weights, so"
        f" expect a {'higher' if metric == 'loss' else 'lower'} value on new images",
        *learning_rate,
    )


def _describe_learning_rate(loop: TrainingLoop) -> tuple[str, ...]:
    config = loop.plan.config
    candidates = lr_search.finished_candidates(loop.directory) if config.finetuning.lr_candidates else []
    if not candidates:
        return ()
    best = f"the best of {len(candidates)} on {candidates[0].images:,} development images, taken from train"
    return (f"learning rate {config.optimiser.lr:g}: {best}",)
