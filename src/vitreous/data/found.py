"""What every kind of data set hands over when it was found, and how splits and classes are told by their names."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.data.sources import Source
from vitreous.errors import VitreousError

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Found:
    """The splits as they lie there: always `train`; `val` only if the data has one of its own."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Source]
    notes: Sequence[str] = ()
    origin: str = "a split of its own"  # where val came from, in words
    columns: bool = False  # whether images and labels are in columns that have names


def split_in(name: str) -> str | None:
    """The split that a file's name tells: `cats_val-003.tar` is of val. None if it tells none, or several."""
    told = {SPLITS[word] for word in re.findall("[a-z]+", name.lower()) if word in SPLITS}
    return told.pop() if len(told) == 1 else None


def grouped(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Files by the split that their names tell, below what they have in common; all are `train` where none does."""
    if len(paths) == 1:
        return {"train": list(paths)}
    common = os.path.commonpath([path.absolute().parent for path in paths])
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(split_in(os.path.relpath(path.absolute(), common)) or "", []).append(path)
    if set(groups) == {""}:
        return {"train": list(paths)}
    if untold := groups.get(""):
        names = listed(path.name for path in untold)
        raise VitreousError(f"{names}: the name does not tell which split it is of, as those of others do")
    if "train" not in groups:
        raise VitreousError(f"there are files for {' and '.join(groups)}, and none for train")
    return groups


def remarks_on(paths: Sequence[Path]) -> list[str]:
    """What to say of a file that is alone, and is not named for it."""
    if len(paths) > 1 or split_in(paths[0].name) in (None, "train"):
        return []
    return [f"{paths[0].name} is all there is: taken as train, whatever its name says"]


def number_classes(
    labels: Mapping[str, Sequence[Any]], names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """The classes, and each split's labels as a tensor. A label is a number or a name, or a list: any number of them.

    With `names`, numbers are places among them. Without, the classes are those that train has: whole numbers in their
    order, anything else by the alphabet.
    """
    many = any(isinstance(label, list) for column in labels.values() for label in column)
    columns = {split: [_texts(label, many) for label in column] for split, column in labels.items()}
    if names is None:
        used = {split: {text for texts in column for text in texts} for split, column in columns.items()}
        classes = _ordered(used["train"])
        check_strangers(classes, used)
        places = {name: i for i, name in enumerate(classes)}
    else:
        classes = tuple(map(str, names))
        places = _places(classes, columns)
    width = len(classes) if many else None
    return classes, {split: _tensor(column, places, width) for split, column in columns.items()}


def check_strangers(classes: Iterable[str], used: Mapping[str, Iterable[str]]) -> None:
    known = set(classes)
    for split, names in used.items():
        if strangers := sorted(set(names) - known):
            raise VitreousError(f"classes of {split} that train does not have: {listed(strangers)}")


def check_distinct(names: Sequence[str]) -> None:
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise VitreousError(f"several classes have the same name: {listed(twice)}")


def listed(names: Iterable[str], most: int = 5) -> str:
    """'a', 'b' and 3 more."""
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "es" if thing.endswith("s") else "s")


def _texts(label: Any, many: bool) -> list[str]:
    return [_text(part) for part in label] if many else [_text(label)]


def _text(label: Any) -> str:
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float):
        if not label.is_integer():
            raise VitreousError(f"a label is {label!r}: expected a whole number or a name")
        label = int(label)
    if not isinstance(label, int | str):
        raise VitreousError(f"a label is {label!r}: expected a whole number or a name")
    return str(label).strip()


def _whole(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+", text) is not None


def _ordered(names: set[str]) -> tuple[str, ...]:
    if not all(map(_whole, names)):
        return tuple(sorted(names))
    if negative := sorted(name for name in names if int(name) < 0):
        raise VitreousError(f"labels out of range: {listed(negative)}; classes are counted from 0, or have names")
    return tuple(sorted(names, key=lambda name: (int(name), name)))


def _places(classes: tuple[str, ...], columns: Mapping[str, list[list[str]]]) -> dict[str, int]:
    """Where each label that is used stands among the classes: by its number, or by its name."""
    by_name = {name: i for i, name in enumerate(classes)}
    used = {text for column in columns.values() for texts in column for text in texts}
    if used <= set(by_name):
        return by_name
    strange = sorted(text for text in used if not (_whole(text) and 0 <= int(text) < len(classes)))
    if strange:
        raise VitreousError(f"labels out of range: {listed(strange)}; there are {counted(len(classes), 'class')}")
    return {text: int(text) for text in used}


def _tensor(column: list[list[str]], places: Mapping[str, int], classes: int | None) -> Tensor:
    if classes is None:
        return torch.tensor([places[text] for (text,) in column], dtype=torch.int64)
    rows = [row for row, texts in enumerate(column) for _ in texts]
    held = torch.zeros(len(column), classes, dtype=torch.bool)
    held[rows, [places[text] for texts in column for text in texts]] = True
    return held
