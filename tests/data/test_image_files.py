"""Finding image files by folder, name and glob pattern."""

import os
from pathlib import Path
from typing import Any

import pytest

from vitreous.data.image_files import find_images
from vitreous.errors import VitreousError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create files. They need not be images: only names matter here."""
    for name in ("b.JPG", "a.png", "notes.txt", ".hidden.png", "sub/c.webp", "sub/.cache/d.png", "sub/deep/ü.jpeg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*patterns: str | Path) -> list[str]:
    return [str(path) for path in find_images(patterns)]


def test_folders_files_and_patterns(folder: Path) -> None:
    everything = ["a.png", "b.JPG", "sub/c.webp", "sub/deep/ü.jpeg"]
    assert names(".") == everything
    assert names(folder) == [str(folder / name) for name in everything]
    assert names("notes.txt") == ["notes.txt"]  # given by name: decoding will fail
    assert names("*") == everything  # as in a shell: folders too
    assert names("*.*") == ["a.png", "b.JPG"]
    assert names("**/*.webp", "**/ü*") == ["sub/c.webp", "sub/deep/ü.jpeg"]
    assert names("**") == everything
    assert names(str(folder / "**" / "*.jp*g")) == [str(folder / "sub/deep/ü.jpeg")]
    assert names("sub/**/deep") == ["sub/deep/ü.jpeg"]


def test_order_is_kept_and_duplicates_are_dropped(folder: Path) -> None:
    assert names("sub", "a.png", "./a.png", folder / "a.png", ".") == [
        "sub/c.webp",
        "sub/deep/ü.jpeg",
        "a.png",
        "b.JPG",
    ]


def test_a_name_that_looks_like_a_pattern_is_a_name(folder: Path) -> None:
    (folder / "x[1].png").touch()
    (folder / "x1.png").touch()
    (folder / "set[a]").mkdir()
    (folder / "set[a]" / "y.png").touch()
    assert names("x[1].png") == ["x[1].png"]
    assert names("x[0-9].png") == ["x1.png"]
    assert names("set[[]a]/**") == ["set[a]/y.png"]


def test_links_are_followed_but_not_in_cycles(folder: Path) -> None:
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "sub" / "also").symlink_to(folder)
    (folder / "link.png").symlink_to("nowhere")
    expected = ["a.png", "b.JPG", "link.png", "sub/c.webp", "sub/deep/ü.jpeg"]
    assert names(".") == expected
    assert names("**/*") == expected
    (folder / "other").mkdir()
    (folder / "other" / "pictures").symlink_to(folder / "sub" / "deep")
    assert names("other") == ["other/pictures/ü.jpeg"]


def test_finding_nothing_is_an_error(folder: Path) -> None:
    (folder / "empty").mkdir()
    for pattern, message in {
        "gone.png": "gone.png: there is no such file or folder",
        "empty": "empty: no image in this folder",
        "*.tiff": r"\*.tiff: no image matches",
        "*.txt": r"\*.txt: no image matches",
        "gone/**": r"gone/\*\*: no image matches",
    }.items():
        with pytest.raises(VitreousError, match=message):
            find_images(["a.png", pattern])
    with pytest.raises(VitreousError, match="no images were given"):
        find_images([])


def test_a_folder_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def forbid(path: Any) -> Any:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbid)
    with pytest.raises(VitreousError, match=r"sub/deep: this folder cannot be read \(Permission denied\)"):
        find_images(["sub"])
