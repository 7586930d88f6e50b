"""`open_data` on image folders, names and invalid input."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import classes, encoded, same, write
from vitreous.data.dataset import DataSet
from vitreous.data.encoded import PackedStrings
from vitreous.data.open_data import IMAGES_CHECKED, expand_braces, open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError

WHOLE = Reading(val_fraction=0)


def counts(data: DataSet) -> dict[str, int]:
    return {name: len(source) for name, source in data.splits.items()}


def names(data: DataSet, split: str = "train") -> list[str]:
    return [data.splits[split].name(i) for i in range(len(data.splits[split]))]


def refused(path: object, *reading: Reading) -> str:
    with pytest.raises(VitreousError) as caught:
        open_data(str(path), *reading)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_a_folder_of_classes(tmp_path: Path) -> None:
    classes(tmp_path / "pets", {"dog": 20, "cat": 30})
    data = open_data(tmp_path / "pets")
    assert (data.name, data.classes, data.channels, data.multi_label) == ("pets", ("cat", "dog"), 3, False)
    assert counts(data) == {"train": 40, "val": 10}
    assert data.split.startswith("20% for validation, held out from train, stratified, seed 0; no test split")
    assert data.notes == ()
    assert data.val is not None
    assert data.val.labels.bincount().tolist() == [6, 4]
    assert data.train.labels.dtype == torch.int64
    for source in data.splits.values():
        for i in range(len(source)):
            name = Path(source.name(i))
            assert data.classes[source.labels[i]] == name.parent.name
            assert same(source.image(i), {"dog": 0, "cat": 1000}[name.parent.name] + int(name.stem))
            assert source.content(i) == name.read_bytes()


def test_split_options(tmp_path: Path) -> None:
    classes(tmp_path, {"a": 10, "b": 10})
    assert names(open_data(tmp_path)) == names(open_data(tmp_path))
    assert names(open_data(tmp_path)) != names(open_data(tmp_path, Reading(split_seed=1)))
    assert counts(open_data(tmp_path, Reading(val_fraction=0.5))) == {"train": 10, "val": 10}
    whole = open_data(tmp_path, WHOLE)
    assert (whole.val, whole.split) == (None, "no validation split")
    assert names(whole) == [str(tmp_path / c / f"{i:03}.png") for c in "ab" for i in range(10)]
    assert "val_fraction = 1" in refused(tmp_path, Reading(val_fraction=1))


def test_a_test_split_is_held_out(tmp_path: Path) -> None:
    classes(tmp_path, {"a": 60, "b": 60})
    data = open_data(tmp_path)
    assert counts(data) == {"train": 84, "val": 18, "test": 18}
    assert data.split == "15% for validation and 15% for test, held out from train, stratified, seed 0"
    assert data.held_out == ("val", "test")
    assert [(name, len(source)) for name, source in data.stored_splits.items()] == [("train", 120)]
    assert counts(open_data(tmp_path, Reading(test_fraction=0))) == {"train": 96, "val": 24}
    assert counts(open_data(tmp_path, WHOLE)) == {"train": 120}


def test_existing_splits_are_unchanged(tmp_path: Path) -> None:
    for split in ("train", "val"):
        classes(tmp_path / split, {"a": 60, "b": 60})
    data = open_data(tmp_path)
    assert (counts(data), data.held_out) == ({"train": 120, "val": 120}, ())
    more = open_data(tmp_path, Reading(test_fraction=0.1))
    assert (counts(more), more.held_out) == ({"train": 108, "val": 120, "test": 12}, ("test",))
    (tmp_path / "val").rename(tmp_path / "test")
    data = open_data(tmp_path, Reading(test_fraction=0.1))
    assert (counts(data), data.held_out) == ({"train": 96, "val": 24, "test": 120}, ("val",))
    assert any("test_fraction is not used" in note for note in data.notes)


@pytest.mark.parametrize(
    "spelled", [("train", "val", "test"), ("Training", "VALID", "Testing"), ("TRAIN", "Validation", "tEST")]
)
def test_folders_of_splits(tmp_path: Path, spelled: tuple[str, ...]) -> None:
    for folder, count in zip(spelled, (5, 2, 3), strict=True):
        classes(tmp_path / folder, {"a": count, "b": count})
    data = open_data(tmp_path)
    assert counts(data) == {"train": 10, "val": 4, "test": 6}
    assert data.split == f"{spelled[1]}/ of the folder"
    assert names(data, "test")[0] == str(tmp_path / spelled[2] / "a" / "000.png")
    noted = open_data(tmp_path, Reading(val_fraction=0.5))
    assert counts(noted) == {"train": 10, "val": 4, "test": 6}
    assert any("val_fraction is not used" in note for note in noted.notes)


def test_val_is_held_out_if_there_is_only_a_test_folder(tmp_path: Path) -> None:
    classes(tmp_path / "train", {"a": 10, "b": 10})
    classes(tmp_path / "test", {"a": 3})
    assert counts(open_data(tmp_path)) == {"train": 16, "val": 4, "test": 3}


def test_train_may_be_a_class(tmp_path: Path) -> None:
    classes(tmp_path, {"train": 5, "bus": 5})
    assert open_data(tmp_path).classes == ("bus", "train")


def test_unusual_names_nested_folders_and_other_files(tmp_path: Path) -> None:
    root = tmp_path / "data [1] {a,b}"
    write(root / "naïve ü" / "x.PNG", 1)
    write(root / "naïve ü" / "deep" / "er" / "y.JpEg", 2)
    write(root / "naïve ü" / ".hidden" / "no.png", 3)
    write(root / "naïve ü" / ".no.png", 3)
    (root / "naïve ü" / "notes.txt").write_text("not an image")
    write(root / "漢字 #1%" / "space in it.webp", 4)
    write(root / "漢字 #1%" / "line\nbreak.png", 5)
    write(root / "loose.png", 6)
    (root / "README").touch()
    write(root / ".cache" / "z.png", 7)
    data = open_data(root, WHOLE)
    assert data.classes == ("naïve ü", "漢字 #1%")
    assert [Path(name).name for name in names(data)] == ["y.JpEg", "x.PNG", "line\nbreak.png", "space in it.webp"]
    assert same(data.train.image(1), 1)
    assert data.notes == (
        "1 image outside of class folders: ignored ('loose.png')",
        "ignored: 2 files without an image suffix (1 no suffix, 1 .txt)",
    )


@pytest.mark.skipif(os.name != "posix", reason="names of bytes are POSIX's")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"plain"):
        folder = tmp_path / os.fsdecode(name)
        write(folder / os.fsdecode(b"\xff.png"), 1)
        write(folder / "b.png", 2)
    data = open_data(tmp_path, WHOLE)
    assert data.classes == ("caf\ufffd", "plain")
    assert sorted(same(data.train.image(i), 1) for i in range(4)) == [False, False, True, True]


def test_composed_and_decomposed_unicode_is_one_class(tmp_path: Path) -> None:
    classes(tmp_path / "train", {"caf\u00e9": 3, "tea": 3})
    classes(tmp_path / "val", {"cafe\u0301": 1})
    assert counts(open_data(tmp_path)) == {"train": 6, "val": 1}
    classes(tmp_path / "train", {"cafe\u0301": 1})
    assert "two folders for one class" in refused(tmp_path)


def test_links(tmp_path: Path) -> None:
    classes(tmp_path / "store", {"a": 4, "b": 4, "more": 2})
    root = tmp_path / "data"
    (root / "one").mkdir(parents=True)
    (root / "one" / "x.png").symlink_to(tmp_path / "store" / "a" / "000.png")
    (root / "one" / "more").symlink_to(tmp_path / "store" / "more")
    (root / "one" / "again").symlink_to(root / "one")  # cycles of every length
    (root / "one" / "up").symlink_to(root)
    (root / "two").symlink_to(tmp_path / "store" / "b")
    (root / "two" / "back").symlink_to(root / "two")
    (root / "loop").symlink_to(root)
    (root / "one" / "nowhere.png").symlink_to(tmp_path / "gone.png")
    data = open_data(root, WHOLE)
    assert data.classes == ("one", "two")
    assert [os.path.relpath(name, root) for name in names(data)] == [
        "one/more/000.png",
        "one/more/001.png",
        "one/nowhere.png",
        "one/x.png",
        *(f"two/{i:03}.png" for i in range(4)),
    ]
    assert any("links to a parent folder" in note and "loop" in note for note in data.notes)
    with pytest.raises(VitreousError, match=r"one/nowhere\.png: there is no such file"):
        data.train.image(2)


def test_one_folder_may_serve_two_splits(tmp_path: Path) -> None:
    """`describe` reports this leak."""
    classes(tmp_path / "store", {"a": 2, "b": 2})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").symlink_to(tmp_path / "store")
    (tmp_path / "data" / "val").mkdir()
    (tmp_path / "data" / "val" / "a").symlink_to(tmp_path / "store" / "a")
    assert counts(open_data(tmp_path / "data")) == {"train": 4, "val": 2}


def test_invalid_folders(tmp_path: Path) -> None:
    assert "there is no such file or folder" in refused(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    assert "no images in this folder; expected a folder for each class" in refused(tmp_path / "empty")
    write(tmp_path / "loose" / "1.png")
    assert "1 image, but no class folders; expected a folder for each class" in refused(tmp_path / "loose")
    classes(tmp_path / "one", {"only": 5})
    assert "only one class, 'only', with 5 images: classification needs at least two classes" in refused(
        tmp_path / "one"
    )
    classes(tmp_path / "hollow", {"a": 5, "b": 5, "void": 0})
    assert "empty class: no image in 'void'" in refused(tmp_path / "hollow")
    classes(tmp_path / "strange" / "train", {"a": 5, "b": 5})
    classes(tmp_path / "strange" / "val", {"a": 1, "c": 1, "d": 1})
    assert "classes of val that train does not have: 'c', 'd'" in refused(tmp_path / "strange")
    classes(tmp_path / "single", {"a": 1, "b": 1})
    assert "2 images are too few to hold out a validation split" in refused(tmp_path / "single")
    assert counts(open_data(tmp_path / "single", WHOLE)) == {"train": 2}
    classes(tmp_path / "untrained" / "val", {"a": 1})
    classes(tmp_path / "untrained" / "test", {"a": 1})
    assert "no train/ folder" in refused(tmp_path / "untrained")
    classes(tmp_path / "twice" / "train", {"a": 5, "b": 5})
    classes(tmp_path / "twice" / "val", {"a": 1})
    classes(tmp_path / "twice" / "validation", {"a": 1})
    assert "several folders for val" in refused(tmp_path / "twice")
    classes(tmp_path / "wrapped" / "inner" / "train", {"a": 5, "b": 5})
    classes(tmp_path / "wrapped" / "inner" / "val", {"a": 5, "b": 5})
    assert f"did you mean {tmp_path / 'wrapped' / 'inner'}?" in refused(tmp_path / "wrapped")
    (tmp_path / "broken" / "a").mkdir(parents=True)
    (tmp_path / "broken" / "b").mkdir()
    for name in ("a/1.jpg", "b/1.jpg", "b/2.jpg"):
        (tmp_path / "broken" / name).write_bytes(b"no image")
    assert "none of the 3 images that were tried can be read; the first: " in refused(tmp_path / "broken")


def test_a_class_of_one_image_stays_in_train(tmp_path: Path) -> None:
    classes(tmp_path, {"a": 1, "b": 9})
    data = open_data(tmp_path)
    assert counts(data) == {"train": 8, "val": 2}
    assert data.train.labels.tolist().count(0) == 1
    assert "only one training image of 1 class: 'a'" in data.notes


def test_a_test_folder_without_classes_is_ignored(tmp_path: Path) -> None:
    classes(tmp_path / "train", {"a": 5, "b": 5})
    write(tmp_path / "test" / "1.png")
    data = open_data(tmp_path)
    assert data.test is None
    assert "test/ has no images in class folders: ignored" in data.notes


def test_grey_and_colour(tmp_path: Path) -> None:
    classes(tmp_path / "grey", {"a": 3, "b": 3}, channels=1)
    assert open_data(tmp_path / "grey").channels == 1
    write(tmp_path / "grey" / "b" / "colour.png")
    assert open_data(tmp_path / "grey").channels == 3


def test_only_a_few_images_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for i in range(300):
            (tmp_path / folder / f"{i}.png").touch()
    opened = []

    def record(data: bytes, at_least: object, max_pixels: int) -> Image.Image:
        opened.append(data)
        return Image.new("L", (1, 1))

    monkeypatch.setattr("vitreous.data.encoded.decode", record)
    assert open_data(tmp_path).channels == 1
    assert len(opened) == IMAGES_CHECKED == 64


def test_pickled_sources_are_small_and_complete(tmp_path: Path) -> None:
    classes(tmp_path, {"a": 30, "b": 30})
    data = open_data(tmp_path)
    packed = pickle.dumps(data)
    assert len(packed) < 60 * 60 + 4000
    copy = pickle.loads(packed)
    assert names(copy) == names(data)
    assert torch.equal(copy.train.labels, data.train.labels)
    assert np.array_equal(np.asarray(copy.val.image(3)), np.asarray(data.val.image(3)))


def test_packed_strings() -> None:
    texts = ["", "a", "ü漢", os.fsdecode(b"\xff"), "a" * 300]
    held = PackedStrings(texts)
    assert (list(held), held[-1], held[1:3], len(held)) == (texts, "a" * 300, ["a", "ü漢"], 5)
    assert len(PackedStrings([])) == 0
    with pytest.raises(IndexError):
        held[5]


def test_data_set_names_and_misspelt_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "did you mean digits" in refused("digit")
    assert "did you mean cifar10 or cifar100?" in refused("cifar_10")
    assert "data sets that can be given by name: digits, mnist" in refused("xyzzy")
    (tmp_path / "flowers").mkdir()
    assert "did you mean flowers?" in refused("flower")
    assert "there is no such file or folder" in refused(
        "flowers/train"
    )  # not a name on the hub: there is a folder flowers/
    (tmp_path / "model.onnx").touch()
    assert "unknown file format; expected a folder, .zip, .csv" in refused("model.onnx")
    for folder in ("clips/a", "clips/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.mp4").touch()
    assert "is a video, not an image: extract images from it" in refused("clips/a/1.mp4")
    assert "2 videos ('a/1.mp4', 'b/1.mp4'); video: extract images from it" in refused("clips")
    classes(tmp_path / "pets", {"a": 3, "b": 3})
    assert "data_dir is only for data sets that are given by name" in refused("pets", Reading(data_dir="x"))
    assert open_data("pets").name == open_data("pets/").name == "pets"
    monkeypatch.chdir(tmp_path / "pets")
    assert open_data(".").name == "pets"


def test_brace_expansion() -> None:
    assert list(expand_braces("s-{008..011}.tar")) == ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]
    assert list(expand_braces("{a,b}{1..2}")) == ["a1", "a2", "b1", "b2"]
    assert list(expand_braces("plain")) == ["plain"]
    with pytest.raises(VitreousError, match="does not count upwards"):
        list(expand_braces("{5..3}"))


def test_an_image_that_becomes_unreadable_is_named(tmp_path: Path) -> None:
    classes(tmp_path, {"a": 2, "b": 2})
    data = open_data(tmp_path, WHOLE)
    (tmp_path / "b" / "001.png").write_bytes(encoded(1)[:50])
    with pytest.raises(VitreousError, match=r"b/001\.png: "):
        data.train.image(3)
