"""A folder of images: one folder for each class, or train, val and test folders that contain class folders."""

import os
import unicodedata
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vitreous.data.encoded import FileSource
from vitreous.data.image_files import folder_identity, is_image, walk_folders
from vitreous.data.raw_dataset import SPLITS, RawDataset, check_unknown_classes
from vitreous.errors import VitreousError, format_count, summarize_names

LAYOUT = "expected a folder for each class, as in cats/1.jpg and dogs/2.jpg, or train/ and val/ with such folders"


@dataclass
class _Listing:
    """The files in the folder of a split."""

    folder: Path
    images: dict[str, list[str]] = field(default_factory=dict)  # class -> paths relative to the folder
    outside: list[str] = field(default_factory=list)  # images in no class folder
    other_files: list[str] = field(default_factory=list)  # files that are not images
    circular: list[str] = field(default_factory=list)  # links to a parent folder


def open_folder(root: Path) -> RawDataset:
    """Open a folder of class folders, with or without folders for the splits."""
    splits, notes = find_split_folders(root)
    parents = {folder_identity(folder) for folder in (root, *splits.values())}
    listings = {split: _list_classes(folder, parents) for split, folder in splits.items()}
    _check_train(root, listings["train"])
    classes = tuple(sorted(listings["train"].images))
    for split in [split for split, listing in listings.items() if not any(listing.images.values())]:
        notes.append(f"{listings[split].folder.name}/ has no images in class folders: ignored")
        del listings[split], splits[split]
    check_unknown_classes(
        classes,
        {split: [name for name, files in listing.images.items() if files] for split, listing in listings.items()},
    )
    for listing in listings.values():
        notes += _ignored_notes(listing, root)
    sources = {split: _file_source(listing, classes) for split, listing in listings.items()}
    return RawDataset(root.resolve().name, classes, sources, notes, f"{splits.get('val', root).name}/ of the folder")


def find_split_folders(root: Path) -> tuple[dict[str, Path], list[str]]:
    """The folder of each split, and notes. If the folders are classes, the root is `train`."""
    folders = [entry.name for entry in visible_entries(root) if entry.is_dir()]
    splits: dict[str, list[str]] = {}
    for name in folders:
        if name.lower() in SPLITS:
            splits.setdefault(SPLITS[name.lower()], []).append(name)
    others = [name for name in folders if name.lower() not in SPLITS]
    if not splits or (others and not ("train" in splits and len(splits) > 1)):  # "train" may be a class, next to "bus"
        return {"train": root}, []
    if "train" not in splits:
        raise VitreousError(f"there is {' and '.join(f'{n}/' for n in folders)} but no train/ folder; {LAYOUT}")
    for split, names in splits.items():
        if len(names) > 1:
            raise VitreousError(f"{summarize_names(names)}: several folders for {split}; remove or rename all but one")
    notes = [f"folders that are not splits: ignored ({summarize_names(others)})"] if others else []
    return {split: root / names[0] for split, names in splits.items()}, notes


def visible_entries(folder: Path) -> list[os.DirEntry[str]]:
    """The files and folders in a folder, sorted by name, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise VitreousError(f"{folder}: this folder cannot be read ({error.strerror})") from error


def _list_classes(folder: Path, parents: Collection[tuple[int, int]]) -> _Listing:
    """The images of each class: all images below its folder. Links are followed, except links to `parents`."""
    listing = _Listing(folder)
    spellings: dict[str, str] = {}
    for entry in visible_entries(folder):
        if not entry.is_dir():
            (listing.outside if is_image(entry.name) else listing.other_files).append(entry.name)
        elif folder_identity(entry.path) in parents:
            listing.circular.append(entry.name)
        else:
            name = _class_name(entry.name)
            if spellings.setdefault(name, entry.name) != entry.name:
                both = summarize_names([spellings[name], entry.name])
                raise VitreousError(f"{both}: two folders for one class; rename one")
            start = len(entry.path) - len(entry.name)
            listing.images[name] = _images_below(entry.path, start, parents, listing.other_files)
    return listing


def _images_below(folder: str, start: int, parents: Collection[tuple[int, int]], other_files: list[str]) -> list[str]:
    """Paths of all images below a folder, without their first `start` characters. Other files go to `other_files`."""
    images = []
    for name, files in walk_folders(folder, parents):
        for file in files:
            if is_image(file):
                images.append(f"{name[start:]}/{file}")
            elif not file.startswith("."):
                other_files.append(f"{name[start:]}/{file}")
    return sorted(images)


def _class_name(folder: str) -> str:
    """The folder name in Unicode's NFC form, since file systems differ; bytes that are not UTF-8 are replaced."""
    return unicodedata.normalize("NFC", os.fsencode(folder).decode("utf-8", "replace"))


def _check_train(root: Path, train: _Listing) -> None:
    if not any(train.images.values()):
        if train.outside:
            raise VitreousError(f"{format_count(len(train.outside), 'image')}, but no class folders; {LAYOUT}")
        raise VitreousError(f"no images in this folder; {LAYOUT}")
    if empty := [name for name, files in train.images.items() if not files]:
        names = summarize_names(empty)
        raise VitreousError(f"empty class: no image in {names} of {train.folder}; remove the folder, or add images")
    if len(train.images) == 1 and train.folder == root:
        (only,) = train.images
        inner = (
            [entry.name for entry in visible_entries(root / only) if entry.is_dir()] if (root / only).is_dir() else []
        )
        if len(inner) > 1:
            raise VitreousError(
                f"only one folder, which contains {summarize_names(inner)}: did you mean {root / only}?"
            )


def _ignored_notes(listing: _Listing, root: Path) -> list[str]:
    where = "" if listing.folder == root else f" in {listing.folder.name}/"
    notes = []
    if listing.outside:
        count, names = format_count(len(listing.outside), "image"), summarize_names(listing.outside, 3)
        notes.append(f"{count} outside of class folders{where}: ignored ({names})")
    if listing.other_files:
        kinds = Counter(Path(name).suffix.lower() or "no suffix" for name in listing.other_files).most_common(4)
        counts = ", ".join(f"{number:,} {kind}" for kind, number in kinds)
        notes.append(
            f"{format_count(len(listing.other_files), 'file')}{where} without an image suffix: ignored ({counts})"
        )
    if listing.circular:
        notes.append(f"links{where} to a parent folder: ignored ({summarize_names(listing.circular, 3)})")
    return notes


def _file_source(listing: _Listing, classes: tuple[str, ...]) -> FileSource:
    files = [(index, path) for index, name in enumerate(classes) for path in listing.images.get(name, [])]
    labels = torch.tensor([index for index, _ in files], dtype=torch.int64)
    return FileSource(listing.folder, (path for _, path in files), labels)
