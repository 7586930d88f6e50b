"""The files of a split in folders, on disk or in an archive: the images of each class, and ignored files."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vitreous.data.class_level import choose_class_level
from vitreous.data.options import Reading, UnlabelledReading
from vitreous.data.raw_dataset import SPLITS, check_unknown_classes
from vitreous.errors import VitreousError, format_count, summarize_names
from vitreous.utils.file_kinds import describe_other_files, file_kind

UNLABELLED = "images"  # the only class of images in folders that give no classes
LAYOUT = "expected a folder for each class, as in cats/1.jpg and dogs/2.jpg, or train/ and val/ with such folders"


@dataclass
class FolderListing:
    """The files in the folder of a split."""

    title: str  # the name of the split's folder; empty if the data has no splits
    images: dict[str, list[str]] = field(default_factory=dict)  # class -> paths relative to the split's folder
    outside: list[str] = field(default_factory=list)  # images in no class folder
    other_files: list[str] = field(default_factory=list)  # files that are not images
    circular: list[str] = field(default_factory=list)  # links to a parent folder

    def use_class_level(self, level: int) -> None:
        """Regroup the images by the folder of this level, if it is not the first."""
        if level == 1:
            return
        paths = [path for files in self.images.values() for path in files]
        self.images = {}
        for path in sorted(paths):
            folders = path.split("/")[:-1]
            if len(folders) < level:
                self.outside.append(path)
            else:
                self.images.setdefault(folder_class_name(folders[level - 1]), []).append(path)

    def folder_counts(self) -> Counter[tuple[str, ...]]:
        """The number of images in each folder."""
        folders = (path.rpartition("/")[0] for files in self.images.values() for path in files)
        return Counter({tuple(name.split("/")): count for name, count in Counter(folders).items()})

    def notes(self) -> list[str]:
        """What is ignored in this folder."""
        where = f" in {self.title}/" if self.title else ""
        notes = []
        if self.outside:
            count, names = format_count(len(self.outside), "image"), summarize_names(self.outside, 3)
            notes.append(f"{count} outside of class folders{where}: ignored ({names})")
        notes += [f"ignored{where}: {text}" for text in describe_other_files(self.other_files)]
        if self.circular:
            notes.append(f"links{where} to a parent folder: ignored ({summarize_names(self.circular, 3)})")
        return notes


def folder_class_name(folder: str) -> str:
    """The folder name in Unicode's NFC form, since file systems differ; bytes that are not UTF-8 are replaced."""
    return unicodedata.normalize("NFC", os.fsencode(folder).decode("utf-8", "replace"))


def assign_split_folders(folders: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The folder of each split, from the names of all folders, and notes. Empty: the folders are classes."""
    splits: dict[str, list[str]] = {}
    for name in folders:
        if name.lower() in SPLITS:
            splits.setdefault(SPLITS[name.lower()], []).append(name)
    others = [name for name in folders if name.lower() not in SPLITS]
    if not splits or (others and not ("train" in splits and len(splits) > 1)):  # "train" may be a class, next to "bus"
        return {}, []
    if "train" not in splits:
        raise VitreousError(f"there is {' and '.join(f'{n}/' for n in folders)} but no train/ folder; {LAYOUT}")
    for split, names in splits.items():
        if len(names) > 1:
            raise VitreousError(f"{summarize_names(names)}: several folders for {split}; remove or rename all but one")
    notes = [f"folders that are not splits: ignored ({summarize_names(others)})"] if others else []
    return {split: names[0] for split, names in splits.items()}, notes


def assign_classes(
    listings: dict[str, FolderListing], reading: Reading, notes: list[str]
) -> tuple[tuple[str, ...], dict[str, FolderListing]]:
    """The classes, and the splits that have images, grouped by class. Remarks for the user are added to `notes`.

    If no labels are needed and the folders give no classes, all images are of one class.
    """
    found: list[str] = []
    try:
        classes, kept = _assign_class_folders(listings, reading.class_level, found)
    except VitreousError:
        train = listings["train"]
        if not isinstance(reading, UnlabelledReading) or not (train.outside or any(train.images.values())):
            raise
        return (UNLABELLED,), _pool_images(listings, notes)
    notes += found
    return classes, kept


def _pool_images(listings: dict[str, FolderListing], notes: list[str]) -> dict[str, FolderListing]:
    """The splits that have images, all of one class."""
    for listing in listings.values():
        pooled = sorted([*listing.outside, *(path for files in listing.images.values() for path in files)])
        listing.images, listing.outside = {UNLABELLED: pooled} if pooled else {}, []
        notes += listing.notes()
    return {split: listing for split, listing in listings.items() if listing.images}


def _assign_class_folders(
    listings: dict[str, FolderListing], requested_level: int | None, notes: list[str]
) -> tuple[tuple[str, ...], dict[str, FolderListing]]:
    train = listings["train"]
    _check_images(train)
    chosen = choose_class_level(train.folder_counts(), requested_level)
    notes += [chosen.note] if chosen.note else []
    for listing in listings.values():
        listing.use_class_level(chosen.level)
    if empty := [name for name, files in train.images.items() if not files]:
        where = f" of {train.title}" if train.title else ""
        raise VitreousError(
            f"empty class: no image in {summarize_names(empty)}{where}; remove the folder, or add images"
        )
    kept = {split: listing for split, listing in listings.items() if any(listing.images.values())}
    skipped = [listing.title for split, listing in listings.items() if split not in kept]
    notes += [f"{title}/ has no images in class folders: ignored" for title in skipped]
    classes = tuple(sorted(train.images))
    used = {split: [name for name, files in listing.images.items() if files] for split, listing in kept.items()}
    check_unknown_classes(classes, used)
    notes += _similar_notes(classes)
    for listing in kept.values():
        notes += listing.notes()
    return classes, kept


def _check_images(train: FolderListing) -> None:
    if any(train.images.values()):
        return
    if train.outside:
        found = f"{format_count(len(train.outside), 'image')}, but no class folders; {LAYOUT}"
        raise VitreousError(f"{found}; pre-training without labels, --objective masked-patches, needs none")
    if others := describe_other_files(sorted(train.other_files)):
        kinds = {file_kind(name) for name in train.other_files}
        advice = "".join(f"{kind.noun}: {kind.advice}; " for kind in kinds if kind is not None and len(kinds) == 1)
        raise VitreousError(f"no images that can be read; there are {', '.join(others)}; {advice}{LAYOUT}")
    raise VitreousError(f"no images in this folder; {LAYOUT}")


def _similar_notes(classes: Iterable[str]) -> list[str]:
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(name.casefold().strip(), []).append(name)
    similar = [" and ".join(map(repr, names)) for names in spellings.values() if len(names) > 1]
    return [f"different classes with almost the same name: {'; '.join(similar[:3])}"] if similar else []


def class_paths(images: Mapping[str, Sequence[str]], classes: Sequence[str]) -> tuple[list[int], list[str]]:
    """The class index and the path of every image, class by class."""
    files = [(index, path) for index, name in enumerate(classes) for path in images.get(name, [])]
    return [index for index, _ in files], [path for _, path in files]
