"""Which of a model's classes the data's are: by rules that leave no doubt, or by a file."""

import json
from pathlib import Path

import pytest
import torch

from vitreous import VitreousError
from vitreous.evaluation.matching import Match, imagenet_class, match, read_match
from vitreous.weights.labels import imagenet1k, imagenet1k_synonyms, imagenet1k_wordnet_ids

IMAGENETTE = ("n01440764", "n02102040", "n02979186", "n03000684", "n03028079")
MINI = ("airplane", "cat", "tench", "English springer", "cassette player", "chain saw", "church")


@pytest.mark.parametrize(
    ("data", "labels", "places", "rule"),
    [
        (("cat", "dog"), ("dog", "cat", "elk"), (1, 0), "same names"),
        (("Great_White-shark",), ("great white shark", "x"), (0,), "case and punctuation"),
        (IMAGENETTE, MINI, (2, 3, 4, 5, 6), "WordNet"),
        (IMAGENETTE, imagenet1k(), (0, 217, 482, 491, 497), "WordNet"),
        (("tench", "church"), imagenet1k_wordnet_ids(), (0, 497), "WordNet"),
        (("n01440764",), imagenet1k_synonyms(), (0,), "WordNet"),
        (("00", "01", "02"), ("a", "b", "c"), (0, 1, 2), "numbers"),
        (("0", "2", "1"), None, (0, 2, 1), "numbers"),
        (("1", "0"), ("1", "0"), (0, 1), "same names"),  # names before numbers
        (
            ("0", "1", "2", "10"),
            ("0", "1", "10", "2"),
            (0, 1, 3, 2),
            "same names; they are numbers, and taken as names",
        ),
        (("1.0", "2.0"), ("1,0", "2.0"), (0, 1), "case and punctuation"),
    ],
)
def test_rules(data: tuple[str, ...], labels: tuple[str, ...] | None, places: tuple[int, ...], rule: str) -> None:
    found = match(data, labels, len(labels) if labels else len(data))
    assert found.places == places
    assert rule in found.rule


@pytest.mark.parametrize(
    ("data", "labels", "classes"),
    [
        (("0", "1", "2"), MINI, 7),  # three numbers are no seven classes
        (("0", "1", "2"), None, 1000),
        (("1", "2"), None, 2),  # counted from 1
        (("cat", "dog"), None, 2),  # the order of names is a guess
        (("cat", "house"), MINI, 7),
        (("Cat",), ("cat", "CAT"), 2),  # which of them?
        (("Crane",), imagenet1k(), 1000),
        (("0", "1", "2"), ("1", "2", "3"), 3),  # is "1" the first class, or the second?
        (("1.0", "2.0"), ("10", "20"), 2),
    ],
)
def test_a_doubt_is_asked_about(data: tuple[str, ...], labels: tuple[str, ...] | None, classes: int) -> None:
    with pytest.raises(VitreousError, match=r"classes do not match: .*--classes MAP.json or MAP.csv"):
        match(data, labels, classes)


def test_every_class_of_imagenet_is_found_by_all_its_names() -> None:
    for names in (imagenet1k(), imagenet1k_wordnet_ids()):
        assert [imagenet_class(name) for name in names] == list(range(1000))
    assert sum(imagenet_class(name) == place for place, name in enumerate(imagenet1k_synonyms())) >= 996


def test_labels_become_the_models() -> None:
    found = Match((2, 0), "")
    assert found.labels(torch.tensor([0, 1, 1]), 4).tolist() == [2, 0, 0]
    several = found.labels(torch.tensor([[True, False], [True, True]]), 4)
    assert several.tolist() == [[False, False, True, False], [True, False, True, False]]


def test_a_map_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(json.dumps({"katze": "cat", "schleie": "n01440764", "x": 3, "unused": "y"}))
    found = read_match(file, ("katze", "schleie", "x"), MINI, 7)
    assert found.places == (1, 2, 3)
    assert "map.json" in found.rule
    (tmp_path / "map.csv").write_text('katze,cat\n"schleie" , tench\n')
    assert read_match(tmp_path / "map.csv", ("katze",), MINI, 7).places == (1,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": "cat"}', "says nothing of 'b'"),
        ('{"a": "cat", "b": "cat"}', "'a', 'b' are one class"),
        ('{"a": "cat", "b": "horse"}', "'b' is to be 'horse', and the model has no class of that name$"),
        ('{"a": "cat", "b": 7}', "no class of that index"),
        ('{"a": "cat", "b": -1}', "no class of that index"),
        ('{"a": "cat", "b": "3"}', "no class of that name; an index is written without quotes"),
        ('{"a": "cat", "b": true}', "expected the name or the index of a class for 'b', found true"),
        ('{"a": "cat", "b": null}', "found null"),
        ('{"a": "cat", "b": "tench", "a": 3}', "several entries for 'a'"),
        ('["a"]', "cannot be read"),
        ("{", "cannot be read"),
    ],
)
def test_a_wrong_map_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "map.json").write_text(text)
    with pytest.raises(VitreousError, match=message):
        read_match(tmp_path / "map.json", ("a", "b"), MINI, 7)


def test_a_number_is_an_index_and_a_text_a_name(tmp_path: Path) -> None:
    labels = ("0", "1", "10", "2")
    (tmp_path / "map.json").write_text('{"a": 2, "b": "2", "c": 0}')
    assert read_match(tmp_path / "map.json", ("a", "b", "c"), labels, 4).places == (2, 3, 0)
    (tmp_path / "map.csv").write_text("a,0\nb,10\n")  # the same by name and index; a name alone
    assert read_match(tmp_path / "map.csv", ("a", "b"), labels, 4).places == (0, 2)
    (tmp_path / "map.csv").write_text("a,2\n")
    with pytest.raises(
        VitreousError, match=r"2 could be the class of that name \(index 3\) or of that index \(named '10'"
    ):
        read_match(tmp_path / "map.csv", ("a",), labels, 4)
    (tmp_path / "map.csv").write_text("a,2\nb,1\n")
    assert read_match(tmp_path / "map.csv", ("a", "b"), None, 4).places == (2, 1)
    assert read_match(tmp_path / "map.csv", ("a", "b"), MINI, 7).places == (2, 1)


def test_a_name_that_two_classes_have(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"a": "crane"}')
    with pytest.raises(VitreousError, match="'crane' is the name of 2 classes of the model"):
        read_match(tmp_path / "map.json", ("a",), ("crane", "heron", "crane"), 3)
