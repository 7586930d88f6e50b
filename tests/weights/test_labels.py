"""The class names of ImageNet-1k, in the order that all checkpoints use."""

import re

from vitreous.weights.labels import imagenet1k, imagenet1k_wordnet_ids


def test_a_thousand_distinct_names() -> None:
    names = imagenet1k()
    assert len(names) == len(set(names)) == 1000
    assert all(name and name == name.strip() and "\n" not in name for name in names)


def test_indices_of_known_classes() -> None:
    names = imagenet1k()
    known = {0: "tench", 1: "goldfish", 207: "golden retriever", 281: "tabby", 404: "airliner", 999: "toilet tissue"}
    assert {index: names[index] for index in known} == known


def test_equal_names_are_disambiguated() -> None:
    names = imagenet1k()
    assert (names[134], names[517]) == ("crane (bird)", "crane (machine)")
    assert (names[638], names[639]) == ("maillot", "maillot, tank suit")


def test_wordnet_ids() -> None:
    ids = imagenet1k_wordnet_ids()
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"n\d{8}", wordnet_id) for wordnet_id in ids)
    assert list(ids) == sorted(ids)  # the classes are sorted by WordNet id
    assert (ids[0], ids[281], ids[999]) == ("n01440764", "n02123045", "n15075141")
