"""The findings of a data check in words, as rows of suspects.csv, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vitreous.errors import format_count
from vitreous.evaluation.class_separation import SEPARABLE, ClassPair, ClassSeparation
from vitreous.evaluation.data_check import DataCheck, OddKind
from vitreous.evaluation.learning_curve import SMALL_GAIN, ClassNeed, LearningCurve
from vitreous.evaluation.metrics import format_interval

COLUMNS = (
    "kind", "file", "split", "label", "suggested_label", "probability_wrong", "label_probability",
    "suggested_probability", "group", "detail",
)  # fmt: skip
ODD_TITLES: dict[OddKind, str] = {
    "outlier": "Outliers", "unreadable": "Unreadable images", "tiny": "Tiny images", "blank": "Blank images",
}  # fmt: skip
VERDICTS = {"more": "more pictures help", "enough": "more pictures hardly help", "unknown": "cannot say"}


def describe_suspects(check: DataCheck) -> str:
    """Return how many labels are probably wrong, of how many, and the estimated share of wrong labels."""
    if check.error_rate is None or check.accuracy is None:
        return "not checked; the notes say why"
    expected = sum(suspect.wrong for suspect in check.suspects)
    estimate = (
        f"estimated share of wrong labels {100 * check.error_rate:.1f}%;"
        f" accuracy of the out-of-fold predictions {100 * check.accuracy:.1f}%"
    )
    of = f"of {check.judged:,} images"
    if not check.suspects:
        return f"none {of}; {estimate}"
    return f"{len(check.suspects):,} {of}, an estimated {expected:,.0f} of them really wrong; {estimate}"


def describe_pair(pair: ClassPair, classes: tuple[str, ...]) -> str:
    """Return the statistical statement about two classes."""
    one, other = (classes[index] for index in pair.classes)
    chance = (
        "better than chance (50%)" if pair.better_than_chance else "no evidence that this is better than chance (50%)"
    )
    return (
        f"{one} and {other}: the right one of the two is chosen for {100 * pair.accuracy:.1f}% of their images"
        f" ({format_interval(pair.interval)}); {chance}"
    )


def describe_separation(separation: ClassSeparation | None) -> str:
    """Return how many pairs of classes cannot be told apart, and for how many this cannot be said."""
    if separation is None:
        return "not checked"
    limit = f"{100 * SEPARABLE:.0f}%"
    found = len(separation.indistinct)
    text = f"{found or 'none'} of {format_count(separation.pairs, 'pair')} with an accuracy below {limit}"
    if separation.undecided:
        text += f"; too few images to say for {separation.undecided:,}"
    return f"{text} (95% confidence for all pairs together)"


def describe_need(need: ClassNeed, classes: tuple[str, ...]) -> str:
    low, high = (100 * value for value in need.gain_interval)
    gain = f"{100 * need.gain:+.1f} points ({low:+.1f} to {high:+.1f})"
    return (
        f"{classes[need.index]}: {VERDICTS[need.verdict]}; recall {100 * need.recall:.1f}%, {gain} in the last doubling"
    )


def describe_curve(curve: LearningCurve | None, classes: tuple[str, ...]) -> str:
    """Return what the learning curve says about more pictures: for all classes together, and for single ones."""
    if curve is None:
        return "not measured"
    if curve.gain is None or curve.gain_interval is None:
        return "cannot say: too few images per class for a learning curve"
    half, whole = (100 * point.accuracy for point in curve.points[-2:])
    low, high = (100 * value for value in curve.gain_interval)
    text = (
        f"twice as many training images raised the accuracy from {half:.1f} to {whole:.1f}%"
        f" (95% interval of the gain {low:+.1f} to {high:+.1f} points): "
    )
    if curve.gain_interval[0] > 0:
        text += "more pictures help"
    elif curve.gain_interval[1] < SMALL_GAIN:
        text += "more pictures hardly help with these features"
    else:
        text += "it cannot be said whether more pictures help"
    if curve.needy:
        return f"{text}, most for {', '.join(classes[need.index] for need in curve.needy[:5])}"
    return f"{text}. For no single class is there enough evidence that it needs more pictures"


def finding_rows(check: DataCheck) -> Iterator[dict[str, Any]]:
    """Yield all findings as rows with the columns `COLUMNS`; an image with several findings has several rows."""
    images, classes = check.images, check.images.data.classes

    def row(kind: str, number: int, **values: object) -> dict[str, Any]:
        file = {"file": images.name(number), "split": images.split_of(number), "label": images.label(number)}
        return {**dict.fromkeys(COLUMNS, ""), "kind": kind, **file, **values}

    for suspect in check.suspects:
        yield row(
            "label",
            suspect.image,
            suggested_label=classes[suspect.suggested],
            probability_wrong=round(suspect.wrong, 4),
            label_probability=round(suspect.label_probability, 4),
            suggested_probability=round(suspect.suggested_probability, 4),
        )
    for group, copies in enumerate(check.copies, 1):
        kind = "identical" if copies.identical else f"similarity {copies.similarity:.3f}"
        leak = f"; in {' and '.join(copies.splits)}" if len(copies.splits) > 1 else ""
        labels = "; labels differ" if copies.labels_differ else ""
        for number in copies.images:
            yield row("leak" if leak else "copy", number, group=group, detail=kind + leak + labels)
    for odd in check.odd:
        yield row(odd.kind, odd.image, detail=odd.detail)


def check_to_json(check: DataCheck) -> dict[str, Any]:
    """Return everything as values for `json.dumps`."""
    classes = check.images.data.classes
    separation, curve = check.separation, check.curve
    return {
        "data": check.images.data.name,
        "model": check.model,
        "classes": list(classes),
        "images": {split: len(source) for split, source in check.images.splits.items()},
        "method": list(check.method),
        "warnings": list(check.warnings),
        "notes": list(check.notes),
        "labels_checked": check.judged,
        "error_rate": check.error_rate,
        "accuracy": check.accuracy,
        "findings": [{name: value for name, value in row.items() if value != ""} for row in finding_rows(check)],
        "class_pairs": None
        if separation is None
        else {
            "pairs": separation.pairs,
            "undecided": separation.undecided,
            "indistinct": [
                {**asdict(pair), "classes": [classes[i] for i in pair.classes]} for pair in separation.indistinct
            ],
        },
        "learning_curve": None if curve is None else _curve_to_json(curve, classes),
    }


def _curve_to_json(curve: LearningCurve, classes: tuple[str, ...]) -> dict[str, Any]:
    names = [classes[index] for index in curve.classes or range(len(classes))]
    return {
        "points": [
            {
                "share": point.share,
                "accuracy": point.accuracy,
                "images": dict(zip(names, point.images, strict=True)),
                "recall": dict(zip(names, point.recall, strict=True)),
            }
            for point in curve.points
        ],
        "gain": curve.gain,
        "gain_interval": curve.gain_interval,
        "classes": [{**asdict(need), "index": classes[need.index]} for need in curve.needs],
        "summary": describe_curve(curve, classes),
    }
