"""Data sets of Hugging Face's `datasets` library: on its hub, saved to disk, or in a folder that it understands."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.data.columns import IMAGE, LABEL, find_column
from vitreous.data.encoded import Encoded
from vitreous.data.found import SPLITS, Found, listed, number_classes
from vitreous.data.options import Reading
from vitreous.data.tables import cell_bytes, drop_unlabelled, need
from vitreous.errors import VitreousError

SCHEME = "hf://"


class Rows(Encoded):
    """The image column of a `datasets.Dataset`, whose rows lie in mapped files."""

    def __init__(self, rows: Any, column: str, title: str, labels: Tensor):
        self.rows, self.column, self.title, self.labels = rows, column, title, labels

    def name(self, index: int) -> str:
        return f"{self.title}[{range(len(self))[index]}]"

    def stored(self, index: int) -> bytes:
        return cell_bytes(self.rows[int(index)][self.column], Path())


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    names = {"dataset_info.json", "state.json"}
    return (folder / "dataset_dict.json").is_file() or all((folder / name).is_file() for name in names)


def open_saved(folder: Path, reading: Reading) -> Found:
    need("datasets")
    import datasets  # type: ignore[import-untyped]

    with _explained():
        held = datasets.load_from_disk(str(folder))
    return _found(held, folder.resolve().name, reading)


def open_loadable(source: str, name: str, reading: Reading, revision: str | None = None) -> Found:
    """Whatever `datasets.load_dataset` makes of a folder, or of a name on the hub."""
    need("datasets")
    import datasets

    with _explained():
        held = datasets.load_dataset(source, revision=revision)
    return _found(held, name, reading)


def open_hub(address: str, reading: Reading) -> Found:
    """`hf://owner/name`, `hf://owner/name@revision`, or without the scheme."""
    match = re.fullmatch(r"(?:hf://)?(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", address)
    if match is None:
        raise VitreousError("expected hf://owner/name or hf://owner/name@revision")
    with _without_waiting(match[1]):
        return open_loadable(match[1], match[1], reading, match[2])


@contextmanager
def _without_waiting(name: str) -> Iterator[None]:
    """If the hub cannot be reached, look into the cache alone: the libraries would try again and again, and say so."""
    need("datasets")
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        HfApi().dataset_info(name, timeout=10)
    except (HfHubHTTPError, OfflineModeIsEnabled):
        pass  # it answered, or nobody is to ask
    except Exception:  # its HTTP library's, or the system's
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # its own, its HTTP library's or the system's
        message = " ".join(str(error).split()) or type(error).__name__
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & {"ConnectionError", "ConnectError", "TimeoutError", "OfflineModeIsEnabled"}:
            asked = os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on")
            why = "HF_HUB_OFFLINE is set" if asked else "Hugging Face's hub cannot be reached"
            message = f"not in the cache of the datasets library, and {why}"
        elif "DatasetNotFoundError" in kinds:
            message = "Hugging Face's hub has no such data set, or it needs permission (`hf auth login`)"
        else:
            message = f"the datasets library cannot open it ({message[:300]})"
        raise VitreousError(message) from error


def _found(held: Any, name: str, reading: Reading) -> Found:
    notes: list[str] = []
    parts = _splits(held, notes)
    features = parts["train"].features
    image = _image_column(features, reading.image_column)
    label = find_column([n for n in features if n != image], LABEL, reading.label_column, "label")
    notes.append(f"images from column {image!r}, labels from {label!r}")
    columns = {split: _labels(rows, label) for split, rows in parts.items()}
    drop_unlabelled(columns, notes)
    feature = features[label]
    while hasattr(feature, "feature"):
        feature = feature.feature
    classes, labels = number_classes(columns, getattr(feature, "names", None))
    sources = {
        split: Rows(_undecoded(parts[split], image), image, f"{name}:{split}", labels[split]) for split in columns
    }
    return Found(name, classes, sources, notes, "its own validation split", columns=True)


def _splits(held: Any, notes: list[str]) -> dict[str, Any]:
    if not isinstance(held, Mapping):
        return {"train": held}
    if len(held) == 1:
        return {"train": next(iter(held.values()))}
    parts = {SPLITS[name.lower()]: rows for name, rows in held.items() if name.lower() in SPLITS}
    if "train" not in parts:
        raise VitreousError(f"no train among its splits: {listed(held)}")
    if others := [name for name in held if name.lower() not in SPLITS]:
        notes.append(f"splits left out: {listed(others)}")
    return parts


def _image_column(features: Any, wanted: str | None) -> str:
    able = [name for name, feature in features.items() if _holds_images(feature)]
    if wanted is None and len(able) == 1:
        return str(able[0])
    image = find_column(list(features), IMAGE, wanted, "image")
    if image not in able:
        raise VitreousError(f"column {image!r} holds {features[image]}, not images")
    return image


def _holds_images(feature: Any) -> bool:
    return type(feature).__name__ == "Image" or getattr(feature, "dtype", "") in ("binary", "large_binary")


def _undecoded(rows: Any, column: str) -> Any:
    from datasets import Image

    rows = rows.select_columns([column])
    return rows.cast_column(column, Image(decode=False)) if isinstance(rows.features[column], Image) else rows


def _labels(rows: Any, column: str) -> list[Any]:
    values: list[Any] = rows.with_format(None).select_columns([column])[:][column]
    if any(isinstance(value, list) for value in values):
        return [value or [] for value in values]
    for row, value in enumerate(values):
        if value is None or value == "":
            raise VitreousError(f"row {row} has no label in column {column!r}")
    return values
