"""A folder of images: one folder for each class, or train, val and test folders that contain class folders."""

import os
from collections.abc import Collection
from pathlib import Path

import torch

from vitreous.data.encoded import FileSource
from vitreous.data.folder_listing import (
    FolderListing,
    assign_classes,
    assign_split_folders,
    class_paths,
    folder_class_name,
)
from vitreous.data.image_files import folder_identity, is_image, walk_folders
from vitreous.data.options import Reading, UnlabelledReading
from vitreous.data.raw_dataset import RawDataset
from vitreous.errors import VitreousError, summarize_names
from vitreous.utils.file_kinds import is_system_file


def open_folder(root: Path, reading: Reading) -> RawDataset:
    """Open a folder of class folders, with or without folders for the splits."""
    folders, notes = find_split_folders(root)
    parents = {folder_identity(folder) for folder in (root, *folders.values())}
    listings = {split: _list_classes(folder, parents, root) for split, folder in folders.items()}
    _check_single_folder(root, listings["train"], reading)
    classes, listings = assign_classes(listings, reading, notes)
    sources = {}
    for split, listing in listings.items():
        labels, paths = class_paths(listing.images, classes)
        sources[split] = FileSource(folders[split], paths, torch.tensor(labels, dtype=torch.int64))
    val_origin = f"{listings['val'].title}/ of the folder" if "val" in listings else ""
    return RawDataset(root.resolve().name, classes, sources, notes, val_origin, has_class_folders=True)


def find_split_folders(root: Path) -> tuple[dict[str, Path], list[str]]:
    """The folder of each split, and notes. If the folders are classes, the root is `train`."""
    names, notes = assign_split_folders([entry.name for entry in visible_entries(root) if entry.is_dir()])
    return {split: root / name for split, name in names.items()} or {"train": root}, notes


def visible_entries(folder: Path) -> list[os.DirEntry[str]]:
    """The files and folders in a folder, sorted by name, without hidden ones and files of the system."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not is_system_file(e.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise VitreousError(f"{folder}: this folder cannot be read ({error.strerror})") from error


def _list_classes(folder: Path, parents: Collection[tuple[int, int]], root: Path) -> FolderListing:
    """The images of each class: all images below its folder. Links are followed, except links to `parents`."""
    listing = FolderListing("" if folder == root else folder.name)
    spellings: dict[str, str] = {}
    for entry in visible_entries(folder):
        if not entry.is_dir():
            (listing.outside if is_image(entry.name) else listing.other_files).append(entry.name)
        elif folder_identity(entry.path) in parents:
            listing.circular.append(entry.name)
        else:
            name = folder_class_name(entry.name)
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
        below = name[start:].replace(os.sep, "/")
        for file in files:
            if is_image(file):
                images.append(f"{below}/{file}")
            elif not is_system_file(file):
                other_files.append(f"{below}/{file}")
    return sorted(images)


def _check_single_folder(root: Path, train: FolderListing, reading: Reading) -> None:
    """Raise an error for photos/photos/cats/1.jpg: the inner folder is the data set."""
    labelled = not isinstance(reading, UnlabelledReading)
    if len(train.images) != 1 or train.title or reading.class_level is not None or not labelled:
        return
    (only,) = train.images
    if (root / only).is_dir():
        inner = [entry.name for entry in visible_entries(root / only) if entry.is_dir()]
        if len(inner) > 1:
            raise VitreousError(
                f"only one folder, which contains {summarize_names(inner)}: did you mean {root / only}?"
            )
