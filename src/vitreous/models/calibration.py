"""`Calibration`: the temperature of a model's probabilities and the thresholds below which a prediction is rejected."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vitreous.errors import VitreousError, brief, format_count, summarize_names

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
MAX_NAME = 400  # characters of the names of data and split
MAX_IMAGES = 200_000  # their digests are stored in the header of the checkpoint
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


@dataclass(frozen=True)
class Calibration:
    """Stored in a native checkpoint. Logits are not changed: `Model.probabilities` divides them by the temperature.

    A prediction of class k is accepted if its probability is at least `thresholds[k]`; None: it is always rejected.
    """

    temperature: float  # logits are divided by it
    images: int  # number of images that temperature and thresholds were chosen on
    data: str  # name of their data set
    split: str  # split of these images
    digests: str = field(repr=False)  # digests of these images: 64-bit integers, little-endian, in base64
    precision: float | None = None  # requested precision of accepted predictions; None: there are no thresholds
    confidence: float | None = None  # confidence in that precision; 0: not guaranteed, measured on the images
    thresholds: tuple[float | None, ...] | None = None  # lowest accepted probability of each class

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)
        if type(self.images) is not int or not 0 < self.images <= MAX_IMAGES:
            raise VitreousError(f"calibration: images = {brief(self.images)}: expected 1 to {MAX_IMAGES:,}")
        for name in ("data", "split"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_NAME:
                raise VitreousError(f"calibration: {name} = {brief(value)}: expected a name")
        if not isinstance(self.digests, str) or not BASE64.fullmatch(self.digests):
            raise VitreousError("calibration: digests are not base64")
        if len(self.digests) != -(-8 * self.images // 3) * 4:
            raise VitreousError(f"calibration: there are not {self.images:,} digests")
        self._check_thresholds()

    def _check_thresholds(self) -> None:
        if self.thresholds is None:
            if self.precision is not None or self.confidence is not None:
                raise VitreousError("calibration: there is a precision, but there are no thresholds")
            return
        _check_number("precision", self.precision, 0, 1)
        _check_number("confidence", self.confidence, 0, 1)
        if not isinstance(self.thresholds, tuple) or not self.thresholds:
            raise VitreousError("calibration: expected one threshold per class")
        for threshold in self.thresholds:
            if threshold is not None:
                _check_number("threshold", threshold, 0, 1)

    def check_classes(self, num_classes: int) -> None:
        """Raise an error if the thresholds are not those of a model with this number of classes."""
        if self.thresholds is not None and len(self.thresholds) != num_classes:
            raise VitreousError(f"calibration: {len(self.thresholds)} thresholds for {num_classes} classes")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Calibration:
        """Read the record of a checkpoint. A damaged record or an unknown field is an error."""
        if not isinstance(values, dict):
            raise VitreousError("calibration: expected an object")
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise VitreousError(
                f"calibration: unknown fields {summarize_names(unknown)}; a newer vitreous may write them"
            )
        if missing := [name for name in known if name not in values]:
            raise VitreousError(f"calibration: {summarize_names(missing)} missing")
        thresholds = values["thresholds"]
        return cls(**{**values, "thresholds": tuple(thresholds) if isinstance(thresholds, list) else thresholds})

    def __str__(self) -> str:
        source = f"chosen on {format_count(self.images, 'image')} of {self.data} ({self.split})"
        if self.thresholds is None:
            return f"temperature {self.temperature:.3g}, {source}; no thresholds"
        values = [threshold for threshold in self.thresholds if threshold is not None]
        span = f"{min(values):.1%} to {max(values):.1%}" if values else "none"
        never = len(self.thresholds) - len(values)
        more = f"; predictions of {format_count(never, 'class')} are always rejected" if never else ""
        sure = (
            f"with {format_confidence(self.confidence)}"
            if self.confidence
            else "measured on these images, not guaranteed"
        )
        return (
            f"temperature {self.temperature:.3g} and thresholds, {source}; thresholds for a precision of"
            f" {self.precision:.3g} ({sure}): {span}{more}"
        )


def format_confidence(confidence: float) -> str:
    """ "95% confidence"; 0.999 is not rounded to 100%."""
    return f"{100 * confidence:.10g}% confidence"


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise VitreousError(f"calibration: {name} = {brief(value)}: expected a number from {low:g} to {high:g}")
