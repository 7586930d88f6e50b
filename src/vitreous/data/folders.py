"""A folder of images: one folder for each class, or train, val and test folders that hold those."""

import os
import unicodedata
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vitreous.data.decoding import identity, is_image, walk
from vitreous.data.encoded import Files
from vitreous.data.found import SPLITS, Found, check_strangers, counted, listed
from vitreous.errors import VitreousError

LAYOUT = "expected a folder for each class, as in cats/1.jpg and dogs/2.jpg, or train/ and val/ folders that hold those"


@dataclass
class Listing:
    """What lies in the folder of a split."""

    folder: Path
    images: dict[str, list[str]] = field(default_factory=dict)  # class -> paths below the folder
    loose: list[str] = field(default_factory=list)  # images beside the class folders
    others: list[str] = field(default_factory=list)  # files that are no images
    circular: list[str] = field(default_factory=list)  # links that lead back up


def open_folder(root: Path) -> Found:
    splits, notes = split_folders(root)
    above = {identity(folder) for folder in (root, *splits.values())}
    listings = {split: list_classes(folder, above) for split, folder in splits.items()}
    _check_train(root, listings["train"])
    classes = tuple(sorted(listings["train"].images))
    for split in [split for split, listing in listings.items() if not any(listing.images.values())]:
        notes.append(f"{listings[split].folder.name}/ has no images in class folders: left out")
        del listings[split], splits[split]
    check_strangers(
        classes, {split: [name for name, files in found.images.items() if files] for split, found in listings.items()}
    )
    for listing in listings.values():
        notes += _remarks(listing, root)
    sources = {split: _files(listing, classes) for split, listing in listings.items()}
    return Found(root.resolve().name, classes, sources, notes, f"{splits.get('val', root).name}/ of the folder")


def split_folders(root: Path) -> tuple[dict[str, Path], list[str]]:
    """The folder of each split, and notes. A root whose folders are classes is all `train`."""
    folders = [entry.name for entry in visible(root) if entry.is_dir()]
    found: dict[str, list[str]] = {}
    for name in folders:
        if name.lower() in SPLITS:
            found.setdefault(SPLITS[name.lower()], []).append(name)
    others = [name for name in folders if name.lower() not in SPLITS]
    if not found or (others and not ("train" in found and len(found) > 1)):  # a train may be a class, beside the bus
        return {"train": root}, []
    if "train" not in found:
        raise VitreousError(f"there is {' and '.join(f'{n}/' for n in folders)} and no train/ folder; {LAYOUT}")
    for split, names in found.items():
        if len(names) > 1:
            raise VitreousError(f"{listed(names)}: several folders for {split}; leave one of them")
    notes = [f"folders beside the splits left out: {listed(others)}"] if others else []
    return {split: root / names[0] for split, names in found.items()}, notes


def visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise VitreousError(f"{folder}: this folder cannot be read ({error.strerror})") from error


def list_classes(folder: Path, above: Collection[tuple[int, int]]) -> Listing:
    """The images of each class: everything below its folder. Links are followed, but not to the folders `above`."""
    listing = Listing(folder)
    spelled: dict[str, str] = {}
    for entry in visible(folder):
        if not entry.is_dir():
            (listing.loose if is_image(entry.name) else listing.others).append(entry.name)
        elif identity(entry.path) in above:
            listing.circular.append(entry.name)
        else:
            name = _class_name(entry.name)
            if spelled.setdefault(name, entry.name) != entry.name:
                raise VitreousError(f"{listed([spelled[name], entry.name])}: two folders for one class; rename one")
            listing.images[name] = _images_below(entry.path, len(entry.path) - len(entry.name), above, listing.others)
    return listing


def _images_below(folder: str, cut: int, above: Collection[tuple[int, int]], others: list[str]) -> list[str]:
    images = []
    for name, files in walk(folder, above):
        for file in files:
            if is_image(file):
                images.append(f"{name[cut:]}/{file}")
            elif not file.startswith("."):
                others.append(f"{name[cut:]}/{file}")
    return sorted(images)


def _class_name(folder: str) -> str:
    """One spelling for a name that file systems spell in several ways, and nothing that cannot be written down."""
    return unicodedata.normalize("NFC", os.fsencode(folder).decode("utf-8", "replace"))


def _check_train(root: Path, train: Listing) -> None:
    if not any(train.images.values()):
        if train.loose:
            raise VitreousError(f"{counted(len(train.loose), 'image')} and no class folders; {LAYOUT}")
        raise VitreousError(f"no images in this folder; {LAYOUT}")
    if empty := [name for name, files in train.images.items() if not files]:
        raise VitreousError(f"empty class: no image in {listed(empty)} of {train.folder}; remove the folder or fill it")
    if len(train.images) == 1 and train.folder == root:
        (only,) = train.images
        inside = [entry.name for entry in visible(root / only) if entry.is_dir()] if (root / only).is_dir() else []
        if len(inside) > 1:
            raise VitreousError(f"one folder only, and in it {listed(inside)}: did you mean {root / only}?")


def _remarks(listing: Listing, root: Path) -> list[str]:
    where = "" if listing.folder == root else f" in {listing.folder.name}/"
    notes = []
    if listing.loose:
        beside = f"beside the class folders{where}: left out ({listed(listing.loose, 3)})"
        notes.append(f"{counted(len(listing.loose), 'image')} {beside}")
    if listing.others:
        kinds = Counter(Path(name).suffix.lower() or "no suffix" for name in listing.others).most_common(4)
        how_many = ", ".join(f"{number:,} {kind}" for kind, number in kinds)
        notes.append(f"{counted(len(listing.others), 'file')}{where} not images by their names: left out ({how_many})")
    if listing.circular:
        notes.append(f"links{where} that lead back up: left out ({listed(listing.circular, 3)})")
    return notes


def _files(listing: Listing, classes: tuple[str, ...]) -> Files:
    held = [(place, path) for place, name in enumerate(classes) for path in listing.images.get(name, [])]
    labels = torch.tensor([place for place, _ in held], dtype=torch.int64)
    return Files(listing.folder, (path for _, path in held), labels)
