"""`vitreous.choose_config`: all settings of a run, given and chosen from the data, without training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous import __version__
from vitreous.data.dataset import DataSet
from vitreous.data.open_data import open_data
from vitreous.errors import VitreousError
from vitreous.training.config import TrainConfig
from vitreous.training.config_file import config_toml, load_settings
from vitreous.training.distributed import World
from vitreous.training.plan import Plan
from vitreous.training.train import plan_new_run
from vitreous.training.user_parts import load_parts, name_parts
from vitreous.utils.atomic import atomic_file
from vitreous.utils.import_path import import_path_of
from vitreous.utils.progress import ProgressReporter
from vitreous.utils.torch_settings import run_settings


@dataclass(frozen=True)
class ChosenConfig:
    """All settings of a run, given and chosen from the data: what `vitreous.choose_config` returns.

    >>> chosen = vitreous.choose_config("digits", duration="30 steps", device="cpu", quiet=True)
    >>> print(chosen.to_toml())
    # settings of a training run...
    data = "digits"
    ...
    """

    config: TrainConfig  # every field that is chosen from the data is set
    reasons: Mapping[str, str]  # by field, of the settings that were chosen
    data: str | None  # as it is written in a config file; None: an object that cannot be imported
    description: str  # of the data
    seconds: float | None = None  # estimated time of the run, if its length was fitted to a time budget

    def to_toml(self, ascii_only: bool = False) -> str:
        """Return a config file, with which `vitreous.train(config=PATH)` gives exactly the same run.

        - `ascii_only`: escape all other characters, for outputs that lack them
        """
        header = (self.description, f"written by vitreous {__version__}")
        return config_toml(self.config, self.data, self.reasons, header, ascii_only)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the config file. An existing file is replaced."""
        with atomic_file(Path(path)) as temporary:
            temporary.write_text(self.to_toml(), encoding="utf-8")


def choose_config(
    data: object = None,
    config: TrainConfig | str | os.PathLike[str] | None = None,
    *,
    quiet: bool = False,
    **fields: Any,
) -> ChosenConfig:
    """Choose all settings of a run as `vitreous.train` does, but do not train.

    - `data`, `config`, `fields`: as in `vitreous.train`
    - `quiet`: print no notes

    Without a duration, the speed of the device is measured to fit the length of the run into the time budget; the
    result has a fixed duration. Returns a `ChosenConfig`. Errors are those of `vitreous.train`.

    >>> chosen = vitreous.choose_config("digits", duration="30 steps", device="cpu", quiet=True)
    >>> chosen.config.optimiser.lr, chosen.reasons["lr"]
    (0.002, 'the default for training from scratch with adamw and batch size 32')
    >>> chosen.save("run.toml")
    >>> vitreous.train(config="run.toml", out="run", quiet=True).steps
    30
    """
    data, config = load_settings(data, config)
    fields, objects = name_parts(fields)
    config = TrainConfig.from_flat({**config.flat(), **fields})
    reporter = ProgressReporter(quiet or not World.current().is_main)
    with run_settings(config.run.device, config.run.deterministic):
        opened = open_data(data, config.reading, reporter.bar)
        chosen, plan = choose_for_data(opened, config, _name_of(data), objects)
    reporter.note_once((*opened.notes, *plan.notes))
    return chosen


def choose_for_data(
    opened: DataSet, config: TrainConfig, data: str | None, objects: Mapping[str, Any] | None = None
) -> tuple[ChosenConfig, Plan]:
    """As `choose_config`, for data that is open. `data`: its name for a config file. `objects`: code of the user."""
    plan, _ = plan_new_run(opened, config, World.current(), load_parts(config, objects or {}))
    reasons = {choice.field: choice.why for choice in plan.choices}
    chosen = plan.config
    if opened.val is None and not chosen.finetuning.lr_candidates and "best_by" in reasons:
        # Nothing is selected in this run, and a config file with a metric would be refused.
        chosen = chosen.with_(best_by=None)
        del reasons["best_by"]
    counts = ", ".join(f"{len(source):,} {name}" for name, source in opened.splits.items())
    description = f"{opened.name}: {counts} images, {len(opened.classes):,} classes; {plan.steps:,} steps"
    return ChosenConfig(chosen, reasons, data, description, plan.seconds), plan


def _name_of(data: object) -> str | None:
    """Return the text that stands for data in a config file: a path, a name or an import path."""
    if not isinstance(data, str | os.PathLike):
        return import_path_of(data)
    text = os.fspath(data)
    if not isinstance(text, str):
        raise VitreousError("data: expected text, not bytes")
    return text
