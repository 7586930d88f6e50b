"""Data sets that are Python objects."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from vitreous.data.fingerprint import dataset_fingerprint
from vitreous.data.open_data import absolute_data_path, open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError

COUNT = 40
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(COUNT) % 4
PARTS = {"train": range(20), "validation": range(20, 30), "test": [31, 35]}
DEFINITION = """
import numpy as np
class Squares:
    def __len__(self): return 40
    def __getitem__(self, index): return np.full((4, 4), index, np.uint8), index % 2
"""


class Items(Dataset[Any]):
    """Images of PIXELS in one of several forms."""

    def __init__(self, convert: Any = lambda pixels: pixels, label: Any = int, classes: Any = None):
        self.convert, self.label = convert, label
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < COUNT:
            raise IndexError(index)
        return self.convert(PIXELS[index]), self.label(LABELS[index])


def stored(data: Any) -> tuple[Any, Any]:
    """All images and labels as they are stored, without a split."""
    opened = open_data(data, Reading(val_fraction=0.0, test_fraction=0.0))
    images = np.stack([np.asarray(opened.train.image(i)) for i in range(len(opened.train))])
    return images, opened.train.labels


@pytest.mark.parametrize(
    "convert",
    [
        lambda pixels: pixels,
        Image.fromarray,
        lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
        lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1).float() / 255,
        lambda pixels: pixels / 255,
    ],
    ids=["array", "PIL", "tensor", "ToTensor", "float array"],
)
def test_images_of_every_form_are_the_same(convert: Any) -> None:
    images, labels = stored(Items(convert))
    assert (images == PIXELS).all()
    assert labels.tolist() == LABELS.tolist()


def test_arrays_give_the_same_images() -> None:
    for pair in ((PIXELS, LABELS), (torch.from_numpy(PIXELS), torch.from_numpy(LABELS))):
        images, labels = stored(pair)
        assert (images == PIXELS).all()
        assert labels.tolist() == LABELS.tolist()
    images, labels = stored(TensorDataset(torch.from_numpy(PIXELS), torch.from_numpy(LABELS)))
    assert (images == PIXELS).all()


def test_class_names_and_text_labels() -> None:
    names = ["ant", "bee", "cat", "dog"]
    assert open_data(Items(classes=names)).classes == tuple(names)
    opened = open_data(Items(label=lambda number: names[number]))
    assert opened.classes == tuple(names)
    assert open_data(Items()).classes == ("0", "1", "2", "3")


def test_several_labels_per_image() -> None:
    hot = torch.eye(4)
    _, labels = stored(Items(label=lambda number: hot[number] + hot[0] * (number > 0)))
    assert labels.dtype == torch.bool
    assert labels[:4].tolist() == [[True, False, False, False], *([True, *row[1:]] for row in hot.bool().tolist()[1:])]


def test_splits_are_used_as_given_and_subsets_work() -> None:
    data = Items()
    parts = {
        "train": Subset(data, range(20)),
        "validation": Subset(data, range(20, 30)),
        "test": Subset(data, [31, 35]),
    }
    opened = open_data(parts)
    assert [len(part) for part in opened.splits.values()] == [20, 10, 2]
    assert opened.held_out == ()
    assert (np.asarray(opened.splits["test"].image(1)) == PIXELS[35]).all()


def test_a_hugging_face_dataset_in_memory() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcd"))})
    columns = {"image": [Image.fromarray(pixels) for pixels in PIXELS], "label": LABELS.tolist()}
    rows = datasets.Dataset.from_dict(columns, features=features)
    images, labels = stored(rows)
    assert (images == PIXELS).all()
    assert labels.tolist() == LABELS.tolist()
    assert open_data(datasets.DatasetDict({"train": rows, "test": rows})).classes == tuple("abcd")
    rows.set_transform(lambda batch: batch)
    with pytest.raises(VitreousError, match="set_transform"):
        open_data(rows)


class Random(Items):
    def __getitem__(self, index: int) -> Any:
        return np.random.default_rng().integers(0, 256, (4, 4), dtype=np.uint8), 0


class Failing(Items):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("missing")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "DATA is None"),
        (7, "expected a path or name"),
        (Random(), "changes from one read to the next"),
        (Failing(), r"Failing\[0\]: KeyError: 'missing'"),
        (Items(lambda pixels: (torch.from_numpy(pixels).float() - 120) / 50), "not eight-bit values"),
        (Items(lambda pixels: "photo.jpg"), "expected a PIL image"),
        (Items(label=lambda number: 0.5), "label of Items"),
        (Items(label=lambda number: torch.tensor([0.5, 1])), "one 0 or 1 for each class"),
        ([], "is empty"),
        ([1, 2, 3], r"list\[0\] is 1: expected a pair"),
        ({"train": Items(), "other": Items()}, "'other'"),
        ({"test": Items()}, "expected train"),
        ({"train": Items(), "test": (PIXELS, LABELS)}, "same kind"),
        ((PIXELS, LABELS[:3]), "40 images and 3 labels"),
        ((PIXELS / 255, LABELS), "uint8"),
        (iter([]), "expected a path or name"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_other_objects_are_refused(data: Any, message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        open_data(data)


def test_options_of_other_formats_are_refused() -> None:
    with pytest.raises(VitreousError, match="no columns"):
        open_data(Items(), Reading(image_column="image"))


def test_a_class_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squares.py").write_text(DEFINITION)
    monkeypatch.chdir(tmp_path)
    opened = open_data("squares.py:Squares")
    assert opened.name == "Squares"
    assert absolute_data_path("squares.py:Squares") == f"{tmp_path}/squares.py:Squares"
    again = open_data(f"{tmp_path}/squares.py:Squares")
    assert dataset_fingerprint(again) == dataset_fingerprint(opened)
    with pytest.raises(VitreousError, match="did you mean Squares"):
        open_data("squares.py:Square")


def test_a_data_set_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shapes_package.py").write_text(DEFINITION)
    information = tmp_path / "shapes_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[vitreous.data]\nsquares = shapes_package:Squares\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert len(open_data("squares").classes) == 2
    with pytest.raises(VitreousError, match="no such file or folder"):
        open_data("circles")
