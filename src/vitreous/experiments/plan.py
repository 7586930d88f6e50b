"""The plan of a grid before it runs: training runs, exaFLOPs, and an estimate of the time from measured speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import format_count
from vitreous.experiments.grid.cell_runs import CellTask
from vitreous.experiments.grid.sweep import cell_devices
from vitreous.experiments.grid.work import cell_model, images_seen
from vitreous.experiments.options import ReproduceOptions
from vitreous.experiments.reproduce import check_reproduce_options, plan_sweep
from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.training.budget import STARTUP_SECONDS, measure_speed
from vitreous.training.facts import NO_PARTS
from vitreous.utils.device import pick_device, pick_precision
from vitreous.utils.progress import ProgressReporter, format_duration


@dataclass(frozen=True)
class PlanRow:
    """Training runs with the same factors other than numbers."""

    experiment: str
    runs: str  # their factors
    count: int
    done: int  # with a stored result
    images: float  # that those without a result are trained on, with repetitions and the search of learning rates
    exaflops: float
    speed: float  # images/s in training, measured
    seconds: float

    def texts(self) -> list[str]:
        """Return the entries of the table."""
        numbers = [f"{self.count:,}", f"{self.done:,}", f"{self.images:,.0f}", f"{self.exaflops:.3g}"]
        return [self.experiment, self.runs, *numbers, f"{self.speed:,.0f}", format_duration(self.seconds)]


@dataclass(frozen=True)
class GridPlan:
    """The training runs of experiments; those that several of them share are listed once."""

    COLUMNS: ClassVar = ("experiment", "runs", "number", "done", "images", "exaFLOPs", "images/s", "training")
    rows: tuple[PlanRow, ...]
    measurements: int  # cells without a training run
    device: str
    devices: int
    jobs: int
    startup: float  # seconds of a run, besides its training

    @property
    def waiting(self) -> int:
        """The number of runs without a result."""
        return sum(row.count - row.done for row in self.rows)

    @property
    def seconds(self) -> float:
        """The estimate: training one image after the other on every device, and the start of runs side by side."""
        training = sum(row.seconds for row in self.rows)
        return training / self.devices + self.waiting * self.startup / (self.jobs * self.devices)

    def summary(self) -> list[str]:
        exaflops = sum(row.exaflops for row in self.rows)
        others = f", and {format_count(self.measurements, 'cell')} without training" if self.measurements else ""
        devices = f"{self.devices} devices" if self.devices > 1 else "one device"
        runs = format_count(self.waiting, "training run")
        time = f"{format_duration(self.seconds)} on {devices} ({self.device})"
        start = f"{self.startup:.0f} s per run for its start and measurements, {self.jobs} side by side"
        return [
            f"{runs} to do{others}: {exaflops:.3g} exaFLOPs (3 x forward x images).",
            f"Estimated time: {time}: the training times of the table, one after the other, and {start}.",
            "images/s: forward and backward passes, measured on this device without the fused kernels of training.",
        ]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "waiting": self.waiting, "seconds": self.seconds}


def plan_grid(names: Sequence[str], options: ReproduceOptions, reporter: ProgressReporter) -> GridPlan:
    """Plan the grid of some experiments. The speed of every model is measured; nothing is trained or written."""
    options = check_reproduce_options(options)
    _, sweep = plan_sweep(names, options, reporter)
    sweep.find_stored()
    device = pick_device(options.device)
    groups: dict[tuple[str, str], list[tuple[CellTask, bool]]] = {}
    for key, task in sweep.tasks.items():
        if task.cell.config is not None:
            factors = ", ".join(value for value in task.cell.factors.values() if isinstance(value, str))
            groups.setdefault((task.experiment, factors or "all"), []).append((task, key in sweep.records))
    sizes, speeds = _TrainingSizes(), _Speeds(device)
    with reporter.bar("measuring the speed of the models", len(groups)) as advance:
        rows = []
        for (experiment, factors), tasks in groups.items():
            rows.append(_plan_row(experiment, factors, tasks, sizes, speeds))
            advance(1)
    others = sum(task.cell.config is None for task in sweep.tasks.values())
    startup = STARTUP_SECONDS.get(device.type, STARTUP_SECONDS["cpu"])
    return GridPlan(tuple(rows), others, str(device), len(cell_devices(device)), options.jobs, startup)


def _plan_row(
    experiment: str, factors: str, tasks: list[tuple[CellTask, bool]], sizes: _TrainingSizes, speeds: _Speeds
) -> PlanRow:
    images = flops = seconds = 0.0
    for task, done in tasks:
        if not done and task.cell.config is not None:
            seen = images_seen(task.cell.config, sizes.images(task))
            model = cell_model(task.cell)
            images += seen
            flops += seen * cost(model).training_flops
            seconds += seen / speeds.images_per_second(task, model)
    done_count = sum(done for _, done in tasks)
    speed = images / seconds if seconds else 0.0
    return PlanRow(experiment, factors, len(tasks), done_count, images, flops / 1e18, speed, seconds)


class _TrainingSizes:
    """The number of training images of runs. Data is opened once for all of its subsets."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Reading], int] = {}

    def images(self, task: CellTask) -> int:
        assert task.cell.config is not None
        reading = task.cell.config.with_(train_fraction=None).reading
        place = (task.cell.data or task.data, reading)
        if place not in self._known:
            self._known[place] = len(open_data(*place).train)
        return round(self._known[place] * (task.cell.config.reading.train_fraction or 1))


class _Speeds:
    """Measured speeds of models in training, by model and number of images per pass."""

    def __init__(self, device: torch.device):
        self.device = device
        self._known: dict[tuple[ViTConfig | BiTConfig, int], float] = {}

    def images_per_second(self, task: CellTask, model: ViTConfig | BiTConfig) -> float:
        config = task.cell.config
        assert config is not None
        batch = config.schedule.batch_size or 256
        place = (model, batch)
        if place not in self._known:
            precision, _ = pick_precision(config.run.precision, self.device)
            plain = config.with_(start=None, lr=1e-3, lr_candidates=None)
            seconds, _ = measure_speed(plain, model, self.device, precision, batch, NO_PARTS)
            self._known[place] = 1 / seconds
        return self._known[place]
