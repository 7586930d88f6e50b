"""Copies of images in folders by class."""

from pathlib import Path

import pytest

from vitreous import VitreousError
from vitreous.serving.prediction import ClassProbability, Prediction
from vitreous.serving.sorting import class_folders, safe_name, sorted_images

ODD_NAMES = ("../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "CON", "nul.txt", "a\0b", "two\nlines", ".hidden")
ODD_NAMES += ("x" * 999, "é" * 300, "trailing. ", "\u202eevil", "C:\\x", "日本語", "\udcff")


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_a_class_name_is_one_component_of_a_path(name: str, tmp_path: Path) -> None:
    folder = safe_name(name)
    target = tmp_path / folder
    target.mkdir()
    assert target.resolve().parent == tmp_path.resolve()
    assert not folder.startswith(".")
    assert len(folder.encode()) <= 255


def test_folders_are_distinct() -> None:
    folders = class_folders(["a/b", "a_b", "A_B", "rejected", "cat", "a_b (class 2)"])
    assert len({folder.casefold() for folder in folders}) == 6
    assert "rejected" not in folders
    assert folders[0] == "a_b"
    assert folders[4] == "cat"


def test_a_class_that_is_called_like_the_numbered_name_of_another() -> None:
    names = ["a" * 180 + " (class 2)", "a" * 200, "a" * 200]
    assert len(set(class_folders(names))) == 3


def test_accents_that_some_systems_do_not_distinguish(tmp_path: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"  # the same name on macOS
    first, second = class_folders([composed, decomposed])
    assert (first, second) == (composed, f"{decomposed} (class 1)")
    for name in (composed, decomposed):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jpg").write_text(name)
    with sorted_images(tmp_path / "out", ["x"]) as sorter:
        for name in (composed, decomposed):
            sorter.add(prediction(tmp_path / name / f"{name}.jpg", 0))
    copied = {path.name for path in (tmp_path / "out" / "x").iterdir()}
    assert copied == {f"{composed}.jpg", f"{decomposed} (2).jpg"}


def prediction(image: object, *classes: int) -> Prediction:
    return Prediction(
        str(image), (ClassProbability(0, None, 0.9),), None, tuple(ClassProbability(c, None, 0.9) for c in classes)
    )


def test_images_are_copied_and_names_do_not_collide(tmp_path: Path) -> None:
    paths = []
    for folder, name in (("a", "1.jpg"), ("b", "1.jpg"), ("c", "1.JPG"), ("a", "1 (2).jpg")):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{folder}/{name}")
        paths.append(path)
    out = tmp_path / "out"
    with sorted_images(out, ["cat", "../dog"]) as sorter:
        for path in paths:
            sorter.add(prediction(path, 0))
        sorter.add(prediction(paths[0]))
        sorter.add(prediction(paths[0], 0, 1))  # several labels
        sorter.add(Prediction(paths[1], (), "unreadable"))
        assert not out.exists()  # it appears at the end
    assert sorted(path.name for path in (out / "cat").iterdir()) == [
        "1 (2) (2).jpg",
        "1 (2).jpg",
        "1 (3).JPG",
        "1 (4).jpg",
        "1.jpg",
    ]
    assert {path.read_text() for path in (out / "cat").iterdir()} == {f"{p.parent.name}/{p.name}" for p in paths}
    assert [path.name for path in (out / "rejected").iterdir()] == ["1.jpg"]
    assert (
        [path.name for path in (out / ".._dog").iterdir()] if (out / ".._dog").exists() else (out / "_.._dog").is_dir()
    )
    assert all(path.is_file() for path in paths)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c", "out"}


def sort_all(folder: Path, paths: list[Path]) -> None:
    with sorted_images(folder, ["cat"]) as sorter:
        for path in paths:
            sorter.add(prediction(path, 0))


def test_a_folder_with_files_is_refused_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(VitreousError, match="holds other files"), sorted_images(tmp_path / "full", ["cat"]):
        pass
    (tmp_path / "1.jpg").write_text("x")
    with pytest.raises(VitreousError, match=r"gone\.jpg cannot be copied \(No such file"):
        sort_all(tmp_path / "out", [tmp_path / "1.jpg", tmp_path / "gone.jpg"])
    assert {path.name for path in tmp_path.iterdir()} == {"full", "1.jpg"}
