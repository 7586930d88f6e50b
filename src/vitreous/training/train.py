"""`vitreous.train` and `vitreous.resume`: train a model on images, with all results in a run directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from vitreous import __version__
from vitreous.data.dataset import DataSet
from vitreous.data.fingerprint import dataset_fingerprint
from vitreous.data.open_data import open_data
from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Result
from vitreous.evaluation.training_images import FILE as DIGESTS_FILE
from vitreous.evaluation.training_images import SeenImages
from vitreous.training import comparison_run, defaults, initial_weights, legs, lr_search
from vitreous.training.callbacks import Callback
from vitreous.training.config import TrainConfig
from vitreous.training.config_file import load_settings
from vitreous.training.distributed import World
from vitreous.training.facts import collect_facts
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.loaders import RunLoaders, build_loaders
from vitreous.training.loop import TrainingLoop
from vitreous.training.outcome import Outcome, is_complete, read_outcome
from vitreous.training.plan import Plan, make_plan
from vitreous.training.resume_checks import (
    CHANGEABLE_FIELDS,
    check_same_config,
    check_same_data,
    initial_weights_of,
    record_images,
    use_same_device,
)
from vitreous.training.run_directory import RunDirectory
from vitreous.training.start_summary import print_start_summary
from vitreous.training.trainer import build_engine, train_to_end
from vitreous.training.user_code import UserCode, describe_user_code, restore_user_code
from vitreous.training.user_parts import UserParts, absolute_parts, name_parts
from vitreous.utils.environment import command, environment
from vitreous.utils.import_path import refuse_during_import
from vitreous.utils.progress import ProgressReporter
from vitreous.utils.sizes import pair
from vitreous.utils.torch_settings import run_settings
from vitreous.weights.tensor_map import State


def train(
    data: object = None,
    config: TrainConfig | str | os.PathLike[str] | None = None,
    *,
    callbacks: Sequence[Callback | type[Callback]] = (),
    quiet: bool = False,
    overwrite: bool = False,
    **fields: Any,
) -> Outcome:
    """Train a model on images, and write weights, metrics and a report to a run directory.

    - `data`: a path or name, or a Python object: a map-style dataset of (image, label), a Hugging Face dataset, a pair
      of arrays, or a dict of these by split (see `vitreous.open_data`)
    - `config`: settings, such as those of `vitreous.recipe`, or the path of a config file, which may also give the
      data. Settings that are not given are chosen from the data
    - `callbacks`: instances or classes; see `vitreous.Callback`
    - `quiet`: print nothing
    - `overwrite`: replace the run in the run directory `out`; the earlier run is kept as OUT.replaced until the new run
      is complete
    - `fields`: fields of `vitreous.TrainConfig`, with the names of the command-line flags; they override those of
      `config`. `model`, `loss`, `optimiser` and `augment` may also be your own code:

      - `model`: a torch module from images (B, C, H, W) to logits (B, classes); or a class or function that builds it,
        called with those of `num_classes`, `channels` and `image_size` that it takes
      - `loss`: a function of logits and targets that returns one value per image or their mean, or a class of such
        objects
      - `optimiser`: a subclass of `torch.optim.Optimizer`, or a function of groups of parameters that returns one
      - `augment`: a function of a batch of images (B, C, H, W), 0 to 1, or a class of such objects

    Returns an `Outcome`. Wrong settings or data raise a `VitreousError` before anything is written. `vitreous.resume`
    continues an interrupted run by its directory alone if data, callbacks and your own code are given as classes or
    functions that can be imported, or as text (`file.py:name`); otherwise they have to be passed to it again.

    >>> outcome = vitreous.train("digits", out="run", duration="30 steps", lr=0.003, quiet=True)
    >>> sorted(path.name for path in outcome.run.glob("*.safetensors"))
    ['best.safetensors', 'image_digests.safetensors', 'last.safetensors']
    >>> vitreous.load("run").config.num_classes  # the best weights
    10
    """
    refuse_during_import("vitreous.train")
    data, config = load_settings(data, config)
    fields, objects = name_parts(fields)
    config = absolute_parts(TrainConfig.from_flat({**config.flat(), **fields}))
    world = World.current()
    reporter = ProgressReporter(quiet or not world.is_main)
    if world.size > 1 and config.run.out is None:
        raise VitreousError("out: give a run directory, since several processes train together and write to one")
    code = describe_user_code(data, callbacks, config, objects)
    with run_settings(config.run.device, config.run.deterministic):
        opened = open_data(data, config.data_reading, reporter.bar)
        directory = RunDirectory.for_new_run(config.run.out, opened.name, overwrite)
        return _start(opened, code, config, directory, reporter, world)


def resume(
    run: str | os.PathLike[str],
    config: TrainConfig | None = None,
    *,
    data: object = None,
    callbacks: Sequence[Callback | type[Callback]] | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Outcome:
    """Continue an interrupted run exactly where its last saved state ends, or extend a run, finished or not.

    - `run`: the run directory
    - `config`: the settings to compare with those of the run
    - `data`: the new location of the images, if they have moved, or the Python object that the run was started with
    - `callbacks`: those of the run, if they were not given as classes that can be imported
    - `quiet`: print nothing
    - `fields`: fields of `vitreous.TrainConfig` that override `config`. The duration and settings that do not affect
      the weights may change. `model`, `loss`, `optimiser` and `augment`: the objects of the run, if they cannot be
      imported

    Returns an `Outcome`; that of the run if it is complete. Other settings, images or callbacks than those of the run
    raise a `VitreousError` that lists the differences.

    >>> outcome = vitreous.train("digits", out="run", duration="2 steps", quiet=True)
    >>> vitreous.resume("run", duration="4 steps", quiet=True).steps
    4
    """
    refuse_during_import("vitreous.resume")
    directory, world = RunDirectory.open(run), World.current()
    reporter = ProgressReporter(quiet or not world.is_main)
    description = directory.description()
    stored = directory.config()
    fields, objects = name_parts(fields)
    config = absolute_parts(TrainConfig.from_flat({**(config or stored).flat(), **fields}))
    check_same_config(stored, config, directory)
    if is_complete(directory) and config.schedule.duration == stored.schedule.duration:
        return _nothing_to_do(directory, reporter)
    with directory.locked(world.is_main), run_settings(config.run.device, config.run.deterministic):
        code = restore_user_code(directory, description, data, callbacks, config, objects, reporter)
        opened = open_data(code.data, config.data_reading, reporter.bar)
        return _continue(opened, code, config, directory, reporter, world)


def _nothing_to_do(directory: RunDirectory, reporter: ProgressReporter) -> Outcome:
    extend = "a longer --epochs extends the run"
    reporter.note(f"{directory.path} is complete: there is nothing left to do; {extend}")
    return read_outcome(directory)


def _start(
    data: DataSet,
    code: UserCode,
    config: TrainConfig,
    directory: RunDirectory,
    reporter: ProgressReporter,
    world: World,
) -> Outcome:
    """Start a new run. All errors in settings and data are raised before the run directory is created."""
    comparison_run.check_comparable(config.run.compare_with, data.classes, directory)
    plan, weights = plan_new_run(data, config, world, code.parts)
    start = plan.facts.start
    print_start_summary(data, plan, reporter)
    reporter.note_once(code.notes)
    description = {
        "vitreous": __version__,
        "data": code.source,
        **code.to_json(),
        "config": _stored_config(plan.config).flat(),
        "choices": [asdict(choice) for choice in plan.choices],
        "start": start.to_json() if start else None,
        "classes": list(data.classes),
        "split": data.split,
        "fingerprint": dataset_fingerprint(data),
        "steps": plan.steps,
        "threads": torch.get_num_threads(),
        "command": command(),
        "environment": environment(plan.device),
    }
    if plan.lr_candidates:
        highest = lr_search.candidate_config(plan, max(plan.lr_candidates))
        make_plan(lr_search.candidate_splits(data, plan.config), highest, world, start, parts=code.parts)
        _create(directory, description, reporter, world)
        with directory.locked(world.is_main):
            return _search_and_train(data, plan, code, directory, weights, reporter, world)
    loaders = build_loaders(data, plan, world, reporter)
    engine = build_engine(data, plan, loaders, weights)
    _create(directory, {**description, "config": _stored_config(plan.config, loaders).flat()}, reporter, world)
    with directory.locked(world.is_main):
        record_images(directory, loaders, plan.config, world)
        _report_unreadable(loaders, directory, reporter, world)
        loop = TrainingLoop(plan, loaders, engine, directory, reporter, world, code.callbacks)
        return train_to_end(data, loop, resumed=False)


def _create(directory: RunDirectory, description: dict[str, Any], reporter: ProgressReporter, world: World) -> None:
    if world.is_main:
        directory.create(description)
        if directory.overwrite:
            kept = f"{directory.path} is kept as {directory.replaced} until this run is complete"
            reporter.note(f"the earlier run in {kept}")


def _continue(
    data: DataSet,
    code: UserCode,
    config: TrainConfig,
    directory: RunDirectory,
    reporter: ProgressReporter,
    world: World,
) -> Outcome:
    """Continue a run that is not complete, or extend it if its duration has changed."""
    check_same_data(data, directory)
    stored, complete = directory.config(), is_complete(directory)
    extension = None
    if config.schedule.duration != stored.schedule.duration:
        extension = legs.plan_extension(directory, stored, config, len(data.train), complete)
        if extension is None and complete:
            return _nothing_to_do(directory, reporter)
        config = config.with_(duration=stored.schedule.duration) if extension is None else extension.config
    comparison_run.check_comparable(config.run.compare_with, data.classes, directory)
    description = directory.description()
    start, weights = initial_weights_of(directory, description, config)
    plan = make_plan(data, config, world, start, resumed=True, parts=code.parts)
    use_same_device(plan.device, description)
    if plan.lr_candidates:
        return _search_and_train(data, plan, code, directory, weights, reporter, world)
    loaders = build_loaders(data, plan, world, reporter)
    if SeenImages.read(directory.path) is None:
        reporter.note(f"{DIGESTS_FILE} is missing: images replaced since the run was started are not detected")
    record_images(directory, loaders, plan.config, world)
    _report_unreadable(loaders, directory, reporter, world)
    engine = build_engine(data, plan, loaders, weights)
    if extension is not None:
        world.barrier()  # all processes have read the old config.json
        if world.is_main:
            legs.begin_leg(directory, extension)
        world.barrier()
        reporter.note(extension.legs[-1].text)
    loop = TrainingLoop(plan, loaders, engine, directory, reporter, world, code.callbacks)
    return train_to_end(data, loop, resumed=True)


def _search_and_train(
    data: DataSet,
    plan: Plan,
    code: UserCode,
    directory: RunDirectory,
    weights: State,
    reporter: ProgressReporter,
    world: World,
) -> Outcome:
    """Select the learning rate with one run per candidate, then train with it on all training images. The callbacks
    belong to the latter."""

    description = directory.description()
    in_memory = bool(description.get("data_in_memory"))
    own = UserCode(data, description["data"], data_in_memory=in_memory, parts=code.parts)

    def run_candidate(part: DataSet, config: TrainConfig, place: RunDirectory) -> Result | None:
        quieter = reporter.without_tables()
        if is_complete(place):
            return read_outcome(place).result
        if (place.path / "config.json").is_file():
            changeable = {name: config.flat()[name] for name in CHANGEABLE_FIELDS}
            config = TrainConfig.from_flat({**place.description()["config"], **changeable})
            with place.locked(world.is_main):
                return _continue(part, own, config, place, quieter, world).result
        return _start(part, own, config, place, quieter, world).result

    choice = lr_search.search_learning_rate(data, plan, directory, run_candidate, reporter, world)
    reporter.note(f"lr = {choice.value:g}: {choice.why}")
    chosen = plan.config.with_(lr=choice.value)
    plan = make_plan(data, chosen, world, plan.facts.start, resumed=True, parts=code.parts)
    loaders = build_loaders(data, plan, world, reporter)
    engine = build_engine(data, plan, loaders, weights)
    if world.is_main:
        description = directory.description()
        choices = [*description["choices"], asdict(choice)]
        config = _stored_config(plan.config, loaders).flat()
        directory.write_description({**description, "config": config, "choices": choices})
    record_images(directory, loaders, plan.config, world)
    _report_unreadable(loaders, directory, reporter, world)
    loop = TrainingLoop(plan, loaders, engine, directory, reporter, world, code.callbacks)
    return train_to_end(data, loop, resumed=False)


def plan_new_run(data: DataSet, config: TrainConfig, world: World, parts: UserParts) -> tuple[Plan, State]:
    """Choose the initial weights and all settings of a run, and load the weights."""
    facts = collect_facts(data, parts=parts)
    config, chosen = defaults.choose_start(config, facts)
    start, weights = _load_start(config, data)
    plan = make_plan(data, config, world, start, facts=facts)
    if start is not None and plan.size != pair(start.model.image_size):  # reduced to fit into the budget
        start, weights = _load_start(plan.config, data)
        resized = make_plan(data, plan.config, world, start, resumed=True, facts=facts)
        plan = replace(resized, choices=plan.choices, notes=plan.notes, seconds=plan.seconds)
    return replace(plan, choices=(*chosen, *plan.choices)), weights


def _load_start(config: TrainConfig, data: DataSet) -> tuple[InitialWeights | None, State]:
    if config.architecture.start is None:
        return None, {}
    return initial_weights.load_initial_weights(config, len(data.classes))


def _stored_config(config: TrainConfig, loaders: RunLoaders | None = None) -> TrainConfig:
    """The config for config.json, with absolute paths. `cache` is fixed when it is known: cached images are cropped on
    the device and others by Pillow, with different rounding, so a resumed run has to do the same."""
    folder = config.reading.data_dir
    start = config.architecture.start
    return config.with_(
        cache=config.reading.cache if loaders is None else "always" if loaders.cached else "never",
        data_dir=None if folder is None else str(Path(folder).expanduser().absolute()),
        start=None if start is None else initial_weights.absolute_source(start),
        compare_with=comparison_run.absolute_paths(config.run.compare_with),
    )


def _report_unreadable(loaders: RunLoaders, directory: RunDirectory, reporter: ProgressReporter, world: World) -> None:
    if loaders.unreadable and world.is_main:
        directory.add_unreadable(loaders.unreadable)
        count = len(loaders.unreadable)
        images = "1 image cannot be read and is" if count == 1 else f"{count} images cannot be read and are"
        reporter.note(f"{images} listed in {directory.path / 'bad_images.txt'}; others take their place in training")
