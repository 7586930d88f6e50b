"""A check of a data set: probable label errors, copies, outliers, damaged images, and classes that need more pictures.

`find_data_problems` reads every image once, computes features with a model, and collects all findings in a `DataCheck`.
Nothing is changed on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitreous.data.dataset import DataSet, Source, Subset
from vitreous.data.encoded import FileSource
from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.cache import FeatureCache
from vitreous.evaluation.class_separation import ClassSeparation
from vitreous.evaluation.data_check_labels import LabelSuspect, find_label_problems
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.image_signatures import ImageSignatures, read_signatures
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.learning_curve import LearningCurve
from vitreous.evaluation.near_duplicates import find_near_duplicates, grey_contrast, nearest_neighbours
from vitreous.evaluation.out_of_fold import FOLDS
from vitreous.evaluation.outliers import MAX_SHARE, MIN_IMAGES, MIN_SHOWN, RANK, find_outliers, tiny_limit
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar

NEIGHBOURS = 6
BLANK_CONTRAST = 1.0  # standard deviation of grey values; below it an image is blank

OddKind = Literal["outlier", "tiny", "blank", "unreadable"]


@dataclass(frozen=True)
class CopyGroup:
    """Images that are copies of one another: identical, or resized, re-encoded, mirrored or slightly cropped."""

    images: tuple[int, ...]
    identical: bool  # all have the same bytes
    similarity: float  # the lowest correlation that joined two of them
    labels_differ: bool
    splits: tuple[str, ...]  # more than one: a leak


@dataclass(frozen=True)
class OddImage:
    kind: OddKind
    image: int
    detail: str


@dataclass(frozen=True)
class CheckedImages:
    """All images of a data set, numbered over its splits."""

    data: DataSet

    @property
    def splits(self) -> dict[str, Source]:
        return self.data.splits

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    @property
    def labels(self) -> Tensor:
        return torch.cat([source.labels for source in self.splits.values()])

    def locate(self, number: int) -> tuple[str, Source, int]:
        """Return the split, its source, and the index there."""
        for split, source in self.splits.items():
            if number < len(source):
                return split, source, number
            number -= len(source)
        raise IndexError(number)

    def split_of(self, number: int) -> str:
        return self.locate(number)[0]

    def name(self, number: int) -> str:
        _, source, index = self.locate(number)
        return source.name(index)

    def label(self, number: int) -> str:
        """Return the class, or the classes separated by commas."""
        _, source, index = self.locate(number)
        label = source.labels[index]
        chosen = label.nonzero()[:, 0].tolist() if label.ndim else [int(label)]
        return ", ".join(self.data.classes[i] for i in chosen)

    def file(self, number: int) -> tuple[str, str] | None:
        """Return the folder and the path below it, if the image is a file; None for arrays and archives."""
        _, source, index = self.locate(number)
        while isinstance(source, Subset):
            index, source = int(source.indices[index]), source.source
        return (os.path.abspath(source.root), source.names[index]) if type(source) is FileSource else None  # noqa: PTH100


@dataclass(frozen=True, repr=False)
class DataCheck:
    """The findings. Images are numbers of `images`; suspects and outliers are in decreasing order of their scores."""

    images: CheckedImages  # all images: `images.name(number)`, `images.label(number)`, `images.split_of(number)`
    model: str  # name of the model that computed the features
    suspects: tuple[LabelSuspect, ...]  # labels that are probably wrong
    error_rate: float | None  # estimated share of wrong labels; None: labels were not checked
    copies: tuple[CopyGroup, ...]  # identical images, and resized, re-encoded, mirrored or slightly cropped ones
    odd: tuple[OddImage, ...]  # outliers, and tiny, blank and unreadable images
    separation: ClassSeparation | None  # classes that the model cannot tell apart; None: labels were not checked
    curve: LearningCurve | None  # accuracy by number of training images; None: labels were not checked
    accuracy: float | None  # accuracy of the predictions that the labels are compared with (out-of-fold)
    judged: int  # images whose labels were checked
    method: tuple[str, ...]  # one sentence for each part
    warnings: tuple[str, ...]  # reasons to distrust the findings
    notes: tuple[str, ...]  # other remarks

    def __repr__(self) -> str:
        data = self.images.data
        counts = [
            format_count(len(self.suspects), "probable label error")
            if self.error_rate is not None
            else "labels not checked",
            format_count(len(self.copies), "group") + " of copies",
            format_count(len(self.odd), "odd image"),
        ]
        parts = [f"DataCheck({data!r} with features of {self.model}: {', '.join(counts)})"]
        return "\n  ".join([*parts, *(f"WARNING: {text}" for text in self.warnings)])

    @property
    def leaks(self) -> tuple[CopyGroup, ...]:
        """Copies that are in several splits."""
        return tuple(group for group in self.copies if len(group.splits) > 1)

    def odd_of(self, kind: OddKind) -> tuple[OddImage, ...]:
        """The odd images of one kind: outlier, tiny, blank or unreadable."""
        return tuple(image for image in self.odd if image.kind == kind)


def find_data_problems(
    data: DataSet,
    evaluated: EvaluatedModel,
    options: InferenceOptions,
    cache: FeatureCache,
    bar: ProgressBar = no_progress_bar,
) -> DataCheck:
    """Run all checks on all splits of a data set."""
    images = CheckedImages(data)
    with bar(f"reading {data.name}", len(images)) as tick:
        signatures = ImageSignatures.concatenate([read_signatures(part, tick) for part in images.splits.values()])
    readable, features = _features(images, signatures, evaluated, options, cache, bar)
    grey, digests = signatures.grey[readable], signatures.digests[readable]
    with bar("comparing images", 2 * len(readable)) as tick:
        neighbours = nearest_neighbours(features, NEIGHBOURS, tick)
        centred = nearest_neighbours(features - features.mean(0), NEIGHBOURS, tick)
    with bar("looking for copies", len(readable)) as tick:
        groups, similarity = find_near_duplicates(centred, grey, digests, tick)
    labels = images.labels[readable]
    checked = find_label_problems(features, labels, groups, data.classes, bar)
    outliers, distances = find_outliers(neighbours)
    few = (
        (f"outliers were not searched for: at least {MIN_IMAGES} readable images are needed",)
        if len(readable) < MIN_IMAGES
        else ()
    )
    median = float(distances.median())
    odd = [
        OddImage("outlier", int(readable[i]), f"distance {float(distances[i]):.3f}, median {median:.3f}")
        for i in outliers.tolist()
    ]
    return DataCheck(
        images=images,
        model=evaluated.name,
        suspects=tuple(suspect.renumbered(readable) for suspect in checked.suspects),
        error_rate=checked.rate,
        copies=_copy_groups(images, readable, groups, similarity, digests),
        odd=(*odd, *_odd_files(images, signatures, grey_contrast(signatures.grey))),
        separation=checked.separation,
        curve=checked.curve,
        accuracy=checked.accuracy,
        judged=checked.judged,
        method=_method(evaluated, labels_checked=checked.accuracy is not None),
        warnings=_training_warnings(evaluated, signatures.digests),
        notes=(*_split_notes(data), *data.notes, *few, *checked.notes),
    )


def _features(
    images: CheckedImages,
    signatures: ImageSignatures,
    evaluated: EvaluatedModel,
    options: InferenceOptions,
    cache: FeatureCache,
    bar: ProgressBar,
) -> tuple[Tensor, Tensor]:
    """Return the numbers of the readable images, and their features."""
    numbers, parts, start = [], [], 0
    with bar(f"features of {evaluated.name}", len(images) - len(signatures.unreadable)) as tick:
        for source in images.splits.values():
            good = [i for i in range(len(source)) if start + i not in signatures.unreadable]
            if good:
                rows = torch.tensor(good)
                part = cache.features(evaluated, Subset(source, rows), evaluated.preprocessing(), options, tick)
                numbers.append(start + rows[part.indices])
                parts.append(part.features)
                signatures.unreadable.update({start + good[i]: reason for i, reason in part.unreadable.items()})
            start += len(source)
    if not parts:
        reason = next(iter(signatures.unreadable.values()))
        raise VitreousError(f"{images.data.name}: no image can be read: {images.name(0)}: {reason}")
    return torch.cat(numbers), torch.cat(parts)


def _copy_groups(
    images: CheckedImages, readable: Tensor, groups: Tensor, similarity: Tensor, digests: Tensor
) -> tuple[CopyGroup, ...]:
    """Return the groups with more than one image: leaks first, then different labels, then the others."""
    members: dict[int, list[int]] = {}
    for index, root in enumerate(groups.tolist()):
        members.setdefault(root, []).append(index)
    found = []
    for indices in members.values():
        if len(indices) > 1:
            numbers = readable[indices].tolist()
            splits = tuple(split for split in images.splits if split in {images.split_of(n) for n in numbers})
            labels = {images.label(number) for number in numbers}
            identical = len(set(digests[indices].tolist())) == 1
            least = float(similarity[indices].min())
            found.append(CopyGroup(tuple(numbers), identical, least, len(labels) > 1, splits))
    return tuple(sorted(found, key=lambda group: (-len(group.splits), not group.labels_differ, group.images)))


def _odd_files(images: CheckedImages, signatures: ImageSignatures, contrasts: Tensor) -> Iterable[OddImage]:
    for number, reason in sorted(signatures.unreadable.items()):
        yield OddImage("unreadable", number, reason.removeprefix(f"{images.name(number)}: "))
    readable = torch.tensor([i not in signatures.unreadable for i in range(len(images))])
    shorter = signatures.sizes.min(1).values
    limit = tiny_limit(shorter[readable])
    for number in (readable & (shorter < limit)).nonzero()[:, 0].tolist():
        height, width = signatures.sizes[number].tolist()
        yield OddImage("tiny", number, f"{height} x {width} px (height x width); the limit of this data is {limit} px")
    for number in (readable & (contrasts < BLANK_CONTRAST)).nonzero()[:, 0].tolist():
        yield OddImage("blank", number, f"almost one colour: grey values vary by {float(contrasts[number]):.1f} of 255")


def _split_notes(data: DataSet) -> tuple[str, ...]:
    if not data.held_out:
        return ()
    names = " and ".join(data.held_out)
    return (
        f"{names}: held out from the training images, as `vitreous train` does with the same options ({data.split})",
    )


def _training_warnings(evaluated: EvaluatedModel, digests: Tensor) -> tuple[str, ...]:
    if evaluated.seen is not None:
        trained = int(evaluated.seen.trained(digests).sum())
        if trained:
            return (
                f"{trained:,} of the {len(digests):,} images are TRAINING IMAGES of this model: its features fit their"
                " labels, even wrong ones, so that label errors are missed and the accuracy is too high. Use a model"
                " that was not trained on them, such as vitreous-mini",
            )
    elif evaluated.training_images_unknown:
        return (
            "it is not known which images this model was trained on: if it was trained on these, label errors are"
            " missed. Give its run directory, or use vitreous-mini",
        )
    return ()


def _method(evaluated: EvaluatedModel, *, labels_checked: bool) -> tuple[str, ...]:
    features = f"Features: the input of the head of {evaluated.name}"
    if evaluated.name == "vitreous-mini":
        features += ", which was trained on the training images of CIFAR-10 and Imagenette and on no others"
    labels = (
        f"Labels: a linear classifier on the features, {FOLDS}-fold cross-validation, copies in the same fold, fitted"
        " again without confident mistakes; a mixture model then gives the probability that a label is wrong."
        " Suspects are labels that are more probably wrong than right"
    )
    copies = (
        "Copies: the nearest neighbours by features and by pixels, confirmed by the correlation of small grey copies"
        " after alignment. Resized, re-encoded, mirrored and slightly cropped copies (up to 20%) are found; other"
        " photographs of the same scene are not"
    )
    outliers = (
        f"Outliers: images far from their {RANK}th nearest neighbour in feature space, at most {MAX_SHARE:.0%} of the"
        f" images, or {MIN_SHOWN} if that is more. They are unusual, not necessarily wrong"
    )
    return (features, *((labels,) if labels_checked else ()), copies, outliers)


def describe_copies(check: DataCheck) -> str:
    """Return the numbers of groups of copies: in all, across splits, and with different labels."""
    if not check.copies:
        return "none found"
    texts = [format_count(len(check.copies), "group") + f" with {sum(len(g.images) for g in check.copies):,} images"]
    if check.leaks:
        texts.append(f"{len(check.leaks):,} across splits (leaks)")
    if differing := sum(group.labels_differ for group in check.copies):
        texts.append(f"{differing:,} with different labels")
    return "; ".join(texts)
