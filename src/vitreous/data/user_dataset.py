"""Data sets that are Python objects: map-style datasets of (image, label), Hugging Face datasets, and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data import huggingface
from vitreous.data.arrays import ArraySource, check_label_array, encode_label_arrays, to_image_array
from vitreous.data.dataset import Source
from vitreous.data.labels import encode_labels
from vitreous.data.options import Reading
from vitreous.data.raw_dataset import SPLITS, RawDataset
from vitreous.errors import VitreousError, brief, format_count, one_line, summarize_names
from vitreous.utils.images import as_image

FORMS = (
    "a path or name, a map-style dataset of (image, label), a Hugging Face dataset, a pair of arrays (images, labels),"
    " or a dict of these by split (train, val, test)"
)
READ_TWICE = 16  # items that are read twice, to find out whether they change
TOLERANCE = 1e-3  # of a float image, in steps of 1/255

Advance = Callable[[int], None]


class MapStyleSource(Source):
    """A map-style dataset, such as a `torch.utils.data.Dataset`, whose items are (image, label)."""

    def __init__(self, dataset: Any, labels: Tensor, title: str):
        self.dataset, self.labels, self.title = dataset, labels, title

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        image, _ = read_item(self.dataset, range(len(self))[index], self.title)
        return _to_image(image, self.name(index))

    def name(self, index: int) -> str:
        return f"{self.title}[{range(len(self))[index]}]"


def open_user_data(data: object, reading: Reading, count_items: Callable[[str, int], Any] | None = None) -> RawDataset:
    """Open a data set that is a Python object. `count_items(text, total)`: a context manager that shows progress and
    yields a function to call with the number of items read."""
    if isinstance(data, Mapping) and not _is_huggingface(data):
        splits = _check_split_names(data)
    elif _is_huggingface(data):
        return _open_huggingface(data, reading)
    else:
        splits = {"train": data}
    if any(_is_huggingface(part) for part in splits.values()):
        return _open_huggingface(splits, reading)
    pairs = [_is_array_pair(part) for part in splits.values()]
    if all(pairs):
        return _open_arrays(splits)
    if any(pairs):
        raise VitreousError("arrays for one split and a dataset for another: give the same kind for all splits")
    return _open_map_style(splits, count_items)


def _check_split_names(data: Mapping[Any, Any]) -> dict[str, Any]:
    unknown = [name for name in data if not isinstance(name, str) or name.lower() not in SPLITS]
    if unknown:
        raise VitreousError(f"a dict of data by split: expected train, val and test, got {summarize_names(unknown)}")
    splits = {SPLITS[name.lower()]: part for name, part in data.items()}
    if "train" not in splits or len(splits) < len(data):
        raise VitreousError(f"a dict of data by split: expected train, each split once; got {summarize_names(data)}")
    return splits


# ---------------------------------------------------------------- Hugging Face


def _is_huggingface(data: object) -> bool:
    return type(data).__module__.partition(".")[0] == "datasets"


def _open_huggingface(data: Any, reading: Reading) -> RawDataset:
    parts = data if isinstance(data, Mapping) else {"train": data}
    for name, part in parts.items():
        if not hasattr(part, "features") or not hasattr(part, "__len__"):
            raise VitreousError(
                f"{name}: {brief(part)} has no length, and data must be read by index: load it without streaming=True"
            )
        if (part.format or {}).get("type") == "custom":
            raise VitreousError(
                f"{name}: this dataset has a transform (set_transform), which would be ignored: remove it with"
                " reset_format(), and pass augmentation as `augment`"
            )
    return huggingface.open_dataset_object(data, "dataset", reading)


# ---------------------------------------------------------------- arrays


def _is_array_pair(data: object) -> bool:
    if isinstance(data, torch.utils.data.TensorDataset):
        return len(data.tensors) == 2 and data.tensors[0].dtype == torch.uint8
    return isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(part, "shape") for part in data)


def _open_arrays(splits: Mapping[str, Any]) -> RawDataset:
    notes: list[str] = []
    images, labels = {}, {}
    for split, part in splits.items():
        pair = part.tensors if isinstance(part, torch.utils.data.TensorDataset) else part
        pixels, targets = (_to_numpy(array) for array in pair)
        images[split] = to_image_array(pixels, f"images of {split}", notes)
        labels[split] = check_label_array(targets, f"labels of {split}")
        if len(pixels) != len(targets):
            raise VitreousError(f"{split}: {len(pixels):,} images and {len(targets):,} labels")
    classes, encoded = encode_label_arrays(labels, None, notes, {split: f"labels of {split}" for split in labels})
    sources = {split: ArraySource(images[split], encoded[split], f"arrays:{split}") for split in images}
    return RawDataset("arrays", classes, sources, notes, "the validation arrays")


def _to_numpy(array: Any) -> NDArray[Any]:
    return np.asarray(array.detach().cpu() if isinstance(array, Tensor) else array)


# ---------------------------------------------------------------- map-style datasets


def _open_map_style(splits: Mapping[str, Any], count_items: Callable[[str, int], Any] | None) -> RawDataset:
    for split, part in splits.items():
        _check_map_style(part, split)
        _check_items_do_not_change(part, _title(part, split, splits))
    titles = {split: _title(part, split, splits) for split, part in splits.items()}
    columns: dict[str, list[Any]] = {}
    names = _class_names(splits["train"])
    for split, part in splits.items():
        if count_items is None:
            columns[split] = list(_labels(part, titles[split]))
            continue
        with count_items(f"reading labels of {split}", len(part)) as advance:
            columns[split] = list(_labels(part, titles[split], advance))
    classes, labels = encode_labels(columns, names, lambda split, row: f"label of {titles[split]}[{row}]")
    sources = {split: MapStyleSource(part, labels[split], titles[split]) for split, part in splits.items()}
    return RawDataset(type(splits["train"]).__name__, classes, sources, (), "the validation dataset")


def _title(part: object, split: str, splits: Mapping[str, Any]) -> str:
    kind = type(part).__name__
    return kind if len(splits) == 1 else f"{kind}:{split}"


def _check_map_style(part: Any, split: str) -> None:
    if not hasattr(part, "__getitem__") or not hasattr(part, "__len__") or isinstance(part, str | bytes):
        raise VitreousError(f"DATA ({split}) is {brief(part)}: expected {FORMS}")
    try:
        count = len(part)
    except Exception as error:
        raise VitreousError(f"DATA ({split}): {type(part).__name__} has no length ({one_line(error)})") from error
    if not count:
        raise VitreousError(f"DATA ({split}): {type(part).__name__} is empty")


def read_item(dataset: Any, index: int, title: str) -> tuple[Any, Any]:
    """The image and label of an item. Errors of the user's code and other kinds of items become a VitreousError."""
    try:
        item = dataset[index]
    except VitreousError:
        raise
    except Exception as error:
        raise VitreousError(f"{title}[{index}]: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise VitreousError(f"{title}[{index}] is {brief(item)}: expected a pair (image, label)")
    return item[0], item[1]


def _check_items_do_not_change(dataset: Any, title: str) -> None:
    """Raise an error if an item differs when it is read again: validation would be random, and a resumed run would
    train on other images."""
    for index in np.unique(np.linspace(0, len(dataset) - 1, READ_TWICE).astype(int)).tolist():
        first, second = (read_item(dataset, index, title) for _ in range(2))
        name = f"{title}[{index}]"
        same_label = _plain_label(first[1], name) == _plain_label(second[1], name)
        if not same_label or _to_image(first[0], name).tobytes() != _to_image(second[0], name).tobytes():
            raise VitreousError(
                f"{name} changes from one read to the next: remove random transforms from the dataset, and pass them"
                " as `augment`, which is applied to training images only"
            )


def _labels(dataset: Any, title: str, advance: Advance | None = None) -> Iterator[Any]:
    """The labels of all items. Every item is read, since only the dataset itself knows its labels."""
    for index in range(len(dataset)):
        yield _plain_label(read_item(dataset, index, title)[1], f"{title}[{index}]")
        if advance is not None:
            advance(1)


def _plain_label(label: Any, name: str) -> Any:
    """A label as an integer, a name, or a list of either. A 1-D array is read as one 0 or 1 for each class."""
    if isinstance(label, Tensor | np.ndarray | np.generic):
        if label.ndim == 0:
            return label.item()
        values = label.tolist()
        if label.ndim != 1 or not set(values) <= {0, 1}:
            raise VitreousError(f"{name}: the label is {brief(label)}: expected a number, or one 0 or 1 for each class")
        return [number for number, value in enumerate(values) if value]
    return list(label) if isinstance(label, tuple | set | frozenset) else label


def _class_names(dataset: Any) -> Sequence[str] | None:
    """The class names of a dataset, in the attribute `classes`, as datasets of torchvision have it."""
    names = getattr(dataset, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return names
    return None


def _to_image(image: Any, name: str) -> Image.Image:
    """An image of a dataset: PIL, uint8 (array: height, width, channels; tensor: channels, height, width), or floats
    that are eight-bit values divided by 255, as `ToTensor` makes them."""
    if isinstance(image, Tensor | np.ndarray) and np.dtype(str(image.dtype).removeprefix("torch.")).kind == "f":
        image = _to_eight_bit(image, name)
    if isinstance(image, Tensor):
        if image.ndim == 3:
            image = image.permute(1, 2, 0)
        image = image.numpy()
    if isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == 1:
        image = image[..., 0]
    if not isinstance(image, Image.Image | np.ndarray):
        raise VitreousError(f"{name}: the image is {brief(image)}: expected a PIL image, an array or a tensor")
    try:
        result = as_image(image)
    except VitreousError as error:
        raise error.at(name) from error
    return result if result.mode in ("L", "RGB") else result.convert("RGB")


def _to_eight_bit(image: Any, name: str) -> Any:
    scaled = torch.as_tensor(image).detach().cpu().double() * 255
    rounded = scaled.round()
    if not bool(((scaled - rounded).abs() < TOLERANCE).all()) or rounded.min() < 0 or rounded.max() > 255:
        raise VitreousError(
            f"{name}: the image has floating-point values that are not eight-bit values divided by 255: return uint8,"
            " and leave normalisation to the training, which does it on the device"
        )
    pixels = rounded.to(torch.uint8)
    return pixels if isinstance(image, Tensor) else pixels.numpy()


def describe_user_data(data: object) -> str:
    """A short description for the run directory, where the location of the data would be."""
    parts = data.values() if isinstance(data, Mapping) else [data]
    kinds = dict.fromkeys(type(part).__name__ for part in parts)
    return f"Python object: {' and '.join(kinds)} ({format_count(len(list(parts)), 'split')})"
