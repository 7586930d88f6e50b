"""Temporary files of a killed process are removed by the next process that writes the same file."""

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
    """Return the id of a process that has ended."""
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return int(ended.stdout)


def leftovers(path: Path, dead: int) -> list[Path]:
    """Create temporary files of a dead process, of this process and of another file, and an unrelated file."""
    beside = path.with_name(f"other{path.suffix}")
    files = [path.with_name(f".{path.name}.{dead}.tmp"), temporary_name(path), path.with_name(f".{path.name}.x.tmp")]
    files += [beside.with_name(f".{beside.name}.{dead}.tmp")]
    for file in files:
        file.write_text("half")
    return files


def test_replacing_a_file_removes_leftovers(tmp_path: Path, dead: int) -> None:
    for name in ("a.json", "odd[1]*.json"):
        path = tmp_path / name
        of_dead, own, odd, other = leftovers(path, dead)
        with atomic_file(path) as temporary:
            temporary.write_text("whole")
        assert path.read_text() == "whole"
        assert not of_dead.exists()
        assert not own.exists()  # a file of this process
        assert odd.exists()
        assert other.exists()


def test_a_process_with_the_id_of_a_killed_one(tmp_path: Path) -> None:
    """In a container a program often has the same process id: files older than its start are leftovers."""
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


def test_a_folder_that_is_being_written_is_kept(tmp_path: Path) -> None:
    fresh = temporary_name(tmp_path / "model")
    fresh.mkdir()
    remove_leftovers(tmp_path / "model")
    assert fresh.is_dir()


def test_a_contact_sheet(tmp_path: Path, dead: int) -> None:
    data = open_data(classes(tmp_path / "set", {"a": 3, "b": 3}))
    path = tmp_path / "sheet.png"
    path.write_text("the old one")
    of_dead, *_ = leftovers(path, dead)
    sample_sheet(data, path, overwrite=True)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not of_dead.exists()


def test_long_names(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".json")
    with atomic_file(path) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208
