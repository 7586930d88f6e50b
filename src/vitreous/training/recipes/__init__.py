"""Recipes: each a function that returns a TrainConfig, its docstring's first line the result that it reaches."""

from collections.abc import Callable
from difflib import get_close_matches

from vitreous.errors import VitreousError
from vitreous.training.config import TrainConfig
from vitreous.training.recipes.digits import digits

RECIPES: dict[str, Callable[[], TrainConfig]] = {"digits": digits}


def recipe(name: str) -> TrainConfig:
    """The config of a recipe."""
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(RECIPES)}"
        raise VitreousError(f"no recipe is called {name!r}; {hint}")
    return RECIPES[name]()
