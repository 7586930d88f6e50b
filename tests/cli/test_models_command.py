"""The command `vitreous models`."""

import subprocess
import sys

import pytest

from command import vitreous


def test_table() -> None:
    result = vitreous("models", "*B/16", "--size", "384")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:5] == ["model", "parameters", "GFLOPs", "patches", "px"]
    assert lines[1].split() == ["B/16", "86,567,656", "111.0", "576", "384", "768", "x", "12", "x", "12"]
    assert lines[2].split()[:2] == ["R50+B/16", "98,659,112"]


def test_size_that_some_patch_sizes_do_not_divide() -> None:
    result = vitreous("models", "Ti/*", "--size", "392")
    rows = {line.split()[0]: line.split()[2:4] for line in result.stdout.splitlines()[1:5]}
    assert rows["Ti/14"] == ["14.2", "784"]
    assert rows["Ti/16"] == ["-", "-"]
    assert "392 px cannot be divided into patches" in result.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("models", "nothing*"), "vitreous: no model matches 'nothing*'"),
        (("models", "deit-tiny"), "lists all 66; trained weights match: add --weights"),
        (("models", "B/16", "--size", "225"), "nearest height that works is 224 or 240"),
        (("models", "--size", "many"), "size"),
        (("models", "--sise", "224"), "--size"),
        (("modles",), "models"),
    ],
)
def test_mistakes_give_a_message_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = vitreous(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert not result.stdout


def test_help_and_version() -> None:
    assert "models" in vitreous("--help").stdout
    assert vitreous().returncode == 0
    assert vitreous("--version").stdout.startswith("vitreous ")


def test_closed_pipe() -> None:
    command = f"{sys.executable} -m vitreous models 'B*' | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=120)
    assert "model" in result.stdout
    assert not result.stderr
