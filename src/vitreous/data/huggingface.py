"""Hugging Face data sets: on the hub, saved to disk, or in a folder that the `datasets` library can load."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.data.columns import IMAGE_COLUMNS, LABEL_COLUMNS, check_label_column, find_column
from vitreous.data.encoded import EncodedSource
from vitreous.data.file_references import AllowedFiles
from vitreous.data.image_files import walk_folders
from vitreous.data.labels import encode_labels
from vitreous.data.options import Reading
from vitreous.data.parquet import cell_bytes, common_class_names, drop_unlabelled_splits, require_library
from vitreous.data.raw_dataset import SPLITS, RawDataset
from vitreous.errors import VitreousError, summarize_names

SCHEME = "hf://"


class HuggingFaceSource(EncodedSource):
    """The image column of a `datasets.Dataset`, whose rows are in memory-mapped files."""

    def __init__(self, rows: Any, column: str, title: str, labels: Tensor, allowed: AllowedFiles):
        self.rows, self.column, self.title, self.labels, self.allowed = rows, column, title, labels, allowed

    def name(self, index: int) -> str:
        return f"{self.title}[{range(len(self))[index]}]"

    def read_bytes(self, index: int) -> bytes:
        return cell_bytes(self.rows[int(index)][self.column], Path(), self.allowed, self.max_pixels)


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    names = {"dataset_info.json", "state.json"}
    return (folder / "dataset_dict.json").is_file() or all((folder / name).is_file() for name in names)


def open_saved_dataset(folder: Path, reading: Reading) -> RawDataset:
    """Open a folder that `save_to_disk` wrote."""
    require_library("datasets")
    import datasets  # type: ignore[import-untyped]

    _check_regular_files(folder)
    with _translate_errors():
        dataset = datasets.load_from_disk(str(folder))
    return _raw_dataset(dataset, folder.resolve().name, reading, [folder])


def load_hf_dataset(source: str, name: str, reading: Reading, revision: str | None = None) -> RawDataset:
    """Open a folder or a data set on the hub with `datasets.load_dataset`."""
    require_library("datasets")
    import datasets
    from huggingface_hub import constants

    if local := Path(source).is_dir():
        _check_regular_files(Path(source))
    with _translate_errors():
        dataset = datasets.load_dataset(source, revision=revision)
    # Downloaded files are in the caches of the two libraries.
    caches = (datasets.config.HF_DATASETS_CACHE, datasets.config.DOWNLOADED_DATASETS_PATH, constants.HF_HUB_CACHE)
    return _raw_dataset(dataset, name, reading, [Path(source)] if local else caches)


def open_dataset_object(dataset: Any, name: str, reading: Reading) -> RawDataset:
    """Open a `datasets.Dataset`, or several by split. Its rows may refer to files in its own cache."""
    parts = dataset.values() if isinstance(dataset, Mapping) else [dataset]
    folders = {Path(file["filename"]).parent for part in parts for file in part.cache_files}
    plain = {split: part.with_format(None) for split, part in dataset.items()} if isinstance(dataset, Mapping) else None
    return _raw_dataset(plain or dataset.with_format(None), name, reading, folders)


def _check_regular_files(folder: Path) -> None:
    """Raise an error if the folder contains a pipe or a device: the library would open it and block."""
    for name, files in walk_folders(folder):
        for file in files:
            path = Path(name, file)
            if path.exists() and not path.is_file():
                raise VitreousError(f"{path}: is not a regular file")


def open_hub_dataset(address: str, reading: Reading) -> RawDataset:
    """Open `hf://owner/name`, `hf://owner/name@revision`, or the same without the scheme."""
    match = re.fullmatch(r"(?:hf://)?(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", address)
    if match is None:
        raise VitreousError("expected hf://owner/name or hf://owner/name@revision")
    with _offline_if_unreachable(match[1]):
        return load_hf_dataset(match[1], match[1], reading, match[2])


@contextmanager
def _offline_if_unreachable(name: str) -> Iterator[None]:
    """Use only the cache if the hub cannot be reached, since the libraries would retry many times and print that."""
    require_library("datasets")
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        HfApi().dataset_info(name, timeout=10)
    except (HfHubHTTPError, OfflineModeIsEnabled):
        pass  # the hub answered, or offline mode is on already
    except Exception:  # raised by the HTTP library or the system
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise errors of the `datasets` library as VitreousError."""
    try:
        yield
    except Exception as error:  # raised by the library, its HTTP library or the system
        message = " ".join(str(error).split()) or type(error).__name__
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & {"ConnectionError", "ConnectError", "TimeoutError", "OfflineModeIsEnabled"}:
            offline = os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on")
            reason = "HF_HUB_OFFLINE is set" if offline else "the Hugging Face hub cannot be reached"
            message = f"not in the cache of the datasets library, and {reason}"
        elif "DatasetNotFoundError" in kinds:
            message = "the Hugging Face hub has no such data set, or access needs permission (`hf auth login`)"
        else:
            message = f"the datasets library cannot open it ({message[:300]})"
        raise VitreousError(message) from error


def _raw_dataset(dataset: Any, name: str, reading: Reading, folders: Iterable[str | Path]) -> RawDataset:
    notes: list[str] = []
    parts = _splits(dataset, notes)
    features = parts["train"].features
    image = _find_image_column(features, reading.image_column)
    label = find_column([n for n in features if n != image], LABEL_COLUMNS, reading.label_column, "label")
    for split, rows in parts.items():
        if missing := {image, label} - set(rows.column_names):
            raise VitreousError(f"{split} has no column {summarize_names(sorted(missing))}, but train does")
    notes.append(f"images from column {image!r}, labels from {label!r}")
    columns = {split: _read_labels(rows, label) for split, rows in parts.items()}
    drop_unlabelled_splits(columns, notes)
    names = common_class_names({split: _class_names(parts[split].features.get(label)) for split in parts})
    classes, labels = encode_labels(columns, names, lambda split, row: f"{name}:{split}[{row}]")
    allowed = AllowedFiles(folders, reading.allow_outside_files)
    sources = {
        split: HuggingFaceSource(
            _without_decoding(parts[split], image), image, f"{name}:{split}", labels[split], allowed
        )
        for split in columns
    }
    return RawDataset(name, classes, sources, notes, "validation split of the data set", has_columns=True)


def _splits(dataset: Any, notes: list[str]) -> dict[str, Any]:
    if not isinstance(dataset, Mapping):
        return {"train": dataset}
    if len(dataset) == 1:
        return {"train": next(iter(dataset.values()))}
    parts = {SPLITS[name.lower()]: rows for name, rows in dataset.items() if name.lower() in SPLITS}
    if "train" not in parts:
        raise VitreousError(f"there is no train split; the splits are {summarize_names(dataset)}")
    if others := [name for name in dataset if name.lower() not in SPLITS]:
        notes.append(f"splits ignored: {summarize_names(others)}")
    return parts


def _class_names(feature: Any) -> list[str] | None:
    """The names of a ClassLabel, which may be inside a list."""
    while hasattr(feature, "feature") or isinstance(feature, list):
        feature = feature[0] if isinstance(feature, list) else feature.feature
    names: list[str] | None = getattr(feature, "names", None)
    return names


def _find_image_column(features: Any, requested: str | None) -> str:
    candidates = [name for name, feature in features.items() if _holds_images(feature)]
    if requested is None and len(candidates) == 1:
        return str(candidates[0])
    image = find_column(list(features), IMAGE_COLUMNS, requested, "image")
    if image not in candidates:
        raise VitreousError(f"column {image!r} holds {features[image]}, not images")
    return image


def _holds_images(feature: Any) -> bool:
    return type(feature).__name__ == "Image" or getattr(feature, "dtype", "") in ("binary", "large_binary")


def _without_decoding(rows: Any, column: str) -> Any:
    """The image column with encoded bytes instead of decoded images."""
    from datasets import Image

    rows = rows.select_columns([column])
    return rows.cast_column(column, Image(decode=False)) if isinstance(rows.features[column], Image) else rows


def _read_labels(rows: Any, column: str) -> list[Any]:
    return check_label_column(rows.with_format(None).select_columns([column])[:][column], column)
