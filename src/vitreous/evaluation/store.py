"""Features on disk: .safetensors shards, written atomically, with the model, images and settings they come from."""

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
from vitreous.errors import VitreousError, one_line
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.features import HEAD, check_layer, feature_batches
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.preprocessing import Preprocessing
from vitreous.utils.atomic import atomic_file, check_output, replace_folder
from vitreous.utils.json_files import dump_json
from vitreous.utils.regular_files import read_text
from vitreous.utils.temporary_files import remove_matching
from vitreous.weights.containers import write_tensors
from vitreous.weights.model_info import tensors_digest
from vitreous.weights.safetensors_file import SafetensorsFile

SHARD = 4096  # images per shard
ABOUT = "features.json"
KEY = "vitreous-features"
DIFFERENCES = {
    "model": "another model (content hash {theirs}, here {ours})",
    "data": "other images, or of images that were changed since (fingerprint {theirs}, here {ours})",
    "layer": "layer {theirs}, not {ours}",
    "preprocessing": "images with another preprocessing",
    "precision": "another precision ({theirs}, here {ours})",
    "version": "another version of Vitreous",
}
FeatureBatch = tuple[Tensor, Tensor, Tensor]  # features, labels, image indices
ShardRange = tuple[int, int, int]  # number of the shard, first image, last image + 1


@dataclass(frozen=True)
class Origin:
    """Everything that features depend on. Features of equal origin are interchangeable."""

    model: str  # content hash
    data: str  # fingerprint
    layer: int
    preprocessing: dict[str, Any]
    precision: str
    version: int = 2

    @classmethod
    def of(
        cls,
        evaluated: EvaluatedModel,
        source: Source,
        preprocessing: Preprocessing,
        options: InferenceOptions,
        layer: int = HEAD,
    ) -> Origin:
        return cls(evaluated.digest, source_fingerprint(source), layer, preprocessing.to_json(), options.precision)

    @property
    def key(self) -> str:
        return blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=16).hexdigest()

    def differences(self, other: Origin) -> list[str]:
        """Return how the other origin differs, as text."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in DIFFERENCES]
        return [DIFFERENCES[name].format(ours=ours, theirs=theirs) for name, ours, theirs in pairs if ours != theirs]


@dataclass(frozen=True, repr=False)
class Features:
    """Stored features: one row per readable image."""

    features: Tensor  # (N, D), float32
    labels: Tensor  # (N,) classes, or (N, classes) bool
    indices: Tensor  # indices of the images in their split
    names: tuple[str, ...]  # file names of the images
    unreadable: dict[int, str]  # errors of images that were left out, by index
    origin: Origin  # content hash of the model, fingerprint of the images, layer, preprocessing and precision
    about: dict[str, Any]  # names of the model and of the data, classes
    notes: tuple[str, ...] = ()  # about model and data, such as guessed settings

    def __repr__(self) -> str:
        rows, width = self.features.shape
        place = "the input of the head" if self.origin.layer == HEAD else f"the output of block {self.origin.layer}"
        images = f"{self.about.get('data')}, {self.about.get('split')}"
        left_out = f", {len(self.unreadable):,} unreadable" if self.unreadable else ""
        return f"Features({rows:,} x {width:,}: {place} of {self.about.get('model')} for {images}{left_out})"


def write_features(  # noqa: PLR0913 (what features depend on, and where to write them)
    evaluated: EvaluatedModel,
    source: Source,
    folder: Path,
    preprocessing: Preprocessing,
    options: InferenceOptions,
    layer: int = HEAD,
    about: dict[str, Any] | None = None,
    tick: Callable[[int], None] = lambda images: None,
    *,
    overwrite: bool = False,
) -> Origin:
    """Compute and write the missing shards. Complete shards of the same origin are kept.

    Features of another origin in the folder are an error. With `overwrite`, they are replaced once all new features are
    complete. Until then the new ones are in a temporary folder next to it, where the same call continues after an
    interruption.
    """
    check_layer(evaluated.model, layer)
    origin = Origin.of(evaluated, source, preprocessing, options, layer)
    about = {"model": evaluated.name, **(about or {})}
    if not (overwrite and _has_other_origin(folder, origin)):
        _write_missing(evaluated, source, folder, (origin, preprocessing, options), about, tick)
        return origin
    check_output(folder, overwrite, _feature_files)
    new = folder.absolute().with_name(f".{folder.name}.new")
    if _has_other_origin(new, origin):
        shutil.rmtree(new)
    _write_missing(evaluated, source, new, (origin, preprocessing, options), about, tick)
    check_output(folder, overwrite, _feature_files)
    replace_folder(new, folder)
    return origin


def _has_other_origin(folder: Path, origin: Origin) -> bool:
    """Return whether the folder contains features of another origin, or damaged ones."""
    if not (folder / ABOUT).exists():
        return False
    try:
        return bool(origin.differences(_read_about(folder)[0]))
    except VitreousError:
        return True


def _feature_files(folder: Path) -> list[str]:
    """Return the names of the files that `write_features` writes to a folder."""
    patterns = ("features-*.safetensors", ".features*.tmp")
    return [ABOUT, *(path.name for pattern in patterns for path in folder.glob(pattern))]


def _write_missing(
    evaluated: EvaluatedModel,
    source: Source,
    folder: Path,
    how: tuple[Origin, Preprocessing, InferenceOptions],
    about: dict[str, Any],
    tick: Callable[[int], None],
) -> None:
    origin = how[0]
    _claim_folder(folder, origin, len(source), about)
    missing: list[ShardRange] = []
    for number, (start, stop) in enumerate(_shard_ranges(len(source))):
        if _is_complete(_shard_path(folder, number), origin, start, stop):
            tick(stop - start)
        else:
            missing.append((number, start, stop))
    try:
        if missing:
            _compute_shards(evaluated, source, folder, how, missing, tick)
    except VitreousError:
        _release_folder(folder)
        raise


def _compute_shards(
    evaluated: EvaluatedModel,
    source: Source,
    folder: Path,
    how: tuple[Origin, Preprocessing, InferenceOptions],
    missing: list[ShardRange],
    tick: Callable[[int], None],
) -> None:
    """Run the model once over all images of the missing shards. A shard is written as soon as it is complete."""
    origin, preprocessing, options = how
    numbers = torch.cat([torch.arange(start, stop) for _, start, stop in missing])
    unreadable: dict[int, str] = {}
    loader = options.loader(Subset(source, numbers), preprocessing, unreadable)
    pending: list[FeatureBatch] = []
    with options.autocast():
        for batch, labels, positions in feature_batches(evaluated.model, loader, origin.layer):
            indices = numbers[positions.cpu()]
            pending.append((batch.cpu(), labels.cpu(), indices))
            tick(len(batch))
            while len(missing) > 1 and int(indices[-1]) >= missing[1][1]:
                pending = _flush(source, folder, origin, missing.pop(0), pending, _source_indices(unreadable, numbers))
    if not pending and len(unreadable) == len(numbers) == len(source):
        raise VitreousError(f"no image can be read: {next(iter(unreadable.values()))}")
    for shard in missing:
        pending = _flush(source, folder, origin, shard, pending, _source_indices(unreadable, numbers))


def _source_indices(unreadable: dict[int, str], numbers: Tensor) -> dict[int, str]:
    return {int(numbers[position]): reason for position, reason in unreadable.items()}


def _flush(
    source: Source,
    folder: Path,
    origin: Origin,
    shard: ShardRange,
    pending: list[FeatureBatch],
    unreadable: dict[int, str],
) -> list[FeatureBatch]:
    """Write a shard from the pending batches. Return what belongs to later shards."""
    number, start, stop = shard
    if pending:
        rows, labels, indices = (torch.cat(parts) for parts in zip(*pending, strict=True))
    else:
        rows, labels, indices = torch.empty(0, 0), source.labels[:0], torch.empty(0, dtype=torch.int64)
    own = int((indices < stop).sum())
    tensors = {"features": rows[:own], "labels": labels[:own], "indices": indices[:own]}
    header = {
        "origin": origin.key,
        "start": start,
        "stop": stop,
        "names": [source.name(int(index)) for index in indices[:own]],
        "unreadable": {str(index): reason for index, reason in unreadable.items() if start <= index < stop},
    }
    text = json.dumps({**header, "digest": _shard_digest(tensors, header)})
    write_tensors(_shard_path(folder, number), tensors, {"format": "pt", KEY: text})
    return [(rows[own:].clone(), labels[own:], indices[own:])] if own < len(rows) else []


def read_features(folder: Path, model: str | None = None) -> Features:
    """Read all features of a folder, in the order of the images. `model`: the content hash that they must have."""
    origin, images, about = _read_about(folder)
    if model is not None and model != origin.model:
        raise VitreousError(f"{folder}: features of {DIFFERENCES['model'].format(theirs=origin.model, ours=model)}")
    parts = [_read_shard(folder, number, origin, span) for number, span in enumerate(_shard_ranges(images))]
    columns = zip(*(tensors for tensors, _ in parts if len(tensors[0])), strict=True)
    features, labels, indices = (torch.cat(column) for column in columns)
    names = tuple(name for _, header in parts for name in header["names"])
    unreadable = {int(index): reason for _, header in parts for index, reason in header["unreadable"].items()}
    return Features(features, labels, indices, names, unreadable, origin, about)


def _read_shard(
    folder: Path, number: int, origin: Origin, span: tuple[int, int]
) -> tuple[FeatureBatch, dict[str, Any]]:
    path = _shard_path(folder, number)
    if not _is_complete(path, origin, *span):
        raise VitreousError(f"{path}: this shard is missing or damaged; run the same command to compute it again")
    file = SafetensorsFile(path)
    features, labels, indices = (file[name].clone() for name in ("features", "labels", "indices"))
    return (features, labels, indices), json.loads(file.metadata[KEY])


def _read_about(folder: Path) -> tuple[Origin, int, dict[str, Any]]:
    try:
        stored = json.loads(read_text(folder / ABOUT))
        return Origin(**stored["origin"]), int(stored["images"]), dict(stored["about"])
    except OSError as error:
        raise VitreousError(f"{folder}: there are no features here ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VitreousError(
            f"{folder / ABOUT} is damaged ({one_line(error)}); remove the folder and compute the features again, or use"
            " --overwrite"
        ) from error


def _claim_folder(folder: Path, origin: Origin, images: int, about: dict[str, Any]) -> None:
    """Write features.json before the first shard, so that features of another origin are refused from then on."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_matching(folder, ".features*.tmp")
        occupied = any(not path.name.startswith(".") for path in folder.iterdir())
    except OSError as error:
        raise VitreousError(f"{folder}: features cannot be written there ({error.strerror})") from error
    if (folder / ABOUT).exists():  # checked last: another process may claim the folder at the same time
        stored, _, _ = _read_about(folder)
        if differences := origin.differences(stored):
            kind = "; of ".join(differences)
            raise VitreousError(
                f"{folder}: there are features of {kind}; give another folder, or replace them with --overwrite"
            )
        return
    if occupied:
        raise VitreousError(f"{folder}: not empty, and its files are not features; give another folder")
    with atomic_file(folder / ABOUT) as temporary:
        dump_json(temporary, {"origin": asdict(origin), "images": images, "about": about})


def _release_folder(folder: Path) -> None:
    """Remove features.json and the folder if no shard was written."""
    if not any(folder.glob("features-*.safetensors")):
        (folder / ABOUT).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _shard_ranges(images: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + SHARD, images)) for start in range(0, images, SHARD))


def _shard_path(folder: Path, number: int) -> Path:
    return folder / f"features-{number:05d}.safetensors"


def _shard_digest(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Return a digest of a shard's tensors and of its header, which contains image names and errors."""
    text = json.dumps({**header, "tensors": tensors_digest(tensors)}, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _is_complete(path: Path, origin: Origin, start: int, stop: int) -> bool:
    """Return whether a shard exists, has this origin and is undamaged."""
    if not path.exists():
        return False
    try:
        file = SafetensorsFile(path)
        header = json.loads(file.metadata[KEY])
        written = header.pop("digest")
        tensors = {name: file[name] for name in ("features", "labels", "indices")}
        found = (header["origin"], header["start"], header["stop"], written)
        return found == (origin.key, start, stop, _shard_digest(tensors, header))
    except (VitreousError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
