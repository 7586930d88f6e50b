"""Damaged and hostile checkpoints: `load` either loads a file or raises a VitreousError that names it, within the
limits of fuzz_harness.py. fuzzing.py generates the cases."""

import functools
from random import Random

import fuzzing
import pytest

from fuzz_harness import Case, Work, fuzz

BARE = ("safetensors", "pth", "legacy pth", "index")  # without metadata


@pytest.mark.parametrize("kind", fuzzing.SOUND)
def test_sound_files_load(kind: str) -> None:
    assert fuzzing.load(fuzzing.sound(kind), heads=3 if kind in BARE else None) == ""


def prepare(case: Case) -> Work:
    draw = Random(case.seed)
    damage = next(ways[case.kind] for ways in fuzzing.DAMAGE.values() if case.kind in ways)
    files = damage(draw)
    options = fuzzing.options(files, draw)
    return Work(sum(map(len, files.values())), functools.partial(fuzzing.load, files, **options))


def test_hostile_files() -> None:
    fuzzing.make_sound_files()
    fuzz("checkpoints", {form: list(ways) for form, ways in fuzzing.DAMAGE.items()}, prepare)
