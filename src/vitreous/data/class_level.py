"""Which level of nested folders names the classes: photos/cats/1.jpg, or photos/2021/cats/1.jpg, sorted by date first.

The rule, also in docs/train.md: folders whose names contain a year, and below them months and days, are skipped if the
folders below them repeat from date to date. Those are the classes. Otherwise the first level is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitreous.errors import VitreousError, format_count, summarize_names

Folders = tuple[str, ...]  # names of nested folders
FLAG = "--class-level"  # class_level in Python
YEAR = r"(?:.*[^0-9])?(?:19|20)[0-9]{2}(?:[^0-9].*|[01][0-9](?:[0-3][0-9])?(?:[^0-9].*)?)?"  # 2021, 202105, "May 2021"
MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
MONTH_OR_DAY = rf"(?:0[1-9]|[12][0-9]|3[01])|(?:[0-9]{{1,2}}[-_. ]*)?(?:{MONTHS})[a-z]*"


@dataclass(frozen=True)
class ClassLevel:
    """The level of the class folders, counted from 1, and a note for the user if there was a choice."""

    level: int
    note: str = ""


def choose_class_level(images: Mapping[Folders, int], requested: int | None) -> ClassLevel:
    """The level whose folders are the classes. `images`: the number of images in each folder of the training split."""
    if requested is not None:
        return ClassLevel(_check_level(images, requested))
    dates = 0  # levels of dates above the classes
    while _are_dates(images, dates):
        dates += 1
    if dates == 0:
        return ClassLevel(1, _repeated_note(images))
    names = sorted({folders[0] for folders in images if folders})
    below = _folders_below(images, dates)
    inside = sum(count for folders, count in images.items() if len(folders) > dates)
    if 2 * inside < sum(images.values()):  # most images are in the folders of dates
        if dates > 1:
            raise VitreousError(_only_dates(images))
        return ClassLevel(1, f"the classes are named like dates: {summarize_names(names, 3)}")
    repeated = _repeated(below)
    if len(below) < 2 or 2 * len(repeated) < len({name for inner in below.values() for name in inner}):
        raise VitreousError(_not_repeated(names, below, dates))
    return ClassLevel(
        dates + 1,
        f"{format_count(len(below), 'folder')} named like dates ({summarize_names(map('/'.join, below), 3)}) contain"
        f" the same folders: {summarize_names(sorted(repeated), 4)} are the classes, and the images of all dates are"
        f" pooled ({FLAG} 1 uses the first level as the classes)",
    )


def _check_level(images: Mapping[Folders, int], requested: int) -> int:
    if requested < 1:
        raise VitreousError(f"class_level = {requested}: must be 1 or more")
    if not any(len(folders) >= requested for folders in images):
        deepest = max(map(len, images), default=0)
        raise VitreousError(
            f"class_level = {requested}: no image is in a folder of that level; the deepest is level {deepest}"
        )
    return requested


def _are_dates(images: Mapping[Folders, int], level: int) -> bool:
    """Whether most folders of a level (0: the first) are named like dates, and contain most of the images."""
    names = {folders[level] for folders in images if len(folders) > level}
    pattern = YEAR if level == 0 else f"{MONTH_OR_DAY}|{YEAR}"
    dated = {name for name in names if re.fullmatch(pattern, name.lower())}
    inside = sum(count for folders, count in images.items() if len(folders) > level and folders[level] in dated)
    return bool(dated) and 2 * len(dated) > len(names) and 2 * inside > sum(images.values())


def _folders_below(images: Mapping[Folders, int], level: int) -> dict[Folders, set[str]]:
    """The names of the folders with images below each folder of a level."""
    below: dict[Folders, set[str]] = {}
    for folders in sorted(images):
        if len(folders) > level:
            below.setdefault(folders[:level], set()).add(folders[level])
    return below


def _repeated(below: Mapping[Folders, set[str]]) -> set[str]:
    """The names that occur below more than one folder."""
    seen: set[str] = set()
    repeated: set[str] = set()
    for names in below.values():
        repeated |= seen & names
        seen |= names
    return repeated


def _repeated_note(images: Mapping[Folders, int]) -> str:
    """A note if all class folders contain the same folders, which may be the classes."""
    below = _folders_below(images, 1)
    inside = sum(count for folders, count in images.items() if len(folders) > 1)
    names = {name for inner in below.values() for name in inner}
    repeated = _repeated(below)
    dates = all(re.fullmatch(f"{MONTH_OR_DAY}|{YEAR}", name.lower()) for name in repeated)
    if len(repeated) < 2 or dates or 2 * len(repeated) < len(names) or 2 * inside < sum(images.values()):
        return ""
    outer = summarize_names((folders[0] for folders in below), 3)
    return (
        f"the classes are {outer}, and each contains the same folders ({summarize_names(sorted(repeated), 3)}); if"
        f" those are the classes, use {FLAG} 2"
    )


def _only_dates(images: Mapping[Folders, int]) -> str:
    names = sorted("/".join(folders) for folders in images if folders)
    return (
        f"the images are in folders named after dates ({summarize_names(names, 3)}), which do not say what they show:"
        f" sort them into a folder for each class; to use the dates as classes: {FLAG} 1"
    )


def _not_repeated(names: Sequence[str], below: Mapping[Folders, set[str]], dates: int) -> str:
    inner: Sequence[str] = sorted({name for found in below.values() for name in found})
    return (
        f"it is not clear which folders are the classes: {summarize_names(names, 3)} are named like dates, and the"
        f" folders in them differ ({summarize_names(inner, 4)}); for the inner folders as classes: {FLAG} {dates + 1};"
        f" for the dates: {FLAG} 1"
    )
