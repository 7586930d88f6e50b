"""Table 1: parameters and pre-training compute are those of the paper."""

from dataclasses import replace
from pathlib import Path

import pytest

from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.reproduce import redraw, reproduce
from vitreous.experiments.table1 import PAPER_EXAFLOPS, deviations, pretraining_exaflops

pytest.importorskip("matplotlib")

PARAMETERS = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "B/16": 86_567_656,
    "B/32": 88_224_232,
    "L/16": 304_326_632,
    "L/32": 306_535_400,
    "H/14": 632_045_800,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
    "BiT-R50x1": 25_549_352,
    "BiT-R101x1": 44_541_480,
    "BiT-R152x2": 236_335_208,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return reproduce("table1", quiet=True, device="cpu", out=tmp_path_factory.mktemp("table1"))


def test_the_parameters_are_exact(result: ExperimentResult) -> None:
    assert not result.records.failed
    assert {name: result.records.first("parameters", model=name) for name in PARAMETERS} == PARAMETERS
    base = result.records.where(model="B/16").cells[0].values
    assert [base[name] for name in ("depth", "width", "mlp_dim", "heads")] == [12, 768, 3072, 12]
    assert base["flops"] / 1e9 == pytest.approx(35.1, abs=0.05)


@pytest.mark.parametrize(("model", "epochs"), [(model, n) for model in PAPER_EXAFLOPS for n in PAPER_EXAFLOPS[model]])
def test_the_compute_agrees_with_the_paper(result: ExperimentResult, model: str, epochs: int) -> None:
    exaflops = pretraining_exaflops(result.records, model, epochs)
    assert exaflops == pytest.approx(PAPER_EXAFLOPS[model][epochs], rel=0.07)


def test_the_verdict_names_the_largest_deviation(result: ExperimentResult) -> None:
    assert result.verdict.answer == "yes"
    largest = max(deviations(result.records), key=lambda one: abs(one.percent))
    assert f"{largest.percent:+.1f}% ({largest.name}" in result.verdict.text
    assert "no statistical test" in result.verdict.text
    assert "last weights" not in result.markdown()  # nothing was trained


def test_wrong_numbers_and_failed_cells_change_the_verdict(result: ExperimentResult) -> None:
    cells = list(result.records)
    place = next(i for i, cell in enumerate(cells) if cell.factors["model"] == "H/14")
    values = {**cells[place].values, "parameters": 700_000_000}
    cells[place] = replace(cells[place], values=values)
    changed = replace(result, records=CellRecords("tiny", tuple(cells)))
    assert changed.verdict.answer == "no"
    assert "H/14, parameters: 700.0 here, 632 in the paper" in changed.verdict.text
    cells[place] = replace(cells[place], values={}, error="no such model")
    changed = replace(result, records=CellRecords("tiny", tuple(cells)))
    assert changed.verdict.answer == "undecided"
    assert "2 numbers have no result" in changed.verdict.text
    assert "H/14, seed 0: no such model" in changed.markdown()
    none = replace(result, records=CellRecords("tiny", tuple(replace(cell, values={}) for cell in cells)))
    assert none.verdict.answer == "undecided"
    assert none.experiment.draw(none.records) is not None


def test_a_result_is_redrawn(result: ExperimentResult, tmp_path: Path) -> None:
    assert result.folder is not None
    again = redraw(result.folder / "result.json", tmp_path, False)
    assert again.folder is not None
    for name in ("table.md", "table.csv", "report.md", "table1.svg", "table1.png"):
        assert (again.folder / name).read_bytes() == (result.folder / name).read_bytes()
