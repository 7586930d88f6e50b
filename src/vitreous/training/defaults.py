"""Default settings chosen from the data: model, image and patch size, length, augmentation, optimiser.

Each choice has a reason, which is printed next to it. The reason must be true for the value and for the settings that
were given: a setting that is off says why, and no reason mentions a setting that is off as if it were on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models import zoo
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, default_preprocessing, preset
from vitreous.training import durations, initial_weights
from vitreous.training.config import Architecture, TrainConfig
from vitreous.training.default_augmentation import Rules, default_augmentation
from vitreous.training.facts import FEW_IMAGES, Facts, count_reason
from vitreous.training.paper_settings import PAPER_MASKED_LR, PAPER_MASKED_WIDTH, PAPER_WARMUP, TABLE_4
from vitreous.training.user_parts import AnyModelConfig, UserModel
from vitreous.utils.sizes import pair

DEFAULT_WEIGHTS = "vitreous-mini"  # the checkpoint in the package
PATCH_OF_WEIGHTS = 8  # px: patch size of DEFAULT_WEIGHTS
FEW_FOR_WEIGHTS = 20_000  # training images: with fewer, a run starts from DEFAULT_WEIGHTS
MIN_SIDE_FOR_WEIGHTS = 24  # px: smaller images do not look like those that DEFAULT_WEIGHTS was trained on
FROM_SCRATCH = "none"  # value of `start`
IMBALANCE = 3.0  # ratio of the largest to the smallest class from which on classes are weighted
SMALL_MODEL = {"width": 128, "depth": 6, "heads": 4, "mlp_dim": 512}
NOT_OF_ANOTHER_MODEL = ("start", "image_size", "dropout", "stochastic_depth")  # also apply to DEFAULT_WEIGHTS
OF_OWN_MODEL = ("model", "image_size", "preprocessing")  # fields that apply to a model of the user's own
OWN_LOSS = "off: the loss is your own"
NOT_MODEL_FIELDS = ("start", "preprocessing", "model")  # fields of Architecture that a model config does not have


@dataclass(frozen=True)
class Choice:
    """A setting that was chosen. The names of the fields are those in config.json."""

    field: str
    value: Any
    why: str


def choose_start(config: TrainConfig, facts: Facts) -> tuple[TrainConfig, list[Choice]]:
    """Choose the initial weights if they are not given: the checkpoint in the package for a small number of images.

    Options that describe another model, and `start="none"`, mean random weights (None in the config).
    """
    given = config.architecture
    if facts.parts.model is not None:
        if given.start not in (None, FROM_SCRATCH):
            raise VitreousError("model and start: a model of your own brings its weights; leave out start (--from)")
        return config.with_(start=None), []
    if config.masks_patches and given.start is None:
        return config, [Choice("start", None, "random weights: masked-patches learns them without labels")]
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
        return count_reason(facts, FEW_FOR_WEIGHTS)
    if facts.side < MIN_SIDE_FOR_WEIGHTS:
        return f"the images are smaller ({facts.side} px) than those that {DEFAULT_WEIGHTS} was trained on"
    if given.image_size is not None and any(side % PATCH_OF_WEIGHTS for side in pair(given.image_size)):
        return f"the size is not a multiple of {PATCH_OF_WEIGHTS}, the patch size of {DEFAULT_WEIGHTS}"
    return None


def choose_defaults(config: TrainConfig, facts: Facts) -> tuple[TrainConfig, list[Choice]]:
    """Choose the settings that are not given. Later rules see the given settings and the choices of earlier rules."""
    choices: list[Choice] = []
    for rule in (_objective, _model, _paper_settings, _schedule, default_augmentation, _optimiser):
        for name, value, why in rule(config, facts):
            if config.flat()[name] is None:
                choices.append(Choice(name, value, why))
                config = config.with_(**{name: value})
    return config, choices


def _objective(config: TrainConfig, facts: Facts) -> Rules:
    if config.masks_patches:
        yield "best_by", "loss", "of the predictions of masked patches"
        return
    if facts.multi_label:
        yield "loss", "sigmoid", "an image may have several labels"
        yield "label_smoothing", 0.0, "not used with several labels"
        yield "best_by", "map", "mean average precision, the usual metric for several labels"
        yield "class_weights", "none", "not used with several labels"
        return
    yield "loss", "softmax", "every image has one label"
    yield "best_by", "top1", "accuracy, since every image has one label"
    if facts.parts.loss is not None:
        yield "label_smoothing", 0.0, OWN_LOSS
        yield "class_weights", "none", OWN_LOSS
        return
    softmax = (config.objective.loss or "softmax") == "softmax"
    smoothing = "usual with softmax cross-entropy" if softmax else "not used with the sigmoid loss"
    yield "label_smoothing", 0.1 if softmax else 0.0, smoothing
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
    elif facts.parts.model is not None:
        yield from _size_of_own_model(facts.parts.model, facts)
        return
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
        yield "stochastic_depth", 0.1 if deep else 0.0, f"{'' if deep else 'off: '}{count_reason(facts, 20_000)}"
        yield "dropout", 0.0, "off by default"


def _size_of_own_model(model: UserModel, facts: Facts) -> Rules:
    """The image size of a ViT that the user has built, otherwise the size of the images, up to 224 px."""
    size = max(1, min(224, facts.side))
    own = pair(model.config(facts.classes, facts.channels, size).image_size)
    reason = _size_reason(facts, size) if own == (size, size) else "the size that the model is built for"
    yield "image_size", own[0] if own[0] == own[1] else own, reason


def _size_reason(facts: Facts, size: int | tuple[int, int]) -> str:
    """Compare the size of the images with the input size."""
    images, side = f"the images have about {facts.side} px on their short side", min(pair(size))
    if side < 0.9 * facts.side:
        return f"{images}; a larger input takes more time"
    return f"{images}; enlarged for more patches" if side > 1.1 * facts.side else images


def _is_bit(config: TrainConfig, facts: Facts) -> bool:
    if facts.parts.model is not None:
        return False
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
    untrained = "the layer that predicts patches may be new" if config.masks_patches else "the new head is untrained"
    unstable = "the first steps of a new model are unstable" if facts.start is None else untrained
    yield "warmup", "10%", unstable


def _optimiser(config: TrainConfig, facts: Facts) -> Rules:
    if facts.parts.optimiser is None:  # an optimiser of the user's own has its own learning rate and weight decay
        yield from _learning_rate_and_decay(config, facts)
    decay, steps = (0.999, "1,000") if facts.images >= 2_000 else (0.99, "100")
    yield "ema", decay, f"averages the weights of about the last {steps} steps"


def _learning_rate_and_decay(config: TrainConfig, facts: Facts) -> Rules:
    yield "optimiser", "adamw", "works well without tuning"
    if config.masks_patches and (config.optimiser.optimiser or "adamw") == "adamw":
        yield "weight_decay", 0.0, "off, as in the paper for masked patches"
        if getattr(make_model_config(config, facts), "width", 0) >= PAPER_MASKED_WIDTH:
            yield "lr", PAPER_MASKED_LR, "as in the paper for masked patches"
    kind, batch = config.optimiser.optimiser or "adamw", config.schedule.batch_size or 128
    lr = _learning_rate(config, facts, kind)
    lr = lr if batch <= 512 else lr * (batch / 512) ** 0.5
    if not config.finetuning.lr_candidates:
        task = "training from scratch" if facts.start is None else "fine-tuning"
        yield "lr", float(f"{lr:.3g}"), f"the default for {task} with {kind} and batch size {batch:,}"
    yield "weight_decay", 1e-4 if kind == "sgd" else 0.05, f"usual for {kind}"


def _learning_rate(config: TrainConfig, facts: Facts, kind: str) -> float:
    """Learning rate for batches of up to 512 images."""
    if facts.start is not None:
        wide = isinstance(facts.start.model, BiTConfig) or facts.start.model.width > 384
        if config.optimiser.layer_decay < 1 and kind != "sgd":  # the rate of the head; lower layers have less
            return 3e-4 if wide else 1e-3
        return 0.01 if kind == "sgd" else 1e-4 if wide else 3e-4
    small = (config.architecture.width or 192) <= 128 and not _is_bit(config, facts)
    return 0.03 if kind == "sgd" else 2e-3 if small or kind == "lamb" else 1e-3


def make_model_config(config: TrainConfig, facts: Facts) -> AnyModelConfig:
    """Return the config of the model that is trained."""
    if facts.parts.model is not None:
        return _config_of_own_model(facts.parts.model, config.architecture, facts)
    if facts.start is not None:
        return initial_weights.finetuned_config(facts.start, config.architecture)
    own = {name: value for name, value in vars(config.architecture).items() if name not in NOT_MODEL_FIELDS}
    given = {name: value for name, value in own.items() if value is not None}
    name = config.architecture.model or ""
    return zoo.config(name, num_classes=facts.classes, channels=facts.channels, **given)


def _config_of_own_model(model: UserModel, given: Architecture, facts: Facts) -> AnyModelConfig:
    given_fields = {name: value for name, value in vars(given).items() if value not in (None, FROM_SCRATCH)}
    others = [name for name in given_fields if name not in OF_OWN_MODEL]
    if others:
        raise VitreousError(f"{others[0]} = {getattr(given, others[0])!r}: describes another model than {model.code}")
    size = given.image_size
    assert size is not None
    own = model.config(facts.classes, facts.channels, size)
    if pair(own.image_size) != pair(size):
        raise VitreousError(f"image_size = {size}: model {model.code} is for {own.image_size}")
    return own


def evaluation_preprocessing(config: TrainConfig, facts: Facts) -> Preprocessing:
    """Return the preprocessing of the trained model: the whole image if training does not crop, else its centre."""
    size, crop = config.architecture.image_size, config.augmentation.crop
    assert size is not None
    assert crop is not None
    result = default_preprocessing(size, facts.channels)
    if facts.parts.model is not None:
        result = _preprocessing_of_own_model(facts.parts.model, config.architecture, facts)
    if facts.start is not None:  # keep the pixel normalisation of the weights
        result = replace(result, mean=facts.start.preprocessing.mean, std=facts.start.preprocessing.std)
    height, width = pair(size)
    whole = crop == 1 or config.finetuning.rules == "paper"  # the official code does not crop in evaluation
    if whole or height != width:  # resizing the short side would not cover a rectangle
        return result
    return replace(result, resize=round(height / 0.875) if height >= 128 else height)


def _preprocessing_of_own_model(model: UserModel, given: Architecture, facts: Facts) -> Preprocessing:
    """The normalisation that is given, or that of a ViT that was loaded, otherwise the default."""
    size = given.image_size
    assert size is not None
    channels = model.config(facts.classes, facts.channels, size).channels
    if given.preprocessing is not None:
        chosen = preset(given.preprocessing, size, channels)
        return replace(default_preprocessing(size, channels), mean=chosen.mean, std=chosen.std)
    default, own = default_preprocessing(size, channels), getattr(model.source, "preprocessing", None)
    if isinstance(own, Preprocessing) and len(own.mean) == channels:
        return replace(default, mean=own.mean, std=own.std)
    return default
