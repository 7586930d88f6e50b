"""`reproduce figure9`: position similarity and training hyper-parameters."""

import json
from pathlib import Path

import numpy as np
import pytest
from inspection_runs import assert_redrawn

from vitreous import load
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.figure9 import EXPERIMENT, NAMES, VALUES, grid_factors
from vitreous.experiments.grid.experiment import CellRecord, Scale
from vitreous.experiments.grid.packed_values import unpack_array
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.reproduce import reproduce
from vitreous.inspection import position_similarity


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return reproduce("figure9", out=tmp_path_factory.mktemp("figure9"), device="cpu", quiet=True)


def test_it_is_drawn_again_from_its_result(trained: ExperimentResult, tmp_path: Path) -> None:
    assert_redrawn(trained, tmp_path)


@pytest.mark.parametrize("scale", list(VALUES))
def test_grid(scale: Scale) -> None:
    factors = grid_factors(scale)
    assert len(factors) == 7
    centre = factors[0]
    assert [sum(each[name] != centre[name] for name in NAMES) for each in factors] == [0, 1, 1, 1, 1, 1, 1]


def test_numbers(trained: ExperimentResult) -> None:
    assert not trained.records.failed
    assert len(trained.table.rows) == 7
    assert trained.folder is not None
    for record in trained.records:
        model = load(trained.folder.parent / "cells" / record.run / "last.safetensors")
        expected = position_similarity(model).similarity
        np.testing.assert_allclose(unpack_array(record.values["positions"]["similarity"]), expected, atol=6e-4)
        assert {name: record.settings.get(name) for name in NAMES} == dict(record.factors)


def test_one_seed_is_undecided(trained: ExperimentResult) -> None:
    assert trained.verdict.answer == "undecided"
    assert "Nothing can be concluded: fewer than two seeds" in trained.verdict.text


def test_failed_cells_are_drawn(trained: ExperimentResult, tmp_path: Path) -> None:
    assert trained.folder is not None
    text = json.loads((trained.folder / "result.json").read_text())
    for cell in text["cells"][2:]:
        cell["values"], cell["error"] = {}, "the loss is NaN"
    (tmp_path / "result.json").write_text(json.dumps(text))
    result = ExperimentResult.read(tmp_path / "result.json")
    assert len(result.table.rows) == 7
    assert len(result.draw(tmp_path)) == 2
    assert result.verdict.answer == "undecided"


def made_records(scores: dict[str, tuple[float, float]]) -> CellRecords:
    """Return results of 3 seeds with given correlations of the low and the high value of each setting."""
    cells, factors = [], grid_factors("small")
    for place, each in enumerate(factors):
        name, side = (None, 0) if place == 0 else (list(NAMES)[(place - 1) // 2], (place - 1) % 2)
        for seed in range(3):
            value = (scores[name][side] if name else 0.0) + 0.01 * seed * (1 + 0.1 * side)
            positions = {"distance_test": {"statistic": value}, "axis_test": {"statistic": 0.0}}
            cells.append(CellRecord(each, seed, {"val": 50.0, "positions": positions}))
    return CellRecords("small", tuple(cells))


def test_several_seeds() -> None:
    verdict = EXPERIMENT.verdict(
        made_records({"duration": (-0.2, -0.6), "lr": (-0.6, -0.2), "weight_decay": (0, -0.5)})
    )
    assert verdict.answer == "yes"
    assert "between length of training 3 epochs and 30 epochs (+39.9 hundredths" in verdict.text
    verdict = EXPERIMENT.verdict(made_records({"duration": (-0.2, -0.6), "lr": (-0.6, -0.2), "weight_decay": (0, 0)}))
    assert verdict.answer == "undecided"
