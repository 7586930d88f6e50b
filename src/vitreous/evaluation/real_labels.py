"""ImageNet ReaL labels: any number of correct classes per image."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.errors import VitreousError
from vitreous.evaluation.matching import imagenet_indices
from vitreous.utils.regular_files import read_text

NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")


@dataclass(frozen=True)
class RealResult:
    """Accuracy where any label of the image is correct. Images without labels are left out."""

    images: int
    right: int
    left_out: int

    @property
    def top1(self) -> float:
        return self.right / self.images


class RealScores:
    """Accumulates batches as `Scores` does. `sets`: the labels of each image of the source, padded with -1."""

    def __init__(self, sets: Tensor, device: torch.device | str = "cpu"):
        self.sets = sets.to(device)
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)

    def add(self, logits: Tensor, targets: Tensor, losses: Tensor, indices: Tensor) -> None:
        sets = self.sets[indices.to(self.sets.device)]
        answers = logits.argmax(1).to(sets.device)
        valid = ~logits.isnan().any(1).to(sets.device)
        labelled = (sets >= 0).any(1)
        right = (sets == answers[:, None]).any(1) & valid
        self.counts += torch.stack([labelled.sum(), right.sum(), (~labelled).sum()])

    def result(self) -> RealResult:
        images, right, left_out = self.counts.tolist()
        if not images:
            raise VitreousError("none of the images has a ReaL label")
        return RealResult(images, right, left_out)


def read_real_labels(path: Path, source: Source, labels: tuple[str, ...] | None, classes: int) -> Tensor:
    """Read the labels of each image as classes of the model, (N, longest list), padded with -1.

    The file is a JSON list with a list of ImageNet-1k class indices per validation image. The number in an image's file
    name selects its entry: ILSVRC2012_val_00000001 is the first.
    """
    entries = _read_entries(path)
    indices = imagenet_indices(labels, classes)
    sets = [[indices[label] for label in entries[number]] for number in _entry_numbers(path, source, len(entries))]
    longest = max(1, max(map(len, sets), default=1))
    return torch.tensor([row + [-1] * (longest - len(row)) for row in sets])


def _read_entries(path: Path) -> list[list[int]]:
    try:
        entries = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise VitreousError(f"{path}: these labels cannot be read ({error})") from error
    valid = isinstance(entries, list) and all(
        isinstance(row, list) and all(type(label) is int and 0 <= label < 1000 for label in row) for row in entries
    )
    if not valid:
        raise VitreousError(f"{path}: expected a list with a list of class indices (0 to 999) for each image")
    return entries  # type: ignore[no-any-return]


def _entry_numbers(path: Path, source: Source, entries: int) -> list[int]:
    numbers = []
    for index in range(len(source)):
        name = source.name(index)
        match = NAME.search(name)
        if match is None:
            raise VitreousError(
                f"{name}: the file name does not identify its entry of {path.name}; expected a number as in"
                " ILSVRC2012_val_00000001.JPEG"
            )
        number = int(match[1]) - 1
        if not 0 <= number < entries:
            raise VitreousError(f"{name}: {path.name} has {entries:,} entries, none for this number")
        numbers.append(number)
    return numbers
