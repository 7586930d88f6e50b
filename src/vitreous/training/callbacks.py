"""Callbacks: code of the user that sees steps, evaluations and checkpoints of a run, and can change its course."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from vitreous.errors import VitreousError, brief, one_line
from vitreous.models.custom import CustomModel
from vitreous.utils.import_path import run_user_code

if TYPE_CHECKING:
    from vitreous.training.loop import TrainingLoop

Metrics = Mapping[str, Mapping[str, float]]  # by weights: raw, and ema if there is an EMA


class Callback:
    """Base class of callbacks: override the methods that you need, and pass instances or classes to `vitreous.train`.

    The methods get a `TrainingRun`. With several processes, every process calls its own callbacks.

    >>> class StopAtStep(vitreous.Callback):
    ...     def on_step(self, run):
    ...         if run.step == 3:
    ...             run.stop("3 steps are enough")
    >>> outcome = vitreous.train("digits", out="run", duration="100 steps", callbacks=[StopAtStep], quiet=True)
    >>> outcome.steps
    3
    """

    def on_start(self, run: TrainingRun) -> None:
        """Called before the first step of a new or resumed run."""

    def on_step(self, run: TrainingRun) -> None:
        """Called after every step."""

    def on_evaluation(self, run: TrainingRun, metrics: Metrics) -> None:
        """Called after every evaluation on the validation images. `metrics`: {"raw": {"loss": 0.5, "top1": 0.8}}, and
        "ema" if there is an EMA."""

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """Called after the training state was saved in the folder `path`."""

    def on_end(self, run: TrainingRun) -> None:
        """Called after the last step, before the final evaluation."""

    def state_dict(self) -> dict[str, Any]:
        """Values to save with the training state, as JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the values of `state_dict` when the run is resumed."""


class TrainingRun:
    """What a callback sees of a run, and what it can change.

    >>> class HalveRate(vitreous.Callback):
    ...     def on_step(self, run):
    ...         print(f"step {run.step} of {run.steps}, learning rate x {run.lr_scale}")
    ...         run.lr_scale /= 2
    >>> outcome = vitreous.train("digits", out="run", duration="3 steps", callbacks=[HalveRate], quiet=True)
    step 1 of 3, learning rate x 1.0
    step 2 of 3, learning rate x 0.5
    step 3 of 3, learning rate x 0.25
    """

    def __init__(self, loop: TrainingLoop):
        self._loop = loop

    @property
    def step(self) -> int:
        """Number of steps that are done."""
        return self._loop.progress.step

    @property
    def steps(self) -> int:
        """Number of steps of the whole run."""
        return self._loop.plan.steps

    @property
    def epoch(self) -> float:
        """Passes over the training images that are done."""
        return self._loop.epoch

    @property
    def model(self) -> nn.Module:
        """The model in training. Changes of its weights are not recorded: a resumed run repeats them only if the
        callback does."""
        model = self._loop.engine.model
        return model.module if isinstance(model, CustomModel) else model

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._loop.directory.path

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last step."""
        return self._loop.engine.optimisers.learning_rate

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate, in addition to the schedule. Setting it changes all following steps, also after
        the run is resumed."""
        return self._loop.progress.lr_scale

    @lr_scale.setter
    def lr_scale(self, value: float) -> None:
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise VitreousError(f"lr_scale = {brief(value)}: expected 0 or more")
        if value != self._loop.progress.lr_scale:
            self._loop.progress.lr_scale = float(value)
            self._loop.event(f"a callback set lr_scale to {value:g}")

    def stop(self, reason: str = "a callback stopped the run") -> None:
        """End the run after this step: it is evaluated and completed as at its last step."""
        if not self._loop.progress.stop_reason:
            self._loop.progress.stop_reason = reason or "a callback stopped the run"
            self._loop.event(f"stopped by a callback: {reason}")

    def log(self, **numbers: float) -> None:
        """Write numbers to metrics.jsonl, TensorBoard and Weights & Biases, under the kind "callback"."""
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise VitreousError(f"log: {name} = {brief(value)}: expected a number")
        if reserved := {"kind", "step"} & numbers.keys():
            raise VitreousError(f"log: {reserved.pop()} is the name of another value in the log: use another name")
        self._loop.record({"kind": "callback", "step": self.step, **numbers})


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a run, in the order in which they are called."""

    callbacks: tuple[Callback, ...] = ()

    @classmethod
    def create(cls, given: Sequence[Any]) -> Callbacks:
        """Check the callbacks, and create those that are given as classes."""
        if isinstance(given, Callback | type) or not isinstance(given, Sequence):
            raise VitreousError("callbacks: expected a list of vitreous.Callback")
        created = []
        for one in given:
            callback = run_user_code(f"callback {one.__name__}", one) if isinstance(one, type) else one
            if not isinstance(callback, Callback):
                raise VitreousError(f"callbacks: {brief(one)} is not a vitreous.Callback: derive its class from it")
            created.append(callback)
        return cls(tuple(created))

    def call(self, method: str, *arguments: Any) -> None:
        for one in self.callbacks:
            run_user_code(f"callback {type(one).__name__}.{method}", getattr(one, method), *arguments)

    def state(self) -> list[dict[str, Any]]:
        """The state of each callback, for progress.json."""
        states = []
        for one in self.callbacks:
            name = type(one).__name__
            values = run_user_code(f"callback {name}.state_dict", one.state_dict)
            try:
                values = json.loads(json.dumps(values, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise VitreousError(f"callback {name}.state_dict: not JSON ({one_line(error)})") from error
            states.append({"callback": name, "state": values})
        return states

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        stored, given = [one["callback"] for one in states], [type(one).__name__ for one in self.callbacks]
        if stored != given:
            raise VitreousError(
                f"callbacks: the run was started with {', '.join(stored) or 'none'}, and is resumed with"
                f" {', '.join(given) or 'none'}; pass the same ones to vitreous.resume(..., callbacks=[...])"
            )
        for one, state in zip(self.callbacks, states, strict=True):
            run_user_code(f"callback {type(one).__name__}.load_state_dict", one.load_state_dict, dict(state["state"]))
