"""The option `only_classes`: only some classes of a data set are used."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import classes, encoded, pixels, same, write, write_tar
from vitreous import VitreousError
from vitreous.data.dataset import DataSet
from vitreous.data.digests import image_digests
from vitreous.data.fingerprint import dataset_fingerprint, source_fingerprint
from vitreous.data.loading import EvalLoader
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading, RunReading
from vitreous.data.scan import ScanResult
from vitreous.data.statistics import describe
from vitreous.data.transforms import EvalTransform
from vitreous.preprocessing import Preprocessing

COUNTS = {"ant": 40, "bee": 50, "cat": 60, "dog": 70}  # image i of class c has the number 1000 c + i
CHOSEN = Reading(only_classes=("dog", "bee"))  # not in the order of the data
NUMBERS = [place * 1000 + i for place, count in enumerate(COUNTS.values()) for i in range(count)]


class Pictures:
    """A map-style dataset, which can be pickled."""

    classes = tuple(COUNTS)

    def __len__(self) -> int:
        return len(NUMBERS)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(pixels(NUMBERS[index])), NUMBERS[index] // 1000


def folder(root: Path) -> Path:
    return classes(root / "pets", COUNTS)


def npz(root: Path) -> Path:
    labels = np.array([number // 1000 for number in NUMBERS])
    np.savez(root / "pets.npz", images=np.stack(list(map(pixels, NUMBERS))), labels=labels, classes=list(COUNTS))
    return root / "pets.npz"


def manifest(root: Path) -> Path:
    rows = ["file,label"]
    for number in NUMBERS:
        write(root / f"{number}.png", number)
        rows.append(f"{number}.png,{list(COUNTS)[number // 1000]}")
    (root / "pets.csv").write_text("\n".join(rows))
    return root / "pets.csv"


def tar(root: Path) -> Path:
    names = list(COUNTS)
    return write_tar(root / "pets.tar", {f"{names[n // 1000]}/{n % 1000:03}.png": encoded(n) for n in NUMBERS})


def dataset(root: Path) -> object:
    return Pictures()


FORMATS = pytest.mark.parametrize("make", [folder, npz, manifest, tar, dataset])


def number_at(data: DataSet, split: str, index: int) -> int:
    """The number of the image, from its name in the data set."""
    name = data.splits[split].name(index)
    if "[" in name:
        return NUMBERS[int(name.partition("[")[2][:-1])]
    path = Path(name.rpartition(":")[2])
    return (
        int(path.stem)
        if path.stem.isdecimal() and path.parent.name not in COUNTS
        else (list(COUNTS).index(path.parent.name) * 1000 + int(path.stem))
    )


@FORMATS
def test_images_of_other_classes_are_left_out(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path)
    data = open_data(source, CHOSEN)
    assert data.classes == ("bee", "dog")
    assert data.notes[-1] == "2 of 4 classes are used (only_classes)"
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 84, "val": 18, "test": 18}
    assert (data.train.array is None) == (make is not npz)
    found = []
    for name, split in data.splits.items():
        again = pickle.loads(pickle.dumps(split))
        assert split.labels.dtype == torch.int64
        for index in range(len(split)):
            number = number_at(data, name, index)
            assert number // 1000 == (1, 3)[split.labels[index]]
            assert same(split.image(index), number)
            assert again.name(index) == split.name(index)
            if split.array is not None:
                assert np.array_equal(split.array[index], pixels(number))
            found.append(number)
        assert again.labels.equal(split.labels)
        assert again.content(0) == split.content(0)
    assert sorted(found) == [number for number in NUMBERS if number // 1000 in (1, 3)]
    assert len(data.stored_splits["train"]) == 120


@FORMATS
def test_the_same_images_as_in_data_of_these_classes_only(make: Any, tmp_path: Path) -> None:
    """Splits, order and fingerprint are those of a data set that has no other classes."""
    data = open_data(make(tmp_path), CHOSEN)
    (tmp_path / "less").mkdir()
    other = [number for number in NUMBERS if number // 1000 in (1, 3)]
    for number in other:
        write(tmp_path / "less" / list(COUNTS)[number // 1000] / f"{number % 1000:03}.png", number)
    less = open_data(tmp_path / "less")
    for name, split in data.splits.items():
        assert split.labels.equal(less.splits[name].labels)
        numbers = [number_at(data, name, index) for index in range(len(split))]
        assert numbers == [number_at(less, name, index) for index in range(len(split))]
    if make is folder:
        assert dataset_fingerprint(data) == dataset_fingerprint(less)


@FORMATS
def test_fingerprints(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path)
    data, whole, others = (open_data(source, Reading(only_classes=c)) for c in (("bee", "dog"), (), ("ant", "dog")))
    everything = open_data(source, Reading(only_classes=tuple(reversed(COUNTS))))
    assert everything.notes == whole.notes
    assert len({dataset_fingerprint(one) for one in (data, whole, others)}) == 3
    assert dataset_fingerprint(everything) == dataset_fingerprint(whole)
    assert dataset_fingerprint(open_data(source, CHOSEN)) == dataset_fingerprint(data)
    for split in ("train", "val", "test"):
        assert len({source_fingerprint(one.splits[split]) for one in (data, whole, others)}) == 3
        assert source_fingerprint(everything.splits[split]) == source_fingerprint(whole.splits[split])
    digests = {name: image_digests(one.stored_splits["train"]) for name, one in (("data", data), ("whole", whole))}
    assert digests["data"].equal(
        digests["whole"][torch.isin(whole.stored_splits["train"].labels, torch.tensor([1, 3]))]
    )


@FORMATS
def test_workers_read_the_chosen_images(make: Any, tmp_path: Path) -> None:
    data = open_data(make(tmp_path), CHOSEN)
    val = data.splits["val"]
    transform = EvalTransform(Preprocessing(size=16))
    batches = [list(EvalLoader(val, ScanResult({}), transform, 8, workers, torch.device("cpu"))) for workers in (0, 2)]
    for one, other in zip(*batches, strict=True):
        assert all(map(torch.equal, one, other))
    assert torch.cat([labels for _, labels, _ in batches[0]]).equal(val.labels)


def test_arrays_are_copied_once(tmp_path: Path) -> None:
    stored = open_data(npz(tmp_path), replace(CHOSEN, val_fraction=0)).train
    assert stored.array is stored.array
    assert stored.array is not None
    assert stored.array.base is None
    assert len(stored.array) == 120
    held_out = open_data(npz(tmp_path), CHOSEN)
    assert held_out.stored_splits["train"].array is held_out.stored_splits["train"].array


def test_stored_splits(tmp_path: Path) -> None:
    for split, counts in (("train", COUNTS), ("val", {"ant": 3, "bee": 2, "dog": 5}), ("test", {"ant": 4})):
        classes(tmp_path / split, counts)
    data = open_data(tmp_path, CHOSEN)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 120, "val": 7}
    assert data.splits["val"].labels.tolist() == [0] * 2 + [1] * 5
    assert data.notes == ("2 of 4 classes are used (only_classes)", "the test split has no image of these classes")


def test_other_options_apply_to_the_chosen_images(tmp_path: Path) -> None:
    write(tmp_path / "ant" / "large.png", 0, height=60, width=60)
    write(tmp_path / "bee" / "large.png", 1, height=60, width=60)
    classes(tmp_path, {"bee": 4, "cat": 4})
    found = describe(open_data(tmp_path, Reading(only_classes=("bee", "cat"), val_fraction=0, max_pixels=1000)))
    assert found.counts == {"train": 9}
    assert ["large.png" in bad.name and "bee" in bad.name for bad in found.unreadable] == [True]


def test_classes_without_images_and_odd_names(tmp_path: Path) -> None:
    labels = np.repeat([0, 2], 10)
    names = ["a b", "\x1b[31mred", "-", "ä"]
    np.savez(tmp_path / "x.npz", images=np.zeros((20, 8, 8), np.uint8), labels=labels, classes=names)
    data = open_data(tmp_path / "x.npz", Reading(only_classes=("-", "ä", "a b")))
    assert data.classes == ("a b", "-", "ä")
    assert "no training image of 1 class: 'ä'" in data.notes
    with pytest.raises(VitreousError, match=r"only one class, '-', with 10 images"):
        open_data(tmp_path / "x.npz", Reading(only_classes=("-", "ä")))
    with pytest.raises(VitreousError, match=r"no class '\[31mred'; did you mean '\\x1b\[31mred'\?"):
        open_data(tmp_path / "x.npz", Reading(only_classes=("-", "[31mred")))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("bee", "dgo"), r"pets: only_classes: the data has no class 'dgo'; did you mean 'dog'\?"),
        (("xyz", "uvw", "ant"), "the data has no class 'xyz', 'uvw'; the classes are 'ant', 'bee', 'cat', 'dog'"),
        (("bee", "\x1b[2J"), r"no class '\\x1b\[2J'"),
        (("bee", "dog", "bee"), "only_classes: given twice: 'bee'"),
        (("bee",), "only one class, 'bee': classification needs at least two classes"),
        ("bee", "only_classes = 'bee': expected a list of names of classes"),
        ((0, 1), r"only_classes = \(0, 1\): expected a list of names of classes"),
        (None, "only_classes = None: expected"),
    ],
)
def test_wrong_classes(chosen: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match=message):
        open_data(classes(tmp_path / "pets", dict.fromkeys(COUNTS, 3)), Reading(only_classes=chosen))


def test_multi_label_data_is_refused(tmp_path: Path) -> None:
    rows = [json.dumps({"file": write(tmp_path / f"{i}.png", i).name, "labels": ["a", "bc"[i % 2]]}) for i in range(9)]
    (tmp_path / "x.jsonl").write_text("\n".join(rows))
    with pytest.raises(VitreousError, match="only_classes: images have several labels; this option needs"):
        open_data(tmp_path / "x.jsonl", Reading(only_classes=("a", "b")))
    assert len(open_data(tmp_path / "x.jsonl", RunReading(only_classes=("a", "b"))).classes) == 3


def test_classes_of_a_run_are_not_selected_in_other_data(tmp_path: Path) -> None:
    source = classes(tmp_path / "pets", dict.fromkeys(COUNTS, 3))
    data = open_data(source, RunReading(only_classes=("bee", "dog")))
    assert (data.classes, data.notes[-1]) == (("bee", "dog"), "2 of 4 classes are used: those of the run")
    assert open_data(source, RunReading(only_classes=("bee", "dog", "elk"))).classes == tuple(COUNTS)
