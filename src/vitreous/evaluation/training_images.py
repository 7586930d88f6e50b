"""The images that a model has seen in training, read from its run directory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.data.digests import UNREADABLE
from vitreous.errors import VitreousError
from vitreous.utils.import_path import is_import_path, source_digest
from vitreous.utils.json_files import read_json
from vitreous.weights.containers import write_tensors
from vitreous.weights.model_info import tensors_digest
from vitreous.weights.safetensors_file import SafetensorsFile

FILE = "image_digests.safetensors"  # in a run directory
SPLITS = ("train", "val", "test", "earlier")
WEIGHTS = ("best.safetensors", "last.safetensors")  # in a run directory


@dataclass(frozen=True)
class SeenImages:
    """Digests of the images of a training run, by use."""

    train: Tensor  # trained on
    val: Tensor  # used to select the weights
    test: Tensor  # tested on, once
    earlier: Tensor  # trained on in the runs that the initial weights come from

    @classmethod
    def of(cls, splits: Mapping[str, Tensor]) -> "SeenImages":
        none = torch.empty(0, dtype=torch.int64)
        return cls(*(splits.get(name, none) for name in SPLITS))

    def write(self, folder: Path) -> None:
        tensors = {name: getattr(self, name) for name in SPLITS}
        metadata = {"format": "pt", "digest": "blake2b, 64 bits, of the stored bytes", "sum": tensors_digest(tensors)}
        write_tensors(folder / FILE, tensors, metadata)

    @classmethod
    def read(cls, folder: Path) -> "SeenImages | None":
        """Read the digests of a run directory. Return None if it has none."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            file = SafetensorsFile(path)
            tensors = {name: file[name].clone() for name in SPLITS}
            digest = tensors_digest(tensors)
            if file.metadata.get("sum", digest) != digest:
                raise VitreousError("its content does not match its checksum: it is damaged")
            return cls(**tensors)
        except (VitreousError, KeyError, OSError) as error:
            raise VitreousError(f"{path}: cannot be read ({error}); remove it to continue without it") from error

    def trained(self, digests: Tensor) -> Tensor:
        """Return which images the weights were trained on, (N,) bool."""
        return _is_among(digests, torch.cat([self.train, self.earlier]))

    def selected(self, digests: Tensor) -> Tensor:
        """Return which images were used to select the weights, (N,) bool."""
        return _is_among(digests, self.val)


def held_out_digest(folder: Path) -> str:
    """Return a hash of the content of the images that a run was validated and tested on, or of its training images if
    it has no others. "": an older version has not recorded them, or the file is damaged."""
    try:
        seen = SeenImages.read(folder)
    except VitreousError:
        return ""
    if seen is None:
        return ""
    held_out = {"val": seen.val, "test": seen.test} if len(seen.val) + len(seen.test) else {"train": seen.train}
    return tensors_digest({name: digests.sort().values for name, digests in held_out.items()})


def _is_among(digests: Tensor, known: Tensor) -> Tensor:
    return torch.isin(digests, known) & (digests != UNREADABLE)


def original_weights(model: str | os.PathLike[str]) -> Path:
    """Return the best or last weights of a run, if a file in its directory has the same tensors, such as the output of
    `vitreous calibrate`. Otherwise the path itself."""
    path = Path(os.fsdecode(model)).expanduser()
    if path.suffix != ".safetensors" or path.name in WEIGHTS or not path.is_file():
        return path
    for name in WEIGHTS:
        other = path.parent / name
        if (path.parent / "config.json").is_file() and other.is_file() and _same_tensors(path, other):
            return other
    return path


def _same_tensors(one: Path, other: Path) -> bool:
    try:
        tensors, others = SafetensorsFile(one), SafetensorsFile(other)
        same_names = list(tensors) == list(others)
        return same_names and all(torch.equal(tensors[name], others[name]) for name in tensors)
    except VitreousError:  # `load` says what is wrong
        return False


def run_directory_of(model: str | os.PathLike[str]) -> Path | None:
    """Return the run directory of a model: the path itself, or the folder of its best or last weights. None: no run."""
    path = original_weights(model)
    folder = path.parent if path.name in WEIGHTS else path
    return folder if (folder / "config.json").is_file() and (folder / "best.safetensors").is_file() else None


def training_images_of(model: str | os.PathLike[str]) -> SeenImages | None:
    """Return the images that a model has seen, from its run directory. None: unknown.

    The validation images do not select the weights of the last step, unless they decided when training stopped.
    """
    folder = run_directory_of(model)
    seen = None if folder is None else SeenImages.read(folder)
    if folder is None or seen is None or original_weights(model).name != "last.safetensors":
        return seen
    stopped_early = _read_config(folder).get("patience") is not None
    return seen if stopped_early else replace(seen, val=seen.val[:0])


def user_model_of(model: str | os.PathLike[str]) -> str | None:
    """Return the import path of the user's own model that a run has trained. None: no run, or another model."""
    folder = run_directory_of(model)
    code = None if folder is None else _read_config(folder).get("model")
    return code if isinstance(code, str) and is_import_path(code) else None


def changed_user_code(model: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return notes on files with code of the run of a model that have changed since the run was started."""
    folder = run_directory_of(model)
    digests = None if folder is None else read_json(folder / "config.json").get("code_digests")
    if not isinstance(digests, dict):
        return ()
    changed = dict.fromkeys(path.rpartition(":")[0] for path, old in digests.items() if source_digest(path) != old)
    return tuple(f"{path} has changed since the run was started: the results may differ" for path in changed)


def run_split_options(model: str | os.PathLike[str]) -> dict[str, Any]:
    """Return how the run of a model split its data, and its classes if it used only some, as fields of `Reading`. Empty
    without a run."""
    folder = run_directory_of(model)
    if folder is None or not (folder / FILE).is_file():  # no run, or one of an older version that split differently
        return {}
    names = ("val_fraction", "test_fraction", "split_seed")
    config = _read_config(folder)
    options = {name: value for name, value in config.items() if name in names and value is not None}
    chosen = config.get("only_classes")
    return {**options, "only_classes": tuple(chosen)} if isinstance(chosen, list) and chosen else options


def describe_selection(model: str | os.PathLike[str]) -> str:
    """Return how the weights of a model were selected, as text, as far as it is known."""
    folder = run_directory_of(model)
    if folder is None:
        return "unknown: the file does not say how its weights were selected, or on which images they were trained"
    result = folder / "result.json"
    if not result.is_file():
        return "of a run that has not finished"
    name = "last.safetensors" if original_weights(model).name == "last.safetensors" else "best.safetensors"
    outcome = read_json(result)
    if len(outcome.get("legs") or ()) != len(read_json(folder / "config.json").get("legs") or ()):
        return "of a run that is being extended and has not finished"
    texts = outcome.get("selection")
    own = [text for text in texts if isinstance(text, str) and text.startswith(name)] if isinstance(texts, list) else []
    if own:
        return own[0]
    if name == "last.safetensors":
        stopped = ", which validation images decided" if _read_config(folder).get("patience") is not None else ""
        return f"last.safetensors, the weights of the last step{stopped}; not selected otherwise"
    return "best.safetensors of a run that does not say how it was selected"


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json").get("config")
    return config if isinstance(config, dict) else {}
