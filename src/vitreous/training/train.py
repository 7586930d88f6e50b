"""`vitreous.train` and `vitreous.resume`: from data to a run directory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from signal import SIGINT
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous import __version__
from vitreous.data.dataset import DataSet, Source
from vitreous.data.digests import UNREADABLE
from vitreous.data.open_data import absolute_data_path, open_data
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluate import score
from vitreous.evaluation.extremes import Example, Extremes
from vitreous.evaluation.metrics import Result, Scores, format_interval, result_from_json
from vitreous.evaluation.training_images import SeenImages, training_images_of
from vitreous.models.checks import pair
from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.models.zoo import build
from vitreous.reports.run_summary import RunSummary
from vitreous.reports.training_report import ExampleImage, TrainingReport, write_report
from vitreous.training import initial_weights, lora, lr_search, other_run, state
from vitreous.training.config import TrainConfig
from vitreous.training.distributed import World
from vitreous.training.engine import BatchPreparation, Engine
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.loaders import RunLoaders, build_loaders
from vitreous.training.loop import TrainingLoop, format_metric
from vitreous.training.metric_loggers import MetricLogger, TensorBoardLogger, WandbLogger
from vitreous.training.optim import losses, optimisers
from vitreous.training.optim.ema import Ema
from vitreous.training.optim.losses import Loss
from vitreous.training.plan import Plan, make_plan
from vitreous.training.run_directory import RunDirectory
from vitreous.training.signals import Stopped
from vitreous.utils import html
from vitreous.utils.atomic import atomic_file
from vitreous.utils.environment import command, environment, program
from vitreous.utils.json_files import dump_json, read_json
from vitreous.utils.memory import free_memory, size_text
from vitreous.utils.progress import ProgressReporter, format_duration
from vitreous.utils.torch_settings import run_settings, seed, set_threads
from vitreous.weights.load import load
from vitreous.weights.tensor_map import State

INVITATION = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Not yet</title>
<body style="font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem">
<p>Nobody has looked into this model yet. This makes the page:</p><pre>{command}</pre></body></html>
"""
SHOWN = 12  # best and worst predictions in the report
FREE = ("workers", "device", "max_bad", "save_minutes", "tensorboard", "wandb", "compare_with", "profile", "data_dir")
"""Fields that may be others when a run is resumed: none changes what it computes. Any device of the same kind."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    run: Path
    split: str  # that it was measured on: test, or val where there is none
    result: Result | None
    steps: int
    seconds: float
    selection: tuple[str, ...] = ()  # how the weights that were measured, and those of `best`, were selected


def train(
    data: str | os.PathLike[str],
    config: TrainConfig | None = None,
    *,
    quiet: bool = False,
    overwrite: bool = False,
    **fields: Any,
) -> Outcome:
    """Train a model on images, and leave a run directory behind: `train("photos", model="S/16", lr=1e-3)`.

    `fields` are those of TrainConfig, by the names that the command line has for them; they change `config`. What is
    left open is chosen by the data. `overwrite`: the run directory `out` may be that of an earlier run, which is kept
    as OUT.replaced until the new run is complete.
    """
    config = TrainConfig.from_flat({**(config or TrainConfig()).flat(), **fields})
    world = World.current()
    name, reporter = os.fspath(data), ProgressReporter(quiet or not world.is_main)
    if world.size > 1 and config.run.out is None:
        raise VitreousError("out: several processes have to be told of one run directory")
    with run_settings(config.run.device, config.run.deterministic):
        opened = open_data(name, config.reading)
        folder = RunDirectory.for_new_run(config.run.out, opened.name, overwrite)
        return _begin(opened, absolute_data_path(name), config, folder, reporter, world)


def _begin(
    opened: DataSet, source: str, config: TrainConfig, folder: RunDirectory, reporter: ProgressReporter, world: World
) -> Outcome:
    if config.run.compare_with is not None:
        other_run.open_other_run(config.run.compare_with, opened.classes, folder)
    start, weights = _beginning(config, opened)
    made = make_plan(opened, config, world, start)
    _introduce(opened, made, reporter)
    description = {
        "vitreous": __version__,
        "data": source,
        "config": _stored(made.config).flat(),
        "choices": [asdict(choice) for choice in made.choices],
        "start": start.to_json() if start else None,
        "classes": list(opened.classes),
        "split": opened.split,
        "fingerprint": fingerprint(opened),
        "threads": torch.get_num_threads(),
        "command": command(),
        "environment": environment(made.device),
    }
    # Whatever can still be wrong is wrong before anything is written.
    if made.lr_candidates:
        make_plan(
            lr_search.development_split(opened, made.config),
            lr_search.candidate_config(made, max(made.lr_candidates)),
            world,
            start,
        )
        _create(folder, description, reporter, world)
        with folder.locked(world.is_main):
            return _choose_and_train(opened, made, folder, weights, reporter, world)
    fed = build_loaders(opened, made, world, reporter)
    engine = _engine(opened, made, fed, weights)
    _create(folder, {**description, "config": _stored(made.config, fed).flat()}, reporter, world)
    with folder.locked(world.is_main):
        _remember_images(folder, fed, made.config, world)
        _tell_bad(fed, folder, reporter, world)
        return _carry_out(opened, TrainingLoop(made, fed, engine, folder, reporter, world), resumed=False)


def _create(folder: RunDirectory, description: dict[str, Any], reporter: ProgressReporter, world: World) -> None:
    if world.is_main:
        folder.create(description)
        if folder.overwrite:
            reporter.note(f"the earlier run in {folder.path} is kept as {folder.replaced} until this one is complete")


def resume(
    run: str | os.PathLike[str],
    config: TrainConfig | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> Outcome:
    """Go on with a run exactly where its last state left it.

    `config`: what is asked for now; where it disagrees with the run, that is an error which lists the differences.
    `data`: where the images are now, if they have moved.
    """
    folder, world = RunDirectory.open(run), World.current()
    reporter = ProgressReporter(quiet or not world.is_main)
    description = folder.description()
    stored = TrainConfig.from_flat(description["config"])
    config = config or stored
    _compare(stored, config, folder)
    if (folder.path / "result.json").is_file():
        reporter.note(f"{folder.path} is complete: there is nothing left to do")
        return _finished(folder)
    with folder.locked(world.is_main), run_settings(config.run.device, config.run.deterministic):
        opened = open_data(os.fspath(data) if data is not None else description["data"], config.reading)
        return _go_on(opened, config, folder, reporter, world)


def _go_on(
    opened: DataSet, config: TrainConfig, folder: RunDirectory, reporter: ProgressReporter, world: World
) -> Outcome:
    description = folder.description()
    if fingerprint(opened) != description.get("fingerprint"):
        raise VitreousError(f"{folder.path}: the data is not what it was: other images, labels or classes than then")
    if config.run.compare_with is not None:
        other_run.open_other_run(config.run.compare_with, opened.classes, folder)
    start, weights = _began(folder, description, config)
    made = make_plan(opened, config, world, start, again=True)
    if made.device.type == "cpu" and isinstance(threads := description.get("threads"), int):
        set_threads(threads)  # sums are split among them, and rounded accordingly
    began = "cuda" if "gpu" in description.get("environment", {}) else "cpu"
    if made.device.type != began:
        raise VitreousError(
            f"device: the run began on {began}, and only there can it go on exactly; here it is {made.device}"
        )
    if made.lr_candidates:
        return _choose_and_train(opened, made, folder, weights, reporter, world)
    fed = build_loaders(opened, made, world, reporter)
    _remember_images(folder, fed, made.config, world)
    _tell_bad(fed, folder, reporter, world)
    engine = _engine(opened, made, fed, weights)
    return _carry_out(opened, TrainingLoop(made, fed, engine, folder, reporter, world), resumed=True)


def _choose_and_train(
    opened: DataSet, made: Plan, folder: RunDirectory, weights: State, reporter: ProgressReporter, world: World
) -> Outcome:
    """Choose the learning rate, in runs of their own, then train with it on all training images."""

    def run(part: DataSet, config: TrainConfig, place: RunDirectory) -> Result | None:
        if (place.path / "result.json").is_file():
            return _finished(place).result
        if (place.path / "config.json").is_file():
            free = {name: config.flat()[name] for name in FREE}
            config = TrainConfig.from_flat({**place.description()["config"], **free})
            with place.locked(world.is_main):
                return _go_on(part, config, place, reporter.without_tables(), world).result
        return _begin(part, folder.description()["data"], config, place, reporter.without_tables(), world).result

    choice = lr_search.search_learning_rate(opened, made, folder, run, reporter, world)
    reporter.note(f"lr = {choice.value:g}: {choice.why}")
    made = make_plan(opened, made.config.with_(lr=choice.value), world, made.facts.start, again=True)
    fed = build_loaders(opened, made, world, reporter)
    engine = _engine(opened, made, fed, weights)
    if world.is_main:
        described = folder.description()
        choices = [*described["choices"], asdict(choice)]
        folder.write_description({**described, "config": _stored(made.config, fed).flat(), "choices": choices})
    _remember_images(folder, fed, made.config, world)
    _tell_bad(fed, folder, reporter, world)
    return _carry_out(opened, TrainingLoop(made, fed, engine, folder, reporter, world), resumed=False)


def _stored(config: TrainConfig, fed: RunLoaders | None = None) -> TrainConfig:
    """The config as a resumed run has to find it: held images are cropped by the device, others by Pillow."""
    place = config.reading.data_dir
    place = None if place is None else str(Path(place).expanduser().absolute())
    start = config.architecture.start
    return config.with_(
        cache=config.reading.cache if fed is None else "always" if fed.cached else "never",
        data_dir=place,
        start=None if start is None else initial_weights.absolute_source(start),
        compare_with=other_run.absolute_path(config.run.compare_with),
    )


def _beginning(config: TrainConfig, data: DataSet) -> tuple[InitialWeights | None, State]:
    """The model that a new run begins with, if it is given, and its weights."""
    return (
        (None, {})
        if config.architecture.start is None
        else initial_weights.load_initial_weights(config, len(data.classes))
    )


def _began(
    folder: RunDirectory, description: dict[str, Any], config: TrainConfig
) -> tuple[InitialWeights | None, State]:
    """What the run began with; the weights themselves only where no state was saved to go on from."""
    if config.architecture.start is None:
        return None, {}
    try:
        start = InitialWeights.from_json(description.get("start"))
    except VitreousError as error:
        raise VitreousError(f"{folder.path / 'config.json'}: {error}") from error
    if state.list_states(folder.state):
        return start, {}
    try:
        return start, initial_weights.reload_initial_weights(start, config)
    except VitreousError as error:
        raise VitreousError(f"{folder.path} has no state to go on from, so it begins again; {error}") from error


def _remember_images(folder: RunDirectory, fed: RunLoaders, config: TrainConfig, world: World) -> None:
    """Write down which images the run uses, by content; of a run that goes on, check that they are still the same."""
    if (before := SeenImages.read(folder.path)) is None:
        if world.is_main:
            start = config.architecture.start
            earlier = training_images_of(start) if start is not None else None
            known = {} if earlier is None else {"earlier": torch.cat([earlier.train, earlier.earlier])}
            SeenImages.of({**fed.digests, **known}).write(folder.path)
        return
    now = SeenImages.of(fed.digests)
    for split in ("train", "val", "test"):
        then, found = getattr(before, split), getattr(now, split)
        # Their number is compared before. One that cannot be read any more is named, and another takes its place.
        if changed := int(((then != found) & (found != UNREADABLE)).sum()):
            raise VitreousError(
                f"{folder.path}: {changed:,} {split} images are not what they were when the run began (compared by"
                " content): put the old images back, or begin a new run"
            )


def _tell_bad(fed: RunLoaders, folder: RunDirectory, reporter: ProgressReporter, world: World) -> None:
    if fed.bad and world.is_main:
        folder.add_unreadable(fed.bad)
        what = "1 image cannot be read and is" if len(fed.bad) == 1 else f"{len(fed.bad)} images cannot be read and are"
        reporter.note(f"{what} named in {folder.path / 'bad_images.txt'}; training shows others instead")


def _compare(stored: TrainConfig, asked: TrainConfig, folder: RunDirectory) -> None:
    before, now = stored.flat(), asked.flat()
    if now["start"] is not None:
        now["start"] = initial_weights.absolute_source(now["start"])
    differences = [
        f"  {name}: {before[name]!r} in the run, {now[name]!r} now"
        for name in before
        if name not in FREE and before[name] != now[name]
    ]
    if differences:
        raise VitreousError(
            f"{folder.path} was begun with another config; leave these as they were, or begin a new run\n"
            + "\n".join(differences)
        )


def fingerprint(data: DataSet) -> str:
    """Of classes, labels, splits and the names of images: what a position in the stream means."""
    digest = blake2b(repr(data.classes).encode(), digest_size=16)
    for name, source in data.splits.items():
        digest.update(name.encode())
        digest.update(source.labels.numpy().tobytes())
        if source.array is not None:
            digest.update(np.ascontiguousarray(source.array).data)
        else:  # the folder may have moved, so the end of a name has to do
            names = ("/".join(Path(source.name(index)).parts[-2:]) for index in range(len(source)))
            digest.update("\n".join(names).encode(errors="surrogateescape"))
    return digest.hexdigest()


# ---------------------------------------------------------------- the parts, put together


def _carry_out(data: DataSet, loop: TrainingLoop, resumed: bool) -> Outcome:
    if resumed:
        _restore(loop, loop.folder, loop.reporter)
    try:
        loop.metric_loggers = _sinks(loop.plan, loop.folder, loop.progress.step) if loop.world.is_main else []
    except VitreousError:
        if not resumed and not loop.plan.config.finetuning.lr_candidates:  # choosing one took long
            loop.folder.discard()
        raise
    try:
        loop.run()
    finally:
        for sink in loop.metric_loggers:
            sink.close()
    try:
        if loop.progress.best is None:  # nothing was held out to choose by, or nothing that its metric is defined for
            loop.save_last_as_best()
        return _conclude(data, loop)
    except KeyboardInterrupt as stop:
        again = f"{program()} train --resume {loop.folder.path}"
        number = stop.number if isinstance(stop, Stopped) else SIGINT
        raise Stopped(f"stopped after training, while measuring; to finish: {again}", number) from None


def _engine(data: DataSet, made: Plan, fed: RunLoaders, weights: State | None = None) -> Engine:
    config = made.config
    seed(config.run.seed, made.device)
    model = build(made.model)  # drawn on the CPU, so that every device starts from the same weights
    if weights:
        model.load_state_dict(weights)
        weights.clear()  # once is enough
    lora.add_adapters_(model, config.finetuning)
    model.preprocessing, model.labels, model.multi_label = made.preprocessing, data.classes, data.multi_label
    model.to(made.device)
    loss = losses.build_loss(config.objective, data.train.labels, made.facts.classes, made.device)
    mean, std = _statistics(made)
    engine = Engine(
        model,
        loss,
        BatchPreparation(fed.train.cropper, config.augmentation, mean, std, loss),
        optimisers.build_optimisers(model, config.optimiser),
        Ema(model, config.optimiser.ema) if config.optimiser.ema else None,
        config.optimiser.clip,
        made.micro_batch,
        made.precision,
    )
    if config.run.compile == "yes" or (config.run.compile == "auto" and made.device.type == "cuda"):
        engine.compile()
    return engine


def _statistics(made: Plan) -> list[Tensor]:
    """Mean and standard deviation of the preprocessing, where the images are."""
    values = (made.preprocessing.mean, made.preprocessing.std)
    return [torch.tensor(numbers, device=made.device).view(-1, 1, 1) for numbers in values]


def _restore(loop: TrainingLoop, folder: RunDirectory, reporter: ProgressReporter) -> None:
    if not state.list_states(folder.state):
        reporter.note("nothing was saved before the run ended: starting from the beginning")
        if loop.world.is_main:
            folder.rewind(-1, -1)
        return
    path, progress = state.newest_state(folder.state)
    loop.restore(path, progress)
    if loop.world.is_main:
        folder.rewind(loop.progress.step, loop.progress.evaluated)
        folder.record({"kind": "event", "step": loop.progress.step, "text": f"resumed from {path.name}"})
    reporter.note(f"going on from step {loop.progress.step:,} of {loop.plan.steps:,}")


def _sinks(made: Plan, folder: RunDirectory, step: int) -> list[MetricLogger]:
    sinks: list[MetricLogger] = []
    if made.config.run.tensorboard:
        sinks.append(TensorBoardLogger(folder.path, step))
    if made.config.run.wandb:
        sinks.append(WandbLogger(made.config.run.wandb, folder.path, made.config.flat()))
    return sinks


# ---------------------------------------------------------------- the beginning


def _introduce(data: DataSet, made: Plan, reporter: ProgressReporter) -> None:
    config, found = made.config, cost(made.model)
    height, width = made.size
    counts = ", ".join(f"{len(source):,} {name}" for name, source in data.splits.items())
    shown = "grey" if made.model.channels == 1 else "RGB"
    part = (
        "" if made.trainable.parameters == found.parameters else f", of which {made.trainable.parameters:,} are trained"
    )
    passes = -(-made.batch_size // made.micro_batch)
    by = f"in {passes} passes of {made.micro_batch} each" if passes > 1 else "in one pass each"
    steps = f"{made.steps:,} step{'' if made.steps == 1 else 's'}"
    reporter.table(
        [
            ("data", f"{data.name}: {counts} images, {len(data.classes):,} classes ({data.split or 'no validation'})"),
            ("model", f"{_shape(made)}: {found.parameters:,} parameters{part}, {height} x {width} {shown}"),
            *([("begins", f"with {_beginning_of(made)}")] if made.facts.start else []),
            ("run", f"{steps} of {made.batch_size:,} images ({config.schedule.duration}), {by}"),
            ("device", f"{made.device}, {made.precision}"),
            ("memory", f"about {size_text(made.memory)} for a step; {size_text(free_memory(made.device))} are free"),
        ]
    )
    reporter.note_once((*data.notes, *made.notes))
    if made.choices:
        reporter.print("\nchosen by the data:", style="bold")
        reporter.table([(c.field, _value(c.value), c.why) for c in made.choices])
        reporter.print("")


def _shape(made: Plan) -> str:
    model = made.model
    if isinstance(model, ViTConfig) and model.backbone is None:
        patch = pair(model.patch_size)[0]
        return f"a ViT of width {model.width}, depth {model.depth}, {model.heads} heads, patches of {patch}"
    if made.facts.start is None:
        return made.config.architecture.model or ""
    return "a BiT" if isinstance(model, BiTConfig) else f"a hybrid of width {model.width}, depth {model.depth}"


def _beginning_of(made: Plan) -> str:
    """What the run begins with, and what was done to it."""
    assert made.facts.start is not None
    images, model = made.facts.channels, made.model.channels
    colours = {(1, 3): "; grey images are shown to it as RGB", (3, 1): "; images are shown to it in grey"}
    head = f"a new head for {made.facts.classes:,} classes"
    return f"{made.facts.start.name} and {head}{colours.get((images, model), '')}"


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return (", " if isinstance(value[0], float) else " x ").join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- the end


def _conclude(data: DataSet, loop: TrainingLoop) -> Outcome:
    """Measure the final weights, and write it all down.

    On test images, which selected nothing, these are the best weights. Without a test split they are the weights of the
    last step on the validation images: those of the best weights selected them, so that their accuracy is too high.
    """
    made, fed, folder, reporter = loop.plan, loop.loaders, loop.folder, loop.reporter
    split = "test" if fed.test is not None else "val" if fed.val is not None else "train"
    loader = fed.test or fed.val
    result: Result | None = None
    examples: tuple[list[Example], list[Example]] = ([], [])
    loop.world.barrier()  # for the files of the weights
    if loader is not None and loop.world.is_main:
        measured = folder.best if split == "test" else folder.last
        if state.file_digest(measured) != loop.progress.weights[measured.name]:
            raise VitreousError(
                f"{measured} was changed after it was written; {program()} train --resume {folder.path} restores it"
            )
        result, examples = _measure(measured, replace(loader, rank=0, ranks=1), made, reporter, split)
    selection = _selection(loop, split)
    outcome = Outcome(folder.path, split, result, loop.progress.step, loop.progress.seconds, selection)
    summary = {
        "split": split,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "best": asdict(loop.progress.best) if loop.progress.best else None,
        "selection": list(selection),
        "result": result.to_json() if result else None,
    }
    if loop.world.is_main:
        _report(data, made, folder, outcome, examples, loader.source if loader else data.train)
        with atomic_file(folder.path / "result.json") as temporary:
            dump_json(temporary, summary)
        folder.complete()
        _summarise(made, folder, outcome, reporter)
    return outcome


def _selection(loop: TrainingLoop, split: str) -> tuple[str, ...]:
    """How the weights that were measured, and those of best.safetensors, were selected: a sentence for each."""
    best, fed, config = loop.progress.best, loop.loaders, loop.plan.config
    tried = lr_search.finished_candidates(loop.folder) if config.finetuning.lr_candidates else []
    rate = f"learning rate {config.optimiser.lr:g}: the best of {len(tried)} on {tried[0].images:,}" if tried else ""
    chosen = (f"{rate} development images, taken from train",) if tried else ()
    if best is None:
        averaged = ", averaged by EMA" if config.optimiser.ema else ""
        return (
            f"best.safetensors, the weights of the last step{averaged}; no validation images selected them",
            *chosen,
        )
    assert fed.val is not None
    count = sum(record.get("kind") == "eval" for record in loop.folder.records())
    metric = config.run.best_by or "top1"
    kind = "EMA weights" if best.weights == "ema" else "weights"
    evaluations = f"the best of {count} evaluations on" if count > 1 else "evaluated once on"
    how = (
        f"{kind} of step {best.step:,}, selected by {metric}: {evaluations} {len(fed.val.indices):,} validation images"
    )
    if split == "test":
        return (f"best.safetensors, the {how}; the test images selected nothing", *chosen)
    patience = ", which also decided when to stop" if loop.progress.step < loop.plan.steps else ""
    return (
        f"last.safetensors, the weights of the last step, not selected by these images{patience}",
        f"best.safetensors holds the {how} ({format_metric(metric, best.value)}); as these images selected it, expect less on"
        " new ones",
        *chosen,
    )


def _measure(
    weights: Path, loader: Any, made: Plan, reporter: ProgressReporter, split: str
) -> tuple[Result, tuple[list[Example], list[Example]]]:
    """In fp32, from the file: what whoever loads it will get."""
    model = load(weights, device=made.device)
    loss = Loss(made.config.objective.loss == "sigmoid", made.facts.classes)
    scores = Scores(made.facts.classes, made.facts.multi_label, made.device, loss.sigmoid)
    extremes = Extremes(SHOWN, made.facts.multi_label, loss.sigmoid)
    with reporter.bar(f"measuring on {split}", len(loader.indices)) as tell:
        score(model, loader, loss, scores, extremes, tell)
    return scores.result(), extremes.result()


def _report(
    data: DataSet,
    made: Plan,
    folder: RunDirectory,
    outcome: Outcome,
    examples: tuple[list[Example], list[Example]],
    source: Source,
) -> None:
    description, records = folder.description(), folder.records()
    bad = folder.path / "bad_images.txt"
    broken = bad.read_text(errors="replace").splitlines() if bad.is_file() else []
    notes = [f"{len(broken)} images could not be read (bad_images.txt)"] if broken else []
    begun = [f"{_shape(made)}, begun with {_beginning_of(made)}"] if made.facts.start else []
    notes += [f"step {r['step']}: {r['text']}" for r in records if r.get("kind") == "event"]
    counts = [(f"{name} images", f"{len(part):,}") for name, part in data.splits.items()]
    best, worst = (_pictures(found, data, source) for found in examples)
    runs, missing = _runs(made, folder, outcome, records)
    write_report(
        folder.report,
        TrainingReport(
            title=data.name,
            outcome=sentence(outcome, made),
            selection=outcome.selection,
            command=description["command"],
            classes=data.classes,
            records=records,
            result=outcome.result,
            split=outcome.split,
            best=best,
            worst=worst,
            choices=[(c["field"], _value(c["value"]), c["why"]) for c in description["choices"]],
            config=description["config"],
            environment=description["environment"],
            data=[("source", description["data"]), *counts, ("split", data.split), ("classes", str(len(data.classes)))],
            notes=[*begun, *data.notes, *made.notes, *notes, *missing],
            next_steps=next_steps(folder),
            links=[("Look inside", _look_inside(folder))],
            runs=runs,
        ),
    )


def _runs(
    made: Plan, folder: RunDirectory, outcome: Outcome, records: Sequence[dict[str, Any]]
) -> tuple[list[RunSummary], list[str]]:
    """This run and the one that is shown beside it, if there is one; and what there is to note about that."""
    if made.config.run.compare_with is None:
        return [], []
    other = RunDirectory(Path(made.config.run.compare_with))
    try:
        theirs = other_run.read_run_summary(other)
        alike = other.description().get("fingerprint") == folder.description()["fingerprint"]
    except VitreousError as error:  # it was there when this one began, and this one is finished
        return [], [f"the run beside this one could not be read any more: {error}"]
    notes = [] if alike else [f"{theirs.name} was trained and measured on other images than this run"]
    ours = other_run.summarise_run(folder, records, outcome.result, outcome.split, outcome.selection)
    return [ours, theirs if theirs.name != ours.name else replace(theirs, name=str(other.path))], notes


def _pictures(found: Sequence[Example], data: DataSet, source: Source) -> list[ExampleImage]:
    pictures = []
    for example in found:
        pixels: Any = np.asarray(source.image(example.index))
        truth = tuple(data.classes[i] for i in example.truth)
        answers = tuple((data.classes[i], p) for i, p in example.answers)
        pictures.append(ExampleImage(source.name(example.index), pixels, truth, answers, example.loss))
    return pictures


def sentence(outcome: Outcome, made: Plan) -> str:
    """The result in one sentence: of which images, with which uncertainty, after how long."""
    epochs = f"{outcome.steps * made.batch_size / made.facts.images:.3g}"
    length = f"{epochs} epoch{'' if epochs == '1' else 's'} in {format_duration(outcome.seconds)}"
    length += f", beginning with {made.facts.start.name}" if made.facts.start else ""
    result = outcome.result
    if result is None:
        return f"trained for {length}; nothing was held out to measure on"
    if result.interval is None or result.top1 is None:
        value = "no" if result.map is None else f"{result.map:.1%}"
        return f"{value} mean average precision on {result.images:,} {outcome.split} images, after {length}"
    interval = f"95% interval {format_interval(result.interval)}"
    return f"{result.top1:.1%} of {result.images:,} {outcome.split} images right ({interval}), after {length}"


def next_steps(folder: RunDirectory) -> list[str]:
    run = shlex.quote(str(folder.path))
    return [
        f"{program()} info {run}",
        f"{program()} predict PHOTO.jpg --model {run}",
        f"{program()} inspect {run}",
    ]


def _look_inside(folder: RunDirectory) -> str:
    """Where the page of `vitreous inspect` will be, from the report; until then, one that says how it is made."""
    page = folder.path / "inspection" / "index.html"
    if not page.exists():
        page.parent.mkdir(exist_ok=True)
        made_by = html.text(f"{program()} inspect {shlex.quote(str(folder.path))}")
        with atomic_file(page) as temporary:
            temporary.write_text(INVITATION.format(command=made_by), encoding="utf-8")
    return "inspection/index.html"


def _summarise(made: Plan, folder: RunDirectory, outcome: Outcome, reporter: ProgressReporter) -> None:
    result = outcome.result
    rows = [("result", sentence(outcome, made))]
    if result is not None:
        numbers = result.summary().items()
        rows.append((outcome.split, "  ".join(f"{name} {format_metric(name, value)}" for name, value in numbers)))
    rows += [("weights" if not number else "", text) for number, text in enumerate(outcome.selection)]
    rows += [("model", str(folder.best)), ("report", str(folder.report))]
    reporter.print("")
    reporter.table(rows)
    reporter.print("\nwhat to try next:", style="bold")
    for line in next_steps(folder):
        reporter.print(f"  {line}")


def _finished(folder: RunDirectory) -> Outcome:
    path = folder.path / "result.json"
    found = read_json(path)
    try:
        result = None if found["result"] is None else result_from_json(found["result"])
        split, steps, seconds = str(found["split"]), int(found["steps"]), float(found["seconds"])
        selection = tuple(map(str, found.get("selection", ())))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise VitreousError(f"{path} is damaged ({error}): remove it, and resume the run to measure again") from error
    return Outcome(folder.path, split, result, steps, seconds, selection)
