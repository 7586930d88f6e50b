"""Arrays in .npz files, with the usual axis orders and array names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitreous.data.dataset import DataSet
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
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
def test_axis_orders(tmp_path: Path, keys: tuple[str, str], stored: Any, expected: Any) -> None:
    data = opened(tmp_path, **dict(zip(keys, (stored, CLASSES), strict=True)))
    np.testing.assert_array_equal(data.train.array, expected)
    assert (data.channels, data.notes) == (expected.shape[-1], ())
    assert data.train.labels.tolist() == CLASSES.tolist()
    assert data.train.name(3) == "set.npz[3]"
    np.testing.assert_array_equal(np.asarray(data.train.image(3)), expected[3].squeeze())
    assert data.train.image(3).mode == ("RGB" if expected.shape[-1] == 3 else "L")


def test_an_ambiguous_axis_order_is_noted(tmp_path: Path) -> None:
    data = opened(tmp_path, images=np.zeros((20, 3, 7, 3), np.uint8), labels=CLASSES)
    assert data.train.array is not None
    assert data.train.array.shape == (20, 3, 7, 3)
    assert "the last axis is used as channels" in data.notes[0]


@pytest.mark.parametrize("form", ["x_train y_train x_test y_test", "train_images train_labels test_images test_labels"])
def test_splits(tmp_path: Path, form: str) -> None:
    arrays = dict(zip(form.split(), (COLOUR, CLASSES[:, None], COLOUR[:8], CLASSES[:8, None]), strict=True))
    data = opened(tmp_path, Reading(), **arrays)
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 16, "val": 4, "test": 8}
    assert data.val is not None
    assert sorted(data.val.labels.tolist()) == [0, 1, 2, 3]
    val = {"val_images": COLOUR[:4], "val_labels": CLASSES[:4]} if "train_images" in form else {}
    val = val or {"x_val": COLOUR[:4], "y_val": CLASSES[:4]}
    data = opened(tmp_path, Reading(), **arrays, **val)
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 20, "val": 4, "test": 8}
    assert data.train.name(0) == "set.npz:train[0]"


def test_class_names(tmp_path: Path) -> None:
    names = ["ant", "bee", "cat", "dog", "elk"]
    data = opened(tmp_path, images=COLOUR, labels=CLASSES, class_names=names)
    assert data.classes == tuple(names)
    assert data.notes == ("no training image of 1 class: 'elk'",)
    written = opened(tmp_path, images=COLOUR, labels=np.array(names)[CLASSES])
    assert written.classes == ("ant", "bee", "cat", "dog")
    assert "labels out of range: 3 (first at labels[3]); there are 3 classes, counted from 0" in refused(
        tmp_path, images=COLOUR, labels=CLASSES, classes=names[:3]
    )
    assert "labels out of range: -1" in refused(tmp_path, images=COLOUR, labels=CLASSES - 1, classes=names)
    assert "several classes have the same name: 'ant'" in refused(
        tmp_path, images=COLOUR, labels=CLASSES, classes=[*names[:4], "ant"]
    )


AS_TEXT = sorted(map(str, range(12)))  # "0", "1", "10", "11", "2"...: the order of `datasets` and np.unique


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_an_integer_label_is_an_index_even_if_names_are_numbers(tmp_path: Path, dtype: Any) -> None:
    labels = np.arange(20) % 12
    data = opened(tmp_path, images=COLOUR, labels=labels.astype(dtype), classes=AS_TEXT)
    assert data.classes == tuple(AS_TEXT)
    assert data.train.labels.tolist() == labels.tolist()  # label 2 is the third class, whose name is "10"
    one_hot = opened(tmp_path, images=COLOUR, labels=np.eye(12)[labels], classes=np.array(AS_TEXT, "S"))
    assert (one_hot.classes, one_hot.train.labels.tolist()) == (tuple(AS_TEXT), labels.tolist())
    many = np.random.default_rng(0).integers(0, 2, (20, 12))
    assert opened(tmp_path, images=COLOUR, labels=many, classes=AS_TEXT).train.labels.tolist() == many.tolist()


def test_a_string_label_is_a_name_even_if_it_is_a_number(tmp_path: Path) -> None:
    data = opened(tmp_path, images=COLOUR, labels=np.array(AS_TEXT[:4])[CLASSES], classes=AS_TEXT)
    assert [data.classes[i] for i in data.train.labels[:4]] == AS_TEXT[:4]
    assert "not among the names of the 4 classes: '0', '1', '2', '3' (first at labels[0])" in refused(
        tmp_path, images=COLOUR, labels=CLASSES.astype(str), classes=list("abcd")
    )


def test_class_names_that_are_integers(tmp_path: Path) -> None:
    """As np.unique returns them: labels are such integers, unless they could also be indices."""
    values = np.array([3, 7, 9, 12])
    data = opened(tmp_path, images=COLOUR, labels=values[CLASSES], classes=values)
    assert (data.classes, data.train.labels.tolist()) == (("3", "7", "9", "12"), CLASSES.tolist())
    assert opened(tmp_path, images=COLOUR, labels=CLASSES, classes=values).train.labels.tolist() == CLASSES.tolist()
    counted = opened(tmp_path, images=COLOUR, labels=CLASSES, classes=np.arange(4))
    assert (counted.classes, counted.train.labels.tolist()) == (("0", "1", "2", "3"), CLASSES.tolist())
    assert "a label could be a name or an index" in refused(
        tmp_path, images=COLOUR, labels=CLASSES, classes=CLASSES[3::-1]
    )


def test_label_formats(tmp_path: Path) -> None:
    arrays = {"x_train": COLOUR, "y_train": CLASSES, "x_test": COLOUR, "y_test": CLASSES.astype(str)}
    for more in ({}, {"classes": list("0123")}):
        message = refused(tmp_path, **arrays, **more)
        assert "labels of different types (0 at y_train[0], '0' at y_test[0])" in message


def test_multi_label(tmp_path: Path) -> None:
    held = np.random.default_rng(1).integers(0, 2, (20, 3))
    for dtype in (bool, np.uint8, np.float32):
        data = opened(tmp_path, images=GREY, labels=held.astype(dtype))
        assert data.multi_label
        assert data.train.labels.tolist() == held.astype(bool).tolist()
    one_hot = opened(tmp_path, images=GREY, labels=np.eye(4)[CLASSES])
    assert (one_hot.multi_label, one_hot.train.labels.tolist()) == (False, CLASSES.tolist())
    assert "labels are one-hot: each image has one class" in one_hot.notes[0]
    assert "expected only 0 and 1 in it" in refused(tmp_path, images=GREY, labels=held * 2)
    assert "labels for 3 classes, but 2 class names" in refused(tmp_path, images=GREY, labels=held, classes=["a", "b"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": COLOUR / 255, "labels": CLASSES}, "images has dtype float64, expected uint8"),
        ({"images": COLOUR.astype(np.int16), "labels": CLASSES}, "images has dtype int16"),
        ({"images": COLOUR, "labels": CLASSES[:19]}, "images and labels have different lengths: 20 and 19"),
        ({"images": COLOUR, "labels": CLASSES - 1}, "labels out of range: -1 (first at labels[0])"),
        ({"images": COLOUR, "labels": CLASSES + 0.5}, "labels[0]: the label is 0.5"),
        ({"images": COLOUR, "labels": CLASSES, "classes": np.arange(4) / 2}, "classes has dtype float64"),
        (
            {"images": COLOUR, "labels": CLASSES, "classes": list("abcd"), "names": list("abcd")},
            "could both be the class names",
        ),
        ({"images": COLOUR, "labels": CLASSES % 2 == 0, "classes": ["no", "yes"]}, "labels are true and false"),
        ({"images": COLOUR, "labels": CLASSES * 0}, "only one class"),
        ({"images": COLOUR[:1], "labels": CLASSES[:1]}, "only one class, '0', with 1 image"),
        ({"images": COLOUR[:0], "labels": CLASSES[:0]}, "the file contains no images"),
        ({"images": COLOUR.reshape(20, -1), "labels": CLASSES}, "images has shape (20, 90)"),
        ({"images": COLOUR[..., :2], "labels": CLASSES}, "images has shape (20, 6, 5, 2)"),
        ({"pictures": COLOUR, "labels": CLASSES}, "the arrays are 'pictures', 'labels'"),
        ({"images": COLOUR, "x": COLOUR, "labels": CLASSES}, "images and x could both belong to train"),
        ({"images": COLOUR, "labels": CLASSES.astype(object)}, "labels holds Python objects, which are not loaded"),
        ({"x_test": COLOUR, "y_test": CLASSES}, "expected arrays called images and labels, or x_train"),
        (
            {"x_train": COLOUR, "y_train": CLASSES % 2, "x_test": COLOUR, "y_test": CLASSES},
            "classes of test that train does not have: '2', '3'",
        ),
    ],
)
def test_invalid_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    assert message in refused(tmp_path, **arrays)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    np.savez_compressed(path, images=COLOUR, labels=CLASSES)
    whole = path.read_bytes()
    for damaged in (b"", b"PK\x03\x04", whole[:300], whole[:200] + b"\0" * 50 + whole[250:]):
        path.write_bytes(damaged)
        with pytest.raises(VitreousError, match=r"cut\.npz: not a readable \.npz file"):
            open_data(path)


@pytest.mark.parametrize("order", "<>")
def test_text_arrays_with_invalid_characters(tmp_path: Path, order: str) -> None:
    labels = np.array([0x61, 0x110000] * 4, f"{order}u4").view(f"{order}U1")
    np.savez(tmp_path / "x.npz", images=np.zeros((8, 8, 8), np.uint8), labels=labels)
    with pytest.raises(VitreousError, match="labels: texts with invalid characters"):
        open_data(tmp_path / "x.npz", Reading())
