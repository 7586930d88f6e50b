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
from inspect import getdoc

from vitreous.errors import VitreousError
from vitreous.training.config import TrainConfig
from vitreous.training.recipes.cifar10 import cifar10, cifar10_fast
from vitreous.training.recipes.digits import digits
from vitreous.training.recipes.digits_transfer import digits_transfer
from vitreous.training.recipes.finetuning import finetune_fast, finetune_linear, finetune_lora, finetune_paper
from vitreous.training.recipes.imagenet import deit3, paper_imagenet1k, paper_imagenet21k, plain_s16, plain_s16_300
from vitreous.training.recipes.imagenette import imagenette, vitreous_mini
from vitreous.training.recipes.small_folder import small_folder

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
    """Return the config of a recipe."""
    return _find_recipe(name)()


def finetuning_recipe(name: str) -> TrainConfig:
    """Return the config of a recipe of `vitreous finetune`, by its short name."""
    if name not in FINETUNING_RECIPES:
        near = get_close_matches(name, FINETUNING_RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the recipes are {', '.join(FINETUNING_RECIPES)}"
        raise VitreousError(f"unknown fine-tuning recipe {name!r}; {hint}")
    return recipe(f"finetune_{name}")


def recipe_card(name: str) -> RecipeCard:
    """Return the statements in the docstring of a recipe."""
    return parse_recipe_card(name, getdoc(_find_recipe(name)) or "")


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
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the recipes are {', '.join(RECIPES)}"
        raise VitreousError(f"unknown recipe {name!r}; {hint}")
    return RECIPES[name]
