"""Which of a model's classes each class of the data is: found by a rule that leaves no doubt, or asked for."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from numpy import uint8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.found import listed
from vitreous.data.sources import Source
from vitreous.errors import VitreousError
from vitreous.weights.labels import imagenet1k, imagenet1k_synonyms, imagenet1k_wordnet_ids

Places = tuple[int | None, ...]


@dataclass(frozen=True)
class Match:
    """For each class of the data its number in the model, and how that was found, in words."""

    places: tuple[int, ...]
    rule: str

    def relabelled(self, source: Source, classes: int) -> Source:
        """The same images, with labels that are the model's."""
        return Relabelled(source, self.labels(source.labels, classes))

    def labels(self, labels: Tensor, classes: int) -> Tensor:
        places = torch.tensor(self.places)
        if labels.ndim == 1:
            return places[labels]
        whole = torch.zeros(len(labels), classes, dtype=torch.bool)
        whole[:, places] = labels.bool()
        return whole


class Relabelled(Source):
    """Images of a source under other labels."""

    def __init__(self, source: Source, labels: Tensor):
        self.source, self.labels = source, labels

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        return self.source.image(index, at_least)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def content(self, index: int) -> bytes:
        return self.source.content(index)

    @property
    def array(self) -> NDArray[uint8] | None:
        return self.source.array


def match(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Match:
    """By the first of these rules that places every class of the data: the same names; names that differ in case,
    spaces and punctuation alone; ImageNet-1k's WordNet ids and names; numbers, where the data counts 0, 1, 2... up to
    exactly the classes of the model. `labels`: of the model; None: it has no names."""
    for rule, find in RULES:
        places = find(data, labels, classes)
        found = [place for place in places if place is not None]
        if len(found) == len(data) and len(set(found)) == len(found):
            return Match(tuple(found), rule)
    raise VitreousError(_why_not(data, labels, classes))


def _same_names(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Places:
    return _placed(data, labels or (), str)


def _similar_names(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Places:
    return _placed(data, labels or (), simple)


def _imagenet(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Places:
    return _placed(data, labels or (), imagenet_class)


def _numbers(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Places:
    numbers = tuple(int(name) if re.fullmatch("[0-9]+", name) else None for name in data)
    return numbers if len(data) == classes and set(numbers) == set(range(classes)) else (None,) * len(data)


RULES: tuple[tuple[str, Callable[[Sequence[str], Sequence[str] | None, int], Places]], ...] = (
    ("by the same names", _same_names),
    ("by names, whatever their case and punctuation", _similar_names),
    ("by ImageNet-1k's WordNet ids and names", _imagenet),
    ("by numbers: the data's classes are counted as the model's are", _numbers),
)


def _placed(data: Sequence[str], labels: Sequence[str], key: Callable[[str], Any]) -> Places:
    """Where each name stands among the labels, told by a key; what is there twice stands nowhere."""
    keys = [key(label) for label in labels]
    times = Counter(keys)
    places = {key: place for place, key in enumerate(keys) if key is not None and times[key] == 1}
    return tuple(places.get(key(name)) for name in data)


def simple(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def imagenet_class(name: str) -> int | None:
    """The number of a class of ImageNet-1k, from its WordNet id, its name, or all its synonyms."""
    exact, similar = _imagenet_names()
    return exact[name] if name in exact else similar.get(simple(name))


@cache
def _imagenet_names() -> tuple[dict[str, int], dict[str, int]]:
    """Names as they are, and names whatever their case; what is said of two classes (cardigan) is of none."""
    lists = (imagenet1k_wordnet_ids(), imagenet1k(), imagenet1k_synonyms())
    return _unique(lists, str), _unique(lists, simple)


def _unique(lists: Iterable[Sequence[str]], key: Callable[[str], str]) -> dict[str, int]:
    found: dict[str, set[int]] = {}
    for names in lists:
        for place, name in enumerate(names):
            found.setdefault(key(name), set()).add(place)
    return {name: places.pop() for name, places in found.items() if len(places) == 1}


def imagenet_places(labels: Sequence[str] | None, classes: int) -> tuple[int, ...]:
    """The model's class of each of ImageNet-1k's, for truth that counts those."""
    places = _imagenet(imagenet1k_wordnet_ids(), labels or (imagenet1k() if classes == 1000 else ()), classes)
    found = tuple(place for place in places if place is not None)
    if len(found) != len(places):
        raise VitreousError("the model's classes are not the 1,000 of ImageNet, which this truth is about")
    return found


def _why_not(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> str:
    ask = "say which is which with --classes MAP.json or MAP.csv (the data's class, then the model's name or number)"
    theirs = f"{classes:,} without names" if labels is None else f"{classes:,}: {listed(labels, 3)}"
    best = max((_similar_names(data, labels, classes), _imagenet(data, labels, classes)), key=_how_many)
    lost = [name for name, place in zip(data, best, strict=True) if place is None]
    found = (
        f"{listed(lost, 3)} not among them"
        if lost and labels is not None and _how_many(best)
        else "no rule places them"
    )
    return (
        f"classes do not match: the data's are {len(data):,}: {listed(data, 3)}; the model's {theirs}; {found}: {ask}"
    )


def _how_many(places: Places) -> int:
    return sum(place is not None for place in places)


# ---------------------------------------------------------------- a map in a file


def read_match(path: Path, data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Match:
    """A JSON object from the data's classes to names or numbers of the model's, or a CSV of two columns like it."""
    try:
        pairs = dict(_pairs(path))
    except (OSError, ValueError, csv.Error) as error:
        raise VitreousError(f"{path}: this map cannot be read ({error})") from error
    if missing := [name for name in data if name not in pairs]:
        raise VitreousError(f"{path}: the map says nothing of {listed(missing)}")
    places = []
    for name in data:
        place = _place(pairs[name], labels, classes)
        if place is None:
            raise VitreousError(
                f"{path}: {name!r} is to be {pairs[name]!r}, and the model has no class of that name or number"
            )
        places.append(place)
    if twice := [place for place, times in Counter(places).items() if times > 1]:
        names = [name for name, place in zip(data, places, strict=True) if place == twice[0]]
        raise VitreousError(f"{path}: {listed(names)} are one class of the model: they could not be told apart")
    return Match(tuple(places), f"by {path.name}")


def _pairs(path: Path) -> Iterable[tuple[str, str]]:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix.lower() == ".json":
        held = json.loads(text)
        if not isinstance(held, dict):
            raise ValueError("expected an object of names")
        return [(str(name), str(value)) for name, value in held.items()]
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if wrong := next((row for row in rows if len(row) != 2), None):
        raise ValueError(f"expected two columns, found {wrong}")
    return [(name.strip(), value.strip()) for name, value in rows]


def _place(value: str, labels: Sequence[str] | None, classes: int) -> int | None:
    if labels is not None and value in labels:
        if list(labels).count(value) > 1:
            raise VitreousError(
                f"{value!r} is the name of {list(labels).count(value)} classes of the model: give a number"
            )
        return list(labels).index(value)
    if re.fullmatch("[0-9]+", value):
        return int(value) if int(value) < classes else None
    return _placed([value], labels or (), imagenet_class)[0]
