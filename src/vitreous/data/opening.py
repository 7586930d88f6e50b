"""From what a person calls their data to a data set: folders, manifests, arrays, tars, Parquet, names."""

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from glob import glob, has_magic
from pathlib import Path

import torch

from vitreous.data import huggingface, named
from vitreous.data.arrays import open_npz
from vitreous.data.folders import open_folder, split_folders, visible
from vitreous.data.found import Found, check_distinct, counted, listed
from vitreous.data.manifests import SUFFIXES as MANIFESTS
from vitreous.data.manifests import open_manifest
from vitreous.data.options import Reading
from vitreous.data.shards import open_shards
from vitreous.data.sources import DataSet, Source, Subset
from vitreous.data.splitting import split, usual_fraction
from vitreous.data.tables import open_tables, parquet_files
from vitreous.errors import VitreousError

KINDS = "a folder, .csv, .tsv, .jsonl, .npz, .tar or .parquet"
LOOKED_AT = 64  # images that are opened to tell grey from colour


def open_data(data: str | os.PathLike[str], reading: Reading = Reading()) -> DataSet:  # noqa: B008 (it is frozen)
    """Recognise DATA, find its images and labels, and set some aside for validation if it has no split for that.

    `data` is a folder (of classes, or of splits with classes), a manifest (.csv, .tsv, .jsonl), an .npz of arrays, tar
    shards or Parquet (a file, a folder of them, or a pattern), a Hugging Face data set (a folder, hf://owner/name,
    owner/name), or one of the names digits, mnist, fashion-mnist, cifar10, cifar100. Nothing is decoded here, apart
    from a few images to tell whether all are grey.
    """
    if not os.fspath(data).strip():
        raise VitreousError("DATA is empty: name a folder, a file or a data set")
    try:
        found = _found(data, reading)
        if not found.columns and (column := reading.image_column or reading.label_column):
            raise VitreousError(f"there are no columns in it, so none is called {column!r}")
        return _finished(found, reading)
    except VitreousError as error:
        message = str(error)
        raise VitreousError(message if message.startswith(os.fspath(data)) else f"{data}: {message}") from error


def anchored(data: str | os.PathLike[str]) -> str:
    """What DATA is called from any other folder: names stay, paths and patterns begin at the root."""
    text = os.fspath(data)
    path = Path(text).expanduser()
    if text.startswith(huggingface.SCHEME) or text == "digits":
        return text
    if path.exists() or has_magic(text) or "{" in text:
        return str(path.absolute())
    return text


def _found(data: str | os.PathLike[str], reading: Reading) -> Found:
    text = os.fspath(data)
    if text.startswith(huggingface.SCHEME):
        return huggingface.open_hub(text, reading)
    path = Path(text).expanduser()
    name = named.known_name(text) if isinstance(data, str) else None
    if name is not None and (name == "digits" or reading.data_dir or not path.exists()):
        return named.open_named(name, reading.data_dir)
    if reading.data_dir is not None:
        raise VitreousError(f"data_dir is for data sets that are called by name: {', '.join(named.NAMES)}")
    if path.is_dir():
        return _open_directory(path, reading)
    if path.exists():
        return _open_file(path, reading)
    if has_magic(text) or "{" in text:
        return _open_pattern(text, reading)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not path.parent.exists() and not text.startswith("."):
        try:
            return huggingface.open_hub(text, reading)
        except VitreousError as error:
            raise VitreousError(f"there is no such folder; as a data set of Hugging Face: {error}") from error
    raise VitreousError(f"there is no such file or folder{_suggestion(path)}")


def _suggestion(path: Path) -> str:
    nearby = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    names = [*nearby, *(named.NAMES if len(path.parts) == 1 else ())]
    if close := get_close_matches(path.name, names, n=3):
        return f"; did you mean {' or '.join(str(path.with_name(name)) for name in close)}?"
    return f", and the names known here are {', '.join(named.NAMES)}" if len(path.parts) == 1 else ""


def _open_file(path: Path, reading: Reading) -> Found:
    suffix = path.suffix.lower()
    if suffix in MANIFESTS:
        return open_manifest(path, reading)
    if suffix == ".npz":
        return open_npz(path)
    if suffix == ".parquet":
        return open_tables([path], path.stem, reading)
    if suffix in (".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip", ".tbz2", ".txz"):
        return _open_tars([path], path.stem)
    raise VitreousError(f"not of a kind that is known here; expected {KINDS}")


def _open_tars(paths: list[Path], name: str) -> Found:
    for path in paths:
        with path.open("rb") as file:
            start = file.read(6)
        packed = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
        if start.startswith(packed):
            raise VitreousError(
                f"{path.name} is compressed, and cannot be read from its middle: decompress it to a plain .tar first"
            )
    return open_shards(paths, name)


def _open_pattern(pattern: str, reading: Reading) -> Found:
    paths = [Path(name) for part in expand_braces(pattern) for name in _matching(part)]
    name = re.sub(r"[\W_]+$", "", re.split(r"[\[{*?]", Path(pattern).name)[0]) or Path(pattern).absolute().parent.name
    if not paths:
        raise VitreousError("no file matches this pattern")
    suffixes = {path.suffix.lower() for path in paths}
    if suffixes == {".parquet"}:
        return open_tables(paths, name, reading)
    if suffixes == {".tar"}:
        return _open_tars(paths, name)
    raise VitreousError(
        f"a pattern is for .tar or for .parquet files; this one matches {listed(p.name for p in paths)}"
    )


def _matching(part: str) -> list[str]:
    if Path(part).exists():
        return [part]
    found = sorted(glob(part)) if has_magic(part) else []  # noqa: PTH207 (that one takes no absolute pattern)
    if not found:
        raise VitreousError(f"there is no {part}")
    return found


def expand_braces(pattern: str) -> Iterator[str]:
    """What a shell makes of {a,b} and {000..009}."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        yield pattern
        return
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    choices = match[1].split(",")
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if not first <= last < first + 1_000_000:
            raise VitreousError(f"{match[0]} does not count upwards")
        choices = [str(i).zfill(len(numbers[1])) for i in range(first, last + 1)]
    for choice in choices:
        yield from expand_braces(pattern[: match.start()] + choice + pattern[match.end() :])


def _open_directory(folder: Path, reading: Reading) -> Found:
    if huggingface.is_saved(folder):
        return huggingface.open_saved(folder, reading)
    return named.open_classic(folder) or _open_tables_in(folder, reading) or open_folder(folder)


def _open_tables_in(folder: Path, reading: Reading) -> Found | None:
    """What the files in a folder tell of its images: shards, tables, a manifest. None: look at its folders."""
    name, entries = folder.resolve().name, visible(folder)
    files = [Path(entry.path) for entry in entries if not entry.is_dir()]
    manifests = [file for file in files if file.suffix.lower() in MANIFESTS]
    metadata = [file for file in manifests if file.stem.lower() == "metadata"]
    if len(metadata) == 1:
        return open_manifest(metadata[0], reading)
    if tars := [file for file in files if file.suffix.lower() == ".tar"]:
        return _open_tars(tars, name)
    if tables := parquet_files(folder):
        return open_tables(tables, name, reading)
    if len(manifests) == 1 and len(files) == len(entries):
        return open_manifest(manifests[0], reading)
    return huggingface.open_loadable(str(folder), name, reading) if _is_for_datasets(folder, files) else None


def _is_for_datasets(folder: Path, files: list[Path]) -> bool:
    """Whether nobody but the `datasets` library knows what to do with it: Arrow files, or metadata in the splits."""
    if any(file.suffix.lower() == ".arrow" for file in files):
        return True
    places = split_folders(folder)[0].values()
    return any((place / f"metadata{suffix}").is_file() for place in places for suffix in (".csv", ".jsonl"))


def _finished(found: Found, reading: Reading) -> DataSet:
    """Check it, look at a few images, and split off what is missing."""
    check_distinct(found.classes)
    notes = list(found.notes)
    train = found.splits["train"]
    _check_classes(found, notes)
    parts = {name: source for name, source in found.splits.items() if len(source)}
    origin = found.origin
    if "val" not in parts:
        fraction = usual_fraction(len(train)) if reading.val_fraction is None else reading.val_fraction
        held = _split_off(train, fraction, reading.split_seed, notes)
        parts.update(held)
        share = f"{100 * fraction:.3g}% of train, stratified, seed {reading.split_seed}"
        origin = share if "val" in held else "no validation split"
    else:
        idle = {"val_fraction": reading.val_fraction is not None, "split_seed": reading.split_seed != 0}
        for option in (name for name, given in idle.items() if given):
            notes.append(f"{option} is not used: the data has a validation split of its own")
    return DataSet(
        found.name,
        found.classes,
        _channels(train, notes),
        parts["train"],
        parts.get("val"),
        parts.get("test"),
        origin,
        tuple(notes),
    )


def _check_classes(found: Found, notes: list[str]) -> None:
    labels = found.splits["train"].labels
    many = labels.ndim == 2
    counts = labels.sum(0) if many else torch.bincount(labels, minlength=len(found.classes))
    present = [name for name, count in zip(found.classes, counts.tolist(), strict=True) if count]
    if not len(labels) or not present:
        raise VitreousError("no training images with a label")
    if len(present) < 2 and not many:
        only = f"only one class, {present[0]!r}, with {counted(len(labels), 'image')}"
        raise VitreousError(f"{only}: there is nothing to tell apart; two classes or more are needed")
    if absent := sorted(set(found.classes) - set(present)):
        notes.append(f"no training image of {counted(len(absent), 'class')}: {listed(absent)}")
    if single := [n for n, count in zip(found.classes, counts.tolist(), strict=True) if count == 1]:
        notes.append(f"only one training image of {counted(len(single), 'class')}: {listed(single)}")


def _split_off(train: Source, fraction: float, seed: int, notes: list[str]) -> dict[str, Source]:
    kept, aside = split(train.labels, fraction, seed)
    if fraction == 0:
        return {"train": train}
    if not len(aside):
        raise VitreousError(
            f"{counted(len(train), 'image')} and none to spare for validation, since each class has one; add images, or"
            " a val split, or train without one (val_fraction 0)"
        )
    return {"train": Subset(train, kept), "val": Subset(train, aside)}


def _channels(train: Source, notes: list[str]) -> int:
    if (array := train.array) is not None:
        return int(array.shape[-1])
    step = max(1, len(train) / LOOKED_AT)
    modes, errors = set(), []
    for number in range(min(LOOKED_AT, len(train))):
        try:
            modes.add(train.image(int(number * step), (1, 1)).mode)
        except VitreousError as error:
            errors.append(str(error))
    if not modes:
        raise VitreousError(f"none of {len(errors)} images that were tried can be read; the first: {errors[0]}")
    if modes == {"L"} and len(train) > LOOKED_AT:
        notes.append(f"the {LOOKED_AT} images that were looked at are grey: all are taken to be, colours are not seen")
    return 1 if modes == {"L"} else 3
