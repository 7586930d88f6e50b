"""Every recipe states its result, sets all settings, and runs."""

import subprocess
import sys
from collections.abc import Callable
from inspect import getdoc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from runs import draw_folder, records
from vitreous import TrainConfig, VitreousError, load, open_data, recipe, train
from vitreous.cli import main
from vitreous.models.zoo import build_model
from vitreous.training import defaults, facts
from vitreous.training.distributed import World
from vitreous.training.initial_weights import load_initial_weights
from vitreous.training.plan import make_plan
from vitreous.training.recipes import RECIPES, RecipeCard, parse_recipe_card, recipe_card

# These need a gigabyte of disk, or are another recipe for longer.
PLANNED_ONLY = ("plain_s16_300", "paper_imagenet1k", "paper_imagenet21k")
# These start from given weights, for any data; some settings are chosen from the data.
ADAPTING = tuple(name for name in RECIPES if name.startswith("finetune_"))
FORM = """97% of it, in 3 minutes, on a GPU.

`vitreous train it --recipe this`: it, of which
there is much.

Measured on 10 of it; the last
weights.

A word, in time, on the side.

And another."""


# ---------------------------------------------------------------- recipe cards


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_states_its_result(name: str) -> None:
    found, text = recipe_card(name), getdoc(RECIPES[name]) or ""
    assert text.splitlines()[0] == f"{found.result}, in {found.time}, on {found.hardware}."
    assert len(text.splitlines()[0]) <= 120
    program, command, data, *flags = found.command.split()
    if name in ADAPTING:
        assert (program, command, flags[0]) == ("vitreous", "finetune", "--from")
        assert flags[2:4] == ["--recipe", name.removeprefix("finetune_")]
    else:
        assert (program, command, *flags[:2]) == ("vitreous", "train", "--recipe", name)
    assert data
    if found.time.endswith("not measured by us"):  # then the result is a published one
        assert "published by" in found.result or "measured" in found.result


def test_parse_recipe_card() -> None:
    assert parse_recipe_card("this", FORM) == RecipeCard(
        "this",
        "it, of which there is much",
        "97% of it",
        "3 minutes",
        "a GPU",
        "vitreous train it --recipe this",
        "10 of it; the last weights",
        "A word, in time, on the side.\n\nAnd another.",
    )
    assert parse_recipe_card("this", FORM.partition("\n\nA word")[0]).notes == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text.replace(", on a GPU", ""),
        lambda text: text.replace(", in 3 minutes", " in 3 minutes"),
        lambda text: text.replace(", on a GPU.", ", on a GPU"),
        lambda text: text.replace(", in 3 minutes,", ",\nin 3 minutes,"),
        lambda text: text.partition("\n\n")[0],
        lambda text: text.replace("`", ""),
        lambda text: text.replace("vitreous train", "train"),
        lambda text: text.replace(" much.", " much"),
        lambda text: text.replace("Measured on", "Of"),
        lambda text: text.replace("weights.", "weights"),
        lambda text: text.replace(".\n\n`", ".\n`"),
    ],
)
def test_other_docstrings_are_errors(change: Callable[[str], str]) -> None:
    with pytest.raises(VitreousError, match="the docstring of the recipe this must be"):
        parse_recipe_card("this", change(FORM))


def test_unknown_recipe() -> None:
    for find in (recipe, recipe_card):
        with pytest.raises(VitreousError, match="unknown recipe 'digit'; did you mean digits"):
            find("digit")
        with pytest.raises(VitreousError, match="unknown recipe 'xyzzy'; the recipes are digits"):
            find("xyzzy")


def test_recipes_do_not_import_torch() -> None:
    code = "from vitreous.training import recipes as r\nfor name in r.RECIPES: r.recipe_card(name), r.recipe(name)\n"
    code += "import sys; print([name for name in ('torch', 'numpy', 'PIL', 'tyro') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("photos") / "photos", images=4, side=40)


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes of 32 x 32 pixels, as in CIFAR-10."""
    path, random = tmp_path_factory.mktemp("pixels") / "pixels.npz", np.random.default_rng(0)
    images = random.integers(0, 256, (60, 32, 32, 3), np.uint8)
    np.savez(path, images=images, labels=np.arange(60) % 10)
    return path


def data_of(name: str, photos: Path, pixels: Path) -> str:
    """Return a few images of the kind that the recipe is for."""
    data = recipe_card(name).command.split()[2]
    return data if data == "digits" else str(pixels if data.startswith("cifar") else photos)


def few_steps(config: TrainConfig, out: Path, steps: int, batch: int) -> TrainConfig:
    """Return the config with fewer steps and a smaller batch; nothing else is changed."""
    return config.with_(
        duration=f"{steps} steps", warmup="1 steps", batch_size=batch, micro_batch=2, out=str(out), device="cpu"
    )


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ADAPTING])
def test_recipe_sets_all_settings(name: str, photos: Path, pixels: Path, tmp_path: Path) -> None:
    """Only the image size may be chosen, if the recipe starts from weights."""
    config = few_steps(recipe(name), tmp_path / "run", 20, 4)
    data = open_data(data_of(name, photos, pixels))
    start = load_initial_weights(config, len(data.classes))[0] if config.architecture.start else None
    plan = make_plan(data, config, World(), start=start)
    free = {"image_size"} if start else set()
    if config.reading.val_fraction == 0:
        free.add("best_by")  # has no effect without validation images
    assert {choice.field for choice in plan.choices} <= free
    assert plan.config.with_(image_size=config.architecture.image_size, best_by=config.run.best_by) == config
    with torch.device("meta"):
        assert build_model(plan.model).head.out_features == len(data.classes)


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in PLANNED_ONLY])
def test_recipe_runs(name: str, photos: Path, pixels: Path, tmp_path: Path) -> None:
    """Unchanged except for length and batch size."""
    steps = 4 if recipe(name).schedule.progressive else 2  # some steps for each image size
    config = few_steps(recipe(name), tmp_path / "run", steps, batch=4)
    config = config.with_(start="vitreous-mini", image_size=32) if name in ADAPTING else config
    outcome = train(data_of(name, photos, pixels), config, quiet=True)
    assert outcome.steps == steps
    losses = [line["loss"] for line in records(tmp_path / "run", "train")]
    assert losses
    assert all(np.isfinite(losses))
    model = load(outcome.run)
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("change", [{"head_bias": -10.0}, {"representation_size": 32}])
def test_head_options_with_initial_weights_are_errors(change: dict[str, Any]) -> None:
    with pytest.raises(VitreousError, match=f"{next(iter(change))} = .*: the run starts from vitreous-mini"):
        load_initial_weights(recipe("small_folder").with_(**change), 3)


# ---------------------------------------------------------------- published settings


def test_paper_recipes_match_table_3() -> None:
    """Table 3 of the paper."""
    table = {"model": "B/16", "image_size": 224, "batch_size": 4096, "warmup": "10000 steps", "dropout": 0.1}
    small = {"duration": "300 epochs", "lr": 3e-3, "schedule": "cosine", "weight_decay": 0.3, "clip": 1.0}
    large = {"duration": "90 epochs", "lr": 1e-3, "schedule": "linear", "weight_decay": 0.03, "clip": None}
    for name, own in (("paper_imagenet1k", small), ("paper_imagenet21k", large)):
        found = recipe(name).flat()
        assert {field: found[field] for field in table | own} == table | own
    known = facts.Facts(1_281_167, 1000, 3, 375, None, False)
    model = defaults.make_model_config(recipe("paper_imagenet1k"), known)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build_model(model).parameters())
    assert parameters == 86_567_656 + 768 * 768 + 768  # B/16 and the pre-logits layer


def test_weight_decay_of_plain_s16_matches_big_vision() -> None:
    """A step of theirs subtracts wd x schedule of a weight, a step of ours lr x schedule x weight_decay."""
    found = recipe("plain_s16").flat()
    assert found["lr"] * found["weight_decay"] == pytest.approx(1e-4)
    assert recipe("plain_s16_300") == recipe("plain_s16").with_(duration="300 epochs")


OUTSIDE = """
from vitreous import TrainConfig
def tiny(): return TrainConfig().with_(width=64, lr=0.5)
def wrong(): return {"width": 64}
def broken(): return 1 / 0
number = 7
"""


def test_a_recipe_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OUTSIDE)
    assert vitreous.recipe(f"{path}:tiny").optimiser.lr == 0.5
    main(["recipes", f"{path}:tiny"])
    output = capsys.readouterr().out
    assert "no measured result stated" in output
    assert "0.5" in output
    for name, message in {
        "wrong": "expected a TrainConfig",
        "broken": "ZeroDivisionError",
        "number": "expected a function",
        "tinyy": "did you mean tiny",
    }.items():
        with pytest.raises(VitreousError, match=message):
            vitreous.recipe(f"{path}:{name}")


def test_recipes_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outside_recipes.py").write_text(OUTSIDE)
    information = tmp_path / "outside_recipes-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-recipes\nVersion: 1.0\n")
    points = "tiny = outside_recipes:tiny\nbad = outside_recipes:broken\ndigits = outside_recipes:tiny\n"
    (information / "entry_points.txt").write_text(f"[vitreous.recipes]\n{points}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert vitreous.recipe("tiny").optimiser.lr == 0.5
    assert vitreous.recipe("digits").optimiser.lr != 0.5
    main(["recipes"])
    output = capsys.readouterr()
    assert "tiny" in output.out
    assert "the recipe bad of an installed package" in output.err
    assert "there is a recipe digits in this package" in output.err
    with pytest.raises(VitreousError, match="did you mean tiny"):
        vitreous.recipe("tinyy")
