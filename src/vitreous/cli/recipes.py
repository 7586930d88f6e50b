"""`vitreous recipes`: what can be trained with which result, and by which command."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.cli.parts import Json, print_json, show_facts, show_table
from vitreous.utils.console import STDOUT, console, say

if TYPE_CHECKING:
    from vitreous.training.recipes import RecipeCard

COLUMNS = ("name", "data", "result", "measured", "time", "hardware")
TITLES = {"measured": "measured on"}
NARROW = 120  # columns of a terminal that are too few for six of ours


def recipes(
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None,
    /,
    *,
    json: Json = False,
) -> None:
    """List the recipes for training, each with the result that it reaches, or show all of one.

    Args:
        name: the recipe to show: its command, what is known about it, and every setting.
        json: JSON instead of tables: a list of recipes, or one.
    """
    from vitreous.training.recipes import RECIPES, recipe_card

    shown = [recipe_card(each) for each in (RECIPES if name is None else [name])]
    if json:
        found = [{**asdict(one), "settings": settings(one.name)} for one in shown]
        print_json(found if name is None else found[0])
    elif name is None:
        show_list(shown)
    else:
        show(shown[0])


def settings(name: str) -> dict[str, Any]:
    """What a recipe sets to something else than a config without one has."""
    from vitreous.training.config import TrainConfig
    from vitreous.training.recipes import recipe

    usual = TrainConfig().flat()
    return {field: value for field, value in recipe(name).flat().items() if value != usual[field]}


def show_list(cards: "list[RecipeCard]") -> None:
    from rich.table import Table
    from rich.text import Text

    if STDOUT.isatty() and console().width < NARROW:
        for one in cards:
            show_facts((TITLES.get(column, column), getattr(one, column)) for column in COLUMNS)
            say()
    else:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
        for column in COLUMNS:
            table.add_column(TITLES.get(column, column), no_wrap=column == "name", overflow="fold")
        for one in cards:
            table.add_row(*(Text(getattr(one, column)) for column in COLUMNS))
        show_table(table)
    say("vitreous recipes NAME shows all of one; vitreous train DATA --recipe NAME follows it.")


def show(one: "RecipeCard") -> None:
    rows = [(TITLES.get(column, column), getattr(one, column)) for column in (*COLUMNS, "command")]
    paragraphs = [" ".join(paragraph.split()) for paragraph in one.notes.split("\n\n")]
    show_facts([*rows, ("", "\n" + "\n\n".join(paragraphs))] if one.notes else rows)
    say("\nsettings, where they are not the usual ones:")
    show_facts((field, plain(value)) for field, value in settings(one.name).items())


def plain(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
