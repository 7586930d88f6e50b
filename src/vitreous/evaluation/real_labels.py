"""Truth with any number of right answers for an image: ImageNet ReaL's."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitreous.data.dataset import Source
from vitreous.errors import VitreousError
from vitreous.evaluation.matching import imagenet_places
from vitreous.utils.regular_files import read_text

NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")


@dataclass(frozen=True)
class RealResult:
    """An answer is right if it is one of the image's labels; images without any are left out."""

    images: int
    right: int
    left_out: int

    @property
    def top1(self) -> float:
        return self.right / self.images


class RealScores:
    """Adds up answers as `Scores` does. `sets`: for each image of the source its labels, filled up with -1."""

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
            raise VitreousError("none of the images has a label in this truth")
        return RealResult(images, right, left_out)


def read_real(path: Path, source: Source, labels: tuple[str, ...] | None, classes: int) -> Tensor:
    """The labels of each image, (N, most) with -1 for none, in the model's classes.

    The file is a list with a list of ImageNet-1k's class numbers for each validation image. Which entry is an image's
    is told by the number in its name: ILSVRC2012_val_00000001 is the first.
    """
    entries = _entries(path)
    places = imagenet_places(labels, classes)
    sets = [[places[label] for label in entries[number]] for number in _numbers(path, source, len(entries))]
    most = max(1, max(map(len, sets), default=1))
    return torch.tensor([row + [-1] * (most - len(row)) for row in sets])


def _entries(path: Path) -> list[list[int]]:
    try:
        entries = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise VitreousError(f"{path}: this truth cannot be read ({error})") from error
    fits = isinstance(entries, list) and all(
        isinstance(row, list) and all(type(label) is int and 0 <= label < 1000 for label in row) for row in entries
    )
    if not fits:
        raise VitreousError(f"{path}: expected a list with a list of class numbers (0 to 999) for each image")
    return entries  # type: ignore[no-any-return]


def _numbers(path: Path, source: Source, entries: int) -> list[int]:
    numbers = []
    for index in range(len(source)):
        name = source.name(index)
        found = NAME.search(name)
        if found is None:
            raise VitreousError(
                f"{name}: its name does not tell which entry of {path.name} is its own; expected a number as in"
                " ILSVRC2012_val_00000001.JPEG"
            )
        number = int(found[1]) - 1
        if not 0 <= number < entries:
            raise VitreousError(f"{name}: {path.name} has {entries:,} entries, and none for this number")
        numbers.append(number)
    return numbers
