"""What a killed process left of writing a file is removed by the next one that writes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitreous
from helpers import tiny_vit
from pictures import classes
from vitreous.data.contact_sheet import sample_sheet
from vitreous.data.open_data import open_data
from vitreous.training.run_directory import RunDirectory
from vitreous.utils.atomic import atomic_file
from vitreous.utils.temporary_files import remove_leftovers, temporary_name


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return int(ended.stdout)


def leftovers(path: Path, dead: int) -> list[Path]:
    """Files as processes leave them: of a dead one, of this one, of another file, and one that is none of them."""
    beside = path.with_name(f"other{path.suffix}")
    files = [path.with_name(f".{path.name}.{dead}.tmp"), temporary_name(path), path.with_name(f".{path.name}.x.tmp")]
    files += [beside.with_name(f".{beside.name}.{dead}.tmp")]
    for file in files:
        file.write_text("half")
    return files


def test_what_is_replaced(tmp_path: Path, dead: int) -> None:
    for name in ("a.json", "odd[1]*.json"):
        path = tmp_path / name
        of_dead, own, odd, other = leftovers(path, dead)
        with atomic_file(path) as temporary:
            temporary.write_text("whole")
        assert path.read_text() == "whole"
        assert not of_dead.exists()
        assert not own.exists()  # it was this process that wrote
        assert odd.exists()
        assert other.exists()


def test_a_process_with_the_number_of_a_killed_one(tmp_path: Path) -> None:
    """In a container a program has the same number each time: what lies here from before its start is a leftover."""
    model, run = tmp_path / "model", tmp_path / "run"
    for path in (model, run):
        leftover = temporary_name(path)
        leftover.mkdir()
        (leftover / "half").touch()
        os.utime(leftover, (10**9, 10**9))
    vitreous.save(tiny_vit(gelu="erf", resample="timm"), model, to="timm")
    RunDirectory(run).create({})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "run"]
    assert not list(tmp_path.glob("*/half"))


def test_a_folder_that_is_being_written_stays(tmp_path: Path) -> None:
    fresh = temporary_name(tmp_path / "model")
    fresh.mkdir()
    remove_leftovers(tmp_path / "model")
    assert fresh.is_dir()


def test_a_sheet(tmp_path: Path, dead: int) -> None:
    data = open_data(classes(tmp_path / "set", {"a": 3, "b": 3}))
    path = tmp_path / "sheet.png"
    path.write_text("the old one")
    of_dead, *_ = leftovers(path, dead)
    sample_sheet(data, path, overwrite=True)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not of_dead.exists()


def test_names_fit_however_long_they_are(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".json")
    with atomic_file(path) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208
