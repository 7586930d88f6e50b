"""Settings chosen from the data: complete, valid, with true reasons, and never against the given settings."""

import random
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous import TrainConfig
from vitreous.cli.config_flags import CHOSEN_FROM_DATA
from vitreous.data.arrays import ArraySource
from vitreous.data.dataset import DataSet, Source
from vitreous.data.options import Augmentation
from vitreous.errors import VitreousError
from vitreous.models.resnet import BiT
from vitreous.models.vit import ViTConfig
from vitreous.models.zoo import build_model
from vitreous.preprocessing import default_preprocessing
from vitreous.training.defaults import Choice, choose_defaults, evaluation_preprocessing, make_model_config
from vitreous.training.distributed import World
from vitreous.training.facts import Facts, collect_facts
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.plan import make_plan


def known(images: int, side: int, channels: int = 3, shape: Any = "square", **changes: Any) -> Facts:
    shape = (side, side) if shape == "square" else shape
    return Facts(
        **{"classes": 10, "multi_label": False} | changes, images=images, channels=channels, side=side, shape=shape
    )


SETS = {
    "digits": known(1_500, 8, 1),
    "mnist": known(60_000, 28, 1),
    "letters": known(800, 64, 1),
    "cifar": known(50_000, 32),
    "few small ones": known(300, 32),
    "tiny imagenet": known(100_000, 64, classes=200),
    "odd sizes": known(4_000, 37, shape=None),
    "pets": known(500, 224, shape=None, classes=37),
    "photos": known(9_000, 224, shape=None),
    "imagenet": known(1_300_000, 375, shape=None, classes=1000),
    "web": known(40_000_000, 300, shape=None, classes=20_000),
    "scans": known(2_000, 3_000, 1, shape=None),
    "strips": known(700, 12, shape=(40, 12)),
    "grey strips": known(700, 12, 1, shape=(12, 40)),
    "long strips": known(700, 40, shape=(40, 400)),
    "two images": known(2, 100, classes=2),
    "several labels": known(9_000, 224, shape=None, multi_label=True),
    **{f"{side} px": known(100, side) for side in range(1, 8)},
    **{f"{side} px of all sizes": known(100, side, shape=None) for side in (1, 2, 3, 5, 13, 41, 81, 181)},
    "a line": known(100, 1, shape=(1, 30)),
}
each_set = pytest.mark.parametrize("found", SETS.values(), ids=SETS)

# Settings that training needs.
NEEDED = {
    *(field.name for field in fields(Augmentation) if field.name != "augment"),
    *("model", "image_size", "loss", "label_smoothing", "best_by", "optimiser", "lr", "weight_decay", "ema"),
    *("duration", "warmup", "schedule", "batch_size"),
}


def size_of(config: TrainConfig) -> tuple[int, int]:
    size = config.architecture.image_size
    return size if isinstance(size, tuple) else (size, size)


def built(config: TrainConfig, found: Facts) -> Any:
    """Build the model without memory, and run a batch through it."""
    settings = make_model_config(config, found)
    with torch.device("meta"):
        model = build_model(settings)
        answer = model(torch.empty(2, found.channels, *size_of(config)))
    assert answer.shape == (2, found.classes)
    return model


@each_set
def test_all_needed_settings_are_chosen(found: Facts) -> None:
    config, choices = choose_defaults(TrainConfig(), found)
    missing = [name for name in NEEDED if config.flat()[name] is None]
    assert not missing
    assert len({choice.field for choice in choices}) == len(choices)
    before, after = TrainConfig().flat(), config.flat()
    assert {choice.field for choice in choices} == {name for name in after if after[name] != before[name]}
    for choice in choices:
        assert after[choice.field] == choice.value
        assert len(choice.why) > 3
        assert " 0 tokens" not in choice.why


@each_set
def test_chosen_model_can_be_built(found: Facts) -> None:
    config, _ = choose_defaults(TrainConfig(), found)
    model = built(config, found)
    settings: ViTConfig = model.config
    patch = config.architecture.patch_size
    assert [side % patch for side in size_of(config)] == [0, 0]
    rows, columns = settings.grid
    if found.side >= 2:
        assert rows * columns >= 4
    assert rows * columns <= 400  # few enough for a small machine
    assert config.schedule.batch_size <= max(found.images, 1)


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar", "strips", "grey strips", "5 px"])
def test_small_images_are_not_downscaled(name: str) -> None:
    config, _ = choose_defaults(TrainConfig(), SETS[name])
    for side, own in zip(size_of(config), SETS[name].shape, strict=True):
        assert own <= side < own + config.architecture.patch_size


@each_set
def test_evaluation_preprocessing_matches_training(found: Facts) -> None:
    """The whole image if training does not crop, otherwise its centre, without black edges."""
    config, _ = choose_defaults(TrainConfig(), found)
    shown = evaluation_preprocessing(config, found)
    assert shown.size == size_of(config)
    assert len(shown.mean) == len(shown.std) == found.channels
    square = shown.size[0] == shown.size[1]  # rectangles are resized without a crop
    assert (shown.resize is None) == (config.augmentation.crop == 1 or not square)
    height, width = found.shape or (found.side, 2 * found.side)
    white = Image.new("L" if found.channels == 1 else "RGB", (min(width, 400), min(height, 400)), "white")
    assert (shown.pixels(white) == 255).all()


@pytest.mark.parametrize("crop", [0.5, 1.0])
@pytest.mark.parametrize("size", [(16, 24), (24, 16), 16, (64, 128)])
@pytest.mark.parametrize("shape", [(20, 20), (20, 60), (60, 20), (300, 200)])
def test_rectangular_inputs_have_no_black_edges(crop: float, size: Any, shape: tuple[int, int]) -> None:
    found = known(500, min(shape), shape=shape)
    config, _ = choose_defaults(TrainConfig().with_(model="Ti/8", image_size=size, crop=crop), found)
    shown = evaluation_preprocessing(config, found)
    assert (shown.pixels(Image.new("RGB", shape[::-1], "white")) == 255).all()


# ---------------------------------------------------------------- given settings

GIVEN_SETTINGS: list[dict[str, Any]] = [
    {"model": "S/16"},
    {"model": "S/16", "image_size": 96},
    {"model": "B/32"},
    {"model": "Ti/8", "width": 96, "heads": 4},
    {"model": "BiT-R50x1"},
    {"model": "BiT-R50x1", "image_size": 160},
    {"model": "BiT-R26x1", "stem": "small"},
    {"model": "BiT-R26x1", "stem": "imagenet"},
    {"attention": "axial", "position": "learned-2d", "position_at": "every-layer"},
    {"model": "S/16", "attention": "axial", "position": "sincos-2d", "position_at": "every-layer-shared"},
    {"model": "R50+B/16"},
    {"model": "R+Ti/16"},
    {"model": "R50+B/16", "patch_size": 2},
    {"model": "R50+B/16", "patch_size": 1},
    {"model": "DINOv2-S/14-reg"},
    {"patch_size": 8},
    {"patch_size": 3},
    {"image_size": 96},
    {"image_size": (24, 48)},
    {"image_size": 30},
    {"image_size": 50},
    {"patch_size": 5, "image_size": 35},
    {"width": 64},
    {"width": 100},
    {"depth": 2},
    {"heads": 8},
    {"width": 48, "heads": 3, "depth": 1, "mlp_dim": 50},
    {"pool": "token"},
    {"pool": "map", "registers": 2},
    {"position": "relative"},
    {"batch_size": 7, "duration": "3 steps"},
    {"optimiser": "sgd"},
    {"optimiser": "muon"},
    {"optimiser": "lamb"},
    {"loss": "sigmoid"},
    {"crop": 0.7, "flip": True, "mixup": 0.0},
    {"crop": 1.0},
    {"ema": 0.0},
    {"lr": 1e-5, "weight_decay": 0.0, "label_smoothing": 0.0, "dropout": 0.2, "stochastic_depth": 0.4},
    {"schedule": "constant", "warmup": "0%"},
    {"best_by": "loss"},
]


@pytest.mark.parametrize("name", ["digits", "cifar", "photos"])
@pytest.mark.parametrize("given", GIVEN_SETTINGS, ids=lambda given: "-".join(f"{k}={v}" for k, v in given.items()))
def test_given_settings_are_kept(given: dict[str, Any], name: str) -> None:
    found = SETS[name]
    config, choices = choose_defaults(TrainConfig().with_(**given), found)
    assert {field: config.flat()[field] for field in given} == given
    assert not {choice.field for choice in choices} & set(given)
    assert not [field for field in NEEDED if config.flat()[field] is None]
    model = built(config, found)
    for field in ("width", "depth", "heads", "pool", "patch_size", "position", "registers", "mlp_dim"):
        if field in given:
            assert getattr(model.config, field) in (given[field], (given[field],) * 2)
    shown = evaluation_preprocessing(config, found)
    assert shown.size == size_of(config)
    square = shown.size[0] == shown.size[1]  # rectangles are resized without a crop
    assert (shown.resize is None) == (config.augmentation.crop == 1 or not square)


def chosen(given: dict[str, Any], name: str) -> dict[str, Any]:
    return choose_defaults(TrainConfig().with_(**given), SETS[name])[0].flat()


def test_named_model_keeps_its_architecture() -> None:
    """A small data set makes the default model smaller, but not a named model."""
    settings = make_model_config(choose_defaults(TrainConfig().with_(model="S/16"), SETS["digits"])[0], SETS["digits"])
    assert (settings.width, settings.depth, settings.heads, settings.patch_size) == (384, 12, 6, (16, 16))
    assert settings.grid[0] * settings.grid[1] >= 4
    assert chosen({"model": "S/16"}, "cifar")["image_size"] == 64
    resnet, _ = choose_defaults(TrainConfig().with_(model="BiT-R50x1"), SETS["cifar"])
    assert isinstance(built(resnet, SETS["cifar"]), BiT)


def test_learning_rate_depends_on_optimiser_and_batch_size() -> None:
    assert chosen({"optimiser": "sgd"}, "cifar")["lr"] > 5 * chosen({"optimiser": "adamw"}, "cifar")["lr"]
    assert chosen({"batch_size": 4096}, "cifar")["lr"] > chosen({"batch_size": 512}, "cifar")["lr"]
    assert chosen({"optimiser": "sgd"}, "cifar")["weight_decay"] < 0.01


def test_letters_are_not_flipped_and_photographs_are() -> None:
    assert [chosen({}, name)["flip"] for name in ("digits", "mnist", "letters")] == [False] * 3
    assert [chosen({}, name)["flip"] for name in ("cifar", "photos", "scans")] == [True] * 3


def test_vit_settings_for_a_resnet_are_an_error() -> None:
    """It is an error, and not ignored."""
    given: list[dict[str, Any]] = [{"pool": "map"}, {"registers": 2}, {"dropout": 0.3}, {"depth": 3}]
    given += [{"stochastic_depth": 0.1}, {"attention": "axial"}, {"position_at": "stem"}]
    for settings in given:
        config, _ = choose_defaults(TrainConfig().with_(model="BiT-R50x1", **settings), SETS["cifar"])
        with pytest.raises(VitreousError, match=f"BiTConfig has no field '{next(iter(settings))}'"):
            make_model_config(config, SETS["cifar"])


def test_a_stem_is_that_of_the_resnet_of_a_hybrid() -> None:
    config, _ = choose_defaults(TrainConfig().with_(model="R50+B/16", stem="small"), SETS["cifar"])
    model = make_model_config(config, SETS["cifar"])
    assert model.backbone is not None
    assert model.backbone.stem == "small"


@pytest.mark.parametrize("model", [None, "S/16"])
def test_a_stem_for_a_vit_is_an_error(model: str | None) -> None:
    def make() -> Any:
        config, _ = choose_defaults(TrainConfig().with_(model=model, stem="small"), SETS["cifar"])
        return make_model_config(config, SETS["cifar"])

    with pytest.raises(VitreousError, match="ViTConfig has no field 'stem'"):
        make()


def test_the_small_stem_takes_small_images() -> None:
    """Its stride is a quarter of that of the usual stem, so that small images need not be enlarged as much."""
    for stem, size in (("small", 32), ("imagenet", 128), (None, 128)):
        config, choices = choose_defaults(TrainConfig().with_(model="BiT-R26x1", stem=stem), SETS["cifar"])
        model = make_model_config(config, SETS["cifar"])
        assert (model.stem, model.image_size) == (stem or "imagenet", (size, size))
        assert config.architecture.stem == stem
        assert "stem" not in {choice.field for choice in choices}


def test_axial_attention_and_positions_reach_the_model() -> None:
    given = {"attention": "axial", "position": "learned-2d", "position_at": "every-layer"}
    config, choices = choose_defaults(TrainConfig().with_(**given), SETS["cifar"])
    model = make_model_config(config, SETS["cifar"])
    assert (model.attention, model.position, model.position_at) == tuple(given.values())
    assert not given.keys() & {choice.field for choice in choices}
    relative, _ = choose_defaults(TrainConfig().with_(position="relative"), SETS["cifar"])
    assert make_model_config(relative, SETS["cifar"]).position_at == "every-layer"
    wrong, _ = choose_defaults(TrainConfig().with_(attention="axial", position="relative"), SETS["cifar"])
    with pytest.raises(VitreousError, match="attention = 'axial': position='relative' needs 'full'"):
        make_model_config(wrong, SETS["cifar"])


def test_unknown_model_is_an_error() -> None:
    with pytest.raises(VitreousError, match="Q/16"):
        choose_defaults(TrainConfig().with_(model="Q/16"), SETS["cifar"])


# ---------------------------------------------------------------- reasons

GIVEN: list[dict[str, Any]] = [
    {},
    {"randaugment": 0},
    {"randaugment": 3},
    {"crop": 1.0},
    {"crop": 0.5, "randaugment": 0},
    {"loss": "sigmoid"},
    {"model": "S/16"},
    {"model": "BiT-R50x1"},
    {"width": 96},
    {"batch_size": 100, "optimiser": "sgd"},
    {"rules": "paper"},
    {"rules": "paper", "duration": "30000 steps"},
    {"lr_candidates": (0.1, 0.2)},
]
MINI = InitialWeights("vitreous-mini", ViTConfig(image_size=96, patch_size=16), default_preprocessing(96, 3), "")
EVERY = [
    (Facts(images, 10, channels, side, None, several, start), given)
    for images in (2, 700, 4_999, 5_000, 30_000, 300_000, 3_000_000)
    for side in (8, 12, 28, 100, 300)
    for channels in (1, 3)
    for several in (False, True)
    for start in (None, MINI)
    for given in GIVEN
    if start is None or not {"model", "width"} & given.keys()
]
GRID = random.Random(0).sample(EVERY, 150)  # all combinations would take a minute
SWITCHES = ("stochastic_depth", "dropout", "shift", "flip", "randaugment", "three_augment", "jitter", "erase", "mixup")
SWITCHES = (*SWITCHES, "cutmix", "label_smoothing", "magnitude")


def untrue(choice: Choice, config: TrainConfig, found: Facts) -> Iterator[str]:
    """Yield the claims of a reason that are false."""
    why, flat = choice.why, config.flat()
    off = choice.value == 1 if choice.field in ("crop", "aspect") else not choice.value
    if choice.field in (*SWITCHES, "crop", "aspect") and off != bool(re.match("off|not used|RandAugment is off", why)):
        yield f"{choice.value} is {'off' if off else 'on'}"
    claims = {
        "RandAugment is off": flat["randaugment"] == 0,
        "RandAugment (is used|changes)": (flat["randaugment"] or 0) > 0,
        "no crops": flat["crop"] == 1,
        "^crops|off: crops": flat["crop"] < 1,
        "grey": found.channels == 1,
        "letters": found.channels == 1 and found.side <= 64,
        "very small": found.side <= 12,
        "one label": not found.multi_label,
        "(may have|with|for) several labels": found.multi_label,
        "sigmoid loss": flat["loss"] == "sigmoid",
        "softmax": flat["loss"] == "softmax",
        "(default|training) .*from scratch": found.start is None,
        "new model": found.start is None,
        "fine-tuning|vitreous-mini|new head": found.start is not None,
        "paper|official": flat["rules"] == "paper" or flat["lr_candidates"] is not None,
        "a larger input": min(size_of(config)) < found.side,
        "enlarged": min(size_of(config)) > found.side,
        "the base .* changes below": flat["patch_size"] is not None,
    }
    yield from (claim for claim, holds in claims.items() if re.search(claim, why) and not holds)
    for least in re.findall(r"([\d,]+) images or more", why):
        if found.images < int(least.replace(",", "")):
            yield f"{least} images or more"
    for most in re.findall(r"fewer than ([\d,]+) images", why):
        if found.images >= int(most.replace(",", "")):
            yield f"fewer than {most}"
    yield from wrong_sums(choice, config, found)


def wrong_sums(choice: Choice, config: TrainConfig, found: Facts) -> Iterator[str]:
    """Yield the numbers of a reason that differ from those of the model and the run."""
    model = make_model_config(config, found)
    sums = {}
    if isinstance(model, ViTConfig):
        sums = {
            r"(\d+ x \d+) patches": "{} x {}".format(*model.grid),
            r"(\d+) dimensions per head": str(model.width // model.heads),
            r"(twice|four times) the width": {2: "twice", 4: "four times"}.get(model.mlp_dim // model.width),
        }
    steps = -(-found.images // config.schedule.batch_size)
    sums |= {r"([\d,]+) steps? per epoch": f"{steps:,}", r"batch size ([\d,]+)": f"{config.schedule.batch_size:,}"}
    sums |= {r"about ([\d]+) px": str(found.side), r"a multiple of (\d+)": str(size_of(config)[0])}
    sums |= {r"the last ([\d,]+) steps": f"{1 / (1 - config.optimiser.ema):,.0f}"}
    for form, right in sums.items():
        for said in re.findall(form, choice.why):
            if said != right and not (form.startswith("a multiple") and int(right) % int(said) == 0):
                yield f"{said}, not {right}"


def test_reasons_are_true() -> None:
    wrong = set()
    for found, given in GRID:
        config, choices = choose_defaults(TrainConfig().with_(**given), found)
        for choice in choices:
            wrong |= {
                f"{choice.field} {choice.value}: {choice.why} ({claim})" for claim in untrue(choice, config, found)
            }
    assert not wrong


def test_help_lists_all_chosen_settings() -> None:
    results = (choose_defaults(TrainConfig().with_(**given), found) for found, given in GRID)
    chosen = {choice.field for _, choices in results for choice in choices}
    assert chosen - {"lr_candidates"} == CHOSEN_FROM_DATA  # only chosen with rules=paper


# ---------------------------------------------------------------- facts about the data


class Pictures(Source):
    """Images of given sizes (height, width); None: unreadable."""

    def __init__(self, sizes: list[tuple[int, int] | None]):
        self.sizes, self.labels = sizes, torch.arange(len(sizes)) % 2

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        if (size := self.sizes[index]) is None:
            raise VitreousError(f"{self.name(index)}: broken")
        return Image.new("RGB", size[::-1])

    def name(self, index: int) -> str:
        return f"picture {index}"


def facts_of(source: Source, channels: int = 3) -> Facts:
    return collect_facts(DataSet("set", ("a", "b"), channels, source))


def test_facts_of_images_of_one_size() -> None:
    assert facts_of(Pictures([(30, 50)] * 7)) == Facts(7, 2, 3, 30, (30, 50), False, imbalance=4 / 3)
    array = np.zeros((9, 5, 4, 1), np.uint8)
    assert facts_of(ArraySource(array, torch.arange(9) % 2, "x"), 1) == Facts(
        9, 2, 1, 4, (5, 4), False, imbalance=5 / 4
    )


def test_facts_of_images_of_different_sizes() -> None:
    found = facts_of(Pictures([(10, 99), None, (20, 15), (300, 400), None]))
    assert found.shape is None
    assert found.side == 15


def test_facts_of_many_images_read_a_sample() -> None:
    sizes = [(40, 60) if number % 3 else (60, 40) for number in range(100_000)]
    found = facts_of(Pictures(sizes))
    assert (found.images, found.side, found.shape) == (100_000, 40, None)


def test_error_if_no_image_can_be_read() -> None:
    with pytest.raises(VitreousError, match="picture 2"):
        facts_of(Pictures([None, None, None]))


def test_plan_for_one_image_per_class() -> None:
    """The smallest possible data set."""
    source = ArraySource(np.zeros((2, 9, 9, 1), np.uint8), torch.tensor([0, 1]), "two")
    plan = make_plan(DataSet("two", ("a", "b"), 1, source), TrainConfig().with_(device="cpu"), World())
    assert plan.batch_size == 2
    assert plan.steps == 100
    assert plan.size in (plan.model.image_size, (plan.model.image_size,) * 2)
