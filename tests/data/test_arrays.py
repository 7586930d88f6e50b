"""Arrays in .npz files, in the orders and under the names that people keep them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitreous.data.opening import open_data
from vitreous.data.options import Reading
from vitreous.data.sources import DataSet
from vitreous.errors import VitreousError

WHOLE = Reading(val_fraction=0)
COLOUR = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
GREY = COLOUR[..., 0]
CLASSES = np.arange(20) % 4


def opened(tmp_path: Path, reading: Reading = WHOLE, **arrays: Any) -> DataSet:
    np.savez(tmp_path / "set.npz", **arrays)
    return open_data(tmp_path / "set.npz", reading)


def refused(tmp_path: Path, **arrays: Any) -> str:
    with pytest.raises(VitreousError) as caught:
        opened(tmp_path, **arrays)
    assert str(caught.value).startswith(f"{tmp_path / 'set.npz'}: ")
    return str(caught.value)


@pytest.mark.parametrize("keys", [("images", "labels"), ("x", "y"), ("data", "targets"), ("X", "Y")])
@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (COLOUR, COLOUR),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR),
        (GREY, GREY[..., None]),
        (GREY[..., None], GREY[..., None]),
        (GREY[:, None], GREY[..., None]),
    ],
)
def test_orders_of_axes(tmp_path: Path, keys: tuple[str, str], stored: Any, expected: Any) -> None:
    data = opened(tmp_path, **dict(zip(keys, (stored, CLASSES), strict=True)))
    np.testing.assert_array_equal(data.train.array, expected)
    assert (data.channels, data.notes) == (expected.shape[-1], ())
    assert data.train.labels.tolist() == CLASSES.tolist()
    assert data.train.name(3) == "set.npz[3]"
    np.testing.assert_array_equal(np.asarray(data.train.image(3)), expected[3].squeeze())
    assert data.train.image(3).mode == ("RGB" if expected.shape[-1] == 3 else "L")


def test_a_doubt_is_noted(tmp_path: Path) -> None:
    data = opened(tmp_path, images=np.zeros((20, 3, 7, 3), np.uint8), labels=CLASSES)
    assert data.train.array is not None
    assert data.train.array.shape == (20, 3, 7, 3)
    assert "the last axis was taken for the channels" in data.notes[0]


@pytest.mark.parametrize("form", ["x_train y_train x_test y_test", "train_images train_labels test_images test_labels"])
def test_splits(tmp_path: Path, form: str) -> None:
    arrays = dict(zip(form.split(), (COLOUR, CLASSES[:, None], COLOUR[:8], CLASSES[:8, None]), strict=True))
    data = opened(tmp_path, Reading(), **arrays)
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 16, "val": 4, "test": 8}
    assert data.val is not None
    assert data.val.labels.tolist() == [0, 1, 2, 3] or sorted(data.val.labels.tolist()) == [0, 1, 2, 3]
    val = {"val_images": COLOUR[:4], "val_labels": CLASSES[:4]} if "train_images" in form else {}
    val = val or {"x_val": COLOUR[:4], "y_val": CLASSES[:4]}
    data = opened(tmp_path, Reading(), **arrays, **val)
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 20, "val": 4, "test": 8}
    assert data.train.name(0) == "set.npz:train[0]"


def test_names(tmp_path: Path) -> None:
    names = ["ant", "bee", "cat", "dog", "elk"]
    data = opened(tmp_path, images=COLOUR, labels=CLASSES, class_names=names)
    assert data.classes == tuple(names)
    assert data.notes == ("no training image of 1 class: 'elk'",)
    written = opened(tmp_path, images=COLOUR, labels=np.array(names)[CLASSES])
    assert written.classes == ("ant", "bee", "cat", "dog")
    assert "labels out of range: '3'; there are 3 classes" in refused(
        tmp_path, images=COLOUR, labels=CLASSES, classes=names[:3]
    )
    assert "labels out of range: '-1'" in refused(tmp_path, images=COLOUR, labels=CLASSES - 1, classes=names)
    assert "several classes have the same name: 'ant'" in refused(
        tmp_path, images=COLOUR, labels=CLASSES, classes=[*names[:4], "ant"]
    )


def test_several_labels(tmp_path: Path) -> None:
    held = np.random.default_rng(1).integers(0, 2, (20, 3))
    for dtype in (bool, np.uint8, np.float32):
        data = opened(tmp_path, images=GREY, labels=held.astype(dtype))
        assert data.multi_label
        assert data.train.labels.tolist() == held.astype(bool).tolist()
    one_hot = opened(tmp_path, images=GREY, labels=np.eye(4)[CLASSES])
    assert (one_hot.multi_label, one_hot.train.labels.tolist()) == (False, CLASSES.tolist())
    assert "taken as one class each" in one_hot.notes[0]
    assert "expected 0 and 1 in it" in refused(tmp_path, images=GREY, labels=held * 2)
    assert "labels for 3 classes, and the names of 2" in refused(tmp_path, images=GREY, labels=held, classes=["a", "b"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": COLOUR / 255, "labels": CLASSES}, "images is of float64, and images are kept as uint8"),
        ({"images": COLOUR.astype(np.int16), "labels": CLASSES}, "images is of int16"),
        ({"images": COLOUR, "labels": CLASSES[:19]}, "20 images and 19 labels"),
        ({"images": COLOUR, "labels": CLASSES - 1}, "labels out of range: '-1'"),
        ({"images": COLOUR, "labels": CLASSES + 0.5}, "a label is 0.5"),
        ({"images": COLOUR, "labels": CLASSES * 0}, "only one class"),
        ({"images": COLOUR[:1], "labels": CLASSES[:1]}, "only one class, '0', with 1 image"),
        ({"images": COLOUR[:0], "labels": CLASSES[:0]}, "no images in it"),
        ({"images": COLOUR.reshape(20, -1), "labels": CLASSES}, "images is of shape (20, 90)"),
        ({"images": COLOUR[..., :2], "labels": CLASSES}, "images is of shape (20, 6, 5, 2)"),
        ({"pictures": COLOUR, "labels": CLASSES}, "the arrays are 'pictures', 'labels'"),
        ({"images": COLOUR, "x": COLOUR, "labels": CLASSES}, "images and x could both be of train"),
        ({"images": COLOUR, "labels": CLASSES.astype(object)}, "it holds Python objects, which are not opened"),
        ({"x_test": COLOUR, "y_test": CLASSES}, "expected images and labels, or x_train"),
        (
            {"x_train": COLOUR, "y_train": CLASSES % 2, "x_test": COLOUR, "y_test": CLASSES},
            "classes of test that train does not have: '2', '3'",
        ),
    ],
)
def test_mistakes(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    assert message in refused(tmp_path, **arrays)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    np.savez_compressed(path, images=COLOUR, labels=CLASSES)
    whole = path.read_bytes()
    for damaged in (b"", b"PK\x03\x04", whole[:300], whole[:200] + b"\0" * 50 + whole[250:]):
        path.write_bytes(damaged)
        with pytest.raises(VitreousError, match=r"cut\.npz: cannot be read as a \.npz file"):
            open_data(path)
