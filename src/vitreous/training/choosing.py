"""What a run is told by its data: model, patches, resolution, duration, augmentation, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from vitreous.data.sources import DataSet, Source
from vitreous.errors import VitreousError
from vitreous.models import zoo
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, plain
from vitreous.training import durations, starting
from vitreous.training.config import TrainConfig
from vitreous.training.starting import Start

LOOKED_AT = 64  # images whose size is looked up
NOT_OF_MODELS = ("start", "preprocessing", "model")  # of the architecture, and no field of a model's config


@dataclass(frozen=True)
class Choice:
    field: str
    value: Any
    why: str


@dataclass(frozen=True)
class Facts:
    """What the choice goes by."""

    images: int
    classes: int
    channels: int
    side: int  # the median of the short sides
    shape: tuple[int, int] | None  # (height, width), where all are alike
    several: bool  # labels for each image
    start: Start | None = None  # what the model is told by, where it begins with weights

    @property
    def tiny(self) -> bool:
        return self.side <= 12

    @property
    def drawn(self) -> bool:
        """Small and grey: letters and the like, which a mirror turns into others."""
        return self.channels == 1 and self.side <= 64


def facts(data: DataSet, start: Start | None = None) -> Facts:
    sizes = list(_sizes(data.train))
    return Facts(
        len(data.train),
        len(data.classes),
        data.channels,
        int(median(min(size) for size in sizes)),
        sizes[0] if len(set(sizes)) == 1 else None,
        data.multi_label,
        start,
    )


def _sizes(source: Source) -> Iterator[tuple[int, int]]:
    if source.array is not None:
        yield (source.array.shape[1], source.array.shape[2])
        return
    readable = 0
    for index in torch.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).long().tolist():
        try:
            image = source.image(index)
        except VitreousError as error:
            problem = str(error)
            continue
        readable += 1
        yield (image.height, image.width)
    if not readable:
        raise VitreousError(f"none of the images that were looked at can be read; the last one was {problem}")


def choose(config: TrainConfig, known: Facts) -> tuple[TrainConfig, list[Choice]]:
    """Fill in what was left open. What was given is kept, and what depends on it follows it."""
    choices: list[Choice] = []
    for rule in (_objective, _model, _paper, _length, _augmentation, _optimiser):
        for field, value, why in rule(config, known):
            if config.flat()[field] is None:
                choices.append(Choice(field, value, why))
                config = config.with_(**{field: value})
    return config, choices


Rules = Iterator[tuple[str, Any, str]]


def _objective(config: TrainConfig, known: Facts) -> Rules:
    if known.several:
        yield "loss", "sigmoid", "an image may have several labels"
        yield "label_smoothing", 0.0, "every label stands for itself"
        yield "best_by", "map", "mean average precision is what several labels are measured by"
        return
    yield "loss", "softmax", "every image has one label"
    smoothing = 0.1 if (config.objective.loss or "softmax") == "softmax" else 0.0
    yield "label_smoothing", smoothing, "keeps small models from being too sure" if smoothing else "sigmoid"
    yield "best_by", "top1", "every image has one label"


def _model(config: TrainConfig, known: Facts) -> Rules:
    given = config.architecture
    if known.start is not None:
        height, width = _pair(known.start.model.image_size)
        yield "image_size", height if height == width else (height, width), f"that of {known.start.name}"
    elif given.model is None:
        yield from _unnamed_model(config, known)
    else:
        patch = {} if given.patch_size is None else {"patch_size": given.patch_size, "remainder": "crop"}
        step = _step(zoo.config(given.model, **patch))  # whether it divides the model's usual size does not matter
        size = max(1, round(max(4 * step, min(224, known.side)) / step)) * step
        yield "image_size", size, f"the images have about {known.side} px, and the model cuts them by {step}"
    if not _is_bit(config, known):
        deep = known.images >= 20_000
        rests = "many epochs over one set" if deep else f"{known.images:,} images: every block is needed"
        yield "stochastic_depth", 0.1 if deep else 0.0, rests
        yield "dropout", 0.0, "augmentation does more"


def _is_bit(config: TrainConfig, known: Facts) -> bool:
    if known.start is not None:
        return isinstance(known.start.model, BiTConfig)
    return (config.architecture.model or "").startswith("BiT")


def _unnamed_model(config: TrainConfig, known: Facts) -> Rules:
    given = config.architecture
    name, why = _size_by_images(known.images)
    yield "model", f"{name}/16", why
    if given.width is not None:
        heads = next(n for n in range(max(1, given.width // 32), 0, -1) if given.width % n == 0)
        yield "heads", heads, f"of {given.width // heads} numbers each"
        yield "mlp_dim", 4 * given.width, "four times the width"
    elif known.images < 5_000 and given.depth is None and given.heads is None:
        yield "width", 64 if known.tiny else 128, f"{known.images:,} images do not fill a wider one"
        yield "depth", 4 if known.tiny else 6, f"{known.images:,} images"
        yield "heads", 4, f"of {16 if known.tiny else 32} numbers each"
        yield "mlp_dim", 128 if known.tiny else 512, "in proportion to the width"
    if given.image_size is not None:
        patch = _dividing(_pair(given.image_size), _patch(min(_pair(given.image_size))))
    else:
        patch = given.patch_size or _patch(_resolution(known))
    size = given.image_size or _whole_patches(known, given.patch_size or patch)
    rows, cols = (side // (given.patch_size or patch) for side in _pair(size))
    yield "patch_size", patch, f"makes {rows * cols:,} tokens of an image"
    yield "image_size", size, f"the images have about {known.side} px on their short side"
    yield "pool", "gap", "the mean of all patches learns sooner than a class token where images are few"


def _size_by_images(images: int) -> tuple[str, str]:
    if images < 100_000:
        return "Ti", f"{images:,} images are few: a small ViT learns as much from them, and faster"
    if images < 2_000_000:
        return "S", f"{images:,} images are enough for S and too few for B from scratch"
    return "B", f"{images:,} images can fill B"


def _resolution(known: Facts) -> int:
    """The side to train at: the images' own while that is small, then what the budget of tokens allows."""
    for side, size in ((40, known.side), (80, 64), (180, 128)):
        if known.side <= side:
            return size
    return 160 if known.images < 100_000 else 224


def _patch(side: int) -> int:
    """Enough tokens to tell places apart, and not too many to pay for."""
    for limit, patch in ((3, 1), (12, 2), (40, 4), (80, 8)):
        if side <= limit:
            return patch
    return 16


def _dividing(size: tuple[int, int], patch: int) -> int:
    """A patch of about this size that divides a size which was given; the same where there is none, to be refused."""
    near: list[int] = [*range(patch, 2 * patch + 1), *range(patch - 1, max(1, patch // 2) - 1, -1)]
    for candidate in near:
        if not any(side % candidate for side in size):
            return candidate
    return patch


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _whole_patches(known: Facts, patch: int) -> int | tuple[int, int]:
    """The size, in whole patches; a rectangle where all images are alike and small."""
    if known.shape is not None and max(known.shape) <= 80:
        height, width = (-(-side // patch) * patch for side in known.shape)
        return height if height == width else (height, width)
    return max(patch, round(_resolution(known) / patch) * patch)


def _step(config: ViTConfig | BiTConfig) -> int:
    if isinstance(config, BiTConfig):
        return 32
    patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    return patch * (1 if config.backbone is None else config.backbone.stride)


@dataclass(frozen=True)
class Row:
    """Of the paper's Table 4, with what it says about development splits beside it."""

    images: float  # data of up to so many
    like: str
    steps: int
    rates: tuple[float, ...]
    held_out: float  # share of the training images to choose the learning rate by


TABLE_4 = (
    Row(1_000, "VTAB", 2_500, (0.01,), 0.2),
    Row(20_000, "Pets and Flowers", 500, (0.001, 0.003, 0.01, 0.03), 0.1),
    Row(200_000, "CIFAR", 10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    Row(math.inf, "ImageNet", 20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
)
WARMUP = 500  # steps of the official code, whose run of 500 steps has 50


def _paper(config: TrainConfig, known: Facts) -> Rules:
    """Table 4, which knows data sets by name: here it is their number of images that counts."""
    row = next(row for row in TABLE_4 if known.images <= row.images)
    if config.finetuning.lr_candidates:
        yield "dev_fraction", row.held_out, f"{known.images:,} training images"
    if config.finetuning.rules == "ours":
        return
    like = f"as the paper does with {row.like}, for {known.images:,} training images"
    yield "batch_size", 512, "the paper's"
    batch = config.schedule.batch_size or 512
    yield "duration", f"{row.steps} steps", like
    length = config.schedule.duration or f"{row.steps} steps"
    steps = durations.whole_run(length, batch_size=batch, images=known.images)
    yield "warmup", f"{min(WARMUP, -(-steps // 10))} steps", f"the official code's {WARMUP}, at most a tenth of the run"
    if config.optimiser.lr is not None or config.finetuning.lr_candidates:
        return
    if len(row.rates) == 1:
        yield "lr", row.rates[0], like
    else:
        yield "lr_candidates", row.rates, like
        yield "dev_fraction", row.held_out, like


def _length(config: TrainConfig, known: Facts) -> Rules:
    table = ((2_000, 100, 32), (10_000, 100, 64), (100_000, 100, 128), (500_000, 100, 512), (None, 90, 1024))
    epochs, batch = next((e, b) for limit, e, b in table if limit is None or known.images < limit)
    yield "batch_size", min(batch, known.images), f"makes {-(-known.images // batch):,} steps of an epoch"
    if known.start is None:
        yield "duration", f"{epochs} epochs", f"{known.images:,} images, each seen {epochs} times in another guise"
    else:
        epochs = 30 if known.images < 10_000 else 20 if known.images < 100_000 else 10
        yield "duration", f"{epochs} epochs", f"{known.start.name} has learnt to see already"
    yield "schedule", "cosine", "the learning rate needs no tuning of its own shape"
    clueless = "attention starts without a clue" if known.start is None else "the new head starts without a clue"
    yield "warmup", "10%", clueless


def _augmentation(config: TrainConfig, known: Facts) -> Rules:
    several = known.images >= 5_000
    crop = 1.0 if known.drawn else 0.4 if several else 0.5
    yield "crop", crop, "drawings are cut apart by it" if known.drawn else "objects are of any size, anywhere"
    yield "aspect", 1.0 if known.drawn else 4 / 3, "as the images are" if known.drawn else "a third wider or higher"
    yield "shift", 0.125 if known.drawn else 0.0, "in place of crops" if known.drawn else "crops do that"
    mirror = "small and grey, like letters, which a mirror changes" if known.drawn else "the mirror image is as good"
    yield "flip", not known.drawn, mirror
    strong = several and not known.tiny and not known.drawn
    why = f"{known.images:,} images, seen many times"
    if not strong:
        why = "drawings are spoilt by it" if known.drawn else f"{known.images:,} images are too few for it to help"
    yield "randaugment", 2 if strong else 0, why
    yield "magnitude", 5.0 if strong or config.augmentation.randaugment else 0.0, "half of the way, where it is used"
    yield "three_augment", False, "is for recipes without RandAugment"
    colour = known.channels == 3
    light = "RandAugment changes colours" if strong else "light changes" if colour else "the images are grey"
    yield "jitter", 0.2 if colour and not strong else 0.0, light
    yield "erase", 0.0, "other variation is enough"
    mixed = several and not known.tiny and not known.several
    blend = "several labels are mixed enough" if known.several else f"{known.images:,} images"
    yield "mixup", 0.2 if mixed else 0.0, blend
    yield "cutmix", 1.0 if mixed and strong else 0.0, blend if not known.drawn else "drawings are cut apart by it"


def _optimiser(config: TrainConfig, known: Facts) -> Rules:
    yield "optimiser", "adamw", "the most forgiving one"
    kind, batch = config.optimiser.optimiser or "adamw", config.schedule.batch_size or 128
    lr, why = _rate(config, known, kind), f"{kind} at a batch of {batch:,}"
    lr = lr if batch <= 512 else lr * (batch / 512) ** 0.5
    if not config.finetuning.lr_candidates:
        why = why if known.start is None else f"{why}, low enough to keep what was learnt before"
        yield "lr", float(f"{lr:.3g}"), why
    yield "weight_decay", 1e-4 if kind == "sgd" else 0.05, f"usual for {kind}"
    yield "ema", 0.999 if known.images >= 2_000 else 0.99, "a mean of the last steps, for nothing"


def _rate(config: TrainConfig, known: Facts, kind: str) -> float:
    """The learning rate for batches of up to 512."""
    if known.start is not None:
        wide = isinstance(known.start.model, BiTConfig) or known.start.model.width > 384
        if config.optimiser.layer_decay < 1 and kind != "sgd":  # it is the head's, and far less for the first layers
            return 3e-4 if wide else 1e-3
        return 0.01 if kind == "sgd" else 1e-4 if wide else 3e-4
    small = (config.architecture.width or 192) <= 128 and not _is_bit(config, known)
    return 0.03 if kind == "sgd" else 2e-3 if small or kind == "lamb" else 1e-3


def model_config(config: TrainConfig, known: Facts) -> ViTConfig | BiTConfig:
    """The config of the model that this run trains."""
    if known.start is not None:
        return starting.model_config(known.start, config.architecture)
    own = {name: value for name, value in vars(config.architecture).items() if name not in NOT_OF_MODELS}
    given = {name: value for name, value in own.items() if value is not None}
    name = config.architecture.model or ""
    return zoo.config(name, num_classes=known.classes, channels=known.channels, **given)


def preprocessing(config: TrainConfig, known: Facts) -> Preprocessing:
    """What the trained model is to be shown: the whole image if training squashed it, or else its middle."""
    size, crop = config.architecture.image_size, config.augmentation.crop
    assert size is not None
    assert crop is not None
    shown = plain(size, known.channels)
    if known.start is not None:  # pixels are on the scale that its weights know
        shown = replace(shown, mean=known.start.preprocessing.mean, std=known.start.preprocessing.std)
    height, width = _pair(size)
    squashed = crop == 1 or config.finetuning.rules == "paper"  # as the official code shows images
    if squashed or height != width:  # the short side alone would leave a rectangle with black edges
        return shown
    return replace(shown, resize=round(height / 0.875) if height >= 128 else height)
