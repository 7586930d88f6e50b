"""The command `vitreous recipes`."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from command import vitreous
from vitreous.training.recipes import RECIPES, recipe_card


def words(text: str) -> str:
    return " ".join(text.split())


def test_list_of_recipes() -> None:
    lines = vitreous("recipes").stdout.splitlines()
    assert lines[0].split() == ["name", "data", "result", "measured", "on", "time", "hardware"]
    assert max(map(len, lines)) <= 120
    assert not [line for line in lines if line != line.rstrip()]
    assert {line.split()[0] for line in lines if line and line[0] != " "} >= set(RECIPES)


def test_one_recipe() -> None:
    text = vitreous("recipes", "deit3").stdout
    card = recipe_card("deit3")
    for part in (card.result, card.time, card.hardware, card.data, card.command, *card.notes.split("\n\n")):
        assert words(part) in words(text)
    settings = {line.split()[0]: line.split()[1:] for line in text.partition("settings")[2].splitlines()[1:]}
    assert settings["optimiser"] == ["lamb"]
    assert settings["duration"] == ["800", "epochs"]
    assert settings["lr"] == ["0.004"]
    assert "betas" not in settings  # it has the default value


def test_json() -> None:
    found = json.loads(vitreous("recipes", "--json").stdout)
    assert [one["name"] for one in found] == list(RECIPES)
    assert found[0] == json.loads(vitreous("recipes", found[0]["name"], "--json").stdout)
    assert found[0]["settings"]["lr"] == 2e-3
    assert found[0]["command"] == "vitreous train digits --recipe digits"


def test_narrow_terminal() -> None:
    """A list instead of a table, with no word cut."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "50", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-m", "vitreous", "recipes"], stdout=theirs, env=environment)
    os.close(theirs)
    text = b""
    while True:
        try:
            text += (block := os.read(ours, 4096))
        except OSError:  # the other end is closed
            break
        if not block:
            break
    os.close(ours)
    assert process.wait(60) == 0
    lines = re.sub(r"\x1b\[\d*m", "", text.decode()).splitlines()
    assert max(map(len, lines[:-1])) <= 50
    printed = " ".join(line.removeprefix("         ") for line in lines)
    for name in RECIPES:
        assert words(f"name {name} data {recipe_card(name).data} result {recipe_card(name).result}") in words(printed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plain_s61",), "did you mean plain_s16?"),
        (("xyzzy",), "the recipes are digits"),
        (("digits", "--jsno"), "--json"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    result = vitreous("recipes", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert not result.stdout


def test_torch_is_not_imported() -> None:
    code = "from vitreous.cli import main\nmain(['recipes'])\nimport sys\nprint('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"
