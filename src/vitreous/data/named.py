"""Data sets that are called by name, and folders that hold their files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.arrays import Arrays, as_images
from vitreous.data.cifar import FORMS, find_cifar, read_cifar
from vitreous.data.found import Found, number_classes
from vitreous.data.idx import has_idx, read_idx_folder
from vitreous.errors import VitreousError

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")
ALIASES = {
    "fashion_mnist": "fashion-mnist",
    "fashionmnist": "fashion-mnist",
    "cifar-10": "cifar10",
    "cifar-100": "cifar100",
}


def known_name(text: str) -> str | None:
    name = text.lower()
    return name if name in NAMES else ALIASES.get(name)


def open_named(name: str, data_dir: str | None) -> Found:
    if name == "digits":
        if data_dir:
            raise VitreousError("the digits come with scikit-learn, and need no data_dir")
        return digits()
    folder = Path(data_dir).expanduser() if data_dir else DEBIAN if name == "fashion-mnist" else None
    if folder is None:
        raise VitreousError(f"say where its files are: --data-dir FOLDER (data_dir in Python){_files_of(name)}")
    if not folder.is_dir():
        missing = f"there is no folder {folder}"
        if not data_dir:
            missing += "; install the Debian package dataset-fashion-mnist, or say where the files are with --data-dir"
        raise VitreousError(missing)
    found = open_classic(folder, name)
    if found is None:
        raise VitreousError(f"not in {folder}{_files_of(name)}")
    return found


def _files_of(name: str) -> str:
    if name in FORMS:
        inner = " or ".join(inner for inner, *_ in FORMS[name].values())
        return f"; expected the files of {inner}, unpacked"
    return "; expected train-images-idx3-ubyte and the three others, with or without .gz"


def open_classic(folder: Path, name: str | None = None) -> Found | None:
    """The data set whose files lie in a folder, one of this name if there is one; None if there is none."""
    for cifar in FORMS:
        if name in (None, cifar) and (place := find_cifar(folder, cifar)):
            parts, names = read_cifar(place[0], cifar, place[1])
            return _found(cifar, parts, names or (CIFAR10 if cifar == "cifar10" else [str(i) for i in range(100)]))
    if name in (None, "mnist", "fashion-mnist"):
        places = [place for place in (folder, folder / "raw") if has_idx(place)]
        if places:
            fashion = name == "fashion-mnist" or (name is None and "fashion" in str(folder.resolve()).lower())
            kept = name or ("fashion-mnist" if fashion else folder.resolve().name)
            return _found(kept, read_idx_folder(places[0]), FASHION if fashion else [str(i) for i in range(10)])
    return None


def _found(name: str, parts: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], names: Any) -> Found:
    notes: list[str] = []
    images = {split: as_images(pixels, "images", notes) for split, (pixels, _) in parts.items()}
    classes, labels = number_classes({split: numbers.tolist() for split, (_, numbers) in parts.items()}, names)
    sources = {split: Arrays(images[split], labels[split], f"{name}:{split}") for split in parts}
    return Found(name, classes, sources, notes)


def digits() -> Found:
    """The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn. Every fifth is for testing."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise VitreousError('the digits come with scikit-learn: pip install "vitreous[eval]"') from None
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = torch.from_numpy(data.target).long()
    test = np.arange(len(images)) % 5 == 0
    parts = {"train": ~test, "test": test}
    sources = {split: Arrays(images[part], labels[part], f"digits:{split}") for split, part in parts.items()}
    return Found("digits", tuple(map(str, range(10))), sources)


def photographs() -> list[tuple[str, Image.Image]]:
    """The two that come with scikit-learn: a flower, and a palace in China."""
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        raise VitreousError(
            'name images: those to look at without any come with scikit-learn, pip install "vitreous[eval]"'
        ) from None
    return [(name, Image.fromarray(load_sample_image(name))) for name in ("flower.jpg", "china.jpg")]
