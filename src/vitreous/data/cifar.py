"""CIFAR-10 and CIFAR-100 in their original formats: pickled batches for Python, and .bin files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.array_pickle import load_array_pickle, to_text
from vitreous.errors import VitreousError
from vitreous.utils.regular_files import is_system_fault, read_regular, system_fault

ImagesAndLabels = tuple[NDArray[Any], NDArray[Any]]
PIXELS = 3 * 32 * 32
# For each format: the folder in the archive, the files of train, the files of test.
CIFAR_FORMATS: dict[str, dict[str, tuple[str, list[str], list[str]]]] = {
    "cifar10": {
        "python": ("cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]),
        "binary": ("cifar-10-batches-bin", [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]),
    },
    "cifar100": {
        "python": ("cifar-100-python", ["train"], ["test"]),
        "binary": ("cifar-100-binary", ["train.bin"], ["test.bin"]),
    },
}


def find_cifar(folder: Path, name: str) -> tuple[Path, str] | None:
    """The folder with the files (this one, or the one in the archive), and their format. None: no such files."""
    for form, (inner, train, _) in CIFAR_FORMATS[name].items():
        for candidate in (folder, folder / inner):
            if (candidate / train[0]).is_file():
                return candidate, form
    return None


def read_cifar(folder: Path, name: str, form: str) -> tuple[dict[str, ImagesAndLabels], list[str] | None]:
    """(images, labels) of each split, and the class names if the folder has them."""
    _, train, test = CIFAR_FORMATS[name][form]
    read: Callable[[Path], ImagesAndLabels] = _read_pickled if form == "python" else _binary_reader(name)
    parts = {}
    for split, files in (("train", train), ("test", test)):
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise VitreousError(f"{folder}: there is no {' and no '.join(missing)} in it")
        batches = [read(folder / file) for file in files]
        images = np.concatenate([batch[0] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        parts[split] = np.ascontiguousarray(images), np.concatenate([batch[1] for batch in batches])
    return parts, _read_class_names(folder, name, form)


def _read_pickled(path: Path) -> ImagesAndLabels:
    batch = load_pickled_batch(path)
    labels = batch.get("fine_labels", batch.get("labels"))
    data = batch.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise VitreousError(f"{path}: expected images of {PIXELS} bytes under 'data'")
    if not isinstance(labels, list | np.ndarray) or len(labels) != len(data):
        raise VitreousError(f"{path}: expected a label for each of {len(data):,} images")
    return data, _check_labels(labels, path)


def _check_labels(labels: Any, path: Path) -> NDArray[Any]:
    if isinstance(labels, np.ndarray):
        valid = labels.dtype.kind in "iu" and labels.ndim == 1
    else:  # checked before numpy converts it, since a list may contain itself
        valid = all(type(label) is int and 0 <= label < 2**31 for label in labels)
    if not valid:
        raise VitreousError(f"{path}: labels are not integers")
    return np.asarray(labels).astype(np.int64)


def _binary_reader(name: str) -> Callable[[Path], ImagesAndLabels]:
    header = 1 if name == "cifar10" else 2  # CIFAR-100 stores the coarse label first

    def read(path: Path) -> ImagesAndLabels:
        data = np.frombuffer(_read_bytes(path), np.uint8)
        if not len(data) or len(data) % (header + PIXELS):
            raise VitreousError(f"{path}: {len(data):,} bytes are not a whole number of images: is it truncated?")
        rows = data.reshape(-1, header + PIXELS)
        return rows[:, header:], rows[:, header - 1].astype(np.int64)

    return read


def _read_class_names(folder: Path, name: str, form: str) -> list[str] | None:
    if form == "python":
        path, key = folder / ("batches.meta" if name == "cifar10" else "meta"), "label_names"
        if not path.is_file():
            return None
        names = load_pickled_batch(path).get("fine_label_names" if name == "cifar100" else key)
        if not isinstance(names, list) or not all(isinstance(text, str | bytes) for text in names):
            return None
        return [to_text(text) for text in names]
    path = folder / ("batches.meta.txt" if name == "cifar10" else "fine_label_names.txt")
    return _read_bytes(path).decode("utf-8", "replace").split() if path.is_file() else None


def load_pickled_batch(path: Path) -> Mapping[str, Any]:
    """The dict in a pickle file, read without running code from the file."""
    data = _read_bytes(path)
    try:
        return load_array_pickle(data)
    except VitreousError as error:
        raise error.at(path) from error


def _read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except VitreousError as error:
        raise error.at(path) from error
    except OSError as error:
        if is_system_fault(error):
            raise system_fault(error, path) from error
        raise VitreousError(f"{path}: cannot be read ({error.strerror})") from error
