"""Images that are all in memory, as an array; and the .npz files that hold such arrays."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy import uint8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.found import SPLITS, Found, listed, number_classes
from vitreous.data.sources import Source
from vitreous.errors import VitreousError

IMAGES = ("images", "image", "x", "data")
LABELS = ("labels", "label", "y", "targets", "target")
NAMES = ("classes", "class_names", "label_names", "names")


class Arrays(Source):
    """Images (N, height, width, channels), grey or RGB."""

    def __init__(self, images: NDArray[uint8], labels: Tensor, title: str):
        self.images, self.labels, self.title = images, labels, title

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        pixels = self.images[index]
        return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))

    def name(self, index: int) -> str:
        return f"{self.title}[{range(len(self))[index]}]"

    def content(self, index: int) -> bytes:
        return bytes(self.images[index].tobytes())

    @property
    def array(self) -> NDArray[uint8]:
        return self.images


def open_npz(path: Path) -> Found:
    arrays = _read(path)
    places = _places(list(arrays))
    names = next((arrays[key].ravel().tolist() for key in arrays if key.lower() in NAMES), None)
    notes: list[str] = []
    images, labels = {}, {}
    for split, (image_key, label_key) in places.items():
        images[split] = as_images(arrays[image_key], image_key, notes)
        labels[split] = _as_labels(arrays[label_key], label_key, notes)
        if len(images[split]) != len(labels[split]):
            raise VitreousError(f"{len(images[split]):,} {image_key} and {len(labels[split]):,} {label_key}")
    if {len(array) for array in images.values()} == {0}:
        raise VitreousError("no images in it")
    classes, numbers = _numbered(labels, names, notes)
    sources = {split: Arrays(images[split], numbers[split], _title(path, places, split)) for split in images}
    return Found(path.stem, classes, sources, notes, "arrays of its own")


def as_images(array: NDArray[Any], key: str, notes: list[str]) -> NDArray[uint8]:
    """(N, height, width, channels), from any of the orders in which people keep images."""
    if array.dtype != np.uint8:
        how = "(images * 255).round().astype('uint8') if they lie in 0..1" if array.dtype.kind == "f" else "0..255"
        raise VitreousError(f"{key} is of {array.dtype}, and images are kept as uint8: {how}")
    if array.ndim == 3:
        array = array[..., None]
    elif array.ndim == 4:
        first, last = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
        if first and last:
            notes.append(f"{key} {array.shape}: the last axis was taken for the channels; the second could be, too")
        elif first:
            array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape[1:]:
        raise VitreousError(
            f"{key} is of shape {array.shape}: expected (images, height, width), or those with 1 or 3 channels"
        )
    return np.ascontiguousarray(array)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as stream:
            held = np.load(stream, allow_pickle=False)
            if isinstance(held, np.ndarray):
                raise VitreousError("one bare array: save images and labels together with np.savez")
            return {key: held[key] for key in held.files}
    except VitreousError:
        raise
    except Exception as error:  # numpy's, zipfile's and zlib's own, of a damaged file
        what = "it holds Python objects, which are not opened" if "allow_pickle" in str(error) else str(error)
        raise VitreousError(f"cannot be read as a .npz file ({what})") from error


def _places(keys: list[str]) -> dict[str, tuple[str, str]]:
    """The keys of images and of labels, for each split."""
    images: dict[str, str] = {}
    labels: dict[str, str] = {}
    for key in keys:
        split, what = _told(key)
        for kind, known in ((images, IMAGES), (labels, LABELS)):
            if what in known:
                if split in kind:
                    raise VitreousError(f"{kind[split]} and {key} could both be of {split}; leave one of them")
                kind[split] = key
    if "train" not in images or set(images) != set(labels):
        raise VitreousError(
            f"expected images and labels, or x_train, y_train, x_test and y_test; the arrays are {listed(keys, 12)}"
        )
    return {split: (images[split], labels[split]) for split in images}


def _told(key: str) -> tuple[str, str]:
    """The split and the part that a key names: x_train, train_images; plain images are of train."""
    words = re.split(r"[^a-z]+", key.lower())
    splits = [SPLITS[word] for word in words if word in SPLITS]
    return splits[0] if len(splits) == 1 else "train", "_".join(word for word in words if word not in SPLITS)


def _as_labels(array: NDArray[Any], key: str, notes: list[str]) -> NDArray[Any]:
    """(N,) of numbers or names, or (N, K) of bools."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind not in "biufU" or array.ndim not in (1, 2):
        raise VitreousError(f"{key} is of {array.dtype} and shape {array.shape}: expected a number or name an image")
    if array.ndim == 2 and (array.dtype.kind == "U" or not np.isin(array, (0, 1)).all()):
        raise VitreousError(f"{key} is of shape {array.shape}, a column for each class: expected 0 and 1 in it")
    return array


def _numbered(
    labels: Mapping[str, NDArray[Any]], names: list[str] | None, notes: list[str]
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    shapes = {array.shape[1:] for array in labels.values()}
    if len(shapes) > 1:
        raise VitreousError("the labels of its splits are of different shapes")
    (width,) = shapes
    if not width:
        return number_classes({split: array.tolist() for split, array in labels.items()}, names)
    names = [str(i) for i in range(width[0])] if names is None else names
    if len(names) != width[0]:
        raise VitreousError(f"labels for {width[0]} classes, and the names of {len(names)}")
    if all((array.sum(1) == 1).all() for array in labels.values()):
        notes.append("every image has one label of several columns: taken as one class each")
        return number_classes({split: array.argmax(1).tolist() for split, array in labels.items()}, names)
    held = {split: [np.flatnonzero(row).tolist() for row in array] for split, array in labels.items()}
    return number_classes(held, names)


def _title(path: Path, places: Mapping[str, object], split: str) -> str:
    return path.name if len(places) == 1 else f"{path.name}:{split}"
