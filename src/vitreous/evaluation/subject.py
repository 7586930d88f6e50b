"""What is measured, on what, and how: a model by its name, the images, and the way they are shown to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vitreous.data.dataset import DataSet, Source, Subset
from vitreous.data.digests import image_digests
from vitreous.data.loading import EvalLoader
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import EvalTransform
from vitreous.errors import VitreousError
from vitreous.evaluation.training_images import SeenImages, seen_by, selection_of
from vitreous.fast.accelerate import Precision, at_work
from vitreous.models import zoo
from vitreous.models.checks import pair
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing, default_preprocessing
from vitreous.utils.limits import MAX_WORKERS, check_count
from vitreous.utils.torch_settings import default_modes
from vitreous.weights.checkpoint_files import WEIGHT_FILES
from vitreous.weights.load import load
from vitreous.weights.model_info import content_hash, preprocessing_of

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
    seen: SeenImages | None = None  # the images of its training run, where that is known
    selection: str = "drawn at random"  # how its weights were selected, in words

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
        notes = tuple(model.report.notes) if model.report else ()
        return Subject(short_name(text), model, notes, seen_by(source), selection_of(source))
    with torch.random.fork_rng(devices=[]), default_modes():
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed every GPU too
        model = zoo.create(text.removeprefix(RANDOM)).to(device)
    model.preprocessing = default_preprocessing(model.config.image_size, model.config.channels)
    return Subject(text, model.eval())


def short_name(source: str) -> str:
    path = Path(source)
    if path.name in WEIGHT_FILES and path.parent.name:
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


@dataclass(frozen=True)
class Measured:
    """The images that a model's answers are measured on."""

    split: str  # train, val, test, all; or unseen: those of all that the model has not seen in training
    images: Source
    left_out: str = ""  # which images were left out because the model has seen them, in words
    warnings: tuple[str, ...] = ()  # images that the model has seen and that are measured on all the same


def measured_split(data: DataSet, wanted: str | None = None) -> tuple[str, Source]:
    """The split of that name. By default the data's own test split, or else its own val split, or else all images,
    which are then called `all`."""
    own = data.stored_splits
    if wanted is None:
        wanted = next((name for name in ("test", "val") if name in own), "all")
    if wanted == "all" and list(own) == ["train"]:
        return "all", own["train"]
    if wanted not in data.splits:
        more = ", or all" if list(own) == ["train"] else ""
        raise VitreousError(
            f"{data.name}: there is no {wanted} split; it has {' and '.join(data.splits)}{more} (--split)"
        )
    return wanted, data.splits[wanted]


def images_to_measure(data: DataSet, subject: Subject, wanted: str | None = None, bar: Bar = no_bar) -> Measured:
    """The images of a split; where the data has no splits of its own, those that the model has not seen in training.

    Images are compared by content, so that it does not matter where they lie now. What was asked for by name, and a
    split of the data's own, is measured as it is, with a warning if the model has seen some of it.
    """
    name, source = measured_split(data, wanted)
    if subject.seen is None:
        return Measured(name, source)
    with bar(f"comparing {data.name} with the images of the run", len(source)) as tick:
        found = image_digests(source, tick)
    trained = subject.seen.trained(found)
    selected = subject.seen.selected(found) & ~trained
    if wanted is None and name == "all":
        for keep in (~(trained | selected), ~trained):
            if keep.any() and not keep.all():
                text = f"{_seen_text(trained & ~keep, selected & ~keep)}, left out"
                part = Subset(source, keep.nonzero().flatten())
                return Measured("unseen", part, text, _seen_warnings(trained[keep], selected[keep]))
    return Measured(name, source, "", _seen_warnings(trained, selected))


def _seen_text(trained: Tensor, selected: Tensor) -> str:
    parts = ((trained, "it was trained with"), (selected, "its weights were selected with"))
    return " and ".join(f"{int(which.sum()):,} images that {how}" for which, how in parts if which.any())


def _seen_warnings(trained: Tensor, selected: Tensor) -> tuple[str, ...]:
    found = []
    if count := int(trained.sum()):
        found.append(
            f"{count:,} of the {len(trained):,} images that are measured on are TRAINING IMAGES of this model (compared"
            " by content): the numbers say nothing about new images"
        )
    if count := int(selected.sum()):
        found.append(
            f"{count:,} of the {len(selected):,} images that are measured on selected these weights (the validation"
            " images of the run): expect less on new images"
        )
    return tuple(found)


def learn_and_measure(data: DataSet, wanted: str | None = None) -> Parts:
    """For measures that learn: on the split of that name, by default test or else val, learnt from all images that are
    in no split behind `train`, val included where the measure is taken on test."""
    if data.multi_label:
        raise VitreousError(
            f"{data.name}: images with any number of labels; few-shot, k-NN and the probe are for one class each"
        )
    name = wanted or next((name for name in ("test", "val") if name in data.splits), None)
    if name is None:
        raise VitreousError(f"{data.name}: no test or val split, and none is set aside (val_fraction, test_fraction)")
    if name in ("train", "all"):
        raise VitreousError(
            f"{data.name}: what is measured on {name} cannot be learnt from train; name another --split"
        )
    name, test = measured_split(data, name)
    whole = data.stored_splits["train"]
    train = data.train
    if "val" in data.held_out and name != "val":  # what chooses weights in training is free to be learnt from here
        train = whole if "test" not in data.held_out else _without(whole, data.test)
    told = f"{name} split"
    if name in data.held_out:
        told += f", {100 * len(test) / len(whole):.3g}% of the images set aside, since the data has no {name} split"
    return Parts(data.name, data.classes, train, test, told, tuple(data.notes))


def _without(whole: Source, part: Source | None) -> Source:
    assert isinstance(part, Subset)
    kept = torch.ones(len(whole), dtype=torch.bool)
    kept[part.indices] = False
    return Subset(whole, kept.nonzero().flatten())


def warnings_for(subject: Subject, found: Tensor | None) -> tuple[str, ...]:
    """What is to be said of a model that is measured on images of these digests."""
    if subject.seen is None or found is None:
        return ()
    trained = subject.seen.trained(found)
    return _seen_warnings(trained, subject.seen.selected(found) & ~trained)


@dataclass(frozen=True)
class Loading:
    """How images come to a model."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    batch_size: int = 64
    workers: int | None = None
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.workers is not None:
            check_count("workers", self.workers, 0, MAX_WORKERS)

    def loader(self, source: Source, preprocessing: Preprocessing, unreadable: dict[int, str]) -> EvalLoader:
        """Every image once; what cannot be read is left out, and noted in `unreadable`."""
        prepare = EvalTransform(preprocessing)
        return EvalLoader(
            source, ScanResult({}), prepare, self.batch_size, self._workers(source), self.device, unreadable=unreadable
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
