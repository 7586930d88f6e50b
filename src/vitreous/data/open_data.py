"""Open a data set: detect its format (folder, zip, manifest, arrays, ...), and hold out missing splits."""

import os
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from glob import glob, has_magic
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from vitreous.data import builtin, huggingface
from vitreous.data.arrays import open_npz_dataset
from vitreous.data.class_selection import check_class_selection, select_classes
from vitreous.data.dataset import DataSet, Source, Subset, without_labels
from vitreous.data.encoded import EncodedSource
from vitreous.data.folders import find_split_folders, open_folder, visible_entries
from vitreous.data.image_files import heif_notes
from vitreous.data.manifests import MANIFEST_SUFFIXES, open_manifest
from vitreous.data.options import Reading, UnlabelledReading
from vitreous.data.parquet import find_parquet_files, open_parquet
from vitreous.data.raw_dataset import RawDataset, check_unique_classes, common_folder
from vitreous.data.shards import open_shards
from vitreous.data.splits import MIN_IMAGES_FOR_TEST, train_val_test_split, training_subset
from vitreous.data.user_dataset import FORMS, open_user_data
from vitreous.data.zip_archive import open_zip
from vitreous.errors import SystemFaultError, VitreousError, brief, format_count, one_line, refuse_url, summarize_names
from vitreous.utils.file_kinds import refuse_other_kinds
from vitreous.utils.images import has_frames
from vitreous.utils.import_path import absolute_import_path, import_object, is_import_path
from vitreous.utils.regular_files import is_system_fault, open_regular, system_fault

FORMATS = "a folder, .zip, .csv, .tsv, .jsonl, .npz, .tar or .parquet"
MAX_FILES = 1_000_000  # matches of a pattern
ANIMATED_SUFFIXES = (".gif", ".webp", ".png", ".apng", ".avif", ".tif", ".tiff")
IMAGES_CHECKED = 64  # images that are decoded to decide between grey and colour
SPLIT_TITLES = {"val": "validation", "test": "test"}
ENTRY_POINTS = "vitreous.data"  # group of the entry points of packages that provide data sets
CountItems = Callable[[str, int], Any]  # see `open_user_data`


def open_data(
    data: object,
    reading: Reading = Reading(),  # noqa: B008 (it is frozen)
    count_items: CountItems | None = None,
) -> DataSet:
    """Open a data set: detect its format, list images and labels, and hold out a validation split if it has none.

    - `data`: a path or name: a folder or .zip (of classes, or of splits with classes), a manifest (.csv, .tsv, .jsonl),
      an .npz of arrays, tar shards or Parquet (a file, a folder of them, or a pattern), a Hugging Face data set (a
      folder, hf://owner/name, owner/name), or digits, mnist, fashion-mnist, cifar10 or cifar100.
      Or a Python object: a map-style dataset of (image, label), a Hugging Face dataset, a pair of arrays (images,
      labels), a dict of these by split, or a class or function without arguments that returns one. The import path of
      such a class or function (file.py:name, package.module:name) can be given as text, and so can the name of an entry
      point in the group vitreous.data
    - `reading`: columns, splits, classes to use ...: the group `reading` of a `vitreous.TrainConfig`, such as
      `vitreous.TrainConfig().with_(only_classes=("cat", "dog")).reading`
    - `count_items`: a function that shows the progress of reading the labels of a Python object

    Returns a `DataSet`. Only a few images are decoded, to detect whether all of them are grey. Data that cannot be read
    or is not understood raises a `VitreousError`.

    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits()
    >>> data = vitreous.open_data(((15 * digits.images).astype("uint8"), digits.target))
    >>> len(data.classes), len(data.train), data.split
    (10, 1437, '10% for validation and 10% for test, held out from train, stratified, seed 0')
    """
    if reading.max_pixels < 1:
        raise VitreousError(f"max_pixels = {reading.max_pixels}: must be 1 or more")
    check_class_selection(reading.only_classes)
    if not isinstance(data, str | os.PathLike):
        return _to_dataset(_checked(_open_object(data, reading, count_items), reading), reading)
    if not isinstance(os.fspath(data), str):
        raise VitreousError(f"DATA: expected a path or the name of a data set, got {brief(data)}")
    if not os.fspath(data).strip():
        raise VitreousError("DATA is empty: give a folder, a file or the name of a data set")
    try:
        return _to_dataset(_checked(_open_raw(data, reading, count_items), reading), reading)
    except VitreousError as error:
        raise (error if str(error).startswith(os.fspath(data)) else error.at(data)) from error
    except (OSError, MemoryError) as error:
        if isinstance(error, MemoryError) or is_system_fault(error):
            raise system_fault(error, data) from error
        raise VitreousError(f"{data}: cannot be read ({error.strerror or error})") from error


def _checked(raw: RawDataset, reading: Reading) -> RawDataset:
    """Raise an error if an option has no effect on this format."""
    if not raw.has_columns and (column := reading.image_column or reading.label_column):
        raise VitreousError(f"this format has no columns, so there is no column {column!r}")
    if reading.class_level is not None and not raw.has_class_folders:
        raise VitreousError("class_level has no effect: the labels of this data are not names of folders")
    return raw


def _open_object(data: object, reading: Reading, count_items: CountItems | None) -> RawDataset:
    """Open a Python object, or what a class or function without arguments returns."""
    if data is None:
        raise VitreousError(f"DATA is None: expected {FORMS}")
    if (callable(data) and not hasattr(data, "__getitem__")) or isinstance(data, type):
        name = getattr(data, "__name__", type(data).__name__)
        try:
            data = data()
        except VitreousError:
            raise
        except Exception as error:
            raise VitreousError(f"DATA: {name}() failed: {type(error).__name__}: {one_line(error)}") from error
        if isinstance(data, str | os.PathLike):
            return _open_raw(data, reading, count_items)
    return open_user_data(data, reading, count_items)


def absolute_data_path(data: str | os.PathLike[str]) -> str:
    """DATA with paths and patterns made absolute, so that it can be opened from any folder. Names stay unchanged."""
    text = os.fspath(data)
    path = Path(text).expanduser()
    if text.startswith(huggingface.SCHEME) or text == "digits":
        return text
    if not path.exists() and is_import_path(text):
        return absolute_import_path(text)
    if path.exists() or has_magic(text) or "{" in text:
        return str(path.absolute())
    return text


def _open_raw(data: str | os.PathLike[str], reading: Reading, count_items: CountItems | None = None) -> RawDataset:
    text = os.fspath(data)
    if text.startswith(huggingface.SCHEME):
        return huggingface.open_hub_dataset(text, reading)
    refuse_url(data, "download it, and give the name of the folder or file")
    path = Path(text).expanduser()
    name = builtin.canonical_name(text) if isinstance(data, str) else None
    if name is not None and (name == "digits" or reading.data_dir or not path.exists()):
        return builtin.open_builtin(name, reading.data_dir)
    if not path.exists() and (provided := _provided_by_package(text)) is not None:
        return _open_object(provided, reading, count_items)
    if reading.data_dir is not None:
        raise VitreousError(f"data_dir is only for data sets that are given by name: {', '.join(builtin.NAMES)}")
    if path.exists():
        return _open_directory(path, reading) if path.is_dir() else _open_file(path, reading)
    if has_magic(text) or "{" in text:
        return _open_pattern(text, reading)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not path.parent.exists() and not text.startswith("."):
        try:
            return huggingface.open_hub_dataset(text, reading)
        except VitreousError as error:
            raise VitreousError(f"there is no such folder; as a Hugging Face data set: {error}") from error
    raise VitreousError(f"there is no such file or folder{_suggestion(path)}")


def _provided_by_package(text: str) -> Any | None:
    """The class, function or object at an import path, or of the entry point with this name. None: there is none."""
    if is_import_path(text):
        return import_object(text)
    found = {point.value: point for point in entry_points(group=ENTRY_POINTS, name=text)}
    if len(found) > 1:
        raise VitreousError(f"several packages provide a data set of this name: {summarize_names(found)}")
    return import_object(next(iter(found))) if found else None


def _suggestion(path: Path) -> str:
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    names = [*siblings, *(builtin.NAMES if len(path.parts) == 1 else ())]
    if close := get_close_matches(path.name, names, n=3):
        return f"; did you mean {' or '.join(str(path.with_name(name)) for name in close)}?"
    return f"; data sets that can be given by name: {', '.join(builtin.NAMES)}" if len(path.parts) == 1 else ""


def _open_file(path: Path, reading: Reading) -> RawDataset:
    suffix = path.suffix.lower()
    if suffix in MANIFEST_SUFFIXES:
        return open_manifest(path, reading)
    if suffix == ".npz":
        return open_npz_dataset(path)
    if suffix == ".zip":
        return open_zip(path, reading)
    if suffix == ".parquet":
        return open_parquet([path], path.stem, path.parent, reading)
    if suffix in (".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".tbz2", ".txz"):
        return _open_tars([path], path.stem, reading)
    refuse_other_kinds(path)
    raise VitreousError(f"unknown file format; expected {FORMATS}")


def _open_tars(paths: list[Path], name: str, reading: Reading) -> RawDataset:
    for path in paths:
        try:
            with open_regular(path) as file:
                start = file.read(6)
        except VitreousError as error:
            raise error.at(path) from error
        compressed = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
        if start.startswith(compressed):
            raise VitreousError(
                f"{path.name} is compressed, which does not allow random access: decompress it to a plain .tar first"
            )
    return open_shards(paths, name, reading.class_level)


def _open_pattern(pattern: str, reading: Reading) -> RawDataset:
    parts = list(islice(expand_braces(pattern), MAX_FILES + 1))
    if len(parts) > MAX_FILES:
        raise VitreousError(f"this pattern matches more than {MAX_FILES:,} files")
    paths = [Path(name) for part in parts for name in _matches(part)]
    name = re.sub(r"[\W_]+$", "", re.split(r"[\[{*?]", Path(pattern).name)[0]) or Path(pattern).absolute().parent.name
    if not paths:
        raise VitreousError("no file matches this pattern")
    suffixes = {path.suffix.lower() for path in paths}
    if suffixes == {".parquet"}:
        return open_parquet(paths, name, common_folder(paths), reading)
    if suffixes == {".tar"}:
        return _open_tars(paths, name, reading)
    raise VitreousError(
        f"a pattern must match only .tar or only .parquet files; this one matches"
        f" {summarize_names(p.name for p in paths)}"
    )


def _matches(part: str) -> list[str]:
    if Path(part).exists():
        return [part]
    matches = sorted(glob(part)) if has_magic(part) else []  # noqa: PTH207 (Path.glob takes no absolute pattern)
    if not matches:
        raise VitreousError(f"there is no {part}")
    return matches


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand {a,b} and {000..009} as a shell does."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        yield pattern
        return
    numbers = re.fullmatch(r"([0-9]{1,18})\.\.([0-9]{1,18})", match[1])
    choices = match[1].split(",")
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if not first <= last:
            raise VitreousError(f"{match[0]} does not count upwards")
        last = min(last, first + MAX_FILES)
        choices = [str(i).zfill(len(numbers[1])) for i in range(first, last + 1)]
    for choice in choices:
        yield from expand_braces(pattern[: match.start()] + choice + pattern[match.end() :])


def _open_directory(folder: Path, reading: Reading) -> RawDataset:
    if huggingface.is_saved_dataset(folder):
        return huggingface.open_saved_dataset(folder, reading)
    return builtin.open_mnist_or_cifar(folder) or _open_files_in(folder, reading) or open_folder(folder, reading)


def _open_files_in(folder: Path, reading: Reading) -> RawDataset | None:
    """Open the shards, Parquet files or manifest in a folder. None: it has none of these."""
    name, entries = folder.resolve().name, visible_entries(folder)
    files = [Path(entry.path) for entry in entries if not entry.is_dir()]
    manifests = [file for file in files if file.suffix.lower() in MANIFEST_SUFFIXES]
    metadata = [file for file in manifests if file.stem.lower() == "metadata"]
    if len(metadata) == 1:
        return open_manifest(metadata[0], reading)
    if tars := [file for file in files if file.suffix.lower() == ".tar"]:
        return _open_tars(tars, name, reading)
    if tables := find_parquet_files(folder):
        return open_parquet(tables, name, folder, reading)
    if len(manifests) == 1 and len(files) == len(entries):
        return open_manifest(manifests[0], reading)
    return huggingface.load_hf_dataset(str(folder), name, reading) if _needs_datasets_library(folder, files) else None


def _needs_datasets_library(folder: Path, files: list[Path]) -> bool:
    """Whether only the `datasets` library can read this folder: it has Arrow files, or metadata files in the splits."""
    if any(file.suffix.lower() == ".arrow" for file in files):
        return True
    splits = find_split_folders(folder)[0].values()
    return any((split / f"metadata{suffix}").is_file() for split in splits for suffix in (".csv", ".jsonl"))


def _to_dataset(raw: RawDataset, reading: Reading) -> DataSet:
    """Check and select the classes, detect the number of channels, and hold out the splits that are missing."""
    check_unique_classes(raw.classes)
    for source in raw.splits.values():
        if isinstance(source, EncodedSource):
            source.max_pixels = reading.max_pixels
    raw = select_classes(raw, reading)
    notes = list(raw.notes)
    train = raw.splits["train"]
    _check_classes(raw, notes, isinstance(reading, UnlabelledReading))
    notes += heif_notes(raw.splits.values())
    stored = {name: source for name, source in raw.splits.items() if len(source)}
    held_out, how = _hold_out(stored, reading, notes)
    splits = {**stored, **held_out}
    if reading.train_fraction is not None:
        splits["train"] = _part_of(splits["train"], bool(held_out), reading, notes)
    labelled = not isinstance(reading, UnlabelledReading)
    if not labelled:
        splits = {name: without_labels(source) for name, source in splits.items()}
    return DataSet(
        raw.name,
        raw.classes if labelled else (),
        _detect_channels(train, notes),
        splits["train"],
        splits.get("val"),
        splits.get("test"),
        "; ".join(text for text in (raw.val_origin if "val" in stored else "", how) if text),
        tuple(notes),
        tuple(name for name in ("val", "test") if name in held_out),
    )


def _part_of(train: Source, held_out: bool, reading: Reading, notes: list[str]) -> Source:
    """The chosen fraction of the training images. `held_out`: they are a subset of the stored split."""
    assert reading.train_fraction is not None
    chosen = training_subset(train.labels, reading.train_fraction, reading.split_seed)
    notes.append(f"{len(chosen):,} of {format_count(len(train), 'training image')} are used (train_fraction)")
    if held_out:
        assert isinstance(train, Subset)
        return Subset(train.source, train.indices[chosen])
    return Subset(train, chosen)


def _hold_out(stored: dict[str, Source], reading: Reading, notes: list[str]) -> tuple[dict[str, Source], str]:
    """The missing splits, taken from the training images, with the remaining `train`; and a description for display."""
    fractions = {"val": reading.val_fraction, "test": reading.test_fraction}
    for name in ("val", "test"):
        if name in stored:
            if fractions[name] is not None:
                notes.append(f"{name}_fraction is not used: the data has a {SPLIT_TITLES[name]} split")
            fractions[name] = 0.0
    if "val" in stored and reading.test_fraction is None:
        fractions["test"] = 0.0  # the authors of the data decided which splits it has
    if "val" in stored and reading.split_seed != 0 and not fractions["test"] and reading.train_fraction is None:
        notes.append("split_seed is not used: the data has a validation split")
    train = stored["train"]
    remaining, val, test = train_val_test_split(train.labels, fractions["val"], fractions["test"], reading.split_seed)
    if fractions["val"] != 0 and not len(val):
        raise VitreousError(
            f"{format_count(len(train), 'image')} are too few to hold out a validation split, since each class has only"
            " one; add images, or a val split, or train without validation (val_fraction 0)"
        )
    held_out: dict[str, Source] = {
        name: Subset(train, indices) for name, indices in (("val", val), ("test", test)) if len(indices)
    }
    if not held_out:
        return {}, "" if "val" in stored else "no validation split"
    parts = [f"{100 * len(source) / len(train):.3g}% for {SPLIT_TITLES[name]}" for name, source in held_out.items()]
    stratified = ", stratified" if train.labels.any() else ""  # with one class there is nothing to stratify
    how = f"{' and '.join(parts)}, held out from train{stratified}, seed {reading.split_seed}"
    if fractions["test"] is None and not len(test):
        how += f"; no test split, which needs at least {MIN_IMAGES_FOR_TEST} images"
    return {"train": Subset(train, remaining), **held_out}, how


def _check_classes(raw: RawDataset, notes: list[str], unlabelled: bool) -> None:
    labels = raw.splits["train"].labels
    if unlabelled and len(labels):
        return
    multi_label = labels.ndim == 2
    counts = labels.sum(0) if multi_label else torch.bincount(labels, minlength=len(raw.classes))
    present = [name for name, count in zip(raw.classes, counts.tolist(), strict=True) if count]
    if not len(labels) or not present:
        raise VitreousError("no training images with a label")
    if len(present) < 2 and not multi_label:
        only = f"only one class, {brief(present[0])}, with {format_count(len(labels), 'image')}"
        raise VitreousError(f"{only}: classification needs at least two classes")
    if absent := sorted(set(raw.classes) - set(present)):
        notes.append(f"no training image of {format_count(len(absent), 'class')}: {summarize_names(absent)}")
    if single := [n for n, count in zip(raw.classes, counts.tolist(), strict=True) if count == 1]:
        notes.append(f"only one training image of {format_count(len(single), 'class')}: {summarize_names(single)}")


def _detect_channels(train: Source, notes: list[str]) -> int:
    """1 if a sample of the training images is grey, otherwise 3. Animations in the sample are noted."""
    if (array := train.array) is not None:
        return int(array.shape[-1])
    step = max(1, len(train) / IMAGES_CHECKED)
    modes, errors, animated = set(), [], []
    for number in range(min(IMAGES_CHECKED, len(train))):
        index = int(number * step)
        try:
            modes.add(train.image(index, (1, 1)).mode)
            if Path(train.name(index)).suffix.lower() in ANIMATED_SUFFIXES and has_frames(train.content(index)):
                animated.append(index)
        except SystemFaultError:
            raise
        except VitreousError as error:
            errors.append(str(error))
    if not modes:
        failure = f"none of the {len(errors)} images that were tried can be read; the first: {errors[0]}"
        raise VitreousError("; ".join([*heif_notes([train]), failure]))
    if animated:
        names = summarize_names((Path(train.name(index)).name for index in animated), 3)
        notes.append(f"of animated images and of files with several pages, the first is used: {names}")
    if modes == {"L"} and len(train) > IMAGES_CHECKED:
        notes.append(f"{IMAGES_CHECKED} sampled images are grey: all images are converted to grey")
    return 1 if modes == {"L"} else 3
