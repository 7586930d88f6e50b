"""The length of the runs of a sweep: one for all, so that settings are compared after equally many epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitreous.data.dataset import DataSet
from vitreous.errors import VitreousError, one_line
from vitreous.experiments.grid.experiment import Cell
from vitreous.experiments.grid.work import expected_work
from vitreous.experiments.sweeps.search_space import combination_label
from vitreous.experiments.sweeps.sweep_request import SweepRequest
from vitreous.training.choose_config import choose_for_data
from vitreous.training.config import TrainConfig
from vitreous.utils.progress import ProgressReporter, format_duration
from vitreous.utils.torch_settings import run_settings

REDUCED_FIELDS = ("image_size", "width", "depth", "heads", "mlp_dim")  # that a small time budget reduces


@dataclass(frozen=True)
class RunLength:
    """The settings that give all runs the same length, and a sentence about it."""

    text: str
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, path: Path) -> RunLength:
        """Return a stored length."""
        try:
            TrainConfig().with_(**values["fixed"])
            return cls(str(values["text"]), dict(values["fixed"]))
        except (VitreousError, KeyError, TypeError) as error:
            raise VitreousError(f"{path} is damaged ({one_line(error)}): give another --out") from error


def fix_run_length(request: SweepRequest, opened: DataSet, reporter: ProgressReporter) -> RunLength:
    """Choose the length of all runs, if it is not given: what fits into the time budget in the most expensive run.

    Notes about the settings of this run are printed. If no combination is valid, that is an error.
    """
    pairs = list(zip(request.combinations(), request.configs({}), strict=True))
    pairs.sort(key=lambda pair: -expected_work(Cell({}, (), config=pair[1]), len(opened.train)))
    first: VitreousError | None = None
    for combination, config in pairs:
        try:
            with run_settings(config.run.device, config.run.deterministic):
                return _fix_length(request, opened, combination, config, reporter)
        except VitreousError as error:
            first = first or error.at(combination_label(combination))
    assert first is not None
    text = "the settings are invalid" if len(pairs) == 1 else f"none of the {len(pairs)} combinations is valid"
    raise VitreousError(f"{text}: {first}") from first


def _fix_length(
    request: SweepRequest,
    opened: DataSet,
    combination: Mapping[str, Any],
    config: TrainConfig,
    reporter: ProgressReporter,
) -> RunLength:
    chosen, plan = choose_for_data(opened, config, None)
    reporter.note_once((*opened.notes, *plan.notes))
    if "duration" in request.space.values:
        return RunLength("the runs have different lengths, since duration is swept")
    if config.schedule.duration is not None:
        return RunLength(f"every run trains for {config.schedule.duration}")
    fixed: dict[str, Any] = {"duration": chosen.config.schedule.duration, "budget": None}
    reasons = [f"{fixed['duration']} ({chosen.reasons['duration']})"]
    whole, _ = choose_for_data(opened, config.with_(**fixed), None)
    for name in REDUCED_FIELDS:
        value = chosen.config.flat()[name]
        if value != whole.config.flat()[name]:
            fixed[name] = value
            reasons.append(f"{name} {value} ({chosen.reasons[name]})")
    time = f", about {format_duration(chosen.seconds)} per run" if chosen.seconds else ""
    measured = f"; measured for the largest combination, {combination_label(combination)}{time}"
    return RunLength(f"every run has the same length: {', '.join(reasons)}{measured}", fixed)
