"""Recipes: functions that return a TrainConfig. The docstring of a recipe states its result and how to reproduce it, in
a form that `recipe_card` can parse:

    RESULT, in TIME, on HARDWARE.

    `COMMAND`: DATA.

    Measured on IMAGES; how the weights were selected.

    Anything else.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from inspect import getdoc
from typing import Any

from vitreous.errors import VitreousError, brief, one_line, summarize_names
from vitreous.training.config import TrainConfig
from vitreous.training.recipes.cifar10 import cifar10, cifar10_fast
from vitreous.training.recipes.digits import digits
from vitreous.training.recipes.digits_transfer import digits_transfer
from vitreous.training.recipes.finetuning import finetune_fast, finetune_linear, finetune_lora, finetune_paper
from vitreous.training.recipes.imagenet import deit3, paper_imagenet1k, paper_imagenet21k, plain_s16, plain_s16_300
from vitreous.training.recipes.imagenette import imagenette, vitreous_mini
from vitreous.training.recipes.small_folder import small_folder
from vitreous.utils.import_path import import_object, is_import_path

RECIPES: dict[str, Callable[[], TrainConfig]] = {
    recipe.__name__: recipe
    for recipe in (
        digits,
        digits_transfer,
        small_folder,
        cifar10,
        cifar10_fast,
        imagenette,
        vitreous_mini,
        plain_s16,
        plain_s16_300,
        deit3,
        paper_imagenet1k,
        paper_imagenet21k,
        finetune_paper,
        finetune_fast,
        finetune_linear,
        finetune_lora,
    )
}
ENTRY_POINTS = "vitreous.recipes"  # group of the entry points of packages that provide recipes
FINETUNING_RECIPES = tuple(name.removeprefix("finetune_") for name in RECIPES if name.startswith("finetune_"))
CARD_PATTERN = re.compile(
    r"(?P<result>[^\n]+), in (?P<time>[^\n]+), on (?P<hardware>[^\n]+)\.\n\n"
    r"`(?P<command>vitreous (?:train|finetune) [^`\n]+)`: (?P<data>.+?)\.\n\n"
    r"Measured on (?P<measured>.+?)\.(?:\n\n(?P<notes>.+))?",
    re.DOTALL,
)


@dataclass(frozen=True)
class RecipeCard:
    """The statements in the docstring of a recipe."""

    name: str
    data: str
    result: str
    time: str
    hardware: str
    command: str
    measured: str  # the images of the result, and how the weights were selected
    notes: str


def recipe(name: str) -> TrainConfig:
    """Return the settings of a recipe: a complete config with a measured result.

    - `name`: a recipe of this package (`vitreous recipes` lists them), an import path (file.py:name,
      package.module:name) of a function that returns a `TrainConfig`, or the name of an entry point in the group
      vitreous.recipes

    Returns a `TrainConfig`; `with_` changes some of its fields. An unknown name raises a `VitreousError`.

    >>> config = vitreous.recipe("cifar10").with_(seed=1)
    >>> config.schedule.duration, config.run.seed
    ('200 epochs', 1)
    """
    function = _find_recipe(name)
    if name in RECIPES:
        return function()
    try:
        config: Any = function()
    except VitreousError as error:
        raise error.at(f"recipe {name}") from error
    except Exception as error:
        raise VitreousError(f"recipe {name}: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(config, TrainConfig):
        raise VitreousError(f"recipe {name} returned {brief(config)}: expected a TrainConfig")
    return config


def installed_recipes() -> dict[str, str]:
    """The recipes of other packages: their names, and the import paths of their functions."""
    found: dict[str, set[str]] = {}
    for point in entry_points(group=ENTRY_POINTS):
        found.setdefault(point.name, set()).add(point.value.partition("[")[0].strip())
    for name, paths in found.items():
        if len(paths) > 1 and name not in RECIPES:
            both = summarize_names(sorted(paths))
            raise VitreousError(f"several packages provide the recipe {name}: give the import path of one: {both}")
    return {name: min(paths) for name, paths in found.items()}


def finetuning_recipe(name: str) -> TrainConfig:
    """Return the config of a recipe of `vitreous finetune`, by its short name."""
    if is_import_path(name):
        return recipe(name)
    if name not in FINETUNING_RECIPES:
        near = get_close_matches(name, FINETUNING_RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the recipes are {', '.join(FINETUNING_RECIPES)}"
        raise VitreousError(f"unknown fine-tuning recipe {name!r}; {hint}")
    return recipe(f"finetune_{name}")


def recipe_card(name: str) -> RecipeCard:
    """Return the statements in the docstring of a recipe. Recipes of other packages need not make any."""
    text = getdoc(_find_recipe(name)) or ""
    if name in RECIPES or CARD_PATTERN.fullmatch(text):
        return parse_recipe_card(name, text)
    command = f"vitreous train DATA --recipe {name}"
    return RecipeCard(name, "not stated", "no measured result stated", "-", "-", command, "not stated", text)


def parse_recipe_card(name: str, text: str) -> RecipeCard:
    """Parse the docstring of a recipe."""
    found = CARD_PATTERN.fullmatch(text)
    if found is None or any("\n\n" in found[part] for part in ("data", "measured")):
        raise VitreousError(
            f"the docstring of the recipe {name} must be `RESULT, in TIME, on HARDWARE.`, then `COMMAND`: DATA., then"
            " `Measured on IMAGES; how the weights were selected.`"
        )
    parts = ("result", "time", "hardware", "command", "data", "measured")
    words = {part: " ".join(found[part].split()) for part in parts}
    return RecipeCard(name, notes=found["notes"] or "", **words)


def _find_recipe(name: str) -> Callable[[], TrainConfig]:
    if name in RECIPES:
        return RECIPES[name]
    installed = {} if is_import_path(name) else installed_recipes()
    if is_import_path(name) or name in installed:
        function: Any = import_object(installed.get(name, name))
        if not callable(function):
            raise VitreousError(f"recipe {name} is {brief(function)}: expected a function that returns a TrainConfig")
        return function  # type: ignore[no-any-return]
    names = [*RECIPES, *installed]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the recipes are {', '.join(names)}; your own are file.py:function"
    raise VitreousError(f"unknown recipe {name!r}; {hint}")
