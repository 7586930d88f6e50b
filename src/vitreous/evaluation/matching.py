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

from vitreous.data.dataset import Source
from vitreous.errors import VitreousError, summarize_names
from vitreous.utils.regular_files import read_text
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
    exactly the classes of the model and the model does not use these numbers as names. `labels`: of the model; None: it
    has no names."""
    for rule, find in RULES:
        places = find(data, labels, classes)
        found = [place for place in places if place is not None]
        if len(found) == len(data) and len(set(found)) == len(found):
            return Match(tuple(found), rule + _names_that_are_numbers(data, found))
    raise VitreousError(_why_not(data, labels, classes))


def _same_names(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Places:
    return _placed(data, labels or (), str)


def _similar_names(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Places:
    return _placed(data, labels or (), simple)


def _imagenet(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Places:
    return _placed(data, labels or (), imagenet_class)


def _numbers(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Places:
    numbers = tuple(int(name) if re.fullmatch("[0-9]+", name) else None for name in data)
    counted = len(data) == classes and set(numbers) == set(range(classes))
    # A number that is also the name of a class may mean either: "1" among the labels "1", "2", "3" is the first.
    names = any(place is not None for place in _similar_names(data, labels, classes))
    return numbers if counted and not names else (None,) * len(data)


def _names_that_are_numbers(data: Sequence[str], places: Sequence[int]) -> str:
    """What to add to the rule where names are numbers, and data and model list them in another order."""
    for name, place in zip(data, places, strict=True) if list(places) != list(range(len(data))) else ():
        if re.fullmatch("[0-9]+", name) and int(name) != place:
            return f"; they are numbers, and taken as names: {name!r} is the model's class at index {place}"
    return ""


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
    """Without case, spaces and punctuation; but 1.0 is not 10."""
    apart = re.sub(r"(?<=\d)[\W_]+(?=\d)", " ", name.casefold())
    return re.sub(r"[^\w ]+|_+|(?<!\d) +| +(?!\d)", "", apart)


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
    ask = "say which is which with --classes MAP.json or MAP.csv (the data's class, then the model's name or index)"
    theirs = f"{classes:,} without names" if labels is None else f"{classes:,}: {summarize_names(labels, 3)}"
    best = max((_similar_names(data, labels, classes), _imagenet(data, labels, classes)), key=_how_many)
    lost = [name for name, place in zip(data, best, strict=True) if place is None]
    found = (
        f"{summarize_names(lost, 3)} not among them"
        if lost and labels is not None and _how_many(best)
        else "no rule places them"
    )
    return (
        f"classes do not match: the data's are {len(data):,}: {summarize_names(data, 3)}; the model's {theirs};"
        f" {found}: {ask}"
    )


def _how_many(places: Places) -> int:
    return sum(place is not None for place in places)


# ---------------------------------------------------------------- a map in a file


def read_match(path: Path, data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Match:
    """A JSON object from the data's classes to the model's, or a CSV of two columns like it.

    In JSON a number is the index of a class and a string is its name. A CSV does not tell them apart: digits are an
    index if the model has no class of that name, and refused where they could be either.
    """
    try:
        entries = _pairs(path)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise VitreousError(f"{path}: this map cannot be read ({error})") from error
    pairs = dict(entries)
    if repeated := [name for name, times in Counter(name for name, _ in entries).items() if times > 1]:
        raise VitreousError(f"{path}: the map has several entries for {summarize_names(repeated)}")
    if missing := [name for name in data if name not in pairs]:
        raise VitreousError(f"{path}: the map says nothing of {summarize_names(missing)}")
    places = []
    for name in data:
        value = pairs[name]
        place = _place(path, value, labels, classes)
        if place is None:
            what = "index" if isinstance(value, int) else "name" if _is_json(path) else "name or index"
            hint = "; an index is written without quotes" if what == "name" and str(value).isdigit() else ""
            raise VitreousError(f"{path}: {name!r} is to be {value!r}, and the model has no class of that {what}{hint}")
        places.append(place)
    if twice := [place for place, times in Counter(places).items() if times > 1]:
        names = [name for name, place in zip(data, places, strict=True) if place == twice[0]]
        raise VitreousError(
            f"{path}: {summarize_names(names)} are one class of the model: they could not be told apart"
        )
    return Match(tuple(places), f"by {path.name}")


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _pairs(path: Path) -> list[tuple[str, str | int]]:
    text = read_text(path)
    if _is_json(path):
        held = json.loads(text, object_pairs_hook=tuple)  # an object with its repeated keys
        if not isinstance(held, tuple):
            raise ValueError("expected an object of names")
        for name, value in held:
            if type(value) not in (int, str):
                raise ValueError(f"expected the name or the index of a class for {name!r}, found {json.dumps(value)}")
        return list(held)
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if wrong := next((row for row in rows if len(row) != 2), None):
        raise ValueError(f"expected two columns, found {wrong}")
    return [(name.strip(), value.strip()) for name, value in rows]


def _place(path: Path, value: str | int, labels: Sequence[str] | None, classes: int) -> int | None:
    if isinstance(value, int):
        return value if 0 <= value < classes else None
    if labels is not None and value in labels:
        if list(labels).count(value) > 1:
            raise VitreousError(
                f"{path}: {value!r} is the name of {list(labels).count(value)} classes of the model: give an index"
            )
        place = list(labels).index(value)
        if not _is_json(path) and re.fullmatch("[0-9]{1,18}", value) and int(value) < classes and int(value) != place:
            raise VitreousError(
                f"{path}: {value} could be the class of that name (index {place}) or of that index (named"
                f" {labels[int(value)]!r}): write the map in JSON, with names in quotes and indices without"
            )
        return place
    if not _is_json(path) and re.fullmatch("[0-9]{1,18}", value):
        return int(value) if int(value) < classes else None
    return _placed([value], labels or (), imagenet_class)[0]
