"""What an inspection collects: figures, numbers and notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NUMBERS = 500_000  # per array and image in numbers.json


@dataclass
class InspectionRecord:
    notes: list[str]
    figures: dict[str, Figure] = field(default_factory=dict)  # by file name without suffix
    numbers: dict[str, Any] = field(default_factory=dict)  # contents of numbers.json

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def limited(self, values: Tensor, what: str) -> Any:
        """Return values for numbers.json; None if there are too many."""
        if values.numel() <= MAX_NUMBERS:
            return rounded_list(values)
        self.note(f"numbers.json does not contain {what}: {values.numel():,} numbers are too many")
        return None


def rounded_list(values: Tensor) -> Any:
    return np.round(values.detach().float().cpu().numpy().astype(np.float64), 6).tolist()


def rounded(value: Any) -> float:
    return round(float(value), 6)
