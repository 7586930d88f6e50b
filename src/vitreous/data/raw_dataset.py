"""The result of reading one data format, and how splits are recognised from names of files and folders."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.dataset import Source
from vitreous.errors import VitreousError, summarize_names

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
class RawDataset:
    """The splits that are stored: always `train`; `val` and `test` only if the data has them."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Source]
    notes: Sequence[str] = ()
    val_origin: str = "validation split of the data"  # where the validation split is stored, for display
    has_columns: bool = False  # whether images and labels are in named columns
    has_class_folders: bool = False  # whether the labels are names of folders


def _split_from_name(name: str) -> str | None:
    """The split in a file name: `val` for `cats_val-003.tar`. None if there is no split, or more than one."""
    splits = {SPLITS[word] for word in re.findall("[a-z]+", name.lower()) if word in SPLITS}
    return splits.pop() if len(splits) == 1 else None


def group_by_split(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Files by the split in their paths, relative to their common folder. Without splits, all files are `train`."""
    if len(paths) == 1:
        return {"train": list(paths)}
    common = common_folder(paths)
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(_split_from_name(os.path.relpath(path.absolute(), common)) or "", []).append(path)
    if set(groups) == {""}:
        return {"train": list(paths)}
    if unknown := groups.get(""):
        names = summarize_names(path.name for path in unknown)
        raise VitreousError(f"{names}: no split (train, val or test) in the name, although other files have one")
    if "train" not in groups:
        raise VitreousError(f"there are files for {' and '.join(groups)}, but none for train")
    return groups


def common_folder(paths: Sequence[Path]) -> Path:
    """The deepest folder that contains all files."""
    return Path(os.path.commonpath([path.absolute().parent for path in paths]))


def single_file_notes(paths: Sequence[Path]) -> list[str]:
    """A note if the only file is used for training although its name says val or test."""
    if len(paths) > 1 or _split_from_name(paths[0].name) in (None, "train"):
        return []
    return [f"{paths[0].name} is the only file: used for training in spite of its name"]


def check_unknown_classes(classes: Iterable[str], used: Mapping[str, Iterable[str]]) -> None:
    """Raise an error if a split uses a class that the training split does not have."""
    known = set(classes)
    for split, names in used.items():
        if unknown := sorted(set(names) - known):
            raise VitreousError(f"classes of {split} that train does not have: {summarize_names(unknown)}")


def check_unique_classes(names: Sequence[str]) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise VitreousError(f"several classes have the same name: {summarize_names(repeated)}")
