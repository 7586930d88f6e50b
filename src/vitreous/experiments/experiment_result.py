"""The result of an experiment: its cells, and the table, figure and verdict that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError
from vitreous.evaluation.figures import add_caption, save_figure
from vitreous.experiments.grid.experiment import CellRecord, Experiment
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.statistics import Verdict
from vitreous.experiments.grid.tables import ResultTable
from vitreous.experiments.registry import find_experiment
from vitreous.utils.atomic import atomic_folder, check_output
from vitreous.utils.console import printable
from vitreous.utils.figures import literal_text
from vitreous.utils.json_files import dump_json, read_json

FORMAT = "vitreous experiment"


@dataclass(frozen=True, repr=False)
class ExperimentResult:
    """The result of `vitreous.reproduce`. Table, figure and verdict are computed from the records of the cells."""

    name: str  # name of the experiment
    experiment: Experiment  # declaration of the experiment: title, conclusion of the paper ...
    records: CellRecords  # settings and results of its cells
    description: Mapping[str, Any]  # date, command, hardware, data, seeds
    folder: Path | None = None  # folder that it was written to

    def __repr__(self) -> str:
        place = "" if self.folder is None else f"\n  written to {self.folder}"
        return f"{self.name} at scale {self.records.scale}: {self.paragraph()}{place}"

    @property
    def table(self) -> ResultTable:
        """The table; `table.markdown()` returns it as text."""
        return self.experiment.table(self.records)

    @property
    def verdict(self) -> Verdict:
        """Whether the paper's conclusion holds here: `answer` and `text`."""
        return self.experiment.verdict(self.records)

    def paragraph(self) -> str:
        """Return whether the paper's conclusion holds here, in one paragraph."""
        verdict = self.verdict
        if verdict.answer == "none":
            return verdict.text
        conclusion = f"The paper's conclusion, in our words: {self.experiment.conclusion}"
        return f"{conclusion} Does this hold here? {verdict.answer.capitalize()}. {verdict.text}"

    def measured_on(self) -> list[str]:
        """Return sentences on data, seeds and hardware."""
        about = self.description
        machine = about.get("environment", {})
        sentences = []
        if about.get("data"):
            classes = f", {about['classes']} classes" if about.get("classes") else ""
            unseen = (
                f"; {len(about['unseen'])} other classes for few-shot classification" if about.get("unseen") else ""
            )
            use = "Images" if about.get("model") else "Pre-training data"
            sentences.append(f"{use}: {about['data']}{classes}{unseen}.")
        if about.get("transfer"):
            sentences.append(f"Other data: {', '.join(about['transfer'])}.")
        seeds = self.records.seeds
        if about.get("model"):
            sentences.insert(0, f"Model: {about['model']}.")
        else:
            weights = "; last weights of every run" if any(cell.run for cell in self.records) else ""
            sentences.append(f"Scale {self.records.scale}, {seeds} seed{'s' * (seeds != 1)}{weights}.")
        hardware = machine.get("gpu") or machine.get("cpu", "")
        sentences.append(
            f"{about.get('date', '')}, {hardware}, torch {machine.get('torch', '?')}, vitreous"
            f" {machine.get('vitreous', '?')}."
        )
        if failed := self.records.failed:
            sentences.append(f"{len(failed)} of {len(self.records)} cells failed: see the table.")
        return sentences

    def markdown(self) -> str:
        """Return the report: conclusion, table, failed cells, how it was measured."""
        title = printable(self.experiment.title)
        lines = [f"# {self.name}: {title}", "", printable(self.paragraph()), "", self.table.markdown()]
        if self.experiment_has_figure():
            lines += [f"![{title}]({self.name}.png)", ""]
        lines += [f"- {printable(sentence)}" for sentence in self.measured_on()]
        lines += [f"- failed: {printable(f'{_title(cell)}: {cell.error}')}" for cell in self.records.failed]
        lines += ["", f"Command: `{printable(self.description.get('command', ''))}`"]
        return "\n".join(lines) + "\n"

    def experiment_has_figure(self) -> bool:
        """Return whether the experiment draws a figure."""
        return type(self.experiment).draw is not Experiment.draw

    def to_json(self) -> dict[str, Any]:
        """Return the content of result.json."""
        return {
            "format": FORMAT,
            "experiment": self.name,
            "scale": self.records.scale,
            "conclusion": self.experiment.conclusion,
            "verdict": asdict(self.verdict),
            "description": dict(self.description),
            "table": self.table.to_json(),
            "cells": [_cell_json(cell) for cell in self.records],
        }

    @classmethod
    def read(cls, path: Path, experiment: Experiment | None = None) -> ExperimentResult:
        """Read a result.json. Table, figure and verdict are computed again from its cells.

        `experiment`: the one that wrote it; None: it is part of this package, and found by the name in the file.
        """
        try:
            values = read_json(path)
        except VitreousError as error:
            folder = "" if path.parent == Path() else f"{path.parent}/"
            raise VitreousError(f"{folder}{error}") from error
        if values.get("format") != FORMAT:
            raise VitreousError(f"{path} is not the result of an experiment (`vitreous reproduce` writes result.json)")
        try:
            cells = tuple(CellRecord.from_json(cell) for cell in values["cells"])
            records = CellRecords(str(values["scale"]), cells)
            name, description = str(values["experiment"]), dict(values["description"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise VitreousError(f"{path} is damaged ({error})") from error
        try:
            return cls(name, experiment or find_experiment(name), records, description)
        except VitreousError as error:
            raise VitreousError(f"{path}: {error}; for an experiment of your own, give its FILE.py:NAME too") from error

    def write(self, folder: Path, overwrite: bool) -> None:
        """Write result.json, table.md, table.csv, report.md and the figure as PNG and SVG."""
        with atomic_folder(folder, overwrite, lambda _: output_files(self.name)) as new:
            dump_json(new / "result.json", self.to_json())
            (new / "table.md").write_text(self.table.markdown(), encoding="utf-8")
            (new / "table.csv").write_text(self.table.csv(), encoding="utf-8", errors="replace")
            (new / "report.md").write_text(self.markdown(), encoding="utf-8")
            self.draw(new)

    @literal_text
    def draw(self, folder: Path) -> list[Path]:
        """Write the figure as NAME.png and NAME.svg. Return the paths; none if the experiment has no figure."""
        figure = self.experiment.draw(self.records)
        if figure is None:
            return []
        add_caption(figure, [" ".join(self.measured_on())])
        return save_figure(figure, folder, self.name)


def output_files(name: str) -> tuple[str, ...]:
    """The names of the files that the result of an experiment consists of."""
    return ("result.json", "report.md", "table.md", "table.csv", f"{name}.png", f"{name}.svg")


def check_result_folder(name: str, folder: Path, overwrite: bool) -> None:
    """Raise an error if the result of this experiment may not be written to a folder."""
    check_output(folder, overwrite, lambda _: output_files(name))


def _cell_json(cell: CellRecord) -> dict[str, Any]:
    """Leave out what is empty, so that files stay small."""
    values = asdict(cell)
    return {name: value for name, value in values.items() if value or name in ("factors", "seed", "values")}


def _title(cell: CellRecord) -> str:
    factors = ", ".join(str(value) for value in cell.factors.values())
    return f"{factors or 'all'}, seed {cell.seed}"
