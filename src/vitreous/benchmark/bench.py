"""`vitreous bench`: how fast a model is on this machine, in training or inference, and how much of it that takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, cast

import torch

from vitreous.benchmark.input_pipeline import Pipeline, measure_pipeline
from vitreous.benchmark.machine import SIDES, Energy, PeakMemory, Times, matmul_peak, speed, timed, wait
from vitreous.benchmark.synthetic import synthetic_batch, synthetic_engine, wake_head_, way
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluated_model import RANDOM_PREFIX, EvaluatedModel, open_model
from vitreous.fast.accelerate import Precision, accelerate
from vitreous.models import zoo
from vitreous.models.checks import Size
from vitreous.models.cost import Cost, cost
from vitreous.training.distributed import World
from vitreous.utils.device import pick_device, pick_precision
from vitreous.utils.environment import command, environment
from vitreous.utils.limits import MAX_WORKERS, check_count
from vitreous.utils.memory import size_text
from vitreous.utils.torch_settings import run_settings

Mode = Literal["train", "infer", "data"]
WARM_UP = 3
DAY = 24 * 60 * 60  # seconds: the longest that a measurement may be asked to take
LARGE = 150_000_000  # parameters: with more, batches are halved
DOING = {"infer": "inference", "train": "training"}


@dataclass(frozen=True)
class Speed:
    """What was measured of a model."""

    model: str
    mode: str
    precision: str
    device: str
    batch_size: int
    chosen: bool  # the batch size, by the model and the device
    cost: Cost
    path: str  # which way was taken, in words
    times: Times
    start_up: float  # seconds: building, and the first batch with all that is compiled for it
    peak_flops: float  # that a large product reaches here, in a second
    memory: int  # bytes at the peak
    joules: float | None  # for an image
    notes: tuple[str, ...]
    origin: dict[str, Any]  # date, command, versions, hardware

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.times.median

    @property
    def flops(self) -> float:
        """Of the model, in a second."""
        each = self.cost.training_flops if self.mode == "train" else self.cost.flops.total
        return each * self.images_per_second

    @property
    def share(self) -> float:
        """Of the machine's own peak."""
        return self.flops / self.peak_flops

    def to_json(self) -> dict[str, Any]:
        kept = ("model", "mode", "precision", "device", "batch_size", "path")
        return {
            **self.origin,
            **{name: getattr(self, name) for name in kept},
            "size": list(self.cost.size),
            "parameters": self.cost.parameters,
            "images_per_second": self.images_per_second,
            "batch_ms": self.times.to_json(),
            "repeats": len(self.times.seconds),
            "warm_up": WARM_UP,
            "model_flops_per_second": self.flops,
            "matmul_flops_per_second": self.peak_flops,
            "share_of_peak": self.share,
            "peak_memory_bytes": self.memory,
            "joules_per_image": self.joules,
            "start_up_seconds": self.start_up,
            "notes": list(self.notes),
        }

    def facts(self) -> list[tuple[str, str]]:
        """For people: what there is to say, and how it is called."""
        height, width = self.cost.size
        flops = f"{self.cost.flops.total / 1e9:,.1f} GFLOPs forward at {height} x {width}"
        side = f"{SIDES[torch.device(self.device).type]:,}"
        chosen = "; chosen by model and device, --batch-size sets it" if self.chosen else ""
        return [
            ("model", f"{self.model}: {self.cost.parameters:,} parameters, {flops}"),
            ("doing", f"{DOING[self.mode]} in {self.precision} on {self.origin['hardware']}"),
            ("path", self.path),
            ("speed", speed(self.images_per_second)),
            ("batch", f"{self.batch_size:,} images{chosen}"),
            ("time", f"{self.times}, after {WARM_UP} to warm up"),
            (
                "arithmetic",
                f"{rate(self.flops)}, {self.share:.0%} of the {rate(self.peak_flops)} of a product of two"
                f" {side} x {side} matrices in {self.precision}",
            ),
            ("memory", f"{size_text(self.memory)} at the peak"),
            ("energy", "not readable here" if self.joules is None else f"{self.joules:,.3g} J an image"),
            ("start-up", f"{self.start_up:,.1f} s for building and the first batch, with all compiling"),
            *(("note", note) for note in self.notes),
        ]


def rate(flops: float) -> str:
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
) -> Speed | Pipeline:
    """How fast this machine is with a model (B/16 if none is named), or with the images of training (mode="data").

    `model` is a name of the zoo or a checkpoint. `data`, `recipe` and `workers` are for mode="data": images to decode,
    whose augmentation, by how many processes.
    """
    if not 0 < seconds <= DAY:
        raise VitreousError(f"seconds = {seconds:g}: must be more than 0, and at most {DAY:,}")
    if batch_size is not None:
        check_count("batch_size", batch_size)
    chosen = pick_device(device)
    if mode == "data":
        _refuse(mode, model=model, precision=None if precision == "auto" else precision)
        if workers is not None and data is None:
            raise VitreousError(f"workers = {workers}: they decode, and data names no images to decode")
        if workers is not None:
            check_count("workers", workers, 0, MAX_WORKERS)
        name = "cifar10" if recipe is None else recipe
        with run_settings(device):
            found = measure_pipeline(name, data, size, batch_size, workers, chosen, seconds)
        return replace(found, origin=_origin(chosen))
    _refuse(mode, data=data, recipe=recipe, workers=workers)
    if mode not in DOING:
        raise VitreousError(f"mode = {mode!r}: there is train, infer and data")
    if mode == "train" and precision == "fp8":
        raise VitreousError("precision = 'fp8' is for inference: train in bf16 or fp32")
    with run_settings(device):
        return _speed(os.fspath(model or "B/16"), mode, size, batch_size, precision, chosen, seconds)


def _refuse(mode: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise VitreousError(f"{name}: has no meaning for mode = {mode!r}")


def _origin(device: torch.device) -> dict[str, Any]:
    found = environment(device)
    hardware = found.get("gpu") or found["cpu"]
    return {"date": date.today().isoformat(), "command": command(), "hardware": hardware, "environment": found}


def _speed(
    name: str,
    mode: str,
    size: Size | None,
    batch_size: int | None,
    precision: str,
    device: torch.device,
    seconds: float,
) -> Speed:
    settled, note = pick_precision(precision, device)
    memory, began = PeakMemory(device), time.perf_counter()
    subject = _opened(name, device)
    spent = cost(subject.model, size)
    count = batch_size or _usual_batch(spent, device)
    begin = _training if mode == "train" else _inference
    try:
        step, tell = begin(subject, count, spent.size, settled)
        step()
        wait(device)
        start_up = time.perf_counter() - began
        times, joules = _measured(step, device, count, seconds)
    except torch.OutOfMemoryError as error:
        raise VitreousError(f"out of memory on {device}: batch_size = {count} is too many images for {name}") from error
    peak = memory.read()
    path, notes = tell()
    del step, tell
    return Speed(
        subject.name.removeprefix(RANDOM_PREFIX),
        mode,
        settled,
        str(device),
        count,
        batch_size is None,
        spent,
        path,
        times,
        start_up,
        matmul_peak(device, settled),
        peak,
        joules,
        (*((note,) if note else ()), *notes),
        _origin(device),
    )


def _opened(name: str, device: torch.device) -> EvaluatedModel:
    """A model of the zoo with random weights, or what a file has."""
    if name not in zoo.ZOO and (Path(name).exists() or "://" in name):
        return open_model(name, device)
    try:
        subject = open_model(RANDOM_PREFIX + name, device)
    except VitreousError as error:
        raise VitreousError(f"{name}: there is no such file, and {error}") from None
    wake_head_(subject.model)
    return subject


def _usual_batch(spent: Cost, device: torch.device) -> int:
    if device.type == "cpu":
        return 8
    return 256 if spent.parameters < LARGE else 128


Step = Callable[[], object]
Tell = Callable[[], tuple[str, list[str]]]  # which way was taken, and what there is to say of it


def _inference(subject: EvaluatedModel, count: int, size: tuple[int, int], precision: str) -> tuple[Step, Tell]:
    """Logits of images that are normalised and on the device."""
    device = next(subject.model.parameters()).device
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    images = torch.randn(count, subject.model.config.channels, *size, device=device).to(dtype)
    run = accelerate(subject.model, cast(Precision, precision))
    return lambda: run(images), lambda: (run.path, [])


def _training(subject: EvaluatedModel, count: int, size: tuple[int, int], precision: str) -> tuple[Step, Tell]:
    """A whole step of a run: pixels on the device, normalised, forward, cross-entropy, backward, AdamW."""
    engine = synthetic_engine(subject.model, count, size, precision)
    if engine.device.type == "cuda":
        engine.compile()
    batch, world = synthetic_batch(subject.model, count, size), World()
    return lambda: engine.step(batch, 0, count, world), lambda: (way(engine), engine.notes)


def _measured(step: Step, device: torch.device, images: int, seconds: float) -> tuple[Times, float | None]:
    """Times, and joules for each image."""
    energy, calls = Energy(device), 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        step()

    for _ in range(WARM_UP):
        step()
    wait(device)
    before = energy.read()
    times = timed(counted, device, seconds=seconds, warm_up=0)
    after = energy.read()
    spent = None if before is None or after is None or after <= before else (after - before) / (calls * images)
    return times, spent
