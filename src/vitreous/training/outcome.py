"""The outcome of a run: its result, and the texts and files that state it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.metrics import Result, format_interval, result_from_json
from vitreous.training.legs import Leg, length_change, read_legs
from vitreous.training.plan import Plan
from vitreous.training.run_directory import RunDirectory
from vitreous.utils.atomic import atomic_file
from vitreous.utils.json_files import dump_json
from vitreous.utils.progress import format_duration

if TYPE_CHECKING:
    from vitreous.training.run_progress import BestWeights


@dataclass(frozen=True, repr=False)
class Outcome:
    """The outcome of a run: what `vitreous.train`, `vitreous.finetune` and `vitreous.resume` return.

    >>> outcome = vitreous.train("digits", out="run", duration="2 steps", quiet=True)
    >>> outcome.steps, outcome.split, outcome.result.images
    (2, 'test', 360)
    >>> 0 <= outcome.result.interval[0] <= outcome.result.top1 <= outcome.result.interval[1] <= 1
    True
    """

    run: Path  # the run directory
    split: str  # the images of the result: test, or val without a test split, or train without either
    result: Result | None  # accuracy and other metrics; None: there are no validation or test images
    steps: int  # number of training steps
    seconds: float  # training time
    selection: tuple[str, ...] = ()  # how the weights of the result, and those of best.safetensors, were selected
    legs: tuple[Leg, ...] = ()  # earlier and current lengths of the run, if its length was changed

    def __repr__(self) -> str:
        length = f"{format_count(self.steps, 'step')} in {format_duration(self.seconds)}"
        result = f"{self.split} {self.result!r}" if self.result else "not evaluated"
        return "\n  ".join([f"Outcome({str(self.run)!r}: {length}; {result})", *self.selection])


def is_complete(directory: RunDirectory) -> bool:
    """Whether the run has a result. That of an earlier leg stays in the directory until the current leg has one."""
    path = directory.path / "result.json"
    if not path.is_file():
        return False
    legs = directory.description().get("legs") or ()
    return not legs or len(directory.result().get("legs") or ()) == len(legs)


def write_outcome(directory: RunDirectory, outcome: Outcome, best: BestWeights | None) -> None:
    """Write result.json, which marks the run as complete."""
    values = {
        "split": outcome.split,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "best": asdict(best) if best else None,
        "selection": list(outcome.selection),
        "result": outcome.result.to_json() if outcome.result else None,
        **({"legs": [asdict(leg) for leg in outcome.legs]} if outcome.legs else {}),
    }
    with atomic_file(directory.path / "result.json") as temporary:
        dump_json(temporary, values)


def read_outcome(directory: RunDirectory) -> Outcome:
    """Read result.json of a complete run."""
    values = directory.result()
    try:
        result = None if values["result"] is None else result_from_json(values["result"])
        split, steps, seconds = str(values["split"]), int(values["steps"]), float(values["seconds"])
        selection, legs = tuple(map(str, values.get("selection", ()))), read_legs(values)
    except (VitreousError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise directory.damaged_result(error) from error
    return Outcome(directory.path, split, result, steps, seconds, selection, legs)


def outcome_sentence(outcome: Outcome, plan: Plan) -> str:
    """The result in one sentence: on which images, with which confidence interval, after how long."""
    epochs = f"{outcome.steps * plan.batch_size / plan.facts.images:.3g}"
    length = f"{epochs} epoch{'' if epochs == '1' else 's'} in {format_duration(outcome.seconds)}"
    length += f", {change}" if (change := length_change(outcome.legs)) else ""
    length += f", starting from {plan.facts.start.name}" if plan.facts.start else ""
    result = outcome.result
    if result is None:
        return f"trained for {length}; there are no validation or test images to evaluate on"
    if plan.config.masks_patches:
        colours = "" if result.patch_accuracy is None else f" ({result.patch_accuracy:.1%} of the colours are right)"
        images = f"{result.images:,} {outcome.split} images"
        return f"loss {result.loss:.4f} of masked patches{colours} on {images}, after {length}"
    if result.interval is None or result.top1 is None:
        value = "no" if result.map is None else f"{result.map:.1%}"
        return f"{value} mean average precision on {result.images:,} {outcome.split} images, after {length}"
    interval = f"95% interval, Wilson: {format_interval(result.interval)}"
    return f"{result.top1:.1%} accuracy on {result.images:,} {outcome.split} images ({interval}), after {length}"
