"""`vitreous bench`: throughput of a model in training or inference, and the utilisation of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, cast

import torch

from vitreous.benchmark.input_pipeline import PipelineResult, measure_pipeline
from vitreous.benchmark.machine import (
    MATMUL_SIDES,
    Energy,
    PeakMemory,
    StepTimes,
    matmul_peak,
    synchronise,
    throughput_text,
    time_steps,
)
from vitreous.benchmark.synthetic import randomise_head_, step_path, synthetic_batch, synthetic_engine
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluated_model import RANDOM_PREFIX, EvaluatedModel, open_model
from vitreous.fast.accelerate import Precision, accelerate
from vitreous.models import zoo
from vitreous.models.cost import Cost, cost
from vitreous.training.distributed import World
from vitreous.utils.device import pick_device, pick_precision
from vitreous.utils.environment import command, environment
from vitreous.utils.limits import MAX_WORKERS, check_count
from vitreous.utils.memory import size_text
from vitreous.utils.sizes import Size
from vitreous.utils.torch_settings import run_settings

Mode = Literal["train", "infer", "data"]
WARM_UP_STEPS = 3
MAX_SECONDS = 24 * 60 * 60
LARGE_MODEL = 150_000_000  # parameters: from here on the default batch size is halved
MODE_NAMES = {"infer": "inference", "train": "training"}


@dataclass(frozen=True, repr=False)
class ThroughputResult:
    """Measurements of a model."""

    model: str  # name of the model
    mode: str  # infer or train
    precision: str  # fp32, bf16 or fp8
    device: str  # cpu, cuda ...
    batch_size: int  # images per batch
    default_batch_size: bool  # not set by the user
    cost: Cost  # parameters and FLOPs at the image size
    path: str  # how the steps were run
    times: StepTimes  # seconds of each batch
    start_up: float  # seconds for building the model and the first batch, with compilation
    peak_flops: float  # per second, of a large matmul
    memory: int  # peak, in bytes
    joules: float | None  # per image
    notes: tuple[str, ...]  # remarks on the measurement
    origin: dict[str, Any]  # date, command, versions, hardware

    @property
    def images_per_second(self) -> float:
        """Throughput, from the median time of a batch."""
        return self.batch_size / self.times.median

    @property
    def flops(self) -> float:
        """FLOPs of the model per second."""
        per_image = self.cost.training_flops if self.mode == "train" else self.cost.flops.total
        return per_image * self.images_per_second

    @property
    def utilisation(self) -> float:
        """Fraction of the machine's peak."""
        return self.flops / self.peak_flops

    def to_json(self) -> dict[str, Any]:
        """Return what `vitreous bench --json` prints."""
        fields = ("model", "mode", "precision", "device", "batch_size", "path")
        return {
            **self.origin,
            **{name: getattr(self, name) for name in fields},
            "size": list(self.cost.size),
            "parameters": self.cost.parameters,
            "images_per_second": self.images_per_second,
            "batch_ms": self.times.to_json(),
            "repeats": len(self.times.seconds),
            "warm_up": WARM_UP_STEPS,
            "model_flops_per_second": self.flops,
            "matmul_flops_per_second": self.peak_flops,
            "share_of_peak": self.utilisation,
            "peak_memory_bytes": self.memory,
            "joules_per_image": self.joules,
            "start_up_seconds": self.start_up,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return "\n".join(f"{name:<11} {text}" for name, text in self.facts())

    def facts(self) -> list[tuple[str, str]]:
        """Return the rows of the printed table."""
        height, width = self.cost.size
        flops = f"{self.cost.flops.total / 1e9:,.1f} GFLOPs forward at {height} x {width}"
        side = f"{MATMUL_SIDES[torch.device(self.device).type]:,}"
        default = "; default for the model and the device, --batch-size changes it" if self.default_batch_size else ""
        return [
            ("model", f"{self.model}: {self.cost.parameters:,} parameters, {flops}"),
            ("mode", f"{MODE_NAMES[self.mode]} in {self.precision} on {self.origin['hardware']}"),
            ("path", self.path),
            ("speed", throughput_text(self.images_per_second)),
            ("batch", f"{self.batch_size:,} images{default}"),
            ("time", f"{self.times}, after {WARM_UP_STEPS} warm-up batches"),
            (
                "arithmetic",
                f"{flops_text(self.flops)}, {self.utilisation:.0%} of the {flops_text(self.peak_flops)} of a matmul"
                f" with {side} x {side} matrices in {self.precision}",
            ),
            ("memory", f"{size_text(self.memory)} peak"),
            ("energy", "not readable on this machine" if self.joules is None else f"{self.joules:,.3g} J per image"),
            ("start-up", f"{self.start_up:,.1f} s for building the model and the first batch, with compilation"),
            *(("note", note) for note in self.notes),
        ]


def flops_text(flops: float) -> str:
    """Format FLOPs per second."""
    return f"{flops / 1e12:,.3g} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:,.3g} GFLOP/s"


def bench(  # noqa: PLR0913 (as many as there are flags)
    model: str | os.PathLike[str] | None = None,
    mode: Mode = "infer",
    *,
    size: Size | None = None,
    batch_size: int | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto",
    device: str = "auto",
    seconds: float = 5.0,
    data: str | os.PathLike[str] | None = None,
    recipe: str | None = None,
    workers: int | None = None,
) -> ThroughputResult | PipelineResult:
    """Measure the throughput of a model on this machine, or of the input pipeline of training.

    - `model`: a name of the zoo or a checkpoint; default: B/16
    - `mode`: "infer", "train", or "data" for decoding and augmentation
    - `size`, `batch_size`, `precision`, `device`: default: chosen for the model and the machine
    - `seconds`: duration of the measurement
    - `data`, `recipe`, `workers`: for mode="data": images to decode, recipe with the augmentation, worker processes

    >>> import vitreous
    >>> found = vitreous.bench("Ti/16", size=32, batch_size=1, seconds=0.1)
    >>> found.images_per_second > 1, found.mode
    (True, 'infer')
    """
    if not 0 < seconds <= MAX_SECONDS:
        raise VitreousError(f"seconds = {seconds:g}: must be more than 0 and at most {MAX_SECONDS:,}")
    if batch_size is not None:
        check_count("batch_size", batch_size)
    used_device = pick_device("cpu" if device == "auto" and not torch.cuda.is_available() else device)
    if used_device.type == "mps":
        raise VitreousError("device = 'mps': bench measures cpu and cuda only")
    if mode == "data":
        _refuse_options(mode, model=model, precision=None if precision == "auto" else precision)
        if workers is not None and data is None:
            raise VitreousError(f"workers = {workers}: workers decode images, so data must be set too")
        if workers is not None:
            check_count("workers", workers, 0, MAX_WORKERS)
        name = "cifar10" if recipe is None else recipe
        with run_settings(device):
            result = measure_pipeline(name, data, size, batch_size, workers, used_device, seconds)
        return replace(result, origin=_origin(used_device))
    _refuse_options(mode, data=data, recipe=recipe, workers=workers)
    if mode not in MODE_NAMES:
        raise VitreousError(f"mode = {mode!r}: expected train, infer or data")
    if mode == "train" and precision == "fp8":
        raise VitreousError("precision = 'fp8' is for inference: train in bf16 or fp32")
    with run_settings(device):
        return _measure_model(os.fspath(model or "B/16"), mode, size, batch_size, precision, used_device, seconds)


def _refuse_options(mode: str, **given: object) -> None:
    """Raise if an option is set that the mode does not use."""
    for name, value in given.items():
        if value is not None:
            raise VitreousError(f"{name}: not used by mode = {mode!r}; remove it")


def _origin(device: torch.device) -> dict[str, Any]:
    """Return date, command, hardware and versions."""
    found = environment(device)
    hardware = found.get("gpu") or found["cpu"]
    return {"date": date.today().isoformat(), "command": command(), "hardware": hardware, "environment": found}


def _measure_model(
    name: str,
    mode: str,
    size: Size | None,
    batch_size: int | None,
    precision: str,
    device: torch.device,
    seconds: float,
) -> ThroughputResult:
    used_precision, note = pick_precision(precision, device)
    memory, start = PeakMemory(device), time.perf_counter()
    opened = _open_model(name, device)
    model_cost = cost(opened.built_in_model, size)
    count = batch_size or _default_batch_size(model_cost, device)
    prepare = _training_step if mode == "train" else _inference_step
    try:
        step, describe = prepare(opened, count, model_cost.size, used_precision)
        step()
        synchronise(device)
        start_up = time.perf_counter() - start
        times, joules = _measure_step(step, device, count, seconds)
    except torch.OutOfMemoryError as error:
        raise VitreousError(f"out of memory on {device}: batch_size = {count} is too many images for {name}") from error
    peak = memory.read()
    path, notes = describe()
    del step, describe
    return ThroughputResult(
        opened.name.removeprefix(RANDOM_PREFIX),
        mode,
        used_precision,
        str(device),
        count,
        batch_size is None,
        model_cost,
        path,
        times,
        start_up,
        matmul_peak(device, used_precision),
        peak,
        joules,
        (*((note,) if note else ()), *notes),
        _origin(device),
    )


def _open_model(name: str, device: torch.device) -> EvaluatedModel:
    """Open a checkpoint, or create a model of the zoo with random weights."""
    if name not in zoo.ZOO and (Path(name).exists() or "://" in name):
        return open_model(name, device)
    try:
        opened = open_model(RANDOM_PREFIX + name, device)
    except VitreousError as error:
        raise VitreousError(f"{name}: no such file, and {error}") from None
    randomise_head_(opened.built_in_model)
    return opened


def _default_batch_size(model_cost: Cost, device: torch.device) -> int:
    if device.type == "cpu":
        return 8
    return 256 if model_cost.parameters < LARGE_MODEL else 128


Step = Callable[[], object]
Describe = Callable[[], tuple[str, list[str]]]  # returns the path of the steps, and notes


def _inference_step(opened: EvaluatedModel, count: int, size: tuple[int, int], precision: str) -> tuple[Step, Describe]:
    """From normalised images on the device to logits."""
    device = next(opened.model.parameters()).device
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    images = torch.randn(count, opened.model.config.channels, *size, device=device).to(dtype)
    run = accelerate(opened.model, cast(Precision, precision))
    return lambda: run(images), lambda: (run.path, [])


def _training_step(opened: EvaluatedModel, count: int, size: tuple[int, int], precision: str) -> tuple[Step, Describe]:
    """A complete training step on pixels on the device: normalisation, forward, cross-entropy, backward, AdamW."""
    engine = synthetic_engine(opened.built_in_model, count, size, precision)
    if engine.device.type == "cuda":
        engine.compile()
    batch, world = synthetic_batch(opened.built_in_model, count, size), World()
    return lambda: engine.step(batch, 0, count, world), lambda: (step_path(engine), engine.notes)


def _measure_step(step: Step, device: torch.device, images: int, seconds: float) -> tuple[StepTimes, float | None]:
    """Return the times of the steps, and the energy per image in joules."""
    energy, calls = Energy(device), 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        step()

    for _ in range(WARM_UP_STEPS):
        step()
    synchronise(device)
    before = energy.read()
    times = time_steps(counted, device, seconds=seconds, warm_up=0)
    after = energy.read()
    joules = None if before is None or after is None or after <= before else (after - before) / (calls * images)
    return times, joules
