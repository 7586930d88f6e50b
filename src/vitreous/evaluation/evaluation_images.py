"""Which images a model is evaluated on: the split, without the images that the model has seen in training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.data.dataset import DataSet, Source, Subset
from vitreous.data.digests import image_digests
from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.progress_bar import ProgressBar, no_progress_bar
from vitreous.evaluation.training_images import SeenImages

UNKNOWN_TRAINING_IMAGES = (
    "it is not known which images these weights were trained on: the evaluated images may include TRAINING IMAGES."
    " Give the run directory as the model to leave them out"
)


@dataclass(frozen=True)
class EvaluationImages:
    """The images on which the predictions of a model are scored."""

    split: str  # train, val, test, all; or unseen: all images except those that the model has seen in training
    images: Source
    left_out: str = ""  # description of the images that are left out because the model has seen them
    warnings: tuple[str, ...] = ()  # about images that the model has seen and that are scored nevertheless


def evaluation_split(data: DataSet, requested: str | None = None) -> tuple[str, Source]:
    """Return the name and the images of a split. Default: the stored test split, else the stored val split, else all
    images, with the name `all`."""
    stored = data.stored_splits
    if requested is None:
        requested = next((name for name in ("test", "val") if name in stored), "all")
    if requested == "all" and list(stored) == ["train"]:
        return "all", stored["train"]
    if requested not in data.splits:
        more = ", or all" if list(stored) == ["train"] else ""
        raise VitreousError(
            f"{data.name}: there is no {requested} split; it has {' and '.join(data.splits)}{more} (--split)"
        )
    return requested, data.splits[requested]


def select_evaluation_images(
    data: DataSet, evaluated: EvaluatedModel, requested: str | None = None, bar: ProgressBar = no_progress_bar
) -> EvaluationImages:
    """Return the images of a split. If the data has no stored splits, leave out the images that the model has seen.

    Images are compared by content, so that moved and renamed files are recognised. A requested split and a stored split
    are used completely, with a warning if the model has seen some of the images.
    """
    name, source = evaluation_split(data, requested)
    if evaluated.seen is None:
        return EvaluationImages(name, source, "", seen_warnings(evaluated, None))
    with bar(f"comparing {data.name} with the images of the run", len(source)) as tick:
        digests = image_digests(source, tick)
    unseen = find_unseen(evaluated.seen, digests, leave_out=requested is None and name == "all")
    if not unseen.left_out:
        return EvaluationImages(name, source, "", unseen.warnings)
    return EvaluationImages("unseen", Subset(source, unseen.keep.nonzero().flatten()), unseen.left_out, unseen.warnings)


@dataclass(frozen=True)
class UnseenImages:
    keep: Tensor  # which images to evaluate, (N,) bool
    left_out: str = ""  # description of the others
    warnings: tuple[str, ...] = ()


def find_unseen(seen: SeenImages, digests: Tensor, leave_out: bool) -> UnseenImages:
    """Compare images with those of a training run. With `leave_out`, leave out those that the run has seen, unless
    none would remain; warn about those that are evaluated all the same."""
    trained = seen.trained(digests)
    selected = seen.selected(digests) & ~trained
    for keep in (~(trained | selected), ~trained) if leave_out else ():
        if keep.any() and not keep.all():
            left_out = _describe_seen(trained & ~keep, selected & ~keep)
            return UnseenImages(keep, left_out, _seen_warnings(trained[keep], selected[keep]))
    return UnseenImages(torch.ones_like(trained), "", _seen_warnings(trained, selected))


def _describe_seen(trained: Tensor, selected: Tensor) -> str:
    parts = ((trained, "training"), (selected, "validation"))
    counts = [format_count(int(which.sum()), f"{kind} image") for which, kind in parts if which.any()]
    return f"{' and '.join(counts)} of the model's run"


def _seen_warnings(trained: Tensor, selected: Tensor) -> tuple[str, ...]:
    warnings = []
    if count := int(trained.sum()):
        warnings.append(
            f"{count:,} of the {len(trained):,} evaluated images are TRAINING IMAGES of this model (compared by"
            " content): the results do not hold for new images"
        )
    if count := int(selected.sum()):
        warnings.append(
            f"{count:,} of the {len(selected):,} evaluated images were used to select these weights (validation images"
            " of the run): expect lower accuracy on new images"
        )
    return tuple(warnings)


def seen_warnings(evaluated: EvaluatedModel, digests: Tensor | None) -> tuple[str, ...]:
    """Return warnings about evaluated images that the model has seen in training. `digests`: of all these images."""
    if evaluated.seen is None:
        return (UNKNOWN_TRAINING_IMAGES,) if evaluated.training_images_unknown else ()
    if digests is None:
        return ()
    trained = evaluated.seen.trained(digests)
    return _seen_warnings(trained, evaluated.seen.selected(digests) & ~trained)


# ---------------------------------------------------------------- few-shot, k-NN and linear probe


@dataclass(frozen=True)
class TrainTestImages:
    """The training and test images of few-shot, k-NN and the linear probe."""

    name: str  # of the data set
    classes: tuple[str, ...]
    train: Source
    test: Source
    description: str  # of the test split
    notes: tuple[str, ...] = ()


def train_and_test_images(data: DataSet, requested: str | None = None) -> TrainTestImages:
    """Return training and test images for few-shot, k-NN and the linear probe.

    The test images are the requested split, by default test, else val. The training images are the train split, and
    the val split if it was held out from the train split and is not the one tested on.
    """
    if data.multi_label:
        raise VitreousError(
            f"{data.name}: images have several labels; few-shot, k-NN and the probe need one class per image"
        )
    name = requested or next((name for name in ("test", "val") if name in data.splits), None)
    if name is None:
        raise VitreousError(f"{data.name}: no test or val split, and none is held out (val_fraction, test_fraction)")
    if name in ("train", "all"):
        raise VitreousError(
            f"{data.name}: few-shot, k-NN and probe are fitted to the train split and cannot be tested on {name};"
            " choose another --split"
        )
    name, test = evaluation_split(data, name)
    whole = data.stored_splits["train"]
    train = data.train
    if "val" in data.held_out and name != "val":  # val only selects weights during training, so it can be used here
        train = whole if "test" not in data.held_out else _without(whole, data.test)
    description = f"{name} split"
    if name in data.held_out:
        share = f"{100 * len(test) / len(whole):.3g}%"
        description += f", {share} of the images held out, since the data has no {name} split"
    return TrainTestImages(data.name, data.classes, train, test, description, tuple(data.notes))


def _without(whole: Source, part: Source | None) -> Source:
    assert isinstance(part, Subset)
    kept = torch.ones(len(whole), dtype=torch.bool)
    kept[part.indices] = False
    return Subset(whole, kept.nonzero().flatten())
