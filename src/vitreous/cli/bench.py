"""`vitreous bench`: the throughput of a model on this machine."""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import tyro

from vitreous.cli.options import DeviceName, ImageSize, Switch
from vitreous.cli.output import interrupt_message, print_facts, print_json
from vitreous.utils.console import STDERR, console


@dataclass(frozen=True)
class MeasurementOptions:
    """Batch size, precision, device and duration."""

    batch_size: int | None = None
    """Images per batch. Default: depends on the model and the device."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """Precision of matmuls; auto: bf16 on a GPU, fp32 on a CPU. fp8: for inference on a GPU."""
    device: DeviceName = "auto"
    """cpu, cuda, cuda:1 ...; auto: a GPU if there is one."""
    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 5.0
    """Duration of the measurement in seconds."""


@dataclass(frozen=True)
class DataModeOptions:
    """For `--mode data`."""

    data: Annotated[str | None, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = None
    """Images to decode, as in `vitreous data`. Default: only augmentation is measured."""
    recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: cifar10)")] = None
    """Recipe that provides the augmentation and the image size."""
    workers: int | None = None
    """Number of worker processes that decode images. Default: one per CPU core, up to 16."""


def bench_command(
    *,
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE", help_behavior_hint="(default: B/16)")] = None,
    mode: Annotated[Literal["train", "infer", "data"], tyro.conf.arg(metavar="train|infer|data")] = "infer",
    size: ImageSize = None,
    measurement: MeasurementOptions = MeasurementOptions(),
    data_mode: DataModeOptions = DataModeOptions(),
    json: Switch = False,
) -> None:
    """Measure the throughput of a model on this machine, and the utilisation of the hardware.

    Args:
        model: A name from `vitreous models`, for random weights, or a checkpoint.
        mode: train: complete training steps. infer: from images to logits. data: decoding and augmentation of training
            images.
        size: Image size in pixels: one number, or height and width. Default: the size of the model or recipe.
        json: Print one JSON object with all measurements instead of a table.
    """
    from vitreous.benchmark.bench import bench

    waiting = f"preparing (up to half a minute if something is compiled), then measuring for {measurement.seconds:g} s"
    with interrupt_message(resumable=False), console(STDERR).status(waiting):
        found = bench(model, mode, size=size, **asdict(measurement), **asdict(data_mode))
    if json:
        print_json(found.to_json())
    else:
        print_facts(found.facts())
