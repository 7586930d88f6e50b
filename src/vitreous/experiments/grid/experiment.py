"""An experiment: a grid of cells, what is measured on each, and how the table, figure and verdict are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitreous.errors import brief
from vitreous.experiments.grid.statistics import Verdict
from vitreous.training.config import TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.cell_measures import CellMeasure
    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting
    from vitreous.experiments.grid.tables import ResultTable

Scale = Literal["tiny", "small", "paper"]
Factor = str | int | float


@dataclass(frozen=True)
class Cell:
    """One cell of the grid: at most one training run, and what is measured on its weights."""

    factors: Mapping[str, Factor]  # what distinguishes this cell in the table
    measures: Sequence[CellMeasure]
    seed: int = 0
    config: TrainConfig | None = None  # of the training run; None: nothing is trained
    start: Cell | None = None  # the run starts from the weights of this cell
    data: str | None = None  # the run is trained on this data; None: on the pre-training data
    model: str | None = None  # measure this checkpoint; nothing is trained
    label: str = ""  # its name in progress and directory names; "": the values of its factors
    alone: bool = False  # it measures time: no other cell may run at the same time


@dataclass(frozen=True)
class Needs:
    """What an experiment needs beyond this package, for the list of experiments and for error messages."""

    pretraining: bool = True  # images with labels: --data
    transfer: bool = False  # another data set to fine-tune or to test on: --transfer
    model: bool = False  # it can inspect a given model: --model


class Experiment(ABC):
    """A table or figure of the paper. A file in `vitreous/experiments/` that defines `EXPERIMENT`, an instance of a
    subclass, is found by its name."""

    title: ClassVar[str]  # what it shows, in one line
    place: ClassVar[str]  # where it is in the paper: "Table 8"
    conclusion: ClassVar[str]  # the conclusion of the paper that is tested; "" if there is none
    seeds: ClassVar[Mapping[Scale, int]] = {"tiny": 1, "small": 3, "paper": 3}  # default number of seeds
    time: ClassVar[Mapping[Scale, str]] = {}  # measured time of the whole grid, with the hardware
    needs: ClassVar[Needs] = Needs()
    version: ClassVar[int] = 1  # of the code that makes the cells; results of another version are not reused

    @abstractmethod
    def cells(self, setting: Setting) -> list[Cell]:
        """Return the grid: every cell with every seed."""

    @abstractmethod
    def table(self, records: CellRecords) -> ResultTable:
        """Return the table. A value of a failed cell is missing."""

    def draw(self, records: CellRecords) -> Figure | None:
        """Return the figure, or None if there is none."""
        return None

    def verdict(self, records: CellRecords) -> Verdict:
        """Return whether the conclusion of the paper holds here, by a statistical test. The default is for experiments
        that test no conclusion."""
        return Verdict("none", "This experiment tests no conclusion.")


@dataclass(frozen=True)
class CellRecord:
    """The result of a cell: what was measured, or why there is no result."""

    factors: Mapping[str, Factor]
    seed: int
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""  # why the cell has no values
    run: str = ""  # its run directory, relative to the output folder
    seconds: float = 0.0  # of training and measuring
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the training run, those that were given
    notes: Sequence[str] = ()  # how the weights were selected, and warnings
    key: str = ""  # hash of everything the values depend on

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CellRecord:
        """Return a stored record. A TypeError or ValueError says what is wrong with it."""
        record = cls(**values)
        for name, value in vars(record).items():
            if not isinstance(value, FIELD_TYPES[name]) or isinstance(value, bool):
                raise TypeError(f"{name} = {brief(value)}")
        if odd := [value for value in record.factors.values() if not isinstance(value, str | int | float)]:
            raise TypeError(f"factors: {brief(odd[0])}")
        return record


FIELD_TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("factors", "values", "settings"), dict),
    **dict.fromkeys(("error", "run", "key"), str),
    **{"seed": int, "seconds": (int, float), "notes": (list, tuple)},
}
