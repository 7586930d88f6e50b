"""What is measured, on what, and how: a model by its name, the images, and the way they are shown to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vitreous.data.loading import EvalLoader, Prepare, Survey
from vitreous.data.opening import open_data
from vitreous.data.options import Reading
from vitreous.data.sources import DataSet, Source, Subset
from vitreous.data.splitting import split, usual_fraction
from vitreous.errors import VitreousError
from vitreous.fast.running import Precision, at_work
from vitreous.models import zoo
from vitreous.models.checks import pair
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing, plain
from vitreous.weights.known import content_hash, preprocessing_of
from vitreous.weights.load import MAIN, load

RANDOM = "random:"
Tick = Callable[[int], None]  # so many images more are done
Bar = Callable[[str, int], AbstractContextManager[Tick]]  # of what, and of how many images


def no_bar(title: str, images: int) -> AbstractContextManager[Tick]:
    return nullcontext(lambda images: None)


@dataclass(frozen=True)
class Subject:
    """A model that is to be measured."""

    name: str
    model: VisionTransformer | BiT
    notes: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        return content_hash(self.model)

    def shown(self, size: int | tuple[int, int] | None = None) -> Preprocessing:
        """How it is shown images, at its own size or another; one that its patches do not divide is an error."""
        preprocessing = preprocessing_of(self.model)
        if size is None:
            return preprocessing
        config = self.model.config
        try:
            if isinstance(config, ViTConfig):
                config.grid_at(pair(size))
            return preprocessing.at(size)
        except VitreousError as error:
            raise VitreousError(f"{self.name} at size {size}: {error}") from error


def open_subject(
    source: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
) -> Subject:
    """Anything that `load` takes, or `random:NAME`: a model of the zoo as it is before training, always the same."""
    text = os.fsdecode(source)
    if not text.startswith(RANDOM):
        model = load(source, heads=heads, device=device, preprocessing=preprocessing)
        return Subject(short_name(text), model, tuple(model.report.notes) if model.report else ())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = zoo.create(text.removeprefix(RANDOM)).to(device)
    model.preprocessing = plain(model.config.image_size, model.config.channels)
    return Subject(text, model.eval())


def short_name(source: str) -> str:
    path = Path(source)
    if path.name in MAIN and path.parent.name:
        return path.parent.name
    return path.name.removesuffix(path.suffix) if path.suffix in (".safetensors", ".npz", ".pth", ".pt") else path.name


# ---------------------------------------------------------------- images


@dataclass(frozen=True)
class Parts:
    """The images to learn from and those to measure on."""

    name: str
    classes: tuple[str, ...]
    train: Source
    test: Source
    told: str  # which split is measured on, in words
    notes: tuple[str, ...] = ()


def open_whole(data: str | os.PathLike[str], reading: Reading = Reading()) -> DataSet:  # noqa: B008 (it is frozen)
    """The data with the splits of its own and no other."""
    opened = open_data(data, replace(reading, val_fraction=0.0))
    return replace(opened, notes=tuple(note for note in opened.notes if not note.startswith("val_fraction")))


def measured_split(data: DataSet, wanted: str | None = None) -> tuple[str, Source]:
    """The split of that name; or test, or else val, or else all there is, which is then called `all`."""
    if wanted is not None:
        if wanted not in data.splits:
            raise VitreousError(
                f"{data.name}: there is no {wanted} split; it has {' and '.join(data.splits)} (--split)"
            )
        return wanted, data.splits[wanted]
    found = next((name for name in ("test", "val") if name in data.splits), None)
    return ("all", data.train) if found is None else (found, data.splits[found])


def learn_and_measure(data: DataSet, wanted: str | None = None) -> Parts:
    """For measures that learn. Data without splits has a part set aside, of each class its share."""
    if data.multi_label:
        raise VitreousError(
            f"{data.name}: images with any number of labels; few-shot, k-NN and the probe are for one class each"
        )
    name, test = measured_split(data, wanted)
    if name == "train":
        raise VitreousError(f"{data.name}: what is measured on train cannot be learnt from train; name another --split")
    if name != "all":
        return Parts(data.name, data.classes, data.train, test, f"{name} split", tuple(data.notes))
    fraction = usual_fraction(len(data.train))
    kept, aside = split(data.train.labels, fraction, 0)
    if not len(aside):
        raise VitreousError(
            f"{data.name}: no test or val split, and none to spare for one, since each class has one image"
        )
    told = f"{fraction:.0%} of the images, set aside (seed 0), since the data has no test or val split"
    return Parts(data.name, data.classes, Subset(data.train, kept), Subset(data.train, aside), told, tuple(data.notes))


@dataclass(frozen=True)
class Loading:
    """How images come to a model."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    batch_size: int = 64
    workers: int | None = None
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise VitreousError(f"batch_size = {self.batch_size}: must be 1 or more")
        if self.workers is not None and self.workers < 0:
            raise VitreousError(f"workers = {self.workers}: must be 0 or more")

    def loader(self, source: Source, preprocessing: Preprocessing, unreadable: dict[int, str]) -> EvalLoader:
        """Every image once; what cannot be read is left out, and noted in `unreadable`."""
        prepare = Prepare(preprocessing)
        return EvalLoader(
            source, Survey({}), prepare, self.batch_size, self._workers(source), self.device, unreadable=unreadable
        )

    def running(self, model: VisionTransformer | BiT) -> Callable[[Tensor], Tensor]:
        """A model as it gives its answers here: the fastest way to its logits in this precision."""
        if self.precision == "bf16" and self.device.type == "cpu":
            return self._by_autocast(model.eval())
        return at_work(model, self.precision)

    def _by_autocast(self, model: VisionTransformer | BiT) -> Callable[[Tensor], Tensor]:
        def call(images: Tensor) -> Tensor:
            with self.precisely():
                logits: Tensor = model(images)
                return logits

        return call

    @contextmanager
    def precisely(self) -> Iterator[None]:
        """Where features are made. They come by the plain model, which has no fp8."""
        if self.precision == "fp8":
            raise VitreousError("precision = 'fp8': for a model's answers; its features come in fp32 or bf16")
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            yield

    def _workers(self, source: Source) -> int:
        if self.workers is not None:
            return self.workers
        few = len(source) <= 2 * self.batch_size
        while isinstance(source, Subset):
            source = source.source
        in_memory = source.array is not None and self.device.type == "cpu"
        return 0 if few or in_memory else min(16, os.cpu_count() or 1)
