"""The results of all cells of an experiment, and how to select and summarise them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vitreous.experiments.grid.experiment import CellRecord, Factor
from vitreous.experiments.grid.statistics import SeedSummary, summarize_seeds


@dataclass(frozen=True)
class CellRecords:
    """The results of an experiment, in the order of its cells."""

    scale: str
    cells: tuple[CellRecord, ...]

    def __iter__(self) -> Iterator[CellRecord]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def where(self, **factors: Factor) -> CellRecords:
        """Return the cells with these factors."""
        chosen = (cell for cell in self.cells if all(cell.factors.get(name) == factors[name] for name in factors))
        return CellRecords(self.scale, tuple(chosen))

    def groups(self, *names: str) -> list[dict[str, Factor]]:
        """Return the combinations of these factors that occur, in the order of the cells."""
        found: list[dict[str, Factor]] = []
        for cell in self.cells:
            values = {name: cell.factors[name] for name in names if name in cell.factors}
            if len(values) == len(names) and values not in found:
                found.append(values)
        return found

    def by_seed(self, value: str, **factors: Factor) -> dict[int, float]:
        """Return a measured number by seed, of the one group of cells with these factors. Failed cells are left out."""
        return {cell.seed: float(cell.values[value]) for cell in self.where(**factors) if value in cell.values}

    def summary(self, value: str, **factors: Factor) -> SeedSummary | None:
        """Return mean and standard deviation over seeds; None if there is no result."""
        numbers = list(self.by_seed(value, **factors).values())
        return summarize_seeds(numbers) if numbers else None

    def first(self, value: str, **factors: Factor) -> Any:
        """Return what was measured in the first cell with a result; None if there is none."""
        return next((cell.values[value] for cell in self.where(**factors) if value in cell.values), None)

    def has(self, value: str) -> bool:
        """Whether this was measured in any cell."""
        return any(value in cell.values for cell in self.cells)

    @property
    def failed(self) -> list[CellRecord]:
        return [cell for cell in self.cells if cell.error]

    @property
    def seeds(self) -> int:
        """The number of different seeds."""
        return len({cell.seed for cell in self.cells})

    @property
    def measured_names(self) -> list[str]:
        """The names of the accuracies that were measured, in order."""
        names = {name: None for cell in self.cells for name, value in cell.values.items() if isinstance(value, float)}
        return list(names)

    @property
    def main_measure(self) -> str:
        """The accuracy that the conclusion is about: few-shot accuracy on unseen classes, else the first measure."""
        names = self.measured_names
        return next((name for name in names if name.endswith("-shot")), names[0] if names else "val")

    @property
    def percent_columns(self) -> list[str]:
        return [measure_label(name) for name in self.measured_names]

    def best_by(self, value: str, factor: str, **factors: Factor) -> Factor | None:
        """Return the level of `factor` with the highest mean of a value over seeds. Levels with failed seeds are left
        out. None: there is no result."""
        chosen = self.where(**factors)
        levels = [group[factor] for group in chosen.groups(factor)]
        complete = [level for level in levels if all(value in cell.values for cell in chosen.where(**{factor: level}))]
        means = {level: statistics.fmean(chosen.by_seed(value, **{factor: level}).values()) for level in complete}
        return max(means, key=lambda level: means[level]) if means else None

    def curve(self, value: str, factor: str, **factors: Factor) -> dict[float, list[float]]:
        """Return the values of all seeds by the level of a numeric factor."""
        found: dict[float, list[float]] = {}
        for cell in self.where(**factors):
            if value in cell.values and factor in cell.factors:
                found.setdefault(float(cell.factors[factor]), []).append(float(cell.values[value]))
        return found


def measure_label(name: str) -> str:
    """Return the label of an accuracy for a table or an axis: "5-shot accuracy, unseen classes (%)"."""
    if name == "val":
        return "validation accuracy (%)"
    data, _, shots = name.rpartition(" ")
    if not shots.endswith("-shot"):
        return f"{name} (%)"
    return f"{shots} accuracy, {'unseen classes' if data == 'unseen' else data} (%)"
