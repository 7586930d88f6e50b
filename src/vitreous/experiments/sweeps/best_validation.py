"""What a sweep measures: the validation metric of the best weights of a run, which selects settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vitreous.errors import VitreousError
from vitreous.experiments.grid.cell_measures import CellMeasure, TrainedCell
from vitreous.training.run_directory import RunDirectory

VALUE = "value"  # name of the measured number


@dataclass(frozen=True)
class BestValidation(CellMeasure):
    """The validation metric of best.safetensors. The test images of a run select nothing."""

    metric: str

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        assert cell.outcome is not None
        directory = RunDirectory(cell.outcome.run)
        best = directory.result().get("best")
        evaluations = [line for line in directory.records() if line["kind"] == "eval"]
        if not best or not evaluations:
            raise VitreousError(f"its {self.metric} on the validation images is undefined")
        value, loss = float(best[VALUE]), float(best["loss"])
        if not math.isfinite(value):
            raise VitreousError(f"its {self.metric} on the validation images is not finite")
        return {
            VALUE: value,
            "loss": loss if math.isfinite(loss) else None,
            "step": best["step"],
            "images": evaluations[-1].get("images"),
        }
