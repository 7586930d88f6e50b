"""Default settings chosen from the data: model, image and patch size, length, augmentation, optimiser.

Each choice has a reason, which is printed next to it. The reason must be true for the value and for the settings that
were given: a setting that is off says why, and no reason mentions a setting that is off as if it were on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from vitreous.data.dataset import DataSet, Source
from vitreous.data.options import Augmentation
from vitreous.data.statistics import class_counts
from vitreous.errors import SystemFaultError, VitreousError
from vitreous.models import zoo
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, default_preprocessing
from vitreous.training import durations, initial_weights
from vitreous.training.config import Architecture, TrainConfig
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.paper_settings import PAPER_WARMUP, TABLE_4
from vitreous.utils.sizes import pair

SAMPLED_IMAGES = 64  # images whose size is read
FEW_IMAGES = 5_000  # training images: with fewer, models are smaller and augmentation is weaker
TINY_SIDE = 12  # px
DEFAULT_WEIGHTS = "vitreous-mini"  # the checkpoint in the package
PATCH_OF_WEIGHTS = 8  # px: patch size of DEFAULT_WEIGHTS
FEW_FOR_WEIGHTS = 20_000  # training images: with fewer, a run starts from DEFAULT_WEIGHTS
MIN_SIDE_FOR_WEIGHTS = 24  # px: smaller images do not look like those that DEFAULT_WEIGHTS was trained on
FROM_SCRATCH = "none"  # value of `start`
IMBALANCE = 3.0  # ratio of the largest to the smallest class from which on classes are weighted
SMALL_MODEL = {"width": 128, "depth": 6, "heads": 4, "mlp_dim": 512}
NOT_OF_ANOTHER_MODEL = ("start", "image_size", "dropout", "stochastic_depth")  # also apply to DEFAULT_WEIGHTS
NOT_MODEL_FIELDS = ("start", "preprocessing", "model")  # fields of Architecture that a model config does not have


@dataclass(frozen=True)
class Choice:
    """A setting that was chosen. The names of the fields are those in config.json."""

    field: str
    value: Any
    why: str


@dataclass(frozen=True)
class Facts:
    """What the choices depend on: properties of the training images, and the initial weights."""

    images: int
    classes: int
    channels: int
    side: int  # median of the short sides, in pixels
    shape: tuple[int, int] | None  # (height, width), if all images have the same
    multi_label: bool
    start: InitialWeights | None = None
    decode_seconds: float = field(default=0.0, compare=False)  # of one image
    imbalance: float = 1.0  # images of the largest class, divided by those of the smallest

    @property
    def tiny(self) -> bool:
        return self.side <= TINY_SIDE

    @property
    def may_be_text(self) -> bool:
        """Whether images are small and grey, such as letters and digits, which flips and crops would change."""
        return self.channels == 1 and self.side <= 64


def collect_facts(data: DataSet, start: InitialWeights | None = None) -> Facts:
    started = time.perf_counter()
    sizes = list(_sample_sizes(data.train))
    decode_seconds = 0.0 if data.train.array is not None else (time.perf_counter() - started) / len(sizes)
    counts = [count for count in class_counts(data.train, len(data.classes)) if count]
    return Facts(
        len(data.train),
        len(data.classes),
        data.channels,
        int(median(min(size) for size in sizes)),
        sizes[0] if len(set(sizes)) == 1 else None,
        data.multi_label,
        start,
        decode_seconds,
        max(counts) / min(counts) if counts else 1.0,
    )


def choose_start(config: TrainConfig, facts: Facts) -> tuple[TrainConfig, list[Choice]]:
    """Choose the initial weights if they are not given: the checkpoint in the package for a small number of images.

    Options that describe another model, and `start="none"`, mean random weights (None in the config).
    """
    given = config.architecture
    if given.start is not None:
        return (config.with_(start=None) if given.start == FROM_SCRATCH else config), []
    if (why := _why_random_weights(given, facts)) is not None:
        return config, [Choice("start", None, f"random weights: {why}")]
    why = f"the checkpoint in the package, for fewer than {FEW_FOR_WEIGHTS:,} images; --from none trains from scratch"
    return config.with_(start=DEFAULT_WEIGHTS), [Choice("start", DEFAULT_WEIGHTS, why)]


def _why_random_weights(given: Architecture, facts: Facts) -> str | None:
    """Why DEFAULT_WEIGHTS are not used by default. None: they are."""
    own = [name for name, value in vars(given).items() if value is not None and name not in NOT_OF_ANOTHER_MODEL]
    if own:
        return f"the model is described by other options ({', '.join(own)})"
    if facts.images >= FEW_FOR_WEIGHTS:
        return _count_reason(facts, FEW_FOR_WEIGHTS)
    if facts.side < MIN_SIDE_FOR_WEIGHTS:
        return f"the images are smaller ({facts.side} px) than those that {DEFAULT_WEIGHTS} was trained on"
    if given.image_size is not None and any(side % PATCH_OF_WEIGHTS for side in pair(given.image_size)):
        return f"the size is not a multiple of {PATCH_OF_WEIGHTS}, the patch size of {DEFAULT_WEIGHTS}"
    return None


def _sample_sizes(source: Source) -> Iterator[tuple[int, int]]:
    if source.array is not None:
        yield (source.array.shape[1], source.array.shape[2])
        return
    readable = 0
    indices = torch.linspace(0, len(source) - 1, min(SAMPLED_IMAGES, len(source))).long().tolist()
    for index in indices:
        try:
            image = source.image(index)
        except SystemFaultError:
            raise
        except VitreousError as error:
            problem = str(error)
            continue
        readable += 1
        yield (image.height, image.width)
    if not readable:
        raise VitreousError(f"none of the {len(indices)} images that were tried can be read; the last error: {problem}")


def choose_defaults(config: TrainConfig, facts: Facts) -> tuple[TrainConfig, list[Choice]]:
    """Choose the settings that are not given. Later rules see the given settings and the choices of earlier rules."""
    choices: list[Choice] = []
    for rule in (_objective, _model, _paper_settings, _schedule, _augmentation, _optimiser):
        for name, value, why in rule(config, facts):
            if config.flat()[name] is None:
                choices.append(Choice(name, value, why))
                config = config.with_(**{name: value})
    return config, choices


Rules = Iterator[tuple[str, Any, str]]  # field, value if the field is not given, reason


def _objective(config: TrainConfig, facts: Facts) -> Rules:
    if facts.multi_label:
        yield "loss", "sigmoid", "an image may have several labels"
        yield "label_smoothing", 0.0, "not used with several labels"
        yield "best_by", "map", "mean average precision, the usual metric for several labels"
        yield "class_weights", "none", "not used with several labels"
        return
    yield "loss", "softmax", "every image has one label"
    softmax = (config.objective.loss or "softmax") == "softmax"
    smoothing = "usual with softmax cross-entropy" if softmax else "not used with the sigmoid loss"
    yield "label_smoothing", 0.1 if softmax else 0.0, smoothing
    yield "best_by", "top1", "accuracy, since every image has one label"
    ratio = f"the largest class has {facts.imbalance:.3g} times the images of the smallest"
    if config.reading.balanced:
        yield "class_weights", "none", "off: classes are sampled equally (balanced)"
    elif facts.imbalance > IMBALANCE:
        yield "class_weights", "balanced", f"{ratio}; --class-weights none gives all images the same weight"
    else:
        yield "class_weights", "none", "off: the classes have similar numbers of images"


def _model(config: TrainConfig, facts: Facts) -> Rules:
    given = config.architecture
    if facts.start is not None:
        height, width = pair(facts.start.model.image_size)
        yield "image_size", height if height == width else (height, width), f"the input size of {facts.start.name}"
    elif given.model is None:
        yield from _default_model(config, facts)
    else:
        cells = {"patch_size": given.patch_size, "stem": given.stem}
        fields: dict[str, Any] = {name: value for name, value in cells.items() if value is not None}
        if "patch_size" in fields:  # it may not divide the default image size, which is not used here
            fields["remainder"] = "crop"
        step = size_step(zoo.config(given.model, **fields))
        size = max(1, round(max(4 * step, min(224, facts.side)) / step)) * step
        yield "image_size", size, f"a multiple of {step}; {_size_reason(facts, size)}"
    if not _is_bit(config, facts):
        deep = facts.images >= 20_000
        yield "stochastic_depth", 0.1 if deep else 0.0, f"{'' if deep else 'off: '}{_count_reason(facts, 20_000)}"
        yield "dropout", 0.0, "off by default"


def _size_reason(facts: Facts, size: int | tuple[int, int]) -> str:
    """Compare the size of the images with the input size."""
    images, side = f"the images have about {facts.side} px on their short side", min(pair(size))
    if side < 0.9 * facts.side:
        return f"{images}; a larger input takes more time"
    return f"{images}; enlarged for more patches" if side > 1.1 * facts.side else images


def _count_reason(facts: Facts, limit: int) -> str:
    return f"{limit:,} images or more" if facts.images >= limit else f"fewer than {limit:,} images"


def _is_bit(config: TrainConfig, facts: Facts) -> bool:
    if facts.start is not None:
        return isinstance(facts.start.model, BiTConfig)
    return (config.architecture.model or "").startswith("BiT")


def _default_model(config: TrainConfig, facts: Facts) -> Rules:
    given = config.architecture
    name, why = _base_model(facts.images)
    yield "model", f"{name}/16", why
    if given.width is not None:
        heads = next(n for n in range(max(1, given.width // 32), 0, -1) if given.width % n == 0)
        yield "heads", heads, f"{given.width // heads} dimensions per head"
        yield "mlp_dim", 4 * given.width, "four times the width"
    elif facts.images < FEW_IMAGES and given.depth is None and given.heads is None:
        few = f"smaller than {name}, for fewer than {FEW_IMAGES:,} images"
        yield "width", 64 if facts.tiny else SMALL_MODEL["width"], few
        yield "depth", 4 if facts.tiny else SMALL_MODEL["depth"], few
        yield "heads", SMALL_MODEL["heads"], f"{16 if facts.tiny else 32} dimensions per head"
        mlp = f"{'twice' if facts.tiny else 'four times'} the width"
        yield "mlp_dim", 128 if facts.tiny else SMALL_MODEL["mlp_dim"], mlp
    if given.image_size is not None:
        patch = _dividing_patch(pair(given.image_size), _patch_for(min(pair(given.image_size))))
    else:
        patch = given.patch_size or _patch_for(_resolution(facts))
    size = given.image_size or _image_size_for(facts, given.patch_size or patch)
    rows, cols = (side // (given.patch_size or patch) for side in pair(size))
    yield "patch_size", patch, f"{rows} x {cols} patches per image"
    yield "image_size", size, _size_reason(facts, size)
    yield "pool", "gap", "the mean of the patch tokens usually trains faster than a class token"


def may_use_smaller_model(config: TrainConfig, facts: Facts) -> bool:
    """Whether the model is chosen from the data and larger than SMALL_MODEL."""
    given = config.architecture
    return facts.images >= FEW_IMAGES and not any((given.model, *(getattr(given, name) for name in SMALL_MODEL)))


def _base_model(images: int) -> tuple[str, str]:
    if images < 100_000:
        return "Ti", f"the base for fewer than 100,000 images ({images:,}), with the changes below"
    if images < 2_000_000:
        return "S", f"the base for 100,000 to 2,000,000 images ({images:,}), with the changes below"
    return "B", f"the base for 2,000,000 images or more ({images:,}), with the changes below"


def _resolution(facts: Facts) -> int:
    """Image size for training: that of small images, otherwise limited by the number of tokens."""
    for side, size in ((40, facts.side), (80, 64), (180, 128)):
        if facts.side <= side:
            return size
    return 160 if facts.images < 100_000 else 224


def _patch_for(side: int) -> int:
    """Patch size for an image size: a compromise between resolution and number of tokens."""
    for limit, patch in ((3, 1), (12, 2), (40, 4), (80, 8)):
        if side <= limit:
            return patch
    return 16


def _dividing_patch(size: tuple[int, int], patch: int) -> int:
    """A patch size close to `patch` that divides the given image size. If there is none, `patch`: an error later."""
    near: list[int] = [*range(patch, 2 * patch + 1), *range(patch - 1, max(1, patch // 2) - 1, -1)]
    for candidate in near:
        if not any(side % candidate for side in size):
            return candidate
    return patch


def _image_size_for(facts: Facts, patch: int) -> int | tuple[int, int]:
    """Image size as a multiple of the patch size; a rectangle if all images have the same small shape."""
    if facts.shape is not None and max(facts.shape) <= 80:
        height, width = (-(-side // patch) * patch for side in facts.shape)
        return height if height == width else (height, width)
    return max(patch, round(_resolution(facts) / patch) * patch)


def size_step(config: ViTConfig | BiTConfig) -> int:
    if isinstance(config, BiTConfig):
        return config.stride
    patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    return patch * (1 if config.backbone is None else config.backbone.stride)


def _paper_settings(config: TrainConfig, facts: Facts) -> Rules:
    """Table 4 of the paper lists data sets by name; here the number of training images selects the row."""
    row = next(row for row in TABLE_4 if facts.images <= row.images)
    like = f"as in the paper for {row.like}; here for {row.range} ({facts.images:,})"
    if config.finetuning.lr_candidates:
        yield "dev_fraction", row.held_out, like
    if config.finetuning.rules == "ours":
        return
    yield "batch_size", 512, "as in the paper"
    batch = config.schedule.batch_size or 512
    yield "duration", f"{row.steps} steps", like
    length = config.schedule.duration or f"{row.steps} steps"
    steps = durations.run_length(length, batch_size=batch, images=facts.images)
    short = steps < 10 * PAPER_WARMUP
    warmup = f"{-(-steps // 10) if short else PAPER_WARMUP} steps"
    yield "warmup", warmup, "a tenth of the run" if short else "as in the official code"
    if config.optimiser.lr is not None or config.finetuning.lr_candidates:
        return
    if len(row.rates) == 1:
        yield "lr", row.rates[0], like
    else:
        yield "lr_candidates", row.rates, like
        yield "dev_fraction", row.held_out, like


def _schedule(config: TrainConfig, facts: Facts) -> Rules:
    table = ((2_000, 100, 32), (10_000, 100, 64), (100_000, 100, 128), (500_000, 100, 512), (None, 90, 1024))
    epochs, batch = next((e, b) for limit, e, b in table if limit is None or facts.images < limit)
    per_epoch = -(-facts.images // batch)
    yield "batch_size", min(batch, facts.images), f"{per_epoch:,} step{'' if per_epoch == 1 else 's'} per epoch"
    if facts.start is None:
        yield "duration", f"{epochs} epochs", f"the default from scratch for {facts.images:,} images"
    else:
        epochs = 30 if facts.images < 10_000 else 20 if facts.images < 100_000 else 10
        yield "duration", f"{epochs} epochs", f"shorter than from scratch, since {facts.start.name} is trained already"
    yield "schedule", "cosine", "a smooth decay that needs no further settings"
    unstable = "the first steps of a new model are unstable" if facts.start is None else "the new head is untrained"
    yield "warmup", "10%", unstable


LETTERS = "small grey images may be letters or digits"


def _augmentation(config: TrainConfig, facts: Facts) -> Rules:
    given, many = config.augmentation, facts.images >= FEW_IMAGES
    yield from _crops(given, facts)
    changed, same = f"off: {LETTERS}, which flips change", "a flipped image usually shows the same class"
    yield "flip", not facts.may_be_text, changed if facts.may_be_text else same
    strong, enough = many and not facts.tiny and not facts.may_be_text, _count_reason(facts, FEW_IMAGES)
    yield "randaugment", 2 if strong else 0, enough if strong else _off_reason(facts, "which it distorts")
    varied = strong if given.randaugment is None else given.randaugment > 0
    yield "magnitude", 5.0 if varied else 0.0, "half of the maximum of 10" if varied else "RandAugment is off"
    yield "three_augment", False, "off: RandAugment is used instead" if varied else "off by default"
    yield from _jitter(facts, strong, varied)
    yield "erase", 0.0, "off by default"
    mixed = many and not facts.tiny and not facts.multi_label
    yield "mixup", 0.2 if mixed else 0.0, enough if mixed else _off_reason(facts, mixes=True)
    cut = mixed and strong
    yield "cutmix", 1.0 if cut else 0.0, enough if cut else _off_reason(facts, "which it cuts apart", mixes=True)


def _crops(given: Augmentation, facts: Facts) -> Rules:
    crop = 1.0 if facts.may_be_text else 0.4 if facts.images >= FEW_IMAGES else 0.5
    cuts = f"off: {LETTERS}, which crops cut off" if facts.may_be_text else "objects vary in size and position"
    yield "crop", crop, cuts
    cropped = (crop if given.crop is None else given.crop) < 1
    if not cropped:
        yield "aspect", 1.0, "off: there are no crops"
    elif facts.may_be_text:
        yield "aspect", 1.0, f"off: {LETTERS}, which it distorts"
    else:
        yield "aspect", 4 / 3, "crops are up to a third wider or higher"
    if facts.may_be_text:
        yield "shift", 0.125, "objects vary in position"
    else:
        yield "shift", 0.0, "off: crops move the image already" if cropped else "off by default"


def _jitter(facts: Facts, strong: bool, varied: bool) -> Rules:
    """`strong`: the default for many images. `varied`: whether RandAugment is on."""
    if facts.channels == 1:
        yield "jitter", 0.0, "off: the images are grey"
    elif strong:
        default = f"off by default: {_count_reason(facts, FEW_IMAGES)}"
        yield "jitter", 0.0, "off: RandAugment changes colours" if varied else default
    else:
        yield "jitter", 0.2, "light and colours vary between images"


def _off_reason(facts: Facts, letters: str = "", mixes: bool = False) -> str:
    """Why an augmentation is off. `letters`: its effect on letters, if any. `mixes`: whether it mixes labels."""
    if mixes and facts.multi_label:
        return "off: not used with several labels"
    if letters and facts.may_be_text:
        return f"off: {LETTERS}, {letters}"
    if facts.tiny:
        return f"off: the images are very small ({facts.side} px)"
    return f"off: {_count_reason(facts, FEW_IMAGES)}"


def _optimiser(config: TrainConfig, facts: Facts) -> Rules:
    yield "optimiser", "adamw", "works well without tuning"
    kind, batch = config.optimiser.optimiser or "adamw", config.schedule.batch_size or 128
    lr = _learning_rate(config, facts, kind)
    lr = lr if batch <= 512 else lr * (batch / 512) ** 0.5
    if not config.finetuning.lr_candidates:
        task = "training from scratch" if facts.start is None else "fine-tuning"
        yield "lr", float(f"{lr:.3g}"), f"the default for {task} with {kind} and batch size {batch:,}"
    yield "weight_decay", 1e-4 if kind == "sgd" else 0.05, f"usual for {kind}"
    decay, steps = (0.999, "1,000") if facts.images >= 2_000 else (0.99, "100")
    yield "ema", decay, f"averages the weights of about the last {steps} steps"


def _learning_rate(config: TrainConfig, facts: Facts, kind: str) -> float:
    """Learning rate for batches of up to 512 images."""
    if facts.start is not None:
        wide = isinstance(facts.start.model, BiTConfig) or facts.start.model.width > 384
        if config.optimiser.layer_decay < 1 and kind != "sgd":  # the rate of the head; lower layers have less
            return 3e-4 if wide else 1e-3
        return 0.01 if kind == "sgd" else 1e-4 if wide else 3e-4
    small = (config.architecture.width or 192) <= 128 and not _is_bit(config, facts)
    return 0.03 if kind == "sgd" else 2e-3 if small or kind == "lamb" else 1e-3


def make_model_config(config: TrainConfig, facts: Facts) -> ViTConfig | BiTConfig:
    """Return the config of the model that is trained."""
    if facts.start is not None:
        return initial_weights.finetuned_config(facts.start, config.architecture)
    own = {name: value for name, value in vars(config.architecture).items() if name not in NOT_MODEL_FIELDS}
    given = {name: value for name, value in own.items() if value is not None}
    name = config.architecture.model or ""
    return zoo.config(name, num_classes=facts.classes, channels=facts.channels, **given)


def evaluation_preprocessing(config: TrainConfig, facts: Facts) -> Preprocessing:
    """Return the preprocessing of the trained model: the whole image if training does not crop, else its centre."""
    size, crop = config.architecture.image_size, config.augmentation.crop
    assert size is not None
    assert crop is not None
    result = default_preprocessing(size, facts.channels)
    if facts.start is not None:  # keep the pixel normalisation of the weights
        result = replace(result, mean=facts.start.preprocessing.mean, std=facts.start.preprocessing.std)
    height, width = pair(size)
    whole = crop == 1 or config.finetuning.rules == "paper"  # the official code does not crop in evaluation
    if whole or height != width:  # resizing the short side would not cover a rectangle
        return result
    return replace(result, resize=round(height / 0.875) if height >= 128 else height)
