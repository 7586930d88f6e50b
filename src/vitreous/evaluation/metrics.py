"""Classification metrics: accumulated on the device batch by batch, and read back once at the end."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.extremes import Example, Extremes
from vitreous.utils.device import float64_device

__all__ = ["ClassScore", "Example", "Extremes", "Result", "Scores", "average_precision"]

MAX_CONFUSION_CLASSES = 2048  # the confusion matrix takes 32 MiB; with more classes there is none
MAX_SORTED = 2**24  # scores sorted at a time for average precision
BINS = 15  # of confidence, for the calibration error
PART = 2.0**-30  # confidences are summed as integer multiples of this, so that the order of the images has no effect


@dataclass(frozen=True)
class ClassScore:
    """The metrics of one class. None where the denominator is zero."""

    index: int  # number of the class, from 0
    images: int  # number of images of this class
    right: int  # how many of those are correctly predicted; multi-label: with a probability above 0.5
    recall: float | None  # share of the images of this class that are correctly predicted
    precision: float | None  # share of the predictions of this class that are correct
    f1: float | None  # harmonic mean of recall and precision
    average_precision: float | None = None  # area under the precision-recall curve; multi-label only

    @property
    def positives(self) -> int:
        """The same as `images`, under the usual name for multi-label data."""
        return self.images


@dataclass(frozen=True, repr=False)
class Result:
    """The metrics of a model on some images. All shares are in 0..1."""

    images: int  # number of images
    loss: float  # mean cross-entropy; binary cross-entropy for multi-label data; or the loss of masked patches
    top1: float | None  # accuracy; None for multi-label data and without labels
    top5: float | None  # None for fewer than six classes
    balanced: float | None  # balanced accuracy: mean recall of the classes that occur
    map: float | None  # mean average precision of the classes that occur; multi-label only
    per_class: tuple[ClassScore, ...]  # metrics of each class
    confusion: tuple[tuple[int, ...], ...] | None  # row: truth, column: prediction; None for multi-label data
    invalid: int = 0  # images with NaN logits; they count as wrong, and not as a prediction of any class
    calibration: float | None = None  # expected calibration error
    patch_accuracy: float | None = None  # share of correct colours of masked patches; masked-patch pre-training only

    def __repr__(self) -> str:
        names = {"top1": "top-1", "top5": "top-5", "balanced": "balanced accuracy", "map": "mAP"}
        values = {title: getattr(self, name) for name, title in names.items()}
        texts = [f"{title} {value:.2%}" for title, value in values.items() if value is not None]
        interval = f" (95% interval, Wilson: {format_interval(self.interval)})" if self.interval else ""
        texts[:1] = [f"{text}{interval}" for text in texts[:1]]
        return f"Result({', '.join([*texts, f'loss {self.loss:.4f}'])}; {format_count(self.images, 'image')})"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval of `top1` for this number of images; None for multi-label data."""
        return None if self.top1 is None else wilson_interval(self.top1, self.images)

    def summary(self) -> dict[str, float]:
        """Return loss, top1, top5, balanced, map and patch_accuracy, without those that are None."""
        names = ("loss", "top1", "top5", "balanced", "map", "patch_accuracy")
        numbers = {name: getattr(self, name) for name in names}
        return {name: value for name, value in numbers.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return values for `json.dumps`. A loss that is not finite becomes None, since JSON has no NaN."""
        values = asdict(self)
        values["loss"] = self.loss if math.isfinite(self.loss) else None
        values["interval"] = self.interval
        values["per_class"] = [asdict(score) for score in self.per_class]
        values["confusion"] = None if self.confusion is None else [list(row) for row in self.confusion]
        if self.patch_accuracy is None:
            del values["patch_accuracy"]
        return values


def wilson_interval(share: float, images: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's score interval for a share of `images`. Unlike the normal approximation, it stays within 0..1
    and does not collapse to a point if all images are correct."""
    if not images:
        return 0.0, 1.0
    middle = share + z * z / (2 * images)
    half = z * math.sqrt(share * (1 - share) / images + (z / (2 * images)) ** 2)
    scale = 1 + z * z / images
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def format_interval(interval: tuple[float, float]) -> str:
    """Return an interval as text: 40.1 to 68.9%."""
    low, high = interval
    return f"{100 * low:.1f} to {100 * high:.1f}%"


def result_from_json(values: dict[str, Any]) -> Result:
    """Return the result that `Result.to_json` described. Raise a VitreousError for anything else, such as a damaged
    file."""
    try:
        values = {name: value for name, value in values.items() if name != "interval"}
        values["loss"] = math.nan if values["loss"] is None else values["loss"]
        values["per_class"] = tuple(ClassScore(**score) for score in values["per_class"])
        confusion = values["confusion"]
        values["confusion"] = None if confusion is None else tuple(tuple(row) for row in confusion)
        result = Result(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise VitreousError(f"not the result of an evaluation ({error})") from error
    own = [value for name, value in vars(result).items() if name not in ("per_class", "confusion")]
    rows = [own, *(vars(score).values() for score in result.per_class), *(result.confusion or ())]
    if not all(value is None or type(value) in (int, float) for row in rows for value in row):
        raise VitreousError("not the result of an evaluation (a value is not a number)")
    return result


class Scores:
    """Accumulates metrics on the device, without synchronising with it.

    With one label per image, only counts are stored, so that memory does not grow with the number of images. With
    several labels, all scores (N, K) are stored in float32, because average precision needs their order.

    `sigmoid`: probabilities are sigmoids instead of a softmax, for the calibration error of single labels.
    `temperature`: logits are divided by it before that.

    In distributed evaluation: all-reduce each of `sums()` in place, concatenate each of `gathered()` over the processes
    and pass the result to `take`.
    """

    def __init__(
        self,
        classes: int,
        multi_label: bool = False,
        device: torch.device | str = "cpu",
        sigmoid: bool = False,
        temperature: float = 1.0,
    ) -> None:
        if classes < 1:
            raise VitreousError(f"scores for {classes} classes: there must be at least one")
        device = float64_device(torch.device(device))
        self.classes, self.multi_label, self.device = classes, multi_label, device
        self.sigmoid, self.temperature = sigmoid, temperature
        with torch.inference_mode(False):  # inference tensors could not be updated outside inference mode
            self.loss = torch.zeros((), dtype=torch.float64, device=device)
            self.counts = self._zeros(len(COUNTS))
            # Images, correct predictions and predictions of each class.
            self.truths, self.rights, self.answers = (self._zeros(classes) for _ in range(3))
            pairs = not multi_label and classes <= MAX_CONFUSION_CLASSES
            self.pairs = self._zeros(classes * classes) if pairs else None
            # Correct predictions and summed confidence in each bin.
            self.correct, self.confidence = self._zeros(BINS), self._zeros(BINS)
            self.logits = [torch.zeros(0, classes, device=device)]
            self.targets = [torch.zeros(0, classes, dtype=torch.bool, device=device)]

    @torch.no_grad()
    def add(self, logits: Tensor, targets: Tensor, losses: Tensor) -> None:
        """Add a batch: logits (B, K), losses (B,); targets are classes (B,), or multi-label (B, K): True or > 0.5."""
        self._check(logits, targets, losses)
        logits, targets, losses = (x.detach().to(self.device) for x in (logits, targets, losses))
        self.loss += losses.double().sum()
        invalid = logits.isnan().any(1)
        if self.multi_label:
            self._add_several(logits.float(), targets if targets.dtype == torch.bool else targets > 0.5, invalid)
        else:
            self._add_one(logits, targets.long(), invalid)

    def sums(self) -> list[Tensor]:
        """Return the counts, not copies: summing them in place over processes gives the counts of all images."""
        counts = [self.loss, self.counts, self.truths, self.rights, self.answers, self.correct, self.confidence]
        return counts if self.pairs is None else [*counts, self.pairs]

    def gathered(self) -> list[Tensor]:
        """Return scores and targets (N, K) of all images so far for multi-label data, otherwise an empty list."""
        return [torch.cat(self.logits), torch.cat(self.targets)] if self.multi_label else []

    def take(self, gathered: list[Tensor]) -> None:
        """Replace the stored scores and targets by those of all processes: the concatenated results of `gathered`."""
        if self.multi_label:
            logits, targets = gathered
            self.logits, self.targets = [logits], [targets]

    def result(self) -> Result:
        counts = dict(zip(COUNTS, self.counts.tolist(), strict=True))
        images = counts["images"]
        if counts["outside"]:
            raise VitreousError(
                f"{counts['outside']} of {images} labels are not among the {self.classes} classes of the model"
            )
        if not images:
            raise VitreousError("no images were scored: the data is empty")
        average_precisions = self._average_precisions() if self.multi_label else [None] * self.classes
        columns = (self.truths.tolist(), self.rights.tolist(), self.answers.tolist(), average_precisions)
        per_class = tuple(_class_score(index, *row) for index, row in enumerate(zip(*columns, strict=True)))
        occurring = [score for score in per_class if score.images]
        single = not self.multi_label
        return Result(
            images=images,
            loss=self.loss.item() / images,
            top1=counts["first"] / images if single else None,
            top5=counts["fifth"] / images if single and self.classes > 5 else None,
            balanced=_mean([score.recall for score in occurring]) if single else None,
            map=None if single else _mean([score.average_precision for score in occurring]),
            per_class=per_class,
            confusion=None if self.pairs is None else _rows(self.pairs.view(self.classes, self.classes)),
            invalid=counts["invalid"],
            calibration=self._calibration(images - counts["invalid"]) if single else None,
        )

    def _add_one(self, logits: Tensor, targets: Tensor, invalid: Tensor) -> None:
        outside = (targets < 0) | (targets >= self.classes)  # raised in `result`, which synchronises anyway
        targets = targets.clamp(0, self.classes - 1)
        # Ties are resolved by index as in argmax, so that top-1, top-5 and the confusion matrix agree.
        own = logits.gather(1, targets[:, None])
        before = torch.arange(self.classes, device=self.device) < targets[:, None]
        ranks = ((logits > own) | ((logits == own) & before)).sum(1)
        valid = ~(invalid | outside)
        first, fifth = (ranks < 1) & valid, (ranks < 5) & valid
        self._count(images=torch.ones_like(valid), invalid=invalid, outside=outside, first=first, fifth=fifth)
        answers = logits.argmax(1).clamp(0, self.classes - 1)
        self.truths.index_add_(0, targets, (~outside).long())
        self.rights.index_add_(0, targets, first.long())
        self.answers.index_add_(0, answers, valid.long())
        if self.pairs is not None:
            self.pairs.index_add_(0, targets * self.classes + answers, valid.long())
        self._add_confidence(logits.float(), first, valid)

    def _add_confidence(self, logits: Tensor, right: Tensor, valid: Tensor) -> None:
        logits = logits.nan_to_num() / self.temperature  # softmax of an infinite logit would be NaN
        probabilities = logits.sigmoid() if self.sigmoid else logits.softmax(1)
        confidence = torch.where(valid, probabilities.amax(1), 0.0).double()
        bins = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
        self.correct.index_add_(0, bins, right.long())
        self.confidence.index_add_(0, bins, (confidence / PART).round().long())

    def _calibration(self, images: int) -> float | None:
        gaps = (self.correct.double() - self.confidence.double() * PART).abs()
        return gaps.sum().item() / images if images else None

    def _add_several(self, logits: Tensor, targets: Tensor, invalid: Tensor) -> None:
        answers = (logits > 0) & ~invalid[:, None]
        self._count(images=torch.ones_like(invalid), invalid=invalid)
        self.truths += targets.sum(0)
        self.rights += (answers & targets).sum(0)
        self.answers += answers.sum(0)
        # NaN cannot be sorted. Rank such an image as wrong as possible: true labels last, false labels first.
        wrong = torch.where(targets, -torch.inf, torch.inf)
        self.logits.append(torch.where(invalid[:, None], wrong, logits))
        self.targets.append(targets)

    def _count(self, **flags: Tensor) -> None:
        none = torch.zeros((), dtype=torch.long, device=self.device)
        self.counts += torch.stack([flags[name].sum() if name in flags else none for name in COUNTS])

    def _average_precisions(self) -> list[float | None]:
        logits, targets = self.gathered()
        if len(logits) != int(self.counts[0]):
            raise VitreousError(
                f"{len(logits)} scores for {int(self.counts[0])} images: if counts are summed over processes, scores"
                " must be concatenated too"
            )
        columns = max(1, MAX_SORTED // len(logits))
        parts = zip(logits.split(columns, 1), targets.split(columns, 1), strict=True)
        values = torch.cat([average_precision(scores, truths) for scores, truths in parts])
        return [None if math.isnan(value) else value for value in values.tolist()]

    def _check(self, logits: Tensor, targets: Tensor, losses: Tensor) -> None:
        images, K = len(logits), self.classes
        expected = {
            "logits": (images, K),
            "targets": (images, K) if self.multi_label else (images,),
            "losses": (images,),
        }
        for name, tensor in (("logits", logits), ("targets", targets), ("losses", losses)):
            if tuple(tensor.shape) != expected[name]:
                raise VitreousError(f"{name} have shape {tuple(tensor.shape)}: expected {expected[name]}")
        if not self.multi_label and (targets.is_floating_point() or targets.dtype == torch.bool):
            raise VitreousError(f"targets are {targets.dtype}: expected an integer class for each image")

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64, device=self.device)


COUNTS = ("images", "invalid", "outside", "first", "fifth")


def average_precision(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the average precision of each column of (N, K): the mean precision at the rank of every true image. NaN
    if no image is true. Images with equal scores share the last rank among them.
    """
    ordered, order = scores.T.sort(dim=1, descending=True)
    true = targets.T.gather(1, order)
    ranks = torch.arange(1, len(scores) + 1, device=scores.device)
    last = torch.ones_like(true)
    last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    # The rank at the end of each image's group of ties.
    ends = torch.where(last, ranks, len(scores)).flip(1).cummin(1).values.flip(1)
    precision = true.cumsum(1).gather(1, ends - 1).double() / ends
    return (precision * true).sum(1) / true.sum(1)


def _class_score(
    index: int, images: int, right: int, answers: int, average_precision: float | None = None
) -> ClassScore:
    return ClassScore(
        index=index,
        images=images,
        right=right,
        recall=right / images if images else None,
        precision=right / answers if answers else None,
        f1=2 * right / (images + answers) if images + answers else None,
        average_precision=average_precision,
    )


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _rows(table: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in table.tolist())
