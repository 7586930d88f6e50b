"""Import paths of the user's own code."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vitreous.errors import VitreousError
from vitreous.utils.import_path import import_object, import_path_of, is_import_path, source_digest


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["file.py:name", "/a b/file.py:make.one", "package.module:name", "module:name"])
def test_import_paths_are_recognised(text: str) -> None:
    assert is_import_path(text)


@pytest.mark.parametrize("text", ["file.py", "name", "hf://owner/name", "C:\\photos", "file.py:", ":name", "a b:c", ""])
def test_other_texts_are_not_import_paths(text: str) -> None:
    assert not is_import_path(text)


def test_a_file_is_imported_with_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "value = 7\n", "neighbour.py")
    path = write(tmp_path, "from neighbour import value\nclass A:\n    def f(): return value\n")
    before = list(sys.path)
    found = import_object(f"{path}:A.f")
    assert found() == 7
    assert sys.path == before
    assert import_path_of(found) == f"{path}:A.f"
    assert import_object(f"{path}:A.f") is found, "a file is imported once"


def test_a_changed_file_is_imported_again(tmp_path: Path) -> None:
    path = write(tmp_path, "def f(): return 1\n")
    digest = source_digest(f"{path}:f")
    assert import_object(f"{path}:f")() == 1
    write(tmp_path, "def f(): return 2222\n")
    assert import_object(f"{path}:f")() == 2222
    assert source_digest(f"{path}:f") != digest


def test_modules_are_given_by_name() -> None:
    assert import_object("torch.optim:Adam") is torch.optim.Adam
    assert import_object(import_path_of(torch.optim.Adam) or "") is torch.optim.Adam


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("", "missing", "has no 'missing'"),
        ("def make_model(): ...", "make_modle", "did you mean make_model"),
        ("x = 1\nnonsense", "x", "NameError: name 'nonsense' is not defined (line 2)"),
        ("x = (", "x", "SyntaxError"),
        ("import nosuchthing", "x", "No module named 'nosuchthing' (line 1)"),
        ("import sys; sys.exit(3)", "x", "SystemExit"),
    ],
)
def test_errors_of_a_file_are_explained(tmp_path: Path, code: str, name: str, message: str) -> None:
    path = write(tmp_path, code)
    with pytest.raises(VitreousError) as error:
        import_object(f"{path}:{name}")
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_missing_files_and_modules_are_named(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="no such file"):
        import_object(f"{tmp_path}/none.py:x")
    with pytest.raises(VitreousError, match="there is no module 'nosuchthing'"):
        import_object("nosuchthing.inner:x")


def test_instances_lambdas_and_local_functions_have_no_import_path() -> None:
    def local() -> None: ...

    assert import_path_of(local) is None
    assert import_path_of(lambda: None) is None
    assert import_path_of(torch.nn.Linear(1, 1)) is None


def test_the_running_script_is_not_imported_twice(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "from vitreous.utils.import_path import import_object, import_path_of\n"
        "class A: ...\n"
        "assert import_object(import_path_of(A)) is A\nprint(import_path_of(A))\n",
    )
    output = subprocess.run([sys.executable, path], check=True, capture_output=True, text=True).stdout
    assert output.strip() == f"{path}:A"
