"""Checks that a resumed run computes what the interrupted run would have: same settings, data, images and device."""

from __future__ import annotations

from typing import Any

import torch

from vitreous.data.dataset import DataSet
from vitreous.data.digests import UNREADABLE
from vitreous.data.fingerprint import dataset_fingerprint
from vitreous.errors import VitreousError
from vitreous.evaluation.training_images import SeenImages, training_images_of
from vitreous.training import initial_weights, state
from vitreous.training.config import TrainConfig
from vitreous.training.distributed import World
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.loaders import RunLoaders
from vitreous.training.run_directory import RunDirectory
from vitreous.utils.torch_settings import set_threads
from vitreous.weights.tensor_map import State

CHANGEABLE_FIELDS = (
    *("workers", "device", "max_bad", "save_minutes", "tensorboard", "wandb", "compare_with", "profile", "data_dir"),
)
"""Fields that may differ when a run is resumed: none of them changes the weights. `device` may name another device of
the same type. A new `duration` extends the run: see legs.py."""


def check_same_config(stored: TrainConfig, requested: TrainConfig, directory: RunDirectory) -> None:
    before, now = stored.flat(), requested.flat()
    if now["start"] is not None:
        now["start"] = initial_weights.absolute_source(now["start"])
    if now["budget"] is not None and before["budget"] is None:
        raise VitreousError(
            f"budget = {now['budget']!r}: only for new runs; {directory.path} keeps its length of {before['duration']},"
            " and a longer --epochs extends it"
        )
    differences = [
        f"  {name}: {before[name]!r} in the run, {now[name]!r} now"
        for name in before
        if name not in (*CHANGEABLE_FIELDS, "duration") and before[name] != now[name]
    ]
    if differences:
        raise VitreousError(
            f"{directory.path} was started with other settings; leave these unchanged, or start a new run\n"
            + "\n".join(differences)
        )


def check_same_data(data: DataSet, directory: RunDirectory) -> None:
    """Compare classes, labels, splits and image names. `record_images` compares the images themselves."""
    if dataset_fingerprint(data) != directory.description().get("fingerprint"):
        raise VitreousError(
            f"{directory.path}: the data has changed since the run was started: other images, labels or classes"
        )


def use_same_device(device: torch.device, description: dict[str, Any]) -> None:
    """Check the type of the device. On a CPU, also set the number of threads, which affects rounding."""
    if device.type == "cpu" and isinstance(threads := description.get("threads"), int):
        set_threads(threads)
    environment = description.get("environment", {})
    started_on = "mps" if "mps" in environment else "cuda" if "gpu" in environment else "cpu"
    if device.type != started_on:
        raise VitreousError(
            f"device: the run was started on {started_on} and can be resumed exactly only there, not on {device}"
        )


def initial_weights_of(
    directory: RunDirectory, description: dict[str, Any], config: TrainConfig
) -> tuple[InitialWeights | None, State]:
    """The initial weights of a resumed run. The tensors are empty if a saved state replaces them."""
    if config.architecture.start is None:
        return None, {}
    try:
        start = InitialWeights.from_json(description.get("start"))
    except VitreousError as error:
        raise VitreousError(f"{directory.path / 'config.json'}: {error}") from error
    if state.list_states(directory.state):
        return start, {}
    try:
        return start, initial_weights.reload_initial_weights(start, config)
    except VitreousError as error:
        raise VitreousError(f"{directory.path} has no saved state, so it starts from the beginning; {error}") from error


def record_images(directory: RunDirectory, loaders: RunLoaders, config: TrainConfig, world: World) -> None:
    """Write the digests of all images to a new run directory. For a resumed run, check that they are the same."""
    if (before := SeenImages.read(directory.path)) is None:
        if world.is_main:
            start = config.architecture.start
            earlier = training_images_of(start) if start is not None else None
            inherited = {} if earlier is None else {"earlier": torch.cat([earlier.train, earlier.earlier])}
            SeenImages.of({**loaders.digests, **inherited}).write(directory.path)
        return
    now = SeenImages.of(loaders.digests)
    for split in ("train", "val", "test"):
        old, new = getattr(before, split), getattr(now, split)
        # The fingerprint has compared their number. An image that became unreadable is reported and replaced.
        if changed := int(((old != new) & (new != UNREADABLE)).sum()):
            raise VitreousError(
                f"{directory.path}: the content of {changed:,} {split} images has changed since the run was started:"
                " restore the old images, or start a new run"
            )
