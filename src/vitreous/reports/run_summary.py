"""Data of one run for a report that compares runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitreous.evaluation.metrics import Result


@dataclass(frozen=True)
class RunSummary:
    name: str
    initial_weights: str  # name of the checkpoint, or "random weights"
    records: Sequence[dict[str, Any]]  # the lines of metrics.jsonl
    result: Result | None  # None: the run has not finished
    split: str  # of the result
    selection: str = ""  # how the measured weights were selected
    same_images: bool = True  # as those of the first run of the report
    settings: Mapping[str, str] = field(default_factory=dict)  # those that differ between the runs of the report
