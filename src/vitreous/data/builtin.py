"""Data sets with a name (digits, mnist, fashion-mnist, cifar10, cifar100), and folders that contain their files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.arrays import ArraySource, to_image_array
from vitreous.data.cifar import CIFAR_FORMATS, find_cifar, read_cifar
from vitreous.data.idx import has_idx, read_idx_folder
from vitreous.data.labels import encode_labels
from vitreous.data.raw_dataset import RawDataset
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


def canonical_name(text: str) -> str | None:
    """The name of a built-in data set, with aliases resolved. None: not a built-in data set."""
    name = text.lower()
    return name if name in NAMES else ALIASES.get(name)


def open_builtin(name: str, data_dir: str | None) -> RawDataset:
    """Open a data set by its name. `data_dir` contains its files; digits need none."""
    if name == "digits":
        if data_dir:
            raise VitreousError("digits come with scikit-learn: remove data_dir")
        return _open_digits()
    folder = Path(data_dir).expanduser() if data_dir else DEBIAN if name == "fashion-mnist" else None
    if folder is None:
        raise VitreousError(f"give the folder of its files: --data-dir FOLDER (data_dir in Python){_expected(name)}")
    if not folder.is_dir():
        message = f"there is no folder {folder}"
        if not data_dir:
            message += "; install the Debian package dataset-fashion-mnist, or give the folder with --data-dir"
        raise VitreousError(message)
    raw = open_mnist_or_cifar(folder, name)
    if raw is None:
        raise VitreousError(f"not found in {folder}{_expected(name)}")
    return raw


def _expected(name: str) -> str:
    if name in CIFAR_FORMATS:
        folders = " or ".join(folder for folder, *_ in CIFAR_FORMATS[name].values())
        return f"; expected the files of {folders}, unpacked"
    return "; expected train-images-idx3-ubyte and the three others, with or without .gz"


def open_mnist_or_cifar(folder: Path, name: str | None = None) -> RawDataset | None:
    """Open the files of MNIST, Fashion-MNIST or CIFAR (or only of `name`) in a folder. None: no such files exist."""
    for cifar in CIFAR_FORMATS:
        if name in (None, cifar) and (location := find_cifar(folder, cifar)):
            parts, names = read_cifar(location[0], cifar, location[1])
            return _raw_dataset(
                cifar, parts, names or (CIFAR10 if cifar == "cifar10" else [str(i) for i in range(100)])
            )
    if name in (None, "mnist", "fashion-mnist"):
        folders = [candidate for candidate in (folder, folder / "raw") if has_idx(candidate)]
        if folders:
            fashion = name == "fashion-mnist" or (name is None and "fashion" in str(folder.resolve()).lower())
            title = name or ("fashion-mnist" if fashion else folder.resolve().name)
            return _raw_dataset(title, read_idx_folder(folders[0]), FASHION if fashion else [str(i) for i in range(10)])
    return None


def _raw_dataset(name: str, parts: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], names: Any) -> RawDataset:
    notes: list[str] = []
    images = {split: to_image_array(pixels, "images", notes) for split, (pixels, _) in parts.items()}
    classes, labels = encode_labels({split: numbers.tolist() for split, (_, numbers) in parts.items()}, names)
    sources = {split: ArraySource(images[split], labels[split], f"{name}:{split}") for split in parts}
    return RawDataset(name, classes, sources, notes)


def _open_digits() -> RawDataset:
    """The 1,797 handwritten digits of 8 x 8 pixels from scikit-learn. Every fifth image is in the test split."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise VitreousError('digits come with scikit-learn: pip install "vitreous[eval]"') from None
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = torch.from_numpy(data.target).long()
    test = np.arange(len(images)) % 5 == 0
    parts = {"train": ~test, "test": test}
    sources = {split: ArraySource(images[part], labels[part], f"digits:{split}") for split, part in parts.items()}
    return RawDataset("digits", tuple(map(str, range(10))), sources)


def photographs() -> list[tuple[str, Image.Image]]:
    """The two photographs that come with scikit-learn: a flower, and a palace in China."""
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        raise VitreousError(
            'no images given, and the example images come with scikit-learn: pip install "vitreous[eval]"'
        ) from None
    return [(name, Image.fromarray(load_sample_image(name))) for name in ("flower.jpg", "china.jpg")]
