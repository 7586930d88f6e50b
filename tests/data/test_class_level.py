"""Photos in folders of years: which folders are the classes is detected and explained."""

from pathlib import Path

import pytest

from pictures import encoded, write, write_tar
from vitreous.data.class_level import choose_class_level
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError

WHOLE = Reading(val_fraction=0)


def tree(root: Path, *folders: str, images: int = 2) -> Path:
    for place, folder in enumerate(folders):
        for i in range(images):
            write(root / folder / f"{i}.png", 10 * place + i)
    return root


def level(*folders: str, requested: int | None = None) -> tuple[int, str]:
    chosen = choose_class_level({tuple(folder.split("/")): 3 for folder in folders}, requested)
    return chosen.level, chosen.note


def test_years_that_contain_the_same_classes_are_pooled(tmp_path: Path) -> None:
    tree(tmp_path, "2019/cats", "2019/dogs", "2020/cats", "2020/dogs/indoors", "2021/cats")
    write(tmp_path / "2021" / "blurred.png", 99)
    data = open_data(tmp_path, WHOLE)
    assert data.classes == ("cats", "dogs")
    assert data.train.labels.bincount().tolist() == [6, 4]
    note, ignored = data.notes
    assert note == (
        "3 folders named like dates ('2019', '2020', '2021') contain the same folders: 'cats', 'dogs' are the classes,"
        " and the images of all dates are pooled (--class-level 1 uses the first level as the classes)"
    )
    assert ignored == "1 image outside of class folders: ignored ('2021/blurred.png')"
    years = open_data(tmp_path, Reading(val_fraction=0, class_level=1))
    assert (years.classes, years.notes) == (("2019", "2020", "2021"), ())


@pytest.mark.parametrize(
    "names",
    [
        ("2021", "2022"),
        ("May 2021", "June 2021"),
        ("2021-05-03 trip", "2021-06"),
        ("202105", "202106"),
        ("1999", "x_2000"),
    ],
)
def test_names_like_dates(names: tuple[str, str]) -> None:
    assert level(*(f"{name}/{label}" for name in names for label in ("a", "b")))[0] == 2


@pytest.mark.parametrize("names", [("cats", "dogs"), ("n02021", "n02022"), ("12021", "20223"), ("3021", "1821")])
def test_names_that_are_not_dates(names: tuple[str, str]) -> None:
    assert level(*names) == (1, "")
    assert level(*(f"{name}/2021" for name in names), *(f"{name}/2022" for name in names)) == (
        1,
        "",
    )  # years in classes
    assert level(*(f"{name}/images" for name in names)) == (1, "")


def test_years_months_and_classes() -> None:
    months = [
        f"{year}/{month}/{label}" for year in (2021, 2022) for month in ("01", "02") for label in ("cats", "dogs")
    ]
    assert level(*months)[0] == 3
    assert "4 folders named like dates ('2021/01', '2021/02', '2022/01' and 1 more)" in level(*months)[1]
    assert level("2021/0", "2021/1", "2022/0", "2022/1")[0] == 2  # digits are classes


def test_the_same_folders_in_all_classes_are_noted() -> None:
    chosen, note = level("home/cats", "home/dogs", "garden/cats", "garden/dogs")
    assert chosen == 1
    assert "the classes are 'garden', 'home', and each contains the same folders ('cats', 'dogs')" in note
    assert "use --class-level 2" in note
    assert level("home/cats", "home/dogs", "garden/cats", "garden/dogs", requested=2) == (2, "")


def test_classes_that_are_years() -> None:
    assert level("1950", "1960") == (1, "the classes are named like dates: '1950', '1960'")


def test_unclear_folders_are_an_error(tmp_path: Path) -> None:
    for folders, reason in (
        (
            ("2021/01", "2021/02", "2022/01"),
            "in folders named after dates .* to use the dates as classes: --class-level 1",
        ),
        (
            ("2021/holiday", "2022/birthday"),
            "not clear which .* differ .*'birthday', 'holiday'.*: --class-level 2; for",
        ),
        (("2021/cats", "2021/dogs"), "not clear which folders are the classes"),
    ):
        with pytest.raises(VitreousError, match=reason):
            level(*folders)
    for requested, reason in (
        (0, "must be 1 or more"),
        (3, "no image is in a folder of that level; the deepest is level 2"),
    ):
        with pytest.raises(VitreousError, match=reason):
            level("a/b", "c/d", requested=requested)
    write(tmp_path / "one.png")
    (tmp_path / "labels.csv").write_text("image,label\none.png,a\n")
    with pytest.raises(VitreousError, match="class_level has no effect"):
        open_data(tmp_path / "labels.csv", Reading(class_level=2))


def test_all_splits_and_tars_use_the_level(tmp_path: Path) -> None:
    folders = [f"{year}/{label}" for year in (2021, 2022) for label in ("cats", "dogs")]
    tree(tmp_path / "folder", *(f"{split}/{folder}" for split in ("train", "val") for folder in folders))
    data = open_data(tmp_path / "folder")
    assert data.classes == ("cats", "dogs")
    assert [len(source) for source in data.splits.values()] == [8, 8]
    names = [f"photos/{folder}/{i}.png" for folder in folders for i in range(3)]
    tar = open_data(write_tar(tmp_path / "t.tar", {name: encoded(i) for i, name in enumerate(names)}), WHOLE)
    assert tar.classes == ("cats", "dogs")
    assert len(tar.notes) == 1


def test_other_files_are_counted_and_named(tmp_path: Path) -> None:
    tree(tmp_path, "cats", "dogs", "Dogs")
    for name in ("cats/IMG_1.MOV", "cats/IMG_2.mov", "dogs/a.CR2", "dogs/b.pdf", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    for name in ("cats/Thumbs.db", "dogs/desktop.ini", "cats/.DS_Store"):  # written by the system
        (tmp_path / name).write_bytes(b"x")
    write(tmp_path / "cats" / "@eaDir" / "thumbnail.png")
    write(tmp_path / "__MACOSX" / "cats" / "1.png")
    data = open_data(tmp_path, WHOLE)
    assert data.classes == ("Dogs", "cats", "dogs")
    assert len(data.train) == 6
    assert data.notes == (
        "different classes with almost the same name: 'Dogs' and 'dogs'",
        "ignored: 2 videos ('cats/IMG_1.MOV', 'cats/IMG_2.mov')",
        "ignored: 1 RAW photo ('dogs/a.CR2')",
        "ignored: 1 document ('dogs/b.pdf')",
        "ignored: 1 file without an image suffix (1 .txt)",
    )


def test_a_folder_without_readable_images_says_what_it_has(tmp_path: Path) -> None:
    for name in ("raw/1.nef", "raw/2.nef", "clips/1.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        VitreousError, match=r"no images that can be read; there are 1 video \('clips/1.mp4'\), 2 RAW photos"
    ):
        open_data(tmp_path)
