"""Labels of any format (numbers, names, lists of them) as class names and label tensors."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.raw_dataset import check_unknown_classes
from vitreous.errors import VitreousError, brief, format_count, summarize_names
from vitreous.utils.memory import free_memory

# Classes whose names are all integers are sorted as numbers. Python refuses to convert strings of thousands of digits;
# strings of up to this many digits it always converts.
INTEGER = f"[+-]?[0-9]{{1,{sys.int_info.str_digits_check_threshold}}}"


@dataclass(frozen=True)
class _LabelValues:
    """Parsed labels, and the first place of each value."""

    columns: Mapping[str, list[list[int | str]]]
    first: Mapping[int | str, str]
    kind: str | None  # "number", "text" or "bool"; None: there are no labels

    def used(self, split: str) -> set[int | str]:
        return {value for values in self.columns[split] for value in values}


def encode_labels(
    labels: Mapping[str, Sequence[Any]],
    names: Sequence[str] | None = None,
    where: Callable[[str, int], str] = "{}[{}]".format,
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Class names, and the labels of each split as a tensor: (N,) int64, or (N, classes) bool for multi-label data.

    A label is an integer, a name, or a list of either (multi-label). With `names`, an integer is an index into them
    and a string is one of them. Without `names`, the classes are the values in train: integers in numeric order, names
    in alphabetical order. Labels that mix integers and strings are refused: "3" could be class 3 or a class name.

    `where` formats the place of a label in an error message, from its split and its row.
    """
    multi_label = any(isinstance(label, list) for column in labels.values() for label in column)
    values = _parse_labels(labels, where)
    if names is None:
        classes, indices = _classes_from_train(values)
    else:
        classes = tuple(map(str, names))
        indices = _class_indices(classes, values)
    width = len(classes) if multi_label else None
    return classes, {split: _label_tensor(column, indices, width) for split, column in values.columns.items()}


def _parse_labels(labels: Mapping[str, Sequence[Any]], where: Callable[[str, int], str]) -> _LabelValues:
    columns: dict[str, list[list[int | str]]] = {}
    first: dict[int | str, str] = {}
    kinds: dict[str, str] = {}  # each kind of label, with an example
    for split, column in labels.items():
        columns[split] = []
        for row, label in enumerate(column):
            columns[split].append([])
            for part in label if isinstance(label, list) else [label]:
                if (parsed := _parse_label(part)) is None:
                    raise VitreousError(
                        f"{where(split, row)}: the label is {brief(part)}: expected an integer or a class name in"
                        " valid Unicode"
                    )
                kind, value = parsed
                columns[split][-1].append(value)
                if kind not in kinds:
                    kinds[kind] = f"{brief(part)} at {where(split, row)}"
                if value not in first:
                    first[value] = where(split, row)
    if len(kinds) > 1:
        raise VitreousError(
            f"labels of different types ({', '.join(kinds.values())}): write all of them as integers, or all as text"
        )
    return _LabelValues(columns, first, next(iter(kinds), None))


def _parse_label(label: Any) -> tuple[str, int | str] | None:
    """The kind and the value of a label. None: not a valid label."""
    if isinstance(label, bool | np.bool_):
        return "bool", str(bool(label)).lower()
    if isinstance(label, int | np.integer):
        return "number", int(label)
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return "number", int(label)
    if isinstance(label, str) and (text := label.strip()) and _is_valid_unicode(text):
        return "text", text
    return None


def _is_valid_unicode(text: str) -> bool:
    """Whether a string can be encoded. Strings from JSON and from file names may contain lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _classes_from_train(values: _LabelValues) -> tuple[tuple[str, ...], dict[int | str, int]]:
    """Classes without a list of names: the values in the training split."""
    used = sorted(values.used("train"), key=str)
    if all(re.fullmatch(INTEGER, str(value)) for value in values.first):
        if negative := sorted(int(value) for value in values.first if int(value) < 0):
            raise VitreousError(_out_of_range(negative, values, "class indices start at 0"))
        used.sort(key=int)
    classes = tuple(map(str, used))
    check_unknown_classes(classes, {split: map(str, values.used(split)) for split in values.columns})
    return classes, {value: index for index, value in enumerate(used)}


def _class_indices(classes: tuple[str, ...], values: _LabelValues) -> dict[int | str, int]:
    """The class index of each label value, for classes with a list of names."""
    if values.kind == "bool":
        raise VitreousError(
            "labels are true and false, but the classes have names: write labels as class names, or as indices from 0"
        )
    count = format_count(len(classes), "class")
    if values.kind == "number":
        indices = {value: int(value) for value in values.first}
        if wrong := sorted(index for index in indices.values() if not 0 <= index < len(classes)):
            raise VitreousError(_out_of_range(wrong, values, f"there are {count}, counted from 0"))
        return indices
    by_name: dict[int | str, int] = {name: index for index, name in enumerate(classes)}
    if unknown := sorted(str(value) for value in values.first if value not in by_name):
        raise VitreousError(
            f"labels that are not among the names of the {count}: {summarize_names(unknown)} (first at"
            f" {values.first[unknown[0]]}); the names are {summarize_names(classes)}"
        )
    return by_name


def _out_of_range(wrong: Sequence[int], values: _LabelValues, rule: str) -> str:
    wrong_values = set(wrong)
    place = next(where for value, where in values.first.items() if int(value) in wrong_values)
    return f"labels out of range: {summarize_names(wrong)} (first at {place}); {rule}"


def _label_tensor(column: list[list[int | str]], indices: Mapping[int | str, int], classes: int | None) -> Tensor:
    if classes is None:
        return torch.tensor([indices[value] for (value,) in column], dtype=torch.int64)
    if len(column) * classes > free_memory(torch.device("cpu")) // 2:
        raise VitreousError(
            f"multi-label data with {classes:,} classes and {len(column):,} images: the label table takes"
            f" {len(column) * classes / 2**30:,.1f} GiB, more than half of the free memory"
        )
    rows = [row for row, values in enumerate(column) for _ in values]
    table = torch.from_numpy(np.zeros((len(column), classes), bool))  # np.zeros allocates pages only when written to
    table[rows, [indices[value] for values in column for value in values]] = True
    return table
