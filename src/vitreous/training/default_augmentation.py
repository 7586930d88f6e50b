"""Default augmentation, chosen from the data. Each choice has a reason, as in defaults.py."""

from collections.abc import Iterator
from typing import Any

from vitreous.data.options import Augmentation
from vitreous.training.config import TrainConfig
from vitreous.training.facts import FEW_IMAGES, Facts, count_reason

Rules = Iterator[tuple[str, Any, str]]  # field, value if the field is not given, reason
LETTERS = "small grey images may be letters or digits"
NO_AUGMENTATION: dict[str, Any] = {
    **{"crop": 1.0, "aspect": 1.0, "shift": 0.0, "flip": False, "randaugment": 0, "magnitude": 0.0},
    **{"three_augment": False, "jitter": 0.0, "erase": 0.0},
}


def default_augmentation(config: TrainConfig, facts: Facts) -> Rules:
    given, many = config.augmentation, facts.images >= FEW_IMAGES
    if facts.parts.augment is not None:
        for name, off in NO_AUGMENTATION.items():
            yield name, off, "off: the augmentation is your own"
    yield from _crops(given, facts)
    if config.masks_patches:
        yield "flip", not facts.may_be_text, f"off: {LETTERS}" if facts.may_be_text else "a flipped image is as likely"
        yield from _without_colour_changes(given)
        return
    changed, same = f"off: {LETTERS}, which flips change", "a flipped image usually shows the same class"
    yield "flip", not facts.may_be_text, changed if facts.may_be_text else same
    strong, enough = many and not facts.tiny and not facts.may_be_text, count_reason(facts, FEW_IMAGES)
    yield "randaugment", 2 if strong else 0, enough if strong else _off_reason(facts, "which it distorts")
    varied = strong if given.randaugment is None else given.randaugment > 0
    yield "magnitude", 5.0 if varied else 0.0, "half of the maximum of 10" if varied else "RandAugment is off"
    yield "three_augment", False, "off: RandAugment is used instead" if varied else "off by default"
    yield from _jitter(facts, strong, varied)
    yield "erase", 0.0, "off by default"
    if facts.parts.loss is not None:
        yield "mixup", 0.0, "off: the loss is your own, which may expect class indices"
        yield "cutmix", 0.0, "off: the loss is your own, which may expect class indices"
        return
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
        default = f"off by default: {count_reason(facts, FEW_IMAGES)}"
        yield "jitter", 0.0, "off: RandAugment changes colours" if varied else default
    else:
        yield "jitter", 0.2, "light and colours vary between images"


def _without_colour_changes(given: Augmentation) -> Rules:
    """For masked patches, whose colours are predicted."""
    colours, unlabelled = "off: it changes the colours, which are predicted", "off: there are no labels to mix"
    yield "randaugment", 0, colours
    varied = bool(given.randaugment)
    yield "magnitude", 5.0 if varied else 0.0, "half of the maximum of 10" if varied else "RandAugment is off"
    yield "three_augment", False, colours
    yield "jitter", 0.0, colours
    yield "erase", 0.0, "off by default"
    yield "mixup", 0.0, unlabelled
    yield "cutmix", 0.0, unlabelled


def _off_reason(facts: Facts, letters: str = "", mixes: bool = False) -> str:
    """Why an augmentation is off. `letters`: its effect on letters, if any. `mixes`: whether it mixes labels."""
    if mixes and facts.multi_label:
        return "off: not used with several labels"
    if letters and facts.may_be_text:
        return f"off: {LETTERS}, {letters}"
    if facts.tiny:
        return f"off: the images are very small ({facts.side} px)"
    return f"off: {count_reason(facts, FEW_IMAGES)}"
