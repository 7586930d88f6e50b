"""The arguments of a sweep, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.errors import VitreousError, brief
from vitreous.experiments.grid.cell_runs import NOT_IN_KEY, given_settings
from vitreous.experiments.sweeps.search_space import SearchSpace
from vitreous.training.config import TrainConfig
from vitreous.training.user_parts import absolute_parts
from vitreous.utils.annotations import describe_annotation
from vitreous.utils.limits import check_count


@dataclass(frozen=True)
class SweepOptions:
    """Numbers of combinations and runs, and what may be replaced."""

    draws: int = 20
    draw_seed: int = 0
    seeds: int = 1
    jobs: int = 1
    overwrite: bool = False

    def check(self) -> None:
        for name, value in vars(self).items():
            kind = bool if name == "overwrite" else int
            if type(value) is not kind:
                raise VitreousError(f"{name} = {brief(value)}: expected {describe_annotation(kind)}")
            if name not in ("draw_seed", "overwrite"):
                check_count(name, value)


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep trains, and how."""

    data: str
    base: TrainConfig
    space: SearchSpace
    options: SweepOptions

    def combinations(self) -> list[dict[str, Any]]:
        return self.space.combinations()

    def configs(self, fixed: Mapping[str, Any]) -> list[TrainConfig]:
        """Return the settings of every combination. `fixed`: the length of all runs."""
        base = self.base.with_(**fixed, out=None)
        return [absolute_parts(base.with_(**combination)) for combination in self.combinations()]

    def identity(self, fingerprint: str) -> dict[str, Any]:
        """What must be the same for a sweep to be continued: the data, and the settings that all runs share."""
        swept = set(self.space.values)
        given = {name: value for name, value in given_settings(self.base).items() if name not in NOT_IN_KEY}
        shared = {name: value for name, value in given.items() if name not in swept and name != "seed"}
        content = {"fingerprint": fingerprint, "settings": shared, "swept": sorted(swept)}
        stored: dict[str, Any] = json.loads(json.dumps(content))
        return stored
