"""Parquet files, and data sets of the `datasets` library: saved, loaded, and unavailable."""

import gc
import io
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from limits import limited
from pictures import encoded, same, write
from vitreous.data import parquet as parquet_module
from vitreous.data.dataset import DataSet
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets")
WHOLE = Reading(val_fraction=0)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def parquet(path: Path, numbers: range, group: int = 4, **columns: Any) -> Path:
    """Write images in the format of Hugging Face, unless other columns are given; the label is the index modulo 3."""
    columns.setdefault("image", [{"bytes": encoded(i), "path": f"{i}.png"} for i in numbers])
    columns.setdefault("label", [i % 3 for i in numbers])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def agrees(data: DataSet, numbers: range) -> bool:
    order = list(enumerate(numbers))
    order = order[::2] + order[1::2]
    return len(data.train) == len(numbers) and all(
        same(data.train.image(i), number) and data.train.labels[i] == number % 3 for i, number in order
    )


def refused(path: object, reading: Reading = WHOLE) -> str:
    with pytest.raises(VitreousError) as caught:
        open_data(str(path), reading)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_file(tmp_path: Path) -> None:
    data = open_data(parquet(tmp_path / "set.parquet", range(10)), WHOLE)
    assert (data.name, data.classes, data.channels) == ("set", ("0", "1", "2"), 3)
    assert agrees(data, range(10))
    assert data.train.name(7) == f"{tmp_path / 'set.parquet'}[7]"
    assert data.train.content(7) == encoded(7)
    plain = parquet(tmp_path / "plain.parquet", range(10), image=[encoded(i) for i in range(10)])
    assert agrees(open_data(plain, WHOLE), range(10))
    for i in range(3):
        write(tmp_path / "files" / f"{i}.png", i)
    paths = parquet(tmp_path / "paths.parquet", range(3), image=[f"files/{i}.png" for i in range(3)])
    assert agrees(open_data(paths, WHOLE), range(3))


def test_a_folder_with_splits(tmp_path: Path) -> None:
    parquet(tmp_path / "data" / "train-00000-of-00002.parquet", range(5), 2)
    parquet(tmp_path / "data" / "train-00001-of-00002.parquet", range(5, 12), 3)
    parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", range(12, 15))
    parquet(tmp_path / "data" / "test-00000-of-00001.parquet", range(15, 17), label=[-1, -1])
    for source in (tmp_path, tmp_path / "data", str(tmp_path / "data" / "*.parquet")):
        data = open_data(source)
        assert {name: len(held) for name, held in data.splits.items()} == {"train": 12, "val": 3}
        assert agrees(data, range(12))
        assert "test has no labels (all are -1): ignored" in data.notes
    assert data.train.name(6).endswith("train-00001-of-00002.parquet[1]")


def test_label_types(tmp_path: Path) -> None:
    named = open_data(parquet(tmp_path / "n.parquet", range(3), label=["cat", "ant", "cat"]), WHOLE)
    assert (named.classes, named.train.labels.tolist()) == (("ant", "cat"), [1, 0, 1])
    several = open_data(parquet(tmp_path / "s.parquet", range(3), label=[["a", "b"], [], ["b"]]), WHOLE)
    assert several.train.labels.tolist() == [[True, True], [False, False], [False, True]]
    assert "row 1 has no label in column 'label'" in refused(parquet(tmp_path / "x.parquet", range(2), label=[1, None]))
    assert "labels out of range: -1 (first at row 1 of train)" in refused(
        parquet(tmp_path / "y.parquet", range(2), label=[1, -1])
    )


def test_columns(tmp_path: Path) -> None:
    images = [encoded(i) for i in range(2)]
    path = parquet(tmp_path / "c.parquet", range(2), thumb=images, fine=[0, 1], label=["a", "b"])
    assert open_data(path, WHOLE).classes == ("a", "b")
    assert open_data(path, Reading(None, "thumb", "fine", 0)).classes == ("0", "1")
    assert "there is no column 'x'" in refused(path, Reading(image_column="x"))
    two = parquet(tmp_path / "two.parquet", range(2), picture=images)
    assert "could both be the image" in refused(two)


def test_class_names_of_hugging_face(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(
        {"pic": [{"bytes": encoded(i), "path": None} for i in range(4)], "label": [0, 2, 1, 0]},
        features=datasets.Features({"pic": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y", "z"])}),
    ).to_parquet(tmp_path / "hf.parquet")
    data = open_data(tmp_path / "hf.parquet", WHOLE)
    assert (data.classes, data.train.labels.tolist()) == (("x", "y", "z"), [0, 2, 1, 0])
    assert same(data.train.image(3), 3)


AS_TEXT = sorted(map(str, range(12)))  # "0", "1", "10", "11", "2"...: the order of `datasets` for folder names


def counted(labels: list[Any], feature: Any, numbers: range = range(12)) -> Any:
    """Return a data set whose labels are indices into names that are numbers."""
    held = {"image": [{"bytes": encoded(i), "path": None} for i in numbers], "label": labels}
    return datasets.Dataset.from_dict(held, datasets.Features({"image": datasets.Image(), "label": feature}))


@pytest.mark.parametrize("kind", ["saved", "saved with splits", "parquet", "several in parquet", "several saved"])
def test_an_integer_label_is_an_index_even_if_names_are_numbers(tmp_path: Path, kind: str) -> None:
    feature, labels = datasets.ClassLabel(names=AS_TEXT), list(range(12))
    several = "several" in kind
    rows = counted([[i] for i in labels], datasets.List(feature)) if several else counted(labels, feature)
    if "parquet" in kind:
        rows.to_parquet(tmp_path / "set.parquet")
        data = open_data(tmp_path / "set.parquet", WHOLE)
    else:
        (datasets.DatasetDict({"train": rows, "test": rows}) if "splits" in kind else rows).save_to_disk(tmp_path / "s")
        data = open_data(tmp_path / "s", WHOLE)
    assert data.classes == tuple(AS_TEXT)
    for source in data.splits.values():
        found = source.labels.int().argmax(1) if several else source.labels
        assert found.tolist() == labels  # label 2 is the third class, whose name is "10"


def test_folders_have_the_same_classes_as_in_datasets(tmp_path: Path) -> None:
    """The same images have the same classes as folders and as loaded by `datasets`."""
    for i in range(12):
        write(tmp_path / "folders" / str(i) / "image.png", i)
    rows = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "folders"), split="train")
    rows.to_parquet(tmp_path / "set.parquet")
    rows.save_to_disk(tmp_path / "saved")
    for name in ("folders", "set.parquet", "saved"):
        data = open_data(tmp_path / name, WHOLE)
        for i in range(12):
            assert same(data.train.image(i), int(data.classes[data.train.labels[i]]))


def test_integer_labels_without_class_names(tmp_path: Path) -> None:
    """Integers of any type are used as class names if there is no list of names."""
    for i, kind in enumerate((pa.int8(), pa.uint64(), pa.float32(), pa.dictionary(pa.int8(), pa.int64()))):
        column = pa.array([2, 10, 0, 10]).cast(kind) if i < 3 else pa.array([2, 10, 0, 10]).dictionary_encode()
        data = open_data(parquet(tmp_path / f"{i}.parquet", range(4), label=column), WHOLE)
        assert (data.classes, data.train.labels.tolist()) == (("0", "2", "10"), [1, 2, 0, 2])
    texts = open_data(parquet(tmp_path / "t.parquet", range(4), label=["2", "10", "0", "10"]), WHOLE)
    assert (texts.classes, texts.train.labels.tolist()) == (("0", "2", "10"), [1, 2, 0, 2])


def test_splits_with_different_class_names(tmp_path: Path) -> None:
    """The same integer would mean different classes in train and test."""
    parts = {"train": ["a", "b"], "test": ["b", "a"]}
    held = {split: counted([0, 1], datasets.ClassLabel(names=names), range(2)) for split, names in parts.items()}
    datasets.DatasetDict(held).save_to_disk(tmp_path / "saved")
    assert "train and test have different lists of class names ('a', 'b'; and 'b', 'a')" in refused(tmp_path / "saved")
    (tmp_path / "files").mkdir()
    for split, rows in held.items():
        rows.to_parquet(tmp_path / "files" / f"{split}.parquet")
    assert "different lists of class names" in refused(tmp_path / "files")


def test_splits_without_the_column(tmp_path: Path) -> None:
    rows = counted([0, 1], datasets.ClassLabel(names=["a", "b"]), range(2))
    parts = {"train": rows, "test": rows.remove_columns("label")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert "test has no column 'label', but train does" in refused(tmp_path / "saved")


def test_lists_in_one_split_only(tmp_path: Path) -> None:
    """A single label counts as a list of one."""
    parquet(tmp_path / "d" / "train.parquet", range(3), label=[["cat", "dog"], ["dog"], []])
    parquet(tmp_path / "d" / "test.parquet", range(2), label=["dog", "cat"])
    data = open_data(tmp_path / "d", WHOLE)
    assert data.test is not None
    assert data.classes == ("cat", "dog")
    assert data.test.labels.tolist() == [[False, True], [True, False]]


def test_the_cache_of_row_groups_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_data(parquet(tmp_path / "g.parquet", range(12), 3), WHOLE).train
    assert isinstance(source, parquet_module.ParquetSource)
    read = []
    monkeypatch.setattr(
        parquet_module.ParquetSource,
        "_read",
        lambda self, g, real=parquet_module.ParquetSource._read: read.append(g) or real(self, g),
    )
    source._cache.clear()
    for i in [0, 1, 2, 0, 5, 1, 11]:
        assert same(source.image(i), i)
    assert read == [0, 1, 3]
    monkeypatch.setattr(parquet_module, "CACHE_BYTES", 1)
    for i in [0, 1, 4, 0]:
        assert same(source.image(i), i)
    assert read == [0, 1, 3, 1, 0]
    assert len(source._cache) == 1


def _reads(source: Any, results: Any) -> None:
    results.put(all(same(source.image(i), i) for i in range(10)))


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_copies_and_forks(tmp_path: Path) -> None:
    data = open_data(parquet(tmp_path / "set.parquet", range(10)), WHOLE)
    assert same(data.train.image(9), 9)
    copy = pickle.loads(pickle.dumps(data.train))
    assert len(pickle.dumps(data.train)) < 2000
    assert same(copy.image(9), 9)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_reads, args=(data.train, results))
    child.start()
    assert results.get(timeout=60)
    child.join()


def test_broken_files(tmp_path: Path) -> None:
    path = parquet(tmp_path / "b.parquet", range(10))
    whole = path.read_bytes()
    for damaged in (b"", b"PAR1", whole[:-20], b"x" * 100):
        path.write_bytes(damaged)
        assert "not a readable Parquet file" in refused(path)
    missing = parquet(tmp_path / "m.parquet", range(3), image=[encoded(0), None, encoded(2)])
    data = open_data(missing, WHOLE)
    with pytest.raises(VitreousError, match=r"m\.parquet\[1\]: this row contains no image"):
        data.train.image(1)


def rows(numbers: range) -> Any:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y", "z"])})
    held = [{"bytes": encoded(i), "path": None} for i in numbers]
    return datasets.Dataset.from_dict({"image": held, "label": [i % 3 for i in numbers]}, features=features)


def test_saved_to_disk(tmp_path: Path) -> None:
    rows(range(9)).save_to_disk(tmp_path / "one")
    data = open_data(tmp_path / "one", WHOLE)
    assert (data.name, data.classes) == ("one", ("x", "y", "z"))
    assert agrees(data, range(9))
    assert data.train.name(4) == "one:train[4]"
    assert agrees(open_data(tmp_path / "one", WHOLE), range(9))
    packed = pickle.dumps(data.train)
    assert len(packed) < 20_000
    assert same(pickle.loads(packed).image(5), 5)
    parts = {"train": rows(range(9)), "validation": rows(range(9, 12)), "test": rows(range(2)), "extra": rows(range(1))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "dict")
    data = open_data(tmp_path / "dict")
    assert {name: len(held) for name, held in data.splits.items()} == {"train": 9, "val": 3, "test": 2}
    assert "splits ignored: 'extra'" in data.notes
    assert data.val is not None
    assert same(data.val.image(2), 11)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library leaves a file open
def test_a_folder_that_load_dataset_understands(tmp_path: Path) -> None:
    for split, numbers in (("train", range(6)), ("test", range(6, 8))):
        lines = ["file_name,label"]
        for i in numbers:
            write(tmp_path / "set" / split / f"{i}.png", i)
            lines.append(f"{i}.png,{'ab'[i % 2]}")
        (tmp_path / "set" / split / "metadata.csv").write_text("\n".join(lines))
    data = open_data(tmp_path / "set", WHOLE)
    assert data.classes == ("a", "b")
    assert {name: len(held) for name, held in data.splits.items()} == {"train": 6, "test": 2}
    assert same(data.train.image(3), 3)
    gc.collect()  # now, so that files left open by the library are reported here and not in another test


def test_an_unavailable_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "not in the cache of the datasets library" in refused("hf://nobody/nothing")
    assert "there is no such folder; as a Hugging Face data set: not in the cache" in refused("nobody/nothing")
    assert "expected hf://owner/name" in refused("hf://nothing")


def test_missing_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "set.parquet", range(3))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'this needs pyarrow: pip install "vitreous[data]"' in refused(path)
    assert 'this needs datasets: pip install "vitreous[data]"' in refused("hf://owner/name")


@pytest.mark.parametrize("column", ["bytes", "struct", "label"])
def test_repeated_values_take_memory_once(tmp_path: Path, column: str) -> None:
    """A file of a few kilobytes that repeats a value of 8 MB four hundred times."""
    rows, large = 400, bytes(8 << 20)
    once = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([encoded(0) + large]))
    texts = pa.array([large.decode() + "a", large.decode() + "b"])
    labels = pa.DictionaryArray.from_arrays(pa.array([i % 2 for i in range(rows)], pa.int32()), texts)
    short = pa.array([encoded(0)] * rows)
    table = {
        "bytes": lambda: pa.table({"image": once, "label": [i % 2 for i in range(rows)]}),
        "struct": lambda: pa.table(
            {"image": pa.StructArray.from_arrays([once], names=["bytes"]), "label": [i % 2 for i in range(rows)]}
        ),
        "label": lambda: pa.table({"image": short, "label": labels}),
    }[column]()
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 100_000

    def read() -> int:
        source = open_data(path, Reading(val_fraction=0)).train
        return source.image(rows - 1).width

    assert limited(read, seconds=60, memory=1 << 30) == Image.open(io.BytesIO(encoded(0))).width


def test_a_file_that_declares_far_more_rows_than_it_has_bytes(tmp_path: Path) -> None:
    rows = 2_000_000
    table = pa.table({"image": pa.nulls(rows, pa.binary()), "label": pa.nulls(rows, pa.int64())})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(VitreousError, match=r"2,000,000 rows in a file of .* bytes"):
        open_data(tmp_path / "x.parquet", Reading())


def test_indices_beyond_the_dictionary_of_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow reads such a file without an error, and takes -1 for the last value."""
    pq.write_table(pa.table({"image": [encoded(0), encoded(1)], "label": ["a", "b"]}), tmp_path / "x.parquet")
    read = pq.ParquetFile.read_row_group
    for wrong in (5, -1):
        damaged = pa.DictionaryArray.from_arrays(pa.array([0, wrong]), pa.array([b"a", b"b"]), safe=False)
        with pytest.raises(pa.ArrowException):
            parquet_module._to_list(pa.chunked_array([damaged]))
        data = open_data(tmp_path / "x.parquet", Reading(val_fraction=0))
        data.train._cache.clear()  # of the images that were read to count channels
        monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *a, d=damaged, **k: pa.table({"image": d}))
        with pytest.raises(VitreousError, match="not a readable Parquet file"):
            data.train.content(0)
        monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)
