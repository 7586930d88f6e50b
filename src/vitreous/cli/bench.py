"""`vitreous bench`: how fast this machine is with a model."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from vitreous.cli.parts import Json, Number, Size, print_json, show_facts, stopping
from vitreous.utils.console import STDERR, console


@dataclass(frozen=True)
class Way:
    """How it is measured."""

    batch_size: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """images at once; chosen by model and device if not given."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """of the arithmetic; auto: bf16 on a GPU, fp32 on a CPU. fp8 is for inference on a GPU."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """"cpu", "cuda", "cuda:1"...; auto: a GPU if there is one."""
    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 5.0
    """how long to repeat it."""


@dataclass(frozen=True)
class Images:
    """Of mode data."""

    data: Annotated[str | None, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = None
    """images to decode, as in `vitreous data`; without, only augmentation is measured."""
    recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: cifar10)")] = None
    """whose augmentation and size."""
    workers: Number = None
    """processes that decode; one for each core, up to 16, if not given."""


def bench(
    *,
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE", help_behavior_hint="(default: B/16)")] = None,
    mode: Literal["train", "infer", "data"] = "infer",
    size: Size = None,
    way: Way = Way(),
    images: Images = Images(),
    json: Json = False,
) -> None:
    """Measure how fast this machine is with a model, and how much of what it could do that takes.

    Args:
        model: a name that `vitreous models` lists, with random weights, or a checkpoint.
        mode: train: whole steps of training; infer: logits of images; data: images for training, decoded and varied.
        size: image size in pixels, one number or height and width; the model's (the recipe's) own if not given.
        way: how it is measured.
        images: of mode data.
        json: one JSON object instead of a table, with everything that was measured.
    """
    from vitreous.benchmark.bench import bench as measure

    waiting = f"getting ready, half a minute if something is compiled, and then measuring for {way.seconds:g} s"
    with stopping(False), console(STDERR).status(waiting):
        found = measure(model, mode, size=size, **vars(way), **vars(images))
    if json:
        print_json(found.to_json())
    else:
        show_facts(found.facts())
