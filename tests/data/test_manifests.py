"""Manifests in .csv, .tsv and .jsonl, in the usual variants."""

import json
from pathlib import Path
from typing import Any

import pytest

from limits import limited
from pictures import same, write
from vitreous.data.dataset import DataSet
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError

WHOLE = Reading(val_fraction=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(6):
        write(tmp_path / "images" / f"{i}.png", i)
    return tmp_path


def opened(folder: Path, text: str, name: str = "list.csv", reading: Reading = WHOLE) -> DataSet:
    (folder / name).write_text(text, encoding="utf-8")
    return open_data(folder / name, reading)


def refused(folder: Path, text: str, name: str = "list.csv", reading: Reading = WHOLE) -> str:
    with pytest.raises(VitreousError) as caught:
        opened(folder, text, name, reading)
    assert str(caught.value).startswith(str(folder / name))
    return str(caught.value)


@pytest.mark.parametrize(
    ("image", "label"),
    [("image", "label"), ("File Name", "Class"), ("filepath", "category"), ("img", "target"), ("PATH", "class_name")],
)
def test_columns_are_detected_by_name(folder: Path, image: str, label: str) -> None:
    rows = "".join(f"{i},images/{i}.png,{'cat' if i % 2 else 'dog, old'!r}\n".replace("'", '"') for i in range(6))
    data = opened(folder, f"id,{image},{label}\n{rows}")
    assert (data.name, data.classes, data.multi_label) == ("list", ("cat", "dog, old"), False)
    assert data.train.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert all(same(data.train.image(i), i) for i in range(6))
    assert data.train.name(2) == str(folder / "images" / "2.png")
    assert data.notes == (f"images from column {image!r}, labels from {label!r}",)


def test_file_formats(folder: Path) -> None:
    absolute = folder / "images" / "1.png"
    tabs = f"path\tlabel\nimages/0.png\ta b\n\n{absolute}\tc\n"
    data = opened(folder, tabs, "list.TSV")
    assert data.classes == ("a b", "c")
    assert same(data.train.image(1), 1)
    assert opened(folder, tabs.replace("\t", ";")).classes == ("a b", "c")
    assert opened(folder, "\ufeff" + tabs.replace("\t", ",").replace("\n", "\r\n")).classes == ("a b", "c")
    lines = "\n".join(json.dumps({"file": f"images/{i}.png", "label": i % 3, "more": [1]}) for i in range(6))
    assert opened(folder, lines, "list.jsonl").train.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_integer_class_names_are_sorted_as_numbers(folder: Path) -> None:
    data = opened(folder, "image,label\nimages/0.png,10\nimages/1.png,9\nimages/2.png,100\n")
    assert data.classes == ("9", "10", "100")
    assert data.train.labels.tolist() == [1, 0, 2]
    assert "labels out of range: -1 (first at line 2)" in refused(
        folder, "image,label\nimages/0.png,-1\nimages/1.png,0\n"
    )
    lines = '{"image": "images/0.png", "label": 1.0}\n{"image": "images/1.png", "label": 2}\n'
    assert opened(folder, lines, "l.jsonl").classes == ("1", "2")
    assert "line 1: the label is 0.5" in refused(folder, lines.replace("1.0", "0.5"), "l.jsonl")
    truths = '{"image": "images/0.png", "label": true}\n{"image": "images/1.png", "label": false}\n'
    assert opened(folder, truths, "l.jsonl").classes == ("false", "true")


def test_splits(folder: Path) -> None:
    splits = ["train", "Training", "valid", "validation", "TEST", "train"]
    rows = "".join(f"images/{i}.png,{i % 2},{split}\n" for i, split in enumerate(splits))
    data = opened(folder, f"image,label,split\n{rows}", reading=Reading())
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 3, "val": 2, "test": 1}
    assert data.split == "column 'split' of the manifest"
    assert data.test is not None
    assert same(data.test.image(0), 4)
    assert "line 4: 'extra' in column 'split'" in refused(
        folder, f"image,label,split\n{rows}".replace("valid,", "extra,").replace("valid\n", "extra\n", 1)
    )
    assert "no line has the split train" in refused(folder, "image,label,split\nimages/0.png,0,val\n")
    assert "classes of val that train does not have: '7'" in refused(
        folder, "image,label,split\nimages/0.png,0,train\nimages/1.png,1,train\nimages/2.png,7,val\n"
    )


@pytest.mark.parametrize(
    ("column", "first", "second"),
    [
        ("label", '"[""a"", ""b c""]"', "b c"),
        ("label", "\"['a', 'b c']\"", "b c"),
        ("label", "a|b c", "b c"),
        ("class", "a;b c", "b c"),
        ("labels", "a|b c", "b c"),
        ("tags", '"a, b c"', "b c"),
    ],
)
def test_multi_label(folder: Path, column: str, first: str, second: str) -> None:
    data = opened(folder, f"image,{column}\nimages/0.png,{first}\nimages/1.png,{second}\nimages/2.png,\n")
    assert (data.classes, data.multi_label) == (("a", "b c"), True)
    assert data.train.labels.tolist() == [[True, True], [False, True], [False, False]]


def test_labels_separated_by_spaces_in_a_multi_label_column(folder: Path) -> None:
    rows = "images/0.png,a b\nimages/1.png,b\n"
    assert opened(folder, f"image,tags\n{rows}").train.labels.tolist() == [[True, True], [False, True]]
    assert opened(folder, f"image,label\n{rows}").classes == ("a b", "b")
    single = opened(folder, "image,labels\nimages/0.png,a\nimages/1.png,b\n")
    assert (single.multi_label, single.train.labels.tolist()) == (False, [0, 1])


def test_lists_in_json_lines(folder: Path) -> None:
    def lines(*labels: Any) -> str:
        return "".join(json.dumps({"image": f"images/{i}.png", "labels": x}) + "\n" for i, x in enumerate(labels))

    assert opened(folder, lines([0], [3]), "l.jsonl").train.labels.tolist() == [[True, False], [False, True]]
    data = opened(folder, lines(["x", "y"], [], None, "x"), "l.jsonl")
    assert data.train.labels.tolist() == [[True, True], [False, False], [False, False], [True, False]]
    assert "line 2: the label {'a': 1}" in refused(folder, lines(["x"], [{"a": 1}]), "l.jsonl")


def test_integers_and_strings_may_not_be_mixed(folder: Path) -> None:
    def lines(*labels: Any) -> str:
        return "".join(json.dumps({"image": f"images/{i}.png", "label": x}) + "\n" for i, x in enumerate(labels))

    for labels, shown in (((1, "1"), "1 at line 1, '1' at line 2"), (("cat", 2, True), "'cat' at line 1, 2 at line 2")):
        message = refused(folder, lines(*labels), "l.jsonl")
        assert f"labels of different types ({shown}" in message
    assert "(1 at line 1, 'a' at line 1)" in refused(folder, lines([1, "a"], []), "l.jsonl")
    assert opened(folder, lines("10", "9", "10"), "l.jsonl").train.labels.tolist() == [1, 0, 1]
    # In a table without types every value is a string, also inside a list.
    data = opened(folder, 'image,label\nimages/0.png,"[1, 10]"\nimages/1.png,2\nimages/2.png,"[\'2\', 1]"\n')
    assert data.classes == ("1", "2", "10")
    assert data.train.labels.tolist() == [[True, False, True], [False, True, False], [True, True, False]]


def test_options_resolve_ambiguous_columns(folder: Path) -> None:
    text = "image,path,label,class\nx,images/0.png,0,a\ny,images/1.png,1,b\n"
    assert "'image' and 'path' could both be the image column: choose one with --image-column" in refused(folder, text)
    reading = Reading(val_fraction=0, image_column="path")
    assert "'label' and 'class' could both be the label column" in refused(folder, text, reading=reading)
    assert opened(folder, text, reading=Reading(None, "path", "class", 0)).classes == ("a", "b")
    assert "there is no column 'klass'; the columns are 'label'" in refused(
        folder, "image,label\nimages/0.png,0\n", reading=Reading(label_column="klass")
    )
    assert "no image column was recognised among 'a', 'b': choose one with --image-column" in refused(
        folder, "a,b\n1,2\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the manifest contains no images"),
        ("image,label\n", "the manifest contains no images"),
        ("image,label\nimages/0.png,a\n,b\n", "line 3: no path in column 'image'"),
        ("image,label\nimages/0.png,a\nimages/1.png,\n", "line 3: no label"),
        ("image,label\nimages/0.png,a\nimages/1.png\n", "line 3: no label"),
        ("image,label\nimages/0.png,a,b\n", "line 2: 3 cells for 2 columns"),
        ("image,label\nhttps://x.org/1.png,a\n", "line 2: https://x.org/1.png is a URL"),
        ("image,image\nx,y\n", "several columns are called 'image'"),
        ("image,label\nimages/0.png,[oops]\n", "line 2: [oops] is not a JSON list"),
        ("image,label\nimages/0.png,a\n", "only one class, 'a', with 1 image"),
        ("image,label\ngone/0.png,a\ngone/1.png,b\n", "none of the 2 images that were tried can be read"),
    ],
)
def test_invalid_manifests(folder: Path, text: str, message: str) -> None:
    assert message in refused(folder, text)


def test_invalid_json_lines(folder: Path) -> None:
    good = '{"image": "images/0.png", "label": 1}\n'
    assert "line 2: not JSON" in refused(folder, good + "{oops\n", "l.jsonl")
    assert "line 3: expected a JSON object, got [1]" in refused(folder, good + "\n[1]\n", "l.jsonl")
    assert "line 2: no label" in refused(folder, good + '{"image": "images/1.png"}\n', "l.jsonl")
    (folder / "latin.csv").write_bytes("image,label\né.png,a\n".encode("latin1"))
    with pytest.raises(VitreousError, match="not UTF-8 text"):
        open_data(folder / "latin.csv")


def test_a_folder_with_metadata(folder: Path) -> None:
    (folder / "metadata.csv").write_text("file_name,label\nimages/0.png,a\nimages/1.png,b\n")
    assert open_data(folder, WHOLE).classes == ("a", "b")


def test_many_columns(folder: Path) -> None:
    """Thousands of columns, of which few are used: the time must not grow with the square of their number."""
    columns = [f"column {i}" for i in range(200_000)]
    text = ",".join(["image", "label", *columns]) + "\n" + "".join(f"images/{i % 2}.png,{i % 2}\n" for i in range(2000))
    (folder / "wide.csv").write_text(text)
    data = limited(lambda: open_data(folder / "wide.csv", WHOLE).classes, seconds=15, memory=1 << 30)
    assert data == ("0", "1")
    assert "several columns are called 'column 7'" in limited(
        lambda: refused(folder, text.replace("column 9,", "column 7,", 1)), seconds=15
    )


DIGITS = "7" * 5000  # more than Python converts to a number


def outcome(folder: Path, text: str, name: str = "list.csv") -> set[str] | str:
    """Return the classes, or the error."""
    try:
        return set(opened(folder, text, name).classes)
    except VitreousError as error:
        return str(error)


NESTED = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize("label", [DIGITS, f"[{DIGITS}]", f"-{DIGITS}", f"[0x{DIGITS}, 'a']", NESTED])
def test_labels_with_thousands_of_digits(folder: Path, label: str) -> None:
    found = outcome(folder, f'image,label\nimages/0.png,"{label}"\nimages/1.png,1\nimages/2.png,2\n')
    if label in (NESTED, f"[0x{DIGITS}, 'a']"):
        assert "is not a JSON list" in found
        assert len(found) < 500
    else:
        assert found == {"1", "2", label.strip("[]")}


@pytest.mark.parametrize(
    ("label", "message"),
    [(DIGITS, "not JSON"), (f"[{DIGITS}]", "not JSON"), ("1e999", "the label is inf"), (NESTED, "not JSON")],
)
def test_numbers_in_json_lines(folder: Path, label: str, message: str) -> None:
    rows = f'{{"image": "images/0.png", "label": {label}}}\n{{"image": "images/1.png", "label": "1"}}\n'
    found = outcome(folder, rows, "l.jsonl")
    assert f"line 1: {message}" in found
    assert len(found) < 500


def test_integers_are_sorted_as_numbers_and_very_long_ones_as_strings(folder: Path) -> None:
    rows = "image,label\nimages/0.png,10\nimages/1.png,9\nimages/2.png,10\n"
    assert opened(folder, rows).classes == ("9", "10")
    assert opened(folder, f"{rows}images/3.png,{DIGITS}\n").classes == ("10", DIGITS, "9")


def test_lone_surrogates(folder: Path) -> None:
    """JSON can contain a lone surrogate, which is not a valid path or class name."""
    good = '{"image": "images/0.png", "label": "a"}\n{"image": "images/1.png", "label": "b"}\n'
    path = refused(folder, good + '{"image": "\\ud800.png", "label": "a"}\n', "l.jsonl")
    assert "line 3: the path '\\ud800.png' is not valid Unicode" in path
    label = refused(folder, good + '{"image": "images/2.png", "label": "\\udfff"}\n', "l.jsonl")
    assert "line 3: the label is '\\udfff': expected an integer or a class name in valid Unicode" in label
    column = '{"image": "images/0.png", "label": "a", "\\ud800": 1}\n{"image": "images/1.png", "label": "b"}\n'
    assert opened(folder, column, "l.jsonl").classes == ("a", "b")


def test_a_multi_label_table_that_is_too_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every image has its own classes, the label table may exceed the memory: refused before it is allocated."""
    monkeypatch.setattr("vitreous.data.labels.free_memory", lambda device: 1 << 30)
    rows = "".join(f'{{"image": "images/0.png", "label": [{i}]}}\n' for i in range(30_000))
    message = refused(folder, rows, "l.jsonl")
    assert "multi-label data with 30,000 classes and 30,000 images: the label table takes 0.8 GiB" in message
