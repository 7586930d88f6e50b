"""Matching the classes of a data set to those of a model, by rules or by a file."""

import json
from pathlib import Path

import pytest
import torch

from vitreous import VitreousError
from vitreous.evaluation.matching import ClassMapping, imagenet_class_index, match_classes, read_class_map
from vitreous.weights.labels import imagenet1k, imagenet1k_synonyms, imagenet1k_wordnet_ids

IMAGENETTE = ("n01440764", "n02102040", "n02979186", "n03000684", "n03028079")
MINI = ("airplane", "cat", "tench", "English springer", "cassette player", "chain saw", "church")


@pytest.mark.parametrize(
    ("data", "labels", "indices", "rule"),
    [
        (("cat", "dog"), ("dog", "cat", "elk"), (1, 0), "equal names"),
        (("Great_White-shark",), ("great white shark", "x"), (0,), "case and punctuation"),
        (IMAGENETTE, MINI, (2, 3, 4, 5, 6), "WordNet"),
        (IMAGENETTE, imagenet1k(), (0, 217, 482, 491, 497), "WordNet"),
        (("tench", "church"), imagenet1k_wordnet_ids(), (0, 497), "WordNet"),
        (("n01440764",), imagenet1k_synonyms(), (0,), "WordNet"),
        (("00", "01", "02"), ("a", "b", "c"), (0, 1, 2), "numbers"),
        (("0", "2", "1"), None, (0, 2, 1), "numbers"),
        (("1", "0"), ("1", "0"), (0, 1), "equal names"),  # names take precedence over numbers
        (
            ("0", "1", "2", "10"),
            ("0", "1", "10", "2"),
            (0, 1, 3, 2),
            "equal names; numbers are read as names",
        ),
        (("1.0", "2.0"), ("1,0", "2.0"), (0, 1), "case and punctuation"),
    ],
)
def test_rules(data: tuple[str, ...], labels: tuple[str, ...] | None, indices: tuple[int, ...], rule: str) -> None:
    found = match_classes(data, labels, len(labels) if labels else len(data))
    assert found.indices == indices
    assert rule in found.rule


@pytest.mark.parametrize(
    ("data", "labels", "classes"),
    [
        (("0", "1", "2"), MINI, 7),  # three numbers, but seven classes
        (("0", "1", "2"), None, 1000),
        (("1", "2"), None, 2),  # starts at 1
        (("cat", "dog"), None, 2),  # no names to match
        (("cat", "house"), MINI, 7),
        (("Cat",), ("cat", "CAT"), 2),  # two candidates
        (("Crane",), imagenet1k(), 1000),
        (("0", "1", "2"), ("1", "2", "3"), 3),  # "1" could be a name or an index
        (("1.0", "2.0"), ("10", "20"), 2),
    ],
)
def test_ambiguous_classes_are_an_error(data: tuple[str, ...], labels: tuple[str, ...] | None, classes: int) -> None:
    with pytest.raises(VitreousError, match=r"classes do not match: .*--classes MAP.json or MAP.csv"):
        match_classes(data, labels, classes)


def test_imagenet_classes_are_found_by_every_name() -> None:
    for names in (imagenet1k(), imagenet1k_wordnet_ids()):
        assert [imagenet_class_index(name) for name in names] == list(range(1000))
    assert sum(imagenet_class_index(name) == place for place, name in enumerate(imagenet1k_synonyms())) >= 996


def test_labels_are_mapped_to_the_model() -> None:
    found = ClassMapping((2, 0), "")
    assert found.labels(torch.tensor([0, 1, 1]), 4).tolist() == [2, 0, 0]
    several = found.labels(torch.tensor([[True, False], [True, True]]), 4)
    assert several.tolist() == [[False, False, True, False], [True, False, True, False]]


def test_class_map_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"katze": "cat", "schleie": "n01440764", "x": 3, "unused": "y"}))
    found = read_class_map(file, ("katze", "schleie", "x"), MINI, 7)
    assert found.indices == (1, 2, 3)
    assert "map.json" in found.rule
    (tmp_path / "map.csv").write_text('katze,cat\n"schleie" , tench\n')
    assert read_class_map(tmp_path / "map.csv", ("katze",), MINI, 7).indices == (1,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": "cat"}', "has no entry for 'b'"),
        ('{"a": "cat", "b": "cat"}', "'a', 'b' are mapped to the same class"),
        ('{"a": "cat", "b": "horse"}', "'b' is mapped to 'horse', but the model has no class of that name$"),
        ('{"a": "cat", "b": 7}', "no class of that index"),
        ('{"a": "cat", "b": -1}', "no class of that index"),
        ('{"a": "cat", "b": "3"}', "no class of that name; write an index without quotes"),
        ('{"a": "cat", "b": true}', "expected the name or the index of a class for 'b', found true"),
        ('{"a": "cat", "b": null}', "found null"),
        ('{"a": "cat", "b": "tench", "a": 3}', "several entries for 'a'"),
        ('["a"]', "cannot be read"),
        ("{", "cannot be read"),
    ],
)
def test_wrong_class_maps_are_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "map.json").write_text(text)
    with pytest.raises(VitreousError, match=message):
        read_class_map(tmp_path / "map.json", ("a", "b"), MINI, 7)


def test_numbers_are_indices_and_strings_are_names(tmp_path: Path) -> None:
    labels = ("0", "1", "10", "2")
    (tmp_path / "map.json").write_text('{"a": 2, "b": "2", "c": 0}')
    assert read_class_map(tmp_path / "map.json", ("a", "b", "c"), labels, 4).indices == (2, 3, 0)
    (tmp_path / "map.csv").write_text("a,0\nb,10\n")  # 0: the same by name and index; 10: only a name
    assert read_class_map(tmp_path / "map.csv", ("a", "b"), labels, 4).indices == (0, 2)
    (tmp_path / "map.csv").write_text("a,2\n")
    with pytest.raises(
        VitreousError, match=r"2 could be the class of that name \(index 3\) or of that index \(named '10'"
    ):
        read_class_map(tmp_path / "map.csv", ("a",), labels, 4)
    (tmp_path / "map.csv").write_text("a,2\nb,1\n")
    assert read_class_map(tmp_path / "map.csv", ("a", "b"), None, 4).indices == (2, 1)
    assert read_class_map(tmp_path / "map.csv", ("a", "b"), MINI, 7).indices == (2, 1)


def test_a_name_of_two_classes_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"a": "crane"}')
    with pytest.raises(VitreousError, match="'crane' is the name of 2 classes of the model"):
        read_class_map(tmp_path / "map.json", ("a",), ("crane", "heron", "crane"), 3)
