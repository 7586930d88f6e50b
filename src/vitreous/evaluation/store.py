"""Features on disk: shards that are each whole or not there, and know which model, images and settings they are of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.data.fingerprint import fingerprint
from vitreous.data.sources import Source, Subset
from vitreous.errors import VitreousError
from vitreous.evaluation.features import HEAD, check_layer, feature_batches
from vitreous.evaluation.subject import Loading, Subject
from vitreous.preprocessing import Preprocessing
from vitreous.weights.files import Mapped, dump_json, replacing, write_tensors
from vitreous.weights.known import digest

SHARD = 4096  # images
ABOUT = "features.json"
KEY = "vitreous-features"
WORDS = {
    "model": "another model (its content hash is {theirs}, here it is {ours})",
    "data": "other images, or of images that were changed since (fingerprint {theirs}, here {ours})",
    "layer": "layer {theirs}, not {ours}",
    "preprocessing": "images that were shown otherwise (preprocessing {theirs}, here {ours})",
    "precision": "another precision ({theirs}, here {ours})",
    "version": "another version of this program",
}


@dataclass(frozen=True)
class Origin:
    """What features depend on. Those of equal origin are interchangeable."""

    model: str  # content hash
    data: str  # fingerprint
    layer: int
    preprocessing: dict[str, Any]
    precision: str
    version: int = 1

    @classmethod
    def of(
        cls, subject: Subject, source: Source, preprocessing: Preprocessing, loading: Loading, layer: int = HEAD
    ) -> Origin:
        shown = preprocessing.to_json()
        return cls(subject.digest, fingerprint(source), layer, shown, loading.precision)

    @property
    def key(self) -> str:
        return blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=16).hexdigest()

    def differences(self, other: Origin) -> list[str]:
        """In which ways the other one is different, in words."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in WORDS]
        return [WORDS[name].format(ours=ours, theirs=theirs) for name, ours, theirs in pairs if ours != theirs]


@dataclass(frozen=True)
class Features:
    """What was read back: a row for each image that could be decoded."""

    features: Tensor  # (N, D), float32
    labels: Tensor
    indices: Tensor  # of the images in their split
    names: tuple[str, ...]
    unreadable: dict[int, str]
    origin: Origin
    about: dict[str, Any]  # the names of the model and of the data, the classes


def write_features(
    subject: Subject,
    source: Source,
    folder: Path,
    preprocessing: Preprocessing,
    loading: Loading,
    layer: int = HEAD,
    about: dict[str, Any] | None = None,
    tick: Callable[[int], None] = lambda images: None,
) -> Origin:
    """Make the shards that are not there yet. What is there and whole is kept; another model's is an error."""
    check_layer(subject.model, layer)
    origin = Origin.of(subject, source, preprocessing, loading, layer)
    _claim(folder, origin, len(source), {"model": subject.name, **(about or {})})
    missing = []
    for number, (start, stop) in enumerate(_spans(len(source))):
        if _whole(_shard(folder, number), origin, start, stop):
            tick(stop - start)
        else:
            missing.append((number, start, stop))
    try:
        if missing:
            _make(subject, source, folder, (origin, preprocessing, loading), missing, tick)
    except VitreousError:
        _unclaim(folder)
        raise
    return origin


def _make(
    subject: Subject,
    source: Source,
    folder: Path,
    how: tuple[Origin, Preprocessing, Loading],
    missing: list[tuple[int, int, int]],
    tick: Callable[[int], None],
) -> None:
    """One pass over all images of the missing shards; a shard is written when an image behind it has come."""
    origin, preprocessing, loading = how
    numbers = torch.cat([torch.arange(start, stop) for _, start, stop in missing])
    unreadable: dict[int, str] = {}
    loader = loading.loader(Subset(source, numbers), preprocessing, unreadable)
    waiting: list[tuple[Tensor, Tensor, Tensor]] = []
    with loading.precisely():
        for batch, labels, places in feature_batches(subject.model, loader, origin.layer):
            indices = numbers[places.cpu()]
            waiting.append((batch.cpu(), labels.cpu(), indices))
            tick(len(batch))
            while len(missing) > 1 and int(indices[-1]) >= missing[1][1]:
                waiting = _flush(source, folder, origin, missing.pop(0), waiting, _renumbered(unreadable, numbers))
    if not waiting and len(unreadable) == len(numbers) == len(source):
        raise VitreousError(f"no image can be read: {next(iter(unreadable.values()))}")
    for shard in missing:
        waiting = _flush(source, folder, origin, shard, waiting, _renumbered(unreadable, numbers))


def _renumbered(unreadable: dict[int, str], numbers: Tensor) -> dict[int, str]:
    return {int(numbers[place]): reason for place, reason in unreadable.items()}


def _flush(
    source: Source,
    folder: Path,
    origin: Origin,
    shard: tuple[int, int, int],
    waiting: list[tuple[Tensor, Tensor, Tensor]],
    unreadable: dict[int, str],
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Write a shard from what waits for it, and hand back what waits for the next."""
    number, start, stop = shard
    if waiting:
        rows, labels, indices = (torch.cat(parts) for parts in zip(*waiting, strict=True))
    else:
        rows, labels, indices = torch.empty(0, 0), source.labels[:0], torch.empty(0, dtype=torch.int64)
    own = int((indices < stop).sum())
    tensors = {"features": rows[:own], "labels": labels[:own], "indices": indices[:own]}
    told = {
        "origin": origin.key,
        "start": start,
        "stop": stop,
        "digest": digest(tensors),
        "names": [source.name(int(index)) for index in indices[:own]],
        "unreadable": {index: reason for index, reason in unreadable.items() if start <= index < stop},
    }
    write_tensors(_shard(folder, number), tensors, {"format": "pt", KEY: json.dumps(told)})
    return [(rows[own:].clone(), labels[own:], indices[own:])] if own < len(rows) else []


def read_features(folder: Path, model: str | None = None) -> Features:
    """All features of a folder, in the order of the images. `model`: the content hash they have to be of."""
    origin, images, about = _about(folder)
    if model is not None and model != origin.model:
        raise VitreousError(f"{folder}: features of {WORDS['model'].format(theirs=origin.model, ours=model)}")
    parts = [_read(folder, number, origin, span) for number, span in enumerate(_spans(images))]
    columns = zip(*(tensors for tensors, _ in parts if len(tensors[0])), strict=True)
    features, labels, indices = (torch.cat(column) for column in columns)
    names = tuple(name for _, told in parts for name in told["names"])
    unreadable = {int(index): reason for _, told in parts for index, reason in told["unreadable"].items()}
    return Features(features, labels, indices, names, unreadable, origin, about)


def _read(
    folder: Path, number: int, origin: Origin, span: tuple[int, int]
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    path = _shard(folder, number)
    if not _whole(path, origin, *span):
        raise VitreousError(f"{path}: this part of the features is missing or damaged; the same command makes it again")
    held = Mapped(path)
    features, labels, indices = (held[name].clone() for name in ("features", "labels", "indices"))
    return (features, labels, indices), json.loads(held.metadata[KEY])


def _about(folder: Path) -> tuple[Origin, int, dict[str, Any]]:
    try:
        held = json.loads((folder / ABOUT).read_text())
        return Origin(**held["origin"]), int(held["images"]), dict(held["about"])
    except OSError as error:
        raise VitreousError(f"{folder}: no features here ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise VitreousError(
            f"{folder / ABOUT} is damaged ({error}); remove the folder, and make the features again"
        ) from error


def _claim(folder: Path, origin: Origin, images: int, about: dict[str, Any]) -> None:
    """The folder is for features of this origin: it says so before there are any."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        taken = any(not path.name.startswith(".") for path in folder.iterdir())
    except OSError as error:
        raise VitreousError(f"{folder}: features cannot be written there ({error.strerror})") from error
    if (folder / ABOUT).exists():  # looked at last: another process may be about to claim the same
        held, _, _ = _about(folder)
        if differences := origin.differences(held):
            raise VitreousError(f"{folder}: there are features of {'; of '.join(differences)}; name another folder")
        return
    if taken:
        raise VitreousError(f"{folder}: not empty, and what is in it are no features; name another folder")
    with replacing(folder / ABOUT) as temporary:
        dump_json(temporary, {"origin": asdict(origin), "images": images, "about": about})


def _unclaim(folder: Path) -> None:
    """A folder that holds no features after all is free for others."""
    if not any(folder.glob("features-*.safetensors")):
        (folder / ABOUT).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _sweep(folder: Path) -> None:
    """What a process that was killed left unfinished is of no use to anybody."""
    for path in folder.glob(".features*.tmp"):
        number = path.name.split(".")[-2]
        if number.isdigit() and not _alive(int(number)):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _spans(images: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + SHARD, images)) for start in range(0, images, SHARD))


def _shard(folder: Path, number: int) -> Path:
    return folder / f"features-{number:05d}.safetensors"


def _whole(path: Path, origin: Origin, start: int, stop: int) -> bool:
    """Whether a shard is there, of this origin, and every byte of it as it was written."""
    if not path.exists():
        return False
    try:
        held = Mapped(path)
        told = json.loads(held.metadata[KEY])
        tensors = {name: held[name] for name in ("features", "labels", "indices")}
        return (told["origin"], told["start"], told["stop"], told["digest"]) == (
            origin.key,
            start,
            stop,
            digest(tensors),
        )
    except (VitreousError, OSError, ValueError, KeyError, TypeError):
        return False
