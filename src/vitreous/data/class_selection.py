"""Use only some classes of a data set: images of other classes are left out, and labels are renumbered."""

from collections import Counter
from dataclasses import dataclass, replace
from difflib import get_close_matches

import torch
from torch import Tensor

from vitreous.data.arrays import ArraySource
from vitreous.data.dataset import Source, Subset
from vitreous.data.options import Reading, RunReading
from vitreous.data.raw_dataset import RawDataset
from vitreous.errors import VitreousError, brief, format_count, summarize_names


@dataclass(frozen=True)
class ClassSubset(Subset):
    """The images of a source at the given indices, with renumbered labels."""

    numbers: Tensor  # (classes of the source,): the new number of each class

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", self.numbers[self.labels])


def check_class_selection(only_classes: object) -> None:
    """Raise an error if `only_classes` is not empty and not a list of two or more different names."""
    if not isinstance(only_classes, tuple | list) or not all(isinstance(name, str) for name in only_classes):
        raise VitreousError(f"only_classes = {brief(only_classes)}: expected a list of names of classes")
    if repeated := [name for name, count in Counter(only_classes).items() if count > 1]:
        raise VitreousError(f"only_classes: given twice: {summarize_names(repeated)}")
    if len(only_classes) == 1:
        name = brief(only_classes[0])
        raise VitreousError(f"only_classes: only one class, {name}: classification needs at least two classes")


def select_classes(raw: RawDataset, reading: Reading) -> RawDataset:
    """The data with only the images of `reading.only_classes`. Classes keep their order. Unchanged if all are chosen.

    Classes of a run (`RunReading`) are not selected in data that lacks one of them.
    """
    chosen, multi_label = set(reading.only_classes), raw.splits["train"].labels.ndim == 2
    of_run = isinstance(reading, RunReading)
    if not chosen or (of_run and (multi_label or not chosen <= set(raw.classes))):
        return raw
    if multi_label:
        raise VitreousError("only_classes: images have several labels; this option needs images with one label each")
    _check_known(reading.only_classes, raw.classes)
    if len(chosen) == len(raw.classes):
        return raw
    kept = torch.tensor([index for index, name in enumerate(raw.classes) if name in chosen])
    numbers = torch.full((len(raw.classes),), -1)
    numbers[kept] = torch.arange(len(kept))
    splits = {name: _select_images(source, numbers) for name, source in raw.splits.items()}
    note = f"{len(kept):,} of {format_count(len(raw.classes), 'class')} are used"
    notes = [*raw.notes, f"{note}: those of the run" if of_run else f"{note} (only_classes)"]
    for name, source in splits.items():
        if name != "train" and len(raw.splits[name]) and not len(source):
            notes.append(f"the {name} split has no image of these classes")
    return replace(raw, classes=tuple(name for name in raw.classes if name in chosen), splits=splits, notes=notes)


def _check_known(chosen: tuple[str, ...], classes: tuple[str, ...]) -> None:
    known = set(classes)
    unknown = [name for name in chosen if name not in known]
    if not unknown:
        return
    close = get_close_matches(unknown[0], classes, n=1)
    hint = f"did you mean {brief(close[0])}?" if close else f"the classes are {summarize_names(classes)}"
    raise VitreousError(f"only_classes: the data has no class {summarize_names(unknown)}; {hint}")


def _select_images(source: Source, numbers: Tensor) -> Source:
    indices = (numbers[source.labels] >= 0).nonzero().flatten()
    if isinstance(source, ArraySource):  # copied once; the images of the other classes need not stay in memory
        images, labels = source.images[indices.numpy()], numbers[source.labels[indices]]
        return ArraySource(images, labels, source.title, indices)
    return ClassSubset(source, indices, numbers)
