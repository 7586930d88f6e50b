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
from vitreous.utils.atomic import atomic_file
from vitreous.utils.import_path import import_path_of
from vitreous.utils.progress import ProgressReporter
from vitreous.utils.torch_settings import run_settings


@dataclass(frozen=True)
class ChosenConfig:
    """All settings of a run, and which of them were chosen from the data."""

    config: TrainConfig
    reasons: Mapping[str, str]  # by field, of the settings that were chosen
    data: str | None  # as it is written in a config file; None: an object that has no name
    description: str  # of the data
    seconds: float | None = None  # estimated time of the run, if its length was fitted to a time budget

    def to_toml(self, ascii_only: bool = False) -> str:
        """Return a config file: `vitreous.train(config=PATH)` gives exactly the same run.

        `ascii_only`: escape all other characters, for outputs that lack them.
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
    """Choose all settings of a run as `vitreous.train` does, but do not train: `choose_config("photos").to_toml()`.

    The arguments are those of `vitreous.train`. Without a duration, the speed of the device is measured to fit the
    length of the run to the time budget; the result has a fixed duration. `quiet`: print no notes.
    """
    data, config = load_settings(data, config)
    config = TrainConfig.from_flat({**config.flat(), **fields})
    world = World.current()
    reporter = ProgressReporter(quiet or not world.is_main)
    with run_settings(config.run.device, config.run.deterministic):
        opened = open_data(data, config.reading, reporter.bar)
        chosen, plan = choose_for_data(opened, config, _name_of(data))
    reporter.note_once((*opened.notes, *plan.notes))
    return chosen


def choose_for_data(opened: DataSet, config: TrainConfig, data: str | None) -> tuple[ChosenConfig, Plan]:
    """As `choose_config`, for data that is open. `data`: its name for a config file."""
    plan, _ = plan_new_run(opened, config, World.current())
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
