"""Features on disk: shards that are each whole or not there, and know which model, images and settings they are of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.data.dataset import Source, Subset
from vitreous.data.fingerprint import source_fingerprint
from vitreous.errors import VitreousError
from vitreous.evaluation.features import HEAD, check_layer, feature_batches
from vitreous.evaluation.subject import Loading, Subject
from vitreous.preprocessing import Preprocessing
from vitreous.utils.atomic import atomic_file, check_output, replace_folder
from vitreous.utils.json_files import dump_json
from vitreous.utils.regular_files import read_text
from vitreous.utils.temporary_files import remove_matching
from vitreous.weights.containers import write_tensors
from vitreous.weights.model_info import tensors_digest
from vitreous.weights.safetensors_file import SafetensorsFile

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
    version: int = 2

    @classmethod
    def of(
        cls, subject: Subject, source: Source, preprocessing: Preprocessing, loading: Loading, layer: int = HEAD
    ) -> Origin:
        shown = preprocessing.to_json()
        return cls(subject.digest, source_fingerprint(source), layer, shown, loading.precision)

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


def write_features(  # noqa: PLR0913 (what features depend on, and where they go)
    subject: Subject,
    source: Source,
    folder: Path,
    preprocessing: Preprocessing,
    loading: Loading,
    layer: int = HEAD,
    about: dict[str, Any] | None = None,
    tick: Callable[[int], None] = lambda images: None,
    *,
    overwrite: bool = False,
) -> Origin:
    """Make the shards that are not there yet. Whole ones of the same origin are kept.

    Features of another origin in the folder are an error. With `overwrite` they stay until all new ones are made, which
    are kept in a folder beside it meanwhile: the same call continues there after an interruption.
    """
    check_layer(subject.model, layer)
    origin = Origin.of(subject, source, preprocessing, loading, layer)
    about = {"model": subject.name, **(about or {})}
    if not (overwrite and _is_of_another(folder, origin)):
        _write_shards(subject, source, folder, (origin, preprocessing, loading), about, tick)
        return origin
    check_output(folder, overwrite, _contents)
    beside = folder.absolute().with_name(f".{folder.name}.new")
    if _is_of_another(beside, origin):
        shutil.rmtree(beside)
    _write_shards(subject, source, beside, (origin, preprocessing, loading), about, tick)
    check_output(folder, overwrite, _contents)
    replace_folder(beside, folder)
    return origin


def _is_of_another(folder: Path, origin: Origin) -> bool:
    """Whether there are features of another origin, or damaged ones."""
    if not (folder / ABOUT).exists():
        return False
    try:
        return bool(origin.differences(_about(folder)[0]))
    except VitreousError:
        return True


def _contents(folder: Path) -> list[str]:
    """The names of what `write_features` has written there."""
    patterns = ("features-*.safetensors", ".features*.tmp")
    return [ABOUT, *(path.name for pattern in patterns for path in folder.glob(pattern))]


def _write_shards(
    subject: Subject,
    source: Source,
    folder: Path,
    how: tuple[Origin, Preprocessing, Loading],
    about: dict[str, Any],
    tick: Callable[[int], None],
) -> None:
    origin = how[0]
    _claim(folder, origin, len(source), about)
    missing = []
    for number, (start, stop) in enumerate(_spans(len(source))):
        if _whole(_shard(folder, number), origin, start, stop):
            tick(stop - start)
        else:
            missing.append((number, start, stop))
    try:
        if missing:
            _make(subject, source, folder, how, missing, tick)
    except VitreousError:
        _unclaim(folder)
        raise


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
        "names": [source.name(int(index)) for index in indices[:own]],
        "unreadable": {str(index): reason for index, reason in unreadable.items() if start <= index < stop},
    }
    held = json.dumps({**told, "digest": _digest(tensors, told)})
    write_tensors(_shard(folder, number), tensors, {"format": "pt", KEY: held})
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
    held = SafetensorsFile(path)
    features, labels, indices = (held[name].clone() for name in ("features", "labels", "indices"))
    return (features, labels, indices), json.loads(held.metadata[KEY])


def _about(folder: Path) -> tuple[Origin, int, dict[str, Any]]:
    try:
        held = json.loads(read_text(folder / ABOUT))
        return Origin(**held["origin"]), int(held["images"]), dict(held["about"])
    except OSError as error:
        raise VitreousError(f"{folder}: no features here ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VitreousError(
            f"{folder / ABOUT} is damaged ({error}); remove the folder and make the features again, or use --overwrite"
        ) from error


def _claim(folder: Path, origin: Origin, images: int, about: dict[str, Any]) -> None:
    """The folder is for features of this origin: it says so before there are any."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_matching(folder, ".features*.tmp")
        taken = any(not path.name.startswith(".") for path in folder.iterdir())
    except OSError as error:
        raise VitreousError(f"{folder}: features cannot be written there ({error.strerror})") from error
    if (folder / ABOUT).exists():  # looked at last: another process may be about to claim the same
        held, _, _ = _about(folder)
        if differences := origin.differences(held):
            kind = "; of ".join(differences)
            raise VitreousError(
                f"{folder}: there are features of {kind}; name another folder, or replace them with --overwrite"
            )
        return
    if taken:
        raise VitreousError(f"{folder}: not empty, and what is in it are no features; name another folder")
    with atomic_file(folder / ABOUT) as temporary:
        dump_json(temporary, {"origin": asdict(origin), "images": images, "about": about})


def _unclaim(folder: Path) -> None:
    """A folder that holds no features after all is free for others."""
    if not any(folder.glob("features-*.safetensors")):
        (folder / ABOUT).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _spans(images: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + SHARD, images)) for start in range(0, images, SHARD))


def _shard(folder: Path, number: int) -> Path:
    return folder / f"features-{number:05d}.safetensors"


def _digest(tensors: dict[str, Tensor], told: dict[str, Any]) -> str:
    """Of all that a shard holds: its tensors, and what its header says of them, names and reasons too."""
    text = json.dumps({**told, "tensors": tensors_digest(tensors)}, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _whole(path: Path, origin: Origin, start: int, stop: int) -> bool:
    """Whether a shard is there, of this origin, and every byte of it as it was written."""
    if not path.exists():
        return False
    try:
        held = SafetensorsFile(path)
        told = json.loads(held.metadata[KEY])
        written = told.pop("digest")
        tensors = {name: held[name] for name in ("features", "labels", "indices")}
        found = (told["origin"], told["start"], told["stop"], written)
        return found == (origin.key, start, stop, _digest(tensors, told))
    except (VitreousError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
