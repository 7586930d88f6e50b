"""Which class of a model each class of the data is: by unambiguous rules on names, or by a file of the user."""

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

Indices = tuple[int | None, ...]  # for each class of the data the index of the model's class, None if not found


@dataclass(frozen=True)
class ClassMapping:
    """From the classes of a data set to those of a model."""

    indices: tuple[int, ...]  # the model's class for each class of the data
    rule: str  # how they were matched, for display

    def relabelled(self, source: Source, classes: int) -> Source:
        """Return the same images with the model's classes as labels. `classes`: of the model."""
        return Relabelled(source, self.labels(source.labels, classes))

    def labels(self, labels: Tensor, classes: int) -> Tensor:
        indices = torch.tensor(self.indices)
        if labels.ndim == 1:
            return indices[labels]
        result = torch.zeros(len(labels), classes, dtype=torch.bool)
        result[:, indices] = labels.bool()
        return result


class Relabelled(Source):
    """The images of a source with other labels."""

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


def match_classes(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> ClassMapping:
    """Match classes by the first rule that finds every class of the data.

    The rules: equal names; names that differ only in case, spaces and punctuation; WordNet ids and names of
    ImageNet-1k; numbers, if the data's classes are 0, 1, 2... with exactly as many as the model has, and the model does
    not use these numbers as names. `labels`: class names of the model, or None.
    """
    for rule, find in RULES:
        indices = [index for index in find(data, labels, classes) if index is not None]
        if len(indices) == len(data) and len(set(indices)) == len(indices):
            return ClassMapping(tuple(indices), rule + _numeric_names_note(data, indices))
    raise VitreousError(_mismatch_message(data, labels, classes))


def _match_equal(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Indices:
    return _match_by_key(data, labels or (), str)


def _match_similar(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Indices:
    return _match_by_key(data, labels or (), simplify)


def _match_imagenet(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Indices:
    return _match_by_key(data, labels or (), imagenet_class_index)


def _match_numbers(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> Indices:
    numbers = tuple(int(name) if re.fullmatch("[0-9]+", name) else None for name in data)
    complete = len(data) == classes and set(numbers) == set(range(classes))
    # A number that is also a class name is ambiguous: "1" could be the first of the labels "1", "2", "3".
    ambiguous = any(index is not None for index in _match_similar(data, labels, classes))
    return numbers if complete and not ambiguous else (None,) * len(data)


def _numeric_names_note(data: Sequence[str], indices: Sequence[int]) -> str:
    """Return a note on the rule if names are numbers that differ from the model's class indices."""
    for name, index in zip(data, indices, strict=True) if list(indices) != list(range(len(data))) else ():
        if re.fullmatch("[0-9]+", name) and int(name) != index:
            return f"; numbers are read as names: {name!r} is the model's class at index {index}"
    return ""


RULES: tuple[tuple[str, Callable[[Sequence[str], Sequence[str] | None, int], Indices]], ...] = (
    ("by equal names", _match_equal),
    ("by names, ignoring case and punctuation", _match_similar),
    ("by WordNet ids and names of ImageNet-1k", _match_imagenet),
    ("by numbers: class names of the data are the model's class indices", _match_numbers),
)


def _match_by_key(data: Sequence[str], labels: Sequence[str], key: Callable[[str], Any]) -> Indices:
    """Return the index of the label with the same key for each name. Keys of several labels match nothing."""
    keys = [key(label) for label in labels]
    count = Counter(keys)
    indices = {key: index for index, key in enumerate(keys) if key is not None and count[key] == 1}
    return tuple(indices.get(key(name)) for name in data)


def simplify(name: str) -> str:
    """Return a name without case, spaces and punctuation. Digits stay separated: 1.0 is not 10."""
    separated = re.sub(r"(?<=\d)[\W_]+(?=\d)", " ", name.casefold())
    return re.sub(r"[^\w ]+|_+|(?<!\d) +| +(?!\d)", "", separated)


def imagenet_class_index(name: str) -> int | None:
    """Return the ImageNet-1k class of a WordNet id, a class name or a complete list of synonyms."""
    exact, similar = _imagenet_names()
    return exact[name] if name in exact else similar.get(simplify(name))


@cache
def _imagenet_names() -> tuple[dict[str, int], dict[str, int]]:
    """Return classes by exact name and by simplified name, without names of two classes (cardigan)."""
    lists = (imagenet1k_wordnet_ids(), imagenet1k(), imagenet1k_synonyms())
    return _unique_names(lists, str), _unique_names(lists, simplify)


def _unique_names(lists: Iterable[Sequence[str]], key: Callable[[str], str]) -> dict[str, int]:
    found: dict[str, set[int]] = {}
    for names in lists:
        for index, name in enumerate(names):
            found.setdefault(key(name), set()).add(index)
    return {name: indices.pop() for name, indices in found.items() if len(indices) == 1}


def imagenet_indices(labels: Sequence[str] | None, classes: int) -> tuple[int, ...]:
    """Return the model's class for each class of ImageNet-1k."""
    found = _match_imagenet(imagenet1k_wordnet_ids(), labels or (imagenet1k() if classes == 1000 else ()), classes)
    indices = tuple(index for index in found if index is not None)
    if len(indices) != len(found):
        raise VitreousError("ReaL labels are for the 1,000 classes of ImageNet, which this model does not have")
    return indices


def _mismatch_message(data: Sequence[str], labels: Sequence[str] | None, classes: int) -> str:
    advice = "give a mapping with --classes MAP.json or MAP.csv (class of the data, then name or index in the model)"
    theirs = f"{classes:,} without names" if labels is None else f"{classes:,}: {summarize_names(labels, 3)}"
    best = max((_match_similar(data, labels, classes), _match_imagenet(data, labels, classes)), key=_count_matches)
    missing = [name for name, index in zip(data, best, strict=True) if index is None]
    reason = (
        f"{summarize_names(missing, 3)} not among them"
        if missing and labels is not None and _count_matches(best)
        else "no rule matches them"
    )
    return (
        f"classes do not match: the data has {len(data):,}: {summarize_names(data, 3)}; the model has {theirs};"
        f" {reason}: {advice}"
    )


def _count_matches(indices: Indices) -> int:
    return sum(index is not None for index in indices)


# ---------------------------------------------------------------- a mapping from a file


def read_class_map(path: Path, data: Sequence[str], labels: Sequence[str] | None, classes: int) -> ClassMapping:
    """Read a JSON object from the data's classes to the model's classes, or a CSV file with these two columns.

    In JSON, a number is a class index and a string is a class name. CSV cannot distinguish them: digits are an index if
    the model has no class of that name, and an error if both are possible.
    """
    try:
        entries = _read_entries(path)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise VitreousError(f"{path}: this map cannot be read ({error})") from error
    mapping = dict(entries)
    if repeated := [name for name, times in Counter(name for name, _ in entries).items() if times > 1]:
        raise VitreousError(f"{path}: the map has several entries for {summarize_names(repeated)}")
    if missing := [name for name in data if name not in mapping]:
        raise VitreousError(f"{path}: the map has no entry for {summarize_names(missing)}")
    indices = []
    for name in data:
        value = mapping[name]
        index = _find_class(path, value, labels, classes)
        if index is None:
            what = "index" if isinstance(value, int) else "name" if _is_json(path) else "name or index"
            hint = "; write an index without quotes" if what == "name" and str(value).isdigit() else ""
            raise VitreousError(
                f"{path}: {name!r} is mapped to {value!r}, but the model has no class of that {what}{hint}"
            )
        indices.append(index)
    if shared := [index for index, times in Counter(indices).items() if times > 1]:
        names = [name for name, index in zip(data, indices, strict=True) if index == shared[0]]
        raise VitreousError(f"{path}: {summarize_names(names)} are mapped to the same class of the model")
    return ClassMapping(tuple(indices), f"by {path.name}")


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _read_entries(path: Path) -> list[tuple[str, str | int]]:
    text = read_text(path)
    if _is_json(path):
        entries = json.loads(text, object_pairs_hook=tuple)  # pairs, to find repeated keys
        if not isinstance(entries, tuple):
            raise ValueError("expected an object of names")
        for name, value in entries:
            if type(value) not in (int, str):
                raise ValueError(f"expected the name or the index of a class for {name!r}, found {json.dumps(value)}")
        return list(entries)
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if wrong := next((row for row in rows if len(row) != 2), None):
        raise ValueError(f"expected two columns, found {wrong}")
    return [(name.strip(), value.strip()) for name, value in rows]


def _find_class(path: Path, value: str | int, labels: Sequence[str] | None, classes: int) -> int | None:
    if isinstance(value, int):
        return value if 0 <= value < classes else None
    if labels is not None and value in labels:
        if list(labels).count(value) > 1:
            raise VitreousError(
                f"{path}: {value!r} is the name of {list(labels).count(value)} classes of the model: use an index"
            )
        index = list(labels).index(value)
        if not _is_json(path) and re.fullmatch("[0-9]{1,18}", value) and int(value) < classes and int(value) != index:
            raise VitreousError(
                f"{path}: {value} could be the class of that name (index {index}) or of that index (named"
                f" {labels[int(value)]!r}): use a JSON file, with names in quotes and indices without"
            )
        return index
    if not _is_json(path) and re.fullmatch("[0-9]{1,18}", value):
        return int(value) if int(value) < classes else None
    return _match_by_key([value], labels or (), imagenet_class_index)[0]
