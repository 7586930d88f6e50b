"""`vitreous recipes`: training recipes with their results and commands."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.cli.options import Switch
from vitreous.cli.output import print_facts, print_json, print_table
from vitreous.utils.console import STDOUT, console, print_line, print_message

if TYPE_CHECKING:
    from vitreous.training.recipes import RecipeCard

COLUMNS = ("name", "data", "result", "measured", "time", "hardware")
TITLES = {"measured": "measured on"}
MIN_TABLE_WIDTH = 120  # narrower terminals get a list instead of a table with six columns


def recipes_command(
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None,
    /,
    *,
    json: Switch = False,
) -> None:
    """List the training recipes with their results, or describe one recipe.

    Args:
        name: Recipe to describe: its command, its results and its settings. Also file.py:function. Default: list all
            recipes, those of installed packages too.
        json: Print JSON instead of tables: a list of recipes, or one recipe.
    """
    from vitreous.training.recipes import RECIPES, recipe_card

    shown = [recipe_card(name)] if name is not None else [*map(recipe_card, RECIPES), *_cards_of_packages()]
    if json:
        found = [{**asdict(one), "settings": recipe_settings(one.name)} for one in shown]
        print_json(found if name is None else found[0])
    elif name is None:
        print_recipes(shown)
    else:
        print_recipe(shown[0])


def _cards_of_packages() -> "list[RecipeCard]":
    """The recipes of installed packages. One that cannot be used is reported, and the others are listed."""
    from vitreous.errors import VitreousError
    from vitreous.training.recipes import RECIPES, installed_recipes, recipe, recipe_card

    cards = []
    for name, path in installed_recipes().items():
        if name in RECIPES:
            print_message(f"{path}: there is a recipe {name} in this package: use the import path instead of the name")
            continue
        try:
            recipe(name)
            cards.append(recipe_card(name))
        except VitreousError as error:
            print_message(f"the recipe {name} of an installed package ({path}) cannot be used: {error}")
    return cards


def recipe_settings(name: str) -> dict[str, Any]:
    """Return the settings of a recipe that differ from the default config."""
    from vitreous.training.config import TrainConfig
    from vitreous.training.recipes import recipe

    defaults = TrainConfig().flat()
    return {field: value for field, value in recipe(name).flat().items() if value != defaults[field]}


def print_recipes(cards: "list[RecipeCard]") -> None:
    from rich.table import Table
    from rich.text import Text

    if STDOUT.isatty() and console().width < MIN_TABLE_WIDTH:
        for one in cards:
            print_facts((TITLES.get(column, column), getattr(one, column)) for column in COLUMNS)
            print_line()
    else:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
        for column in COLUMNS:
            table.add_column(TITLES.get(column, column), no_wrap=column == "name", overflow="fold")
        for one in cards:
            table.add_row(*(Text(getattr(one, column)) for column in COLUMNS))
        print_table(table)
    print_line("`vitreous recipes NAME` describes one recipe; `vitreous train DATA --recipe NAME` trains with it.")


def print_recipe(one: "RecipeCard") -> None:
    rows = [(TITLES.get(column, column), getattr(one, column)) for column in (*COLUMNS, "command")]
    paragraphs = [" ".join(paragraph.split()) for paragraph in one.notes.split("\n\n")]
    print_facts([*rows, ("", "\n" + "\n\n".join(paragraphs))] if one.notes else rows)
    print_line("\nsettings that differ from the defaults:")
    print_facts((field, _setting(value)) for field, value in recipe_settings(one.name).items())


def _setting(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_setting, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
