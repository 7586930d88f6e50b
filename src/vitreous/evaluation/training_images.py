"""The images that a model has seen in training, so that nobody takes them for new ones."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.data.digests import UNREADABLE
from vitreous.errors import VitreousError
from vitreous.utils.json_files import read_json
from vitreous.weights.containers import write_tensors
from vitreous.weights.safetensors_file import SafetensorsFile

FILE = "image_digests.safetensors"  # in a run directory
SPLITS = ("train", "val", "test", "earlier")


@dataclass(frozen=True)
class SeenImages:
    """The images that a model has seen, by digest: those of a run directory."""

    train: Tensor  # the run was trained with these
    val: Tensor  # its weights were selected with these
    test: Tensor  # it was measured on these, once
    earlier: Tensor  # the runs whose weights it began with were trained with these

    @classmethod
    def of(cls, splits: Mapping[str, Tensor]) -> "SeenImages":
        none = torch.empty(0, dtype=torch.int64)
        return cls(*(splits.get(name, none) for name in SPLITS))

    def write(self, folder: Path) -> None:
        tensors = {name: getattr(self, name) for name in SPLITS}
        write_tensors(folder / FILE, tensors, {"format": "pt", "digest": "blake2b, 64 bits, of the stored bytes"})

    @classmethod
    def read(cls, folder: Path) -> "SeenImages | None":
        """Of a run directory, or None for a folder that has none."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            held = SafetensorsFile(path)
            return cls(*(held[name].clone() for name in SPLITS))
        except (VitreousError, KeyError, OSError) as error:
            raise VitreousError(f"{path}: cannot be read ({error}); remove it to go on without") from error

    def trained(self, images: Tensor) -> Tensor:
        """Which of these the weights were trained with, (N,) bool."""
        return _among(images, torch.cat([self.train, self.earlier]))

    def selected(self, images: Tensor) -> Tensor:
        """Which of these the weights were selected with."""
        return _among(images, self.val)


def _among(images: Tensor, known: Tensor) -> Tensor:
    return torch.isin(images, known) & (images != UNREADABLE)


def run_of(model: str | os.PathLike[str]) -> Path | None:
    """The run directory of a model: `model` is that directory, or its best or last weights. None: it has none."""
    path = Path(os.fsdecode(model)).expanduser()
    folder = path.parent if path.name in ("best.safetensors", "last.safetensors") else path
    return folder if (folder / "config.json").is_file() and (folder / "best.safetensors").is_file() else None


def seen_by(model: str | os.PathLike[str]) -> SeenImages | None:
    """The images that a model has seen, where its run directory tells. None: nothing is known of its training.

    The weights of the last step were selected by no validation images, unless these decided which step is the last.
    """
    folder = run_of(model)
    seen = None if folder is None else SeenImages.read(folder)
    if folder is None or seen is None or Path(os.fsdecode(model)).name != "last.safetensors":
        return seen
    stopped_early = _config(folder).get("patience") is not None
    return seen if stopped_early else replace(seen, val=seen.val[:0])


def split_of(model: str | os.PathLike[str]) -> dict[str, Any]:
    """How the run of a model split its data: fields of `Reading`. Nothing where it has no run."""
    folder = run_of(model)
    if folder is None or not (folder / FILE).is_file():  # not a run of ours, or one that split in another way
        return {}
    names = ("val_fraction", "test_fraction", "split_seed")
    return {name: value for name, value in _config(folder).items() if name in names and value is not None}


def selection_of(model: str | os.PathLike[str]) -> str:
    """How the weights of a model were selected, in words, as far as that is known."""
    folder = run_of(model)
    if folder is None:
        return "as they are in the file, which does not say how they were selected"
    result = folder / "result.json"
    if not result.is_file():
        return "of a run that has not ended"
    name = "last.safetensors" if Path(os.fsdecode(model)).name == "last.safetensors" else "best.safetensors"
    told = read_json(result).get("selection")
    found = [text for text in told if isinstance(text, str) and text.startswith(name)] if isinstance(told, list) else []
    return found[0] if found else f"{name} of a run that does not say how they were selected"


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json").get("config")
    return config if isinstance(config, dict) else {}
