"""Statistics of a data set, and the contact sheet."""

import json
import os
from pathlib import Path
from statistics import median_low

import numpy as np
import pytest
from PIL import Image

from pictures import classes, encoded, pixels, write, write_tar
from vitreous.data.contact_sheet import sample_sheet
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.data.statistics import describe
from vitreous.errors import VitreousError

WHOLE = Reading(val_fraction=0)


def test_counts_sizes_and_balance(tmp_path: Path) -> None:
    for i, (height, width) in enumerate([(10, 20), (30, 5), (10, 20), (8, 50)]):
        write(tmp_path / "train" / "a" / f"{i}.png", i, height=height, width=width)
    classes(tmp_path / "train", {"b": 2}, height=40, width=40, channels=1)
    classes(tmp_path / "val", {"b": 1}, height=6, width=7)
    write(tmp_path / "val" / "b" / "x.jpg", 9, height=100, width=300)  # the full size of a JPEG
    calls: list[int] = []
    found = describe(open_data(tmp_path), progress=lambda: calls.append(1))
    assert (found.name, found.classes, found.channels) == (tmp_path.name, ("a", "b"), 3)
    assert found.counts == {"train": 6, "val": 2}
    assert found.class_counts == {"train": (4, 2), "val": (0, 2)}
    assert found.balance == 2
    assert found.sizes is not None
    assert found.sizes.smallest == (6, 5)
    assert found.sizes.largest == (100, 300)
    heights, widths = [10, 30, 10, 8, 40, 40, 6, 100], [20, 5, 20, 50, 40, 40, 7, 300]
    assert found.sizes.median == (median_low(heights), median_low(widths))
    assert found.sizes.common in ((10, 20), (40, 40))
    assert found.sizes.common_share == 0.25
    assert found.grey == 0.25
    assert (found.unreadable, found.copies) == ((), ())
    assert len(calls) == 8
    json.dumps(found.to_json())


def test_unreadable_images_are_named(tmp_path: Path) -> None:
    classes(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "bad.jpg").write_bytes(b"text")
    (tmp_path / "b" / "cut.jpg").write_bytes(encoded(1, "JPEG", height=64, width=64)[:1500])
    (tmp_path / "b" / "empty.png").touch()
    (tmp_path / "b" / "gone.png").symlink_to("nowhere")
    found = describe(open_data(tmp_path, WHOLE))
    assert {(os.path.relpath(bad.name, tmp_path), bad.reason) for bad in found.unreadable} == {
        ("a/bad.jpg", "not an image, or not a supported format"),
        ("b/cut.jpg", "the file is truncated"),
        ("b/empty.png", "the file is empty"),
        ("b/gone.png", "there is no such file"),
    }
    assert {bad.split for bad in found.unreadable} == {"train"}
    assert found.counts == {"train": 10}
    assert found.grey == 0


def test_duplicates_and_leaks(tmp_path: Path) -> None:
    classes(tmp_path / "train", {"a": 4, "b": 4})
    classes(tmp_path / "val", {"c": 0})
    classes(tmp_path / "test", {"b": 0})
    first = (tmp_path / "train" / "a" / "000.png").read_bytes()
    for place in ("train/a/copy.png", "train/b/strange.png", "val/a/leak.png", "test/b/leak.png"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(first)
    (tmp_path / "val" / "a" / "other.png").write_bytes((tmp_path / "train" / "b" / "003.png").read_bytes())
    found = describe(open_data(tmp_path))
    assert found.repeated == {"train": 2, "val": 0, "test": 0}
    assert found.leaks == {"train-val": 2, "train-test": 1, "val-test": 1}
    groups = {tuple((split, os.path.relpath(name, tmp_path)) for split, name in c.places): c for c in found.copies}
    whole = [("train", "a/000.png"), ("train", "a/copy.png"), ("train", "b/strange.png"), ("val", "a/leak.png")]
    expected = tuple((split, f"{split}/{name}") for split, name in [*whole, ("test", "b/leak.png")])
    assert set(groups) == {expected, (("train", "train/b/003.png"), ("val", "val/a/other.png"))}
    assert all(copies.classes_differ for copies in found.copies)


def test_duplicates_in_every_data_format(tmp_path: Path) -> None:
    images = np.stack([pixels(i) for i in (0, 1, 0, 2, 3, 3)])
    np.savez(tmp_path / "x.npz", images=images, labels=[0, 1, 0, 1, 0, 1])
    found = describe(open_data(tmp_path / "x.npz", WHOLE))
    assert [[name for _, name in copies.places] for copies in found.copies] == [
        ["x.npz[0]", "x.npz[2]"],
        ["x.npz[4]", "x.npz[5]"],
    ]
    assert [copies.classes_differ for copies in found.copies] == [False, True]
    assert found.sizes is not None
    assert (found.sizes.common, found.sizes.common_share) == ((12, 10), 1)
    write_tar(tmp_path / "t.tar", {"a/0.png": encoded(0), "b/1.png": encoded(0), "b/2.png": b"broken"})
    found = describe(open_data(tmp_path / "t.tar", WHOLE))
    assert found.repeated == {"train": 1}
    (bad,) = found.unreadable
    assert bad.name.endswith("t.tar:b/2.png")
    assert bad.reason == "not an image, or not a supported format"


def test_multi_label(tmp_path: Path) -> None:
    images = np.stack([pixels(i, channels=1) for i in range(4)])
    np.savez(tmp_path / "x.npz", images=images, labels=[[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]])
    data = open_data(tmp_path / "x.npz", WHOLE)
    found = describe(data)
    assert (found.multi_label, found.class_counts) == (True, {"train": (2, 3, 1)})
    assert (found.balance, found.grey) == (3, 1)
    sample_sheet(data, tmp_path / "sheet.png")


def test_the_digits() -> None:
    found = describe(open_data("digits"))
    assert sum(found.counts.values()) == 1797
    assert found.sizes is not None
    assert found.sizes.smallest == found.sizes.largest == (8, 8)
    assert found.grey == 1
    assert found.unreadable == ()


def cell(sheet: Image.Image, x: int, y: int, side: int = 96) -> np.ndarray:
    return np.asarray(sheet.crop((x, y, x + side, y + side)))


def test_a_sheet_of_small_images_shows_their_pixels(tmp_path: Path) -> None:
    data = open_data("digits", WHOLE)
    path = sample_sheet(data, tmp_path / "sheet.png", columns=3, rows=4)
    with Image.open(path) as sheet:
        assert (sheet.format, sheet.mode) == ("PNG", "RGB")
        right, bottom = sheet.width - 20 - 96, sheet.height - 20 - 96
        last = cell(sheet, right, bottom)
    assert data.train.array is not None
    of_class = data.train.array[data.train.labels.numpy() == 7]  # ten classes in four rows: 0, 2, 5, 7
    enlarged = of_class[..., 0].repeat(12, 1).repeat(12, 2)
    assert (last[..., 0] == enlarged).all((1, 2)).any()


def test_a_sheet_of_unusual_images(tmp_path: Path) -> None:
    names = {"猫 and 犬": 2, "a\x1b[31m name " + "that goes on " * 12: 9, "ж": 1}
    for i, (name, count) in enumerate(names.items()):
        for j in range(count):
            write(tmp_path / "set" / name / f"{j}.png", 10 * i + j, height=1 + 90 * j, width=3)
    write(tmp_path / "set" / "ж" / "big.jpg", 99, height=500, width=900)
    (tmp_path / "set" / "ж" / "bad.jpg").write_bytes(b"broken")
    data = open_data(tmp_path / "set", WHOLE)
    with Image.open(sample_sheet(data, tmp_path / "ü.png", columns=4)) as sheet:
        assert sheet.size == (2 * 20 + 260 + 4 * 102 - 6, 20 + 20 + 12 + 18 + 3 * 102 - 6 + 20)
    with pytest.raises(VitreousError, match=r"gone/s\.png cannot be written \(No such file"):
        sample_sheet(data, tmp_path / "gone" / "s.png")
    with pytest.raises(VitreousError, match="a contact sheet needs"):
        sample_sheet(data, tmp_path / "s.png", columns=0)


def test_many_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((200, 8, 8), np.uint8), labels=np.arange(200) % 100)
    data = open_data(tmp_path / "x.npz", WHOLE)
    with Image.open(sample_sheet(data, tmp_path / "s.png")) as sheet:
        assert sheet.height == 20 + 20 + 12 + 18 + 12 * 102 - 6 + 20


def test_a_class_with_a_line_break_in_its_name(tmp_path: Path) -> None:
    for name in ("one\nline", "other"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "data" / name / f"{number}.png")
    assert sample_sheet(open_data(tmp_path / "data"), tmp_path / "sheet.png").is_file()
    with pytest.raises(VitreousError, match=r"ends in \.png"):
        sample_sheet(open_data(tmp_path / "data"), tmp_path / "sheet.txt")
