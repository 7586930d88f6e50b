"""Files and folders are written completely or not at all, and existing ones are replaced only on request."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vitreous import VitreousError
from vitreous.utils import system_calls
from vitreous.utils.atomic import atomic_file, atomic_folder, check_output, replace_folder, swap_paths

OURS = ("a.txt", "b.txt")


def ours(folder: Path) -> tuple[str, ...]:
    return OURS


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def made(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_existing_paths_are_refused(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", made(tmp_path / "folder", a="old")
    check_output(file, False)
    check_output(tmp_path / "new", False, ours)
    file.touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for path, names in ((file, None), (folder, ours), (tmp_path / "dangling", None)):
        with pytest.raises(VitreousError, match="exists already: give another name, or replace it with --overwrite"):
            check_output(path, False, names)
        check_output(path, True, names)
    with pytest.raises(VitreousError, match="is not a folder"):
        check_output(file, True, ours)
    check_output(made(tmp_path / "empty"), False, ours)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_files_is_never_replaced(overwrite: bool, tmp_path: Path) -> None:
    folder = made(tmp_path / "folder", a="old", precious="mine")
    with (
        pytest.raises(VitreousError, match=r"folder holds other files \('precious.txt'\)"),
        atomic_folder(folder, overwrite, ours),
    ):
        pytest.fail("nothing is to be written")
    assert contents(folder) == {"a.txt": "old", "precious.txt": "mine"}


def test_a_folder_is_replaced_completely(tmp_path: Path) -> None:
    folder = made(tmp_path / "folder", a="old", b="old")
    folder.chmod(0o700)
    with atomic_folder(folder, True, ours) as fresh:
        (fresh / "a.txt").write_text("new")
        assert contents(folder) == {"a.txt": "old", "b.txt": "old"}
    assert contents(folder) == {"a.txt": "new"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def write_folder(folder: Path, overwrite: bool, then: Callable[[], object]) -> None:
    with atomic_folder(folder, overwrite, ours) as fresh:
        (fresh / "a.txt").write_text("new")
        then()


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [VitreousError("no"), OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_folder(error: BaseException, tmp_path: Path) -> None:
    folder = made(tmp_path / "folder", a="old")
    kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else VitreousError
    with pytest.raises(kind) as found:
        write_folder(folder, True, lambda: fail(error))
    assert contents(folder) == {"a.txt": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    if kind is VitreousError:
        assert str(found.value).endswith("the existing folder is unchanged")


def test_a_folder_that_appears_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with pytest.raises(VitreousError, match="exists already"):
        write_folder(folder, False, lambda: made(folder, a="another process"))
    assert contents(folder) == {"a.txt": "another process"}


def test_an_empty_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the working directory of a process."""
    folder = made(tmp_path / "folder")
    monkeypatch.chdir(folder)
    with atomic_folder(Path(), False, ours) as fresh:
        (fresh / "a.txt").write_text("new")
    assert contents(Path()) == {"a.txt": "new"}


@pytest.mark.parametrize("at_once", [True, False])
def test_swapping_folders(at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not at_once:
        monkeypatch.setattr(system_calls, "RENAME_EXCHANGE", 1 << 20)  # as on a system without renameat2
    one, other = made(tmp_path / "one", a="1"), made(tmp_path / "other", a="2")
    swap_paths(one, other)
    assert (contents(one), contents(other)) == ({"a.txt": "2"}, {"a.txt": "1"})
    replace_folder(one, other)
    assert contents(other) == {"a.txt": "2"}
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_second_rename_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls, "RENAME_EXCHANGE", 1 << 20)
    other = made(tmp_path / "other", a="2")
    with pytest.raises(FileNotFoundError):
        swap_paths(tmp_path / "gone", other)
    assert contents(other) == {"a.txt": "2"}


def write_file(path: Path, then: Callable[[], object]) -> None:
    with atomic_file(path, overwrite=False) as temporary:
        temporary.write_text("new")
        then()


def test_a_file_that_appears_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(VitreousError, match="exists already"):
        write_file(path, lambda: path.write_text("another process"))
    assert path.read_text() == "another process"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f".file.{gone.pid}.tmp").write_text("half")
    made(tmp_path / f".folder.{gone.pid}.tmp", a="half")
    kept = [f".other.{gone.pid}.tmp", f".file.{os.getppid()}.tmp", ".file.x.tmp", ".file.tmp"]
    for name in kept:
        (tmp_path / name).touch()
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("whole")
    with atomic_folder(tmp_path / "folder", False, ours) as fresh:
        (fresh / "a.txt").write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "file", "folder"])
