"""Images in memory as an array, and .npz files that contain such arrays."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy import uint8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.data.labels import encode_labels
from vitreous.data.raw_dataset import SPLITS, RawDataset
from vitreous.errors import VitreousError, summarize_names
from vitreous.utils.npz import read_npz

IMAGE_KEYS = ("images", "image", "x", "data")
LABEL_KEYS = ("labels", "label", "y", "targets", "target")
CLASS_NAME_KEYS = ("classes", "class_names", "label_names", "names")


class ArraySource(Source):
    """Images (N, height, width, channels), grey or RGB. `numbers`: of the images in their file, for their names, if
    these are only some of its images."""

    def __init__(self, images: NDArray[uint8], labels: Tensor, title: str, numbers: Tensor | None = None):
        self.images, self.labels, self.title, self.numbers = images, labels, title, numbers

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        pixels = self.images[index]
        return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))

    def name(self, index: int) -> str:
        number = range(len(self))[index]
        return f"{self.title}[{number if self.numbers is None else int(self.numbers[number])}]"

    def content(self, index: int) -> bytes:
        return bytes(self.images[index].tobytes())

    @property
    def array(self) -> NDArray[uint8]:
        return self.images


def open_npz_dataset(path: Path) -> RawDataset:
    """Open an .npz file with images and labels, for one split or for several (x_train, y_train, x_test, y_test)."""
    arrays = read_npz(path)
    keys = _split_keys(list(arrays))
    name_keys = [key for key in arrays if key.lower() in CLASS_NAME_KEYS]
    if len(name_keys) > 1:
        raise VitreousError(f"{' and '.join(name_keys)} could both be the class names; remove one of them")
    names = _parse_class_names(arrays[name_keys[0]], name_keys[0]) if name_keys else None
    notes: list[str] = []
    images, labels = {}, {}
    for split, (image_key, label_key) in keys.items():
        images[split] = to_image_array(arrays[image_key], image_key, notes)
        labels[split] = check_label_array(arrays[label_key], label_key)
        if len(images[split]) != len(labels[split]):
            raise VitreousError(
                f"{image_key} and {label_key} have different lengths: {len(images[split]):,} and {len(labels[split]):,}"
            )
    if {len(array) for array in images.values()} == {0}:
        raise VitreousError("the file contains no images")
    label_keys = {split: label_key for split, (_, label_key) in keys.items()}
    classes, encoded = encode_label_arrays(labels, names, notes, label_keys)
    sources = {split: ArraySource(images[split], encoded[split], _title(path, keys, split)) for split in images}
    return RawDataset(path.stem, classes, sources, notes, "arrays of the file")


def to_image_array(array: NDArray[Any], key: str, notes: list[str]) -> NDArray[uint8]:
    """Images in any of the usual axis orders as (N, height, width, channels)."""
    if array.dtype != np.uint8:
        advice = "(images * 255).round().astype('uint8') if they are in 0..1" if array.dtype.kind == "f" else "0..255"
        raise VitreousError(f"{key} has dtype {array.dtype}, expected uint8: {advice}")
    if array.ndim == 3:
        array = array[..., None]
    elif array.ndim == 4:
        first, last = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
        if first and last:
            notes.append(f"{key} {array.shape}: the last axis is used as channels, but the second axis could be, too")
        elif first:
            array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape[1:]:
        raise VitreousError(
            f"{key} has shape {array.shape}: expected (images, height, width), optionally with 1 or 3 channels"
        )
    return np.ascontiguousarray(array).view(np.uint8)  # Pillow rejects a dtype with a byte order, which .npy may have


def _split_keys(keys: list[str]) -> dict[str, tuple[str, str]]:
    """The image key and the label key of each split."""
    images: dict[str, str] = {}
    labels: dict[str, str] = {}
    for key in keys:
        split, role = _parse_key(key)
        for by_split, known in ((images, IMAGE_KEYS), (labels, LABEL_KEYS)):
            if role in known:
                if split in by_split:
                    raise VitreousError(f"{by_split[split]} and {key} could both belong to {split}; remove one of them")
                by_split[split] = key
    if "train" not in images or set(images) != set(labels):
        raise VitreousError(
            "expected arrays called images and labels, or x_train, y_train, x_test and y_test; the arrays are"
            f" {summarize_names(keys, 12)}"
        )
    return {split: (images[split], labels[split]) for split in images}


def _parse_key(key: str) -> tuple[str, str]:
    """The split and the role of a key: x_test -> (test, x), train_images -> (train, images), y -> (train, y)."""
    words = re.split(r"[^a-z]+", key.lower())
    splits = [SPLITS[word] for word in words if word in SPLITS]
    return splits[0] if len(splits) == 1 else "train", "_".join(word for word in words if word not in SPLITS)


def check_label_array(array: NDArray[Any], key: str) -> NDArray[Any]:
    """Labels as (N,) integers or names, or (N, K) zeros and ones."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind not in "biufU" or array.ndim not in (1, 2):
        raise VitreousError(f"{key} has dtype {array.dtype} and shape {array.shape}: expected one number or name each")
    if array.ndim == 2 and (array.dtype.kind == "U" or not np.isin(array, (0, 1)).all()):
        raise VitreousError(f"{key} has shape {array.shape}, with a column for each class: expected only 0 and 1 in it")
    return array


def _parse_class_names(array: NDArray[Any], key: str) -> list[Any]:
    """Class names as strings, or as integers, which `_labels_by_value` resolves."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    if array.dtype.kind not in "iuU":
        raise VitreousError(f"{key} has dtype {array.dtype}: expected class names as text")
    names: list[Any] = array.ravel().tolist()
    return names


def _labels_by_value(labels: Mapping[str, NDArray[Any]], names: list[Any]) -> dict[str, NDArray[Any]]:
    """Labels as class indices, where class names are integers (as from np.unique) and labels are such integers."""
    used = set(np.concatenate([array.ravel() for array in labels.values()]).tolist())
    values = {value: index for index, value in enumerate(names)}
    if not used <= set(values) or used <= {index for value, index in values.items() if value == index}:
        return dict(labels)
    if used <= set(range(len(names))):
        raise VitreousError(
            f"the class names are the numbers {summarize_names(names)}, so a label could be a name or an index: store"
            " class names as text, and labels as names or as indices"
        )
    return {split: np.array([values[value] for value in array.tolist()], np.int64) for split, array in labels.items()}


def encode_label_arrays(
    labels: Mapping[str, NDArray[Any]], names: list[Any] | None, notes: list[str], keys: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    def where(split: str, row: int) -> str:
        return f"{keys[split]}[{row}]"

    shapes = {array.shape[1:] for array in labels.values()}
    if len(shapes) > 1:
        raise VitreousError("the labels of the splits have different numbers of columns")
    (width,) = shapes
    if not width:
        if names is not None and any(isinstance(name, int) for name in names):
            labels = _labels_by_value(labels, names)
        return encode_labels({split: array.tolist() for split, array in labels.items()}, names, where)
    names = [str(i) for i in range(width[0])] if names is None else names
    if len(names) != width[0]:
        raise VitreousError(f"labels for {width[0]} classes, but {len(names)} class names")
    if all((array.sum(1) == 1).all() for array in labels.values()):
        notes.append("labels are one-hot: each image has one class")
        return encode_labels({split: array.argmax(1).tolist() for split, array in labels.items()}, names, where)
    lists = {split: [np.flatnonzero(row).tolist() for row in array] for split, array in labels.items()}
    return encode_labels(lists, names, where)


def _title(path: Path, splits: Mapping[str, object], split: str) -> str:
    return path.name if len(splits) == 1 else f"{path.name}:{split}"
