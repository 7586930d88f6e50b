"""figure3, figure4, figure5 and table5: the grid they share, verdicts on made-up results, tiny runs, and the plan."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scaling_records as made
from vitreous import VitreousError
from vitreous.data.open_data import open_data
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.figure3 import transfer_curves
from vitreous.experiments.grid.compute_fronts import ComputeFronts
from vitreous.experiments.grid.data_curves import crossing_sentence
from vitreous.experiments.grid.experiment import Cell
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.scaling import FINETUNING, PRETRAINING, TUNED
from vitreous.experiments.grid.scaling_plans import FAMILIES, PLANS
from vitreous.experiments.grid.settings import Setting
from vitreous.experiments.grid.work import cell_model
from vitreous.experiments.options import ReproduceOptions
from vitreous.experiments.plan import plan_grid
from vitreous.experiments.registry import find_experiment
from vitreous.experiments.reproduce import redraw, reproduce_all
from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.utils.progress import ProgressReporter
from vitreous.utils.sizes import pair

NAMES = ("figure3", "figure4", "figure5", "table5")
VIT, BIT = PLANS["small"].seeded


def verdict(name: str, records: CellRecords) -> Any:
    return find_experiment(name).verdict(records)


# ---------------------------------------------------------------- the grid


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_every_cell_comes_after_those_that_it_needs(scale: Any) -> None:
    setting = replace(made.SETTING, scale=scale, seeds=3)
    for name in NAMES:
        cells = find_experiment(name).cells(setting)
        factors = [(json.dumps(dict(cell.factors)), cell.seed) for cell in cells]
        assert len(set(factors)) == len(cells)
        for place, cell in enumerate(cells):
            for needed in (cell.start, cell.lr_of):
                assert needed is None or any(needed is other for other in cells[:place])
            assert cell.config is not None
            assert (
                cell.config.optimiser.lr is not None or cell.config.finetuning.lr_candidates or cell.lr_of is not None
            )


def test_scale_small_has_what_the_figures_need() -> None:
    cells = {name: find_experiment(name).cells(made.SETTING) for name in NAMES}
    subsets = [cell for cell in cells["figure3"] if cell.factors["stage"] == FINETUNING]
    shares = sorted({float(cell.factors["share"]) for cell in subsets})
    assert len(shares) >= 5
    assert shares[-1] / shares[0] >= 50
    for model in (VIT, BIT):
        for share in shares:
            seeds = {cell.seed for cell in subsets if (cell.factors["model"], cell.factors["share"]) == (model, share)}
            assert seeds == {0, 1, 2}
    budgets: dict[str, set[float]] = {}
    for cell in cells["figure5"]:
        budgets.setdefault(str(cell.factors["model"]), set()).add(float(cell.factors["epochs"]))
    assert len(budgets) >= 9
    assert all(len(each) >= 3 for each in budgets.values())
    # table5 and figure4 need no run that figure3 does not have.
    known = {json.dumps([dict(cell.factors), cell.seed]) for cell in cells["figure3"]}
    for name in ("figure4", "table5"):
        assert {json.dumps([dict(cell.factors), cell.seed]) for cell in cells[name]} <= known


def test_every_subset_has_the_same_steps_and_settings() -> None:
    seen: dict[str, set[Any]] = {}
    for cell in find_experiment("figure3").cells(made.SETTING):
        if cell.factors["stage"] == PRETRAINING and cell.seed == 1:
            assert cell.config is not None
            config = cell.config.flat()
            images = round(made.IMAGES * float(cell.factors["share"]))
            steps = round(float(str(config["duration"]).split()[0]) * images / config["batch_size"])
            assert config["train_fraction"] == (None if cell.factors["share"] == 1 else cell.factors["share"])
            same = {**config, "duration": steps, "train_fraction": None, "lr_candidates": None, "dev_fraction": None}
            seen.setdefault(str(cell.factors["model"]), set()).add(json.dumps(same))
    assert set(seen) == {VIT, BIT}
    assert all(len(settings) == 1 for settings in seen.values())


def test_families_have_the_same_trials_and_augmentation() -> None:
    """One search of the learning rate per family and stage, with the same candidates."""
    for name in ("figure3", "figure5"):
        cells = [cell for cell in find_experiment(name).cells(made.SETTING) if cell.config is not None]
        for stage in (PRETRAINING, FINETUNING):
            of_stage = [cell for cell in cells if cell.factors["stage"] == stage]
            searches = [cell for cell in of_stage if cell.config and cell.config.finetuning.lr_candidates]
            assert [cell.factors["family"] for cell in searches] == list(FAMILIES)
            assert len({cell.config.finetuning for cell in searches if cell.config}) == 1
            assert len({cell.config.augmentation for cell in of_stage if cell.config}) == 1
            for cell in of_stage:
                search = next(one for one in searches if one.factors["family"] == cell.factors["family"])
                assert cell is search or cell.lr_of is search


def test_resnets_below_96_px_have_the_small_stem_and_equal_compute() -> None:
    flops = {}
    for cell in find_experiment("figure5").cells(made.SETTING):
        model = cell_model(cell)
        assert pair(model.image_size) == (32, 32)
        resnet = model if isinstance(model, BiTConfig) else model.backbone
        assert resnet is None or resnet.stem == "small"
        assert (resnet is None) == (cell.factors["family"] == "ViT")
        flops[cell.factors["model"]] = cost(model).flops.total
    assert flops[VIT] == pytest.approx(flops[BIT], rel=0.02)


def test_scale_paper_has_the_models_of_table_6() -> None:
    setting = Setting("paper", "jft", ("imagenet",), 1)
    cells = find_experiment("figure5").cells(setting)
    exaflops = {}
    for cell in cells:
        if cell.factors["stage"] == PRETRAINING:
            flops = cost(cell_model(cell)).training_flops * 303e6 * float(cell.factors["epochs"]) / 1e18
            exaflops[cell.factors["model"], cell.factors["epochs"]] = flops
    for place, paper in {("R50+B/32", 7): 106, ("R50+L/16", 14): 1668, ("H/14", 14): 4262, ("B/16", 7): 224}.items():
        assert exaflops[place] == pytest.approx(paper, rel=0.07)
    hybrid = next(cell_model(cell) for cell in cells if cell.factors["model"] == "R50+B/16")
    assert isinstance(hybrid, ViTConfig)
    assert hybrid.backbone is not None
    assert hybrid.backbone.stem == "imagenet"


# ---------------------------------------------------------------- verdicts on made-up results


def test_lines_that_cross() -> None:
    records = made.records_of("figure3", made.CROSSING)
    found = verdict("figure3", records)
    assert found.answer == "yes"
    assert "The lines cross: BiT-R26x0.5 leads with 800 images and ViT 6x192 with 40,000 images, both" in found.text
    rows = find_experiment("figure3").table(records).texts()
    assert [row[-1] for row in rows][::4] == [BIT, VIT]
    assert [row[0] for row in rows] == ["800", "2,000", "5,000", "15,000", "40,000"]
    assert verdict("figure4", made.records_of("figure4", made.CROSSING)).answer == "yes"


def test_lines_that_do_not_cross() -> None:
    found = verdict("figure3", made.records_of("figure3", made.PARALLEL))
    assert found.answer == "no"
    assert "Contradicted: ViT 6x192 is better than BiT-R26x0.5 with 40,000 images" in found.text
    assert "The means do not cross: BiT-R26x0.5 is ahead or equal on all 5 subsets" in found.text


def test_lines_that_cross_the_other_way() -> None:
    reverse = made.by_images({"ViT": 8, "hybrid": 8, "BiT": 14}, {"ViT": 55, "hybrid": 50, "BiT": 50})
    found = verdict("figure3", made.records_of("figure3", reverse))
    assert found.answer == "no"
    assert re.search("The lines cross: ViT 6x192 leads with .* and BiT-R26x0.5 with ", found.text)


def test_ties() -> None:
    def equal(family: str, images: float, gflops: float, seed: int) -> float:
        return 50.0 + seed

    found = verdict("figure3", made.records_of("figure3", equal))
    assert found.answer == "undecided"
    assert "The means are equal on all 5 subsets." in found.text


def test_a_crossing_within_the_noise_is_undecided() -> None:
    noisy = made.by_images({"ViT": 9, "hybrid": 8, "BiT": 8}, {"ViT": 54.5, "hybrid": 53, "BiT": 55}, noise=3)
    found = verdict("figure3", made.records_of("figure3", noisy))
    assert found.answer == "undecided"
    assert "The lines cross" not in found.text


@pytest.mark.parametrize(
    ("missing", "part"),
    [
        (lambda cell: cell.factors["share"] == 0.02, "Not tested.*with 0.02 of the images.*1 of 5 subsets have no"),
        (lambda cell: cell.factors["family"] == "BiT", "Nothing can be concluded.*cannot be said"),
        (lambda cell: cell.seed > 0, "Nothing can be concluded.*change order between"),
        (lambda cell: True, "Nothing can be concluded.*cannot be said"),
    ],
)
def test_missing_cells(missing: Callable[[Cell], bool], part: str) -> None:
    found = verdict("figure3", made.records_of("figure3", made.CROSSING, missing))
    assert found.answer == "undecided"
    assert re.search(part, found.text), found.text


def test_a_missing_subset_is_not_replaced_by_another_one() -> None:
    """Without the largest subset, the second largest does not take its place."""
    records = made.records_of("figure3", made.CROSSING, lambda cell: cell.factors["share"] == 1)
    curves = transfer_curves(records)
    assert curves.shares[-1] == 1
    assert "ViT 6x192 is better than BiT-R26x0.5 with 1 of the images" in verdict("figure3", records).text
    assert "1 of 5 subsets have no results" in crossing_sentence(curves)


def compute_accuracy(gain: dict[str, float], noise: float = 0.1) -> made.Accuracy:
    """Accuracies by compute alone; a family with gain g needs 2^g times less compute."""
    import math

    import numpy as np

    def accuracy(family: str, images: float, gflops: float, seed: int) -> float:
        drawn = np.random.default_rng([seed, round(gflops), len(family)]).standard_normal()
        return 50 + 4 * (math.log2(gflops / 1e5) + gain[family]) + noise * drawn

    return accuracy


def test_ratio_of_compute_is_found() -> None:
    records = made.records_of("figure5", compute_accuracy({"ViT": 1, "hybrid": 1, "BiT": 0}))
    fronts = ComputeFronts.of(records)
    ratio = fronts.ratio("BiT", "ViT")
    assert ratio is not None
    assert ratio.mean == pytest.approx(2, rel=0.1)
    assert len(fronts.runs) == 27
    text = verdict("figure5", records).text
    assert re.search(r"Supported: ViTs need less compute than ResNets at equal accuracy \((1\.9|2\.[01])", text), text
    notes = " ".join(find_experiment("figure5").table(records).notes)
    assert re.search(r"BiT divided by ViT: (1\.9|2\.[01])\d \[", notes), notes


def test_more_compute_for_vits_contradicts() -> None:
    found = verdict("figure5", made.records_of("figure5", compute_accuracy({"ViT": 0, "hybrid": 0, "BiT": 1})))
    assert found.answer == "no"
    assert "Contradicted: ViTs need less compute" in found.text


def test_fronts_that_do_not_overlap_are_not_comparable() -> None:
    records = made.records_of("figure5", compute_accuracy({"ViT": 20, "hybrid": 20, "BiT": 0}))
    assert ComputeFronts.of(records).ratio("BiT", "ViT") is None
    found = verdict("figure5", records)
    assert "Not tested: ViTs need less compute than ResNets at equal accuracy (not comparable" in found.text
    assert "not comparable, since the fronts have no common accuracy (BiT" in str(
        find_experiment("figure5").table(records).notes
    )


@pytest.mark.parametrize("missing", [lambda cell: cell.seed > 0, lambda cell: True])
def test_compute_without_seeds_or_results(missing: Callable[[Cell], bool]) -> None:
    records = made.records_of("figure5", compute_accuracy({"ViT": 1, "hybrid": 1, "BiT": 0}), missing)
    found = verdict("figure5", records)
    assert found.answer == "undecided"
    assert found.text.startswith("Nothing can be concluded.")


def test_more_images_are_better() -> None:
    assert verdict("table5", made.records_of("table5", made.CROSSING)).answer == "yes"
    worse = made.by_images({"ViT": -9, "hybrid": -9, "BiT": -9}, {"ViT": 60, "hybrid": 60, "BiT": 60})
    assert verdict("table5", made.records_of("table5", worse)).answer == "no"


def test_notes_state_the_learning_rates() -> None:
    records = made.records_of("figure3", made.CROSSING)
    cells = [
        replace(cell, values={**cell.values, "learning rate": 0.01})
        if cell.factors["family"] == "BiT" and "learning rate" in cell.values
        else cell
        for cell in records
    ]
    notes = " ".join(find_experiment("figure3").table(CellRecords("small", tuple(cells))).notes)
    assert "selected among 0.0003, 0.001, 0.003, 0.01 on 5% of the training images" in notes
    assert "(ViT 0.001, hybrid 0.001, BiT 0.01 (the largest))" in notes
    assert "ViT 6x192 3, R26x0.5+ViT 6x192 1, BiT-R26x0.5 3" in notes
    assert "the same augmentation (random crops of at least 25% of the area, flips)" in notes


@pytest.mark.parametrize("name", NAMES)
def test_partial_results_are_drawn(name: str, tmp_path: Path) -> None:
    for number, missing in enumerate((lambda cell: cell.seed == 0, lambda cell: cell.factors["family"] == "ViT")):
        records = made.records_of(name, made.CROSSING, missing)
        result = ExperimentResult(name, find_experiment(name), records, {})
        result.write(tmp_path / str(number), overwrite=False)
        assert result.verdict.answer in ("yes", "no", "undecided")


# ---------------------------------------------------------------- tiny runs


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExperimentResult]:
    options = ReproduceOptions(out=str(tmp_path_factory.mktemp("tiny")), device="cpu")
    found = reproduce_all(NAMES, options, ProgressReporter(quiet=True))
    return {result.name: result for result in found}


@pytest.mark.parametrize("name", NAMES)
def test_tiny_run(tiny: dict[str, ExperimentResult], name: str, tmp_path: Path) -> None:
    result = tiny[name]
    assert [cell.error for cell in result.records.failed] == []
    assert all(len(row) == len(result.table.columns) for row in result.table.rows)
    assert result.verdict.answer == "undecided"
    assert result.folder is not None
    again = redraw(result.folder / "result.json", tmp_path, False)
    assert again.folder is not None
    for path in result.folder.iterdir():
        assert (again.folder / path.name).read_bytes() == path.read_bytes(), path.name


def test_values_of_tiny_runs(tiny: dict[str, ExperimentResult]) -> None:
    """Every run uses its subset, and the best weights of the run that it starts from."""
    records = tiny["figure3"].records
    assert tiny["figure3"].folder is not None
    cells = tiny["figure3"].folder.parent / "cells"
    whole = len(open_data("digits").train)
    configs = {cell.run: json.loads((cells / cell.run / "config.json").read_text()) for cell in records}
    for family in FAMILIES:
        pretrained = records.where(stage=PRETRAINING, family=family).cells
        for cell in pretrained:
            config = configs[cell.run]["config"]
            assert cell.values["training images"] < whole
            assert cell.values["exaFLOPs"] > 0
            assert cell.values["images seen"] == cell.values["steps"] * config["batch_size"]
        for cell in records.where(stage=FINETUNING, family=family):
            start = str(configs[cell.run]["config"]["start"])
            before = next(one for one in pretrained if one.factors["share"] == cell.factors["share"])
            assert start.endswith(f"{before.run}/best.safetensors")
            assert 0 <= cell.values[TUNED] <= 100
    shares = {c.factors["share"]: c.values["training images"] for c in records.where(stage=PRETRAINING)}
    assert shares[0.1] == round(0.1 * shares[1.0])


@pytest.mark.parametrize("name", ["figure3", "figure4", "figure5"])
def test_points_are_traced_by_the_names_of_their_runs(tiny: dict[str, ExperimentResult], name: str) -> None:
    result = tiny[name]
    assert result.folder is not None
    svg = (result.folder / f"{name}.svg").read_text()
    stage = PRETRAINING if name == "figure4" else FINETUNING
    for cell in result.records.where(stage=stage):
        assert f'id="{cell.run}"' in svg
        assert (result.folder.parent / "cells" / cell.run / "config.json").is_file()


def test_runs_are_shared(tiny: dict[str, ExperimentResult]) -> None:
    runs = {name: {cell.run for cell in result.records} for name, result in tiny.items()}
    assert runs["figure4"] <= runs["figure3"]
    assert runs["table5"] == runs["figure3"]
    assert len(runs["figure5"] - runs["figure3"]) == 6


def test_the_plan_of_a_grid(tiny: dict[str, ExperimentResult], tmp_path: Path) -> None:
    options = ReproduceOptions(out=str(tmp_path / "out"), device="cpu", jobs=2)
    found = plan_grid(["figure4"], options, ProgressReporter(quiet=True))
    assert not (tmp_path / "out").exists()
    assert (found.waiting, found.jobs, found.device) == (6, 2, "cpu")
    trained = sum(cell.values["exaFLOPs"] for cell in tiny["figure4"].records)
    assert sum(row.exaflops for row in found.rows) == pytest.approx(trained, rel=0.15)  # the plan: 1,000 classes
    assert found.seconds >= found.waiting * found.startup / 2
    assert all(row.speed > 0 for row in found.rows)
    assert tiny["figure4"].folder is not None
    done = plan_grid(
        ["figure4"], replace(options, out=str(tiny["figure4"].folder.parent)), ProgressReporter(quiet=True)
    )
    assert (done.waiting, done.seconds) == (0, 0)
    with pytest.raises(VitreousError, match="did you mean figure4"):
        plan_grid(["figur4"], options, ProgressReporter(quiet=True))
