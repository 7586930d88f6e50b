"""CIFAR-10 and CIFAR-100 as they are published: pickled batches for Python, opened without running them, and .bin."""

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError

Part = tuple[NDArray[Any], NDArray[Any]]
PIXELS = 3 * 32 * 32
# For each form: the folder it unpacks to, then the files of train and of test.
FORMS: dict[str, dict[str, tuple[str, list[str], list[str]]]] = {
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
    """The folder with its files, this one or the one that the archive unpacks to, and their form."""
    for form, (inner, train, _) in FORMS[name].items():
        for place in (folder, folder / inner):
            if (place / train[0]).is_file():
                return place, form
    return None


def read_cifar(folder: Path, name: str, form: str) -> tuple[dict[str, Part], list[str] | None]:
    """(images, labels) of each split, and the names of the classes if they are there."""
    _, train, test = FORMS[name][form]
    read: Callable[[Path], Part] = _pickled if form == "python" else _binary_of(name)
    parts = {}
    for split, files in (("train", train), ("test", test)):
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise VitreousError(f"{folder}: there is no {' and no '.join(missing)} in it")
        batches = [read(folder / file) for file in files]
        images = np.concatenate([batch[0] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        parts[split] = np.ascontiguousarray(images), np.concatenate([batch[1] for batch in batches])
    return parts, _names(folder, name, form)


def _pickled(path: Path) -> Part:
    held = load_arrays(path)
    labels = held.get("fine_labels", held.get("labels"))
    data = held.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise VitreousError(f"{path}: expected images of {PIXELS} bytes under 'data'")
    if not isinstance(labels, list | np.ndarray) or len(labels) != len(data):
        raise VitreousError(f"{path}: expected a label for each of {len(data):,} images")
    return data, _numbers(labels, path)


def _numbers(labels: Any, path: Path) -> NDArray[Any]:
    numbers = np.asarray(labels)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
        raise VitreousError(f"{path}: labels that are not whole numbers")
    return numbers.astype(np.int64)


def _binary_of(name: str) -> Callable[[Path], Part]:
    header = 1 if name == "cifar10" else 2  # of CIFAR-100 the coarse label comes first

    def read(path: Path) -> Part:
        data = np.fromfile(path, np.uint8)
        if not len(data) or len(data) % (header + PIXELS):
            raise VitreousError(f"{path}: {len(data):,} bytes are not a whole number of images: is it cut short?")
        rows = data.reshape(-1, header + PIXELS)
        return rows[:, header:], rows[:, header - 1].astype(np.int64)

    return read


def _names(folder: Path, name: str, form: str) -> list[str] | None:
    if form == "python":
        path, key = folder / ("batches.meta" if name == "cifar10" else "meta"), "label_names"
        if not path.is_file():
            return None
        held = load_arrays(path)
        names = held.get("fine_label_names" if name == "cifar100" else key)
        return [_decoded(n) for n in names] if isinstance(names, list) else None
    path = folder / ("batches.meta.txt" if name == "cifar10" else "fine_label_names.txt")
    return path.read_text("utf-8", "replace").split() if path.is_file() else None


def load_arrays(path: Path) -> Mapping[str, Any]:
    """A pickled dict of arrays, lists, numbers and texts. One that asks for anything else is not opened."""
    try:
        held = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except VitreousError as error:
        raise VitreousError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle raises whatever it leads to
        raise VitreousError(f"{path}: not a readable pickle, or cut short ({error or type(error).__name__})") from error
    if not isinstance(held, dict):
        raise VitreousError(f"{path}: expected a dict, got {type(held).__name__}")
    return {_decoded(key): value for key, value in held.items()}


def _decoded(text: Any) -> str:
    return text.decode("latin1") if isinstance(text, bytes) else str(text)


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in an old protocol: a call of codecs.encode. This is all that it needs of it."""
    if encoding != "latin1":
        raise VitreousError("a pickle that holds more than arrays: it is not opened")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Knows how numpy arrays are put together, and no other function or class."""

    def find_class(self, module: str, name: str) -> Any:
        home = module.replace("numpy.core", "numpy._core")  # its older name
        if (home, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (home, name) == ("numpy._core.multiarray", "_reconstruct"):
            return _reconstruct
        if (home, name) == ("numpy._core.numeric", "_frombuffer"):
            return _frombuffer
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise VitreousError(f"a pickle that asks for {module}.{name}: it is not opened, for it could run anything")


def _reconstruct(kind: Any, shape: Any, dtype: Any) -> NDArray[Any]:
    """An empty array; its contents follow in the pickle."""
    return np.ndarray.__new__(np.ndarray, (0,), np.int8)


def _frombuffer(buffer: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> NDArray[Any]:
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)
