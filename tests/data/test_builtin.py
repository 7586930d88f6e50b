"""Data sets by name, from files in their published formats."""

import gzip
import os
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from limits import limited
from vitreous.data import builtin
from vitreous.data.cifar import load_pickled_batch
from vitreous.data.dataset import DataSet
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError


def counts(data: DataSet) -> dict[str, int]:
    return {name: len(source) for name, source in data.splits.items()}


def refused(name: object, reading: Reading = Reading()) -> str:  # noqa: B008
    with pytest.raises(VitreousError) as caught:
        open_data(str(name), reading)
    return str(caught.value)


def test_digits() -> None:
    data = open_data("digits", Reading(val_fraction=0))
    assert (data.name, data.classes, data.channels) == ("digits", tuple("0123456789"), 1)
    assert counts(data) == {"train": 1437, "test": 360}
    reference = load_digits()
    assert data.test is not None
    assert data.test.labels.tolist() == reference.target[::5].tolist()
    assert data.test.array is not None
    expected = np.rint(reference.images[::5] * 255 / 16)
    np.testing.assert_array_equal(data.test.array[..., 0], expected)
    assert (expected.min(), expected.max()) == (0, 255)
    assert counts(open_data("digits")) == {"train": 1293, "val": 144, "test": 360}
    assert data.test.name(3) == "digits:test[3]"
    assert "digits come with scikit-learn: remove data_dir" in refused("digits", Reading(data_dir="."))


def write_idx(folder: Path, packed: bool = False, mark: str = "-") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    folder.mkdir(parents=True, exist_ok=True)
    parts = {}
    for split, prefix, number in (("train", "train", 40), ("test", "t10k", 10)):
        images = np.random.default_rng(number).integers(0, 256, (number, 28, 28), dtype=np.uint8)
        labels = (np.arange(number) % 10).astype(np.uint8)
        parts[split] = images, labels
        for kind, array in (("images", images), ("labels", labels)):
            data = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
            name = f"{prefix}-{kind}{mark}idx{array.ndim}-ubyte"
            (folder / (name + (".gz" if packed else ""))).write_bytes(gzip.compress(data) if packed else data)
    return parts


@pytest.mark.parametrize(("packed", "mark"), [(False, "-"), (True, "-"), (False, ".")])
def test_idx(tmp_path: Path, packed: bool, mark: str) -> None:
    parts = write_idx(tmp_path / "files", packed, mark)
    for name, classes in (("mnist", tuple("0123456789")), ("fashion-mnist", builtin.FASHION)):
        data = open_data(name, Reading(data_dir=str(tmp_path / "files")))
        assert (data.name, data.classes, data.channels) == (name, classes, 1)
        assert counts(data) == {"train": 32, "val": 8, "test": 10}
        assert data.test is not None
        assert data.test.array is not None
        np.testing.assert_array_equal(data.test.array[..., 0], parts["test"][0])
        assert data.test.labels.tolist() == parts["test"][1].tolist()
    assert open_data(tmp_path / "files").classes == tuple("0123456789")
    write_idx(tmp_path / "Fashion", packed, mark)
    assert open_data(tmp_path / "Fashion").classes == builtin.FASHION


def test_damaged_idx(tmp_path: Path) -> None:
    reading = Reading(data_dir=str(tmp_path))
    assert "not found in" in refused("mnist", reading)
    write_idx(tmp_path)
    images = tmp_path / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    for damaged, message in (
        (whole[:-5], "bytes of values"),
        (b"", "not an idx file"),
        (b"\1" * 99, "not an idx file"),
    ):
        images.write_bytes(damaged)
        assert message in refused("mnist", reading)
    images.write_bytes(gzip.compress(whole)[:500])
    assert "truncated" in refused("mnist", reading)
    images.write_bytes(whole)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 40) + bytes([77] * 40))
    assert "labels out of range: 77 (first at train[0]); there are 10 classes" in refused("mnist", reading)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    assert "there is no train-labels-idx1-ubyte" in refused("mnist", reading)


@pytest.mark.skipif(not builtin.DEBIAN.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist() -> None:
    data = open_data("fashion-mnist")
    assert counts(data) == {"train": 57_000, "val": 3_000, "test": 10_000}
    assert data.val is not None
    assert data.val.labels.bincount().tolist() == [300] * 10
    assert data.test is not None
    assert data.test.labels.bincount().tolist() == [1000] * 10
    assert data.test.labels[:5].tolist() == [
        9,
        2,
        1,
        1,
        6,
    ]  # the published order: an ankle boot, a pullover, trousers...
    assert open_data(builtin.DEBIAN).classes == builtin.FASHION


def test_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(builtin, "DEBIAN", tmp_path / "nowhere")
    assert "dataset-fashion-mnist" in refused("fashion-mnist")
    assert "give the folder of its files: --data-dir" in refused("cifar10")
    assert "cifar-100-python" in refused("cifar100", Reading(data_dir="."))
    assert "there is no folder gone" in refused("mnist", Reading(data_dir="gone"))


def cifar_parts() -> dict[str, tuple[np.ndarray, list[int]]]:
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {name: (rng.integers(0, 256, (20, 3072), dtype=np.uint8), [i % 10 for i in range(20)]) for name in names}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("keys", ["bytes", "text"])
def test_cifar10_in_python(tmp_path: Path, protocol: int, keys: str) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    parts = cifar_parts()
    for name, (pixels, labels) in parts.items():
        held: dict[Any, Any] = {"data": pixels, "labels": labels, "filenames": ["x.png"] * 20, "batch_label": "one"}
        if keys == "bytes":
            held = {key.encode(): value for key, value in held.items()}
        (folder / name).write_bytes(pickle.dumps(held, protocol=protocol))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"c%d" % i for i in range(10)]}, protocol))
    for data in (
        open_data("cifar10", Reading(data_dir=str(tmp_path))),
        open_data("CIFAR-10", Reading(data_dir=str(folder))),
        open_data(folder),
        open_data(tmp_path),
    ):
        assert (data.name, data.channels, data.classes[3]) == ("cifar10", 3, "c3")
        assert counts(data) == {"train": 80, "val": 20, "test": 20}
        assert data.test is not None
        assert data.test.array is not None
        first = parts["test_batch"][0][0]
        assert data.test.array[0, 5, 7].tolist() == [first[5 * 32 + 7 + plane * 1024] for plane in range(3)]
    (folder / "data_batch_4").unlink()
    assert "there is no data_batch_4 in it" in refused(folder)


def test_cifar_in_binary(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, (pixels, labels) in cifar_parts().items():
        (folder / f"{name}.bin").write_bytes(np.hstack([np.array(labels, np.uint8)[:, None], pixels]).tobytes())
    data = open_data("cifar10", Reading(data_dir=str(tmp_path)))
    assert counts(data) == {"train": 80, "val": 20, "test": 20}
    assert data.classes == builtin.CIFAR10
    (folder / "test_batch.bin").write_bytes(b"x" * 1000)
    assert "1,000 bytes are not a whole number of images" in refused(folder)
    hundred = tmp_path / "hundred"
    hundred.mkdir()
    pixels = cifar_parts()["test_batch"][0]
    fine = np.arange(20, dtype=np.uint8)[:, None] * 5
    for name in ("train.bin", "test.bin"):
        (hundred / name).write_bytes(np.hstack([fine // 10, fine, pixels]).tobytes())
    (hundred / "fine_label_names.txt").write_text("\n".join(f"f{i}" for i in range(100)) + "\n")
    data = open_data(hundred, Reading(val_fraction=0))
    assert (data.name, len(data.classes), data.classes[99]) == ("cifar100", 100, "f99")
    assert data.train.labels.tolist() == list(range(0, 100, 5))


def test_cifar100_in_python(tmp_path: Path) -> None:
    pixels = cifar_parts()["test_batch"][0]
    for name in ("train", "test"):
        held = {b"data": pixels, b"fine_labels": list(range(80, 100)), b"coarse_labels": [0] * 20}
        (tmp_path / name).write_bytes(pickle.dumps(held, 2))
    meta = {b"fine_label_names": [f"f{i}".encode() for i in range(100)], b"coarse_label_names": [b"c"]}
    (tmp_path / "meta").write_bytes(pickle.dumps(meta, 2))
    data = open_data("cifar100", Reading(str(tmp_path), val_fraction=0))
    assert data.train.labels.tolist() == list(range(80, 100))
    assert data.classes[80] == "f80"


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("exit 3",)


class Codec:
    def __reduce__(self) -> Any:
        import codecs

        return codecs.encode, ("x", "rot13")


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_are_not_run(tmp_path: Path, protocol: int) -> None:
    for held in ({"data": Evil()}, {"data": eval}, {"data": Codec()}, {"data": np.random.default_rng(0)}):
        (tmp_path / "train").write_bytes(pickle.dumps(held, protocol))
        with pytest.raises(VitreousError, match="refused: the pickle"):
            load_pickled_batch(tmp_path / "train")
    whole = pickle.dumps({"data": np.arange(5)}, protocol)
    for damaged in (b"", whole[:-3], whole[:10], b"\x80\x04garbage", pickle.dumps([1], protocol)):
        (tmp_path / "train").write_bytes(damaged)
        with pytest.raises(VitreousError, match=r"train: (not a readable pickle|expected a dict)"):
            load_pickled_batch(tmp_path / "train")


def not_opened(content: bytes) -> str:
    """Return the error for a pickle, in a process that may allocate 1 GiB."""

    def read() -> str:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("train", "test"):
                (Path(folder) / name).write_bytes(content)
            return refused("cifar100", Reading(folder))

    return limited(read, seconds=20, memory=1 << 30)


class Sized:
    """An array of any size without content."""

    def __init__(self, *arguments: Any):
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return np.ndarray, self.arguments


class Typed:
    """A dtype whose state makes numpy interpret bytes as pointers."""

    def __reduce__(self) -> Any:
        return np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)


class Array:
    def __reduce__(self) -> Any:
        return np.array([1]).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, (1,), Typed(), False, b"AAAAAA\0\0")


def test_pickles_cannot_allocate_more_than_their_size() -> None:
    sized = {"data": Sized((10**6, 3072), "u1"), "fine_labels": Sized((10**6,), "i8")}
    assert "refused: the pickle" in not_opened(pickle.dumps(sized, 2))
    assert "an array is truncated" in not_opened(b"\x80\x05}\x8c\x04data\x96" + struct.pack("<Q", 1 << 31))
    text = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x00X\x06\x00\x00\x00latin1q\x01"
    again = b"c_codecs\nencode\nh\x00h\x01\x86R"
    assert "the same bytes many times" in not_opened(b"\x80\x02" + text + again * 2000 + b".")
    assert "more than 2,000,000 instructions" in not_opened(b"\x80\x02(" + b"]" * 3_000_000 + b"l.")


def test_pickles_cannot_define_dtypes() -> None:
    assert "refused: the pickle" in not_opened(pickle.dumps({"data": Array()}, 3))
    objects = np.array([[], None], object)
    assert "refused: the pickle" in not_opened(pickle.dumps({"data": objects}, 3))


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_in_pickles(tmp_path: Path, protocol: int) -> None:
    whole = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    held = {
        "plain": whole,
        "turned": np.asfortranarray(whole),
        "big": np.arange(5, dtype=">i4"),
        "texts": np.array(["a", "bcd"]),
        "bytes": np.array([b"a", b"bcd"]),
        "numbers": np.array([1.5, -2]),
        "flags": np.array([True, False]),
    }
    (tmp_path / "x").write_bytes(pickle.dumps(held, protocol))
    found = load_pickled_batch(tmp_path / "x")
    for name, array in held.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_pickles_with_other_content(tmp_path: Path) -> None:
    good = {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 1]}
    for held, message in (
        ({}, "expected images of 3072 bytes"),
        ({**good, "data": np.zeros((2, 3072))}, "expected images of 3072 bytes"),
        ({**good, "fine_labels": [0]}, "expected a label for each of 2 images"),
        ({**good, "fine_labels": ["a", "b"]}, "labels are not integers"),
        ({**good, "fine_labels": [0, 100]}, "labels out of range: 100 (first at train[1]); there are 100 classes"),
    ):
        for name in ("train", "test"):
            (tmp_path / name).write_bytes(pickle.dumps(held))
        assert message in refused("cifar100", Reading(str(tmp_path)))
