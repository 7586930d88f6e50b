"""The images of `vitreous predict`: lists of paths."""

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from vitreous import VitreousError
from vitreous.serving.prediction import ClassProbability, Prediction
from vitreous.serving.prediction_input import collect_inputs, read_path_list
from vitreous.serving.sorting import sorted_images

# Names with characters at which str.splitlines splits, spaces, a pattern, and a byte that is not UTF-8.
ODD_NAMES = ("vt\x0bx.jpg", "line\u2028x.jpg", " lead.jpg", "trail.jpg ", "a[1].jpg", "*.jpg", os.fsdecode(b"\xff.jpg"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (*ODD_NAMES, "a1.jpg"):
        Image.new("RGB", (8, 8)).save(name, "JPEG")
    return tmp_path


@pytest.mark.parametrize("stdin", [False, True], ids=["file", "stdin"])
@pytest.mark.parametrize("separator", ["\n", "\r\n", "\0"], ids=["lines", "windows", "null"])
def test_every_name_of_a_list_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, separator: str, stdin: bool
) -> None:
    content = b"\xef\xbb\xbf" + os.fsencode(separator.join((*ODD_NAMES, "", "a1.jpg", "")))
    (folder / "list").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content), closed=False, isatty=lambda: False))
    found = collect_inputs((), "-" if stdin else "list")
    assert [one.name for one in found] == [*ODD_NAMES, "a1.jpg"]


def test_a_missing_name_in_a_list_is_not_a_pattern(folder: Path) -> None:
    (folder / "list").write_text("a?.jpg\n")
    with pytest.raises(VitreousError, match=r"^a\?\.jpg: there is no such file"):
        collect_inputs((), "list")
    assert [one.name for one in collect_inputs(("a?.jpg",))] == ["a1.jpg"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("x.jpg\n".encode("utf-16"), "UTF-16: save it as UTF-8"), (b"\n \n", "is empty"), (b"\xff\xd8\xff\0", "an image")],
)
def test_what_is_not_a_list(folder: Path, content: bytes, message: str) -> None:
    (folder / "list").write_bytes(content)
    with pytest.raises(VitreousError, match=f"^list: .*{message}"):
        read_path_list("list")
    (folder / "sub").mkdir()
    with pytest.raises(VitreousError, match=r"^sub is a folder, not a file: --paths-from expects"):
        read_path_list("sub")


def test_an_empty_path_is_not_the_current_folder(folder: Path) -> None:
    with pytest.raises(VitreousError, match="an empty path was given"):
        collect_inputs(("",))


def test_an_image_from_standard_input_that_pillow_cannot_read_is_copied(tmp_path: Path) -> None:
    content = b"\0\0\0\x18ftypheic" + bytes(64)
    found = Prediction("-", (ClassProbability(0, "cat", 0.9),), None, (ClassProbability(0, "cat", 0.9),))
    with sorted_images(tmp_path / "out", ["cat"]) as sorter:
        sorter.add(found, content)
    assert (tmp_path / "out" / "cat" / "stdin.heic").read_bytes() == content
