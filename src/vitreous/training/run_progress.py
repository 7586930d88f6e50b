"""The position of a run in training, as far as it is not in tensors: saved in the state as progress.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class BestWeights:
    """The best weights so far."""

    value: float  # of the metric that selects them
    loss: float  # decides between equal values: on a small validation split, many evaluations reach 100%
    step: int
    weights: str  # raw or ema
    leg: int = 0  # of an extended run


@dataclass
class RunProgress:
    """The position of a run. The names of the fields are those in progress.json."""

    step: int = 0
    seconds: float = 0.0  # of training, over all interruptions
    best: BestWeights | None = None
    stale: int = 0  # evaluations since the best one
    micro_batch: int = 0
    ended: bool = False  # all steps are done, or `patience` stopped the run
    evaluated: int = 0  # the last step that was evaluated
    leg: int = 0  # of an extended run, see legs.py
    weights: dict[str, str] = field(default_factory=dict)  # digests of best.safetensors and last.safetensors
    lr_scale: float = 1.0  # factor of the learning rate, set by a callback
    stop_reason: str = ""  # why a callback stopped the run
    callbacks: list[dict[str, Any]] = field(default_factory=list)  # state of each callback
    optimiser: str = ""  # state of an optimiser of the user's own, as JSON, without its tensors

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunProgress:
        best = values["best"]
        return cls(**{**values, "best": None if best is None else BestWeights(**best)})
