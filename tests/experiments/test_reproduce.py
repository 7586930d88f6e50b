"""`reproduce`: the files it writes, what is run again, keys of cells, failed cells, and all experiments at tiny."""

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grids
import vitreous
from helpers import tiny_vit
from vitreous import VitreousError
from vitreous.data.fingerprint import dataset_fingerprint
from vitreous.data.open_data import open_data
from vitreous.evaluation.evaluated_model import open_model
from vitreous.experiments import reproduce as module
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.grid import cell_runs
from vitreous.experiments.grid.cell_measures import FewShotAccuracy, ValidationAccuracy
from vitreous.experiments.grid.cell_runs import cell_key
from vitreous.experiments.grid.experiment import Cell, CellRecord
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.settings import make_setting, split_classes
from vitreous.experiments.registry import all_experiments, experiment_names
from vitreous.experiments.reproduce import redraw, reproduce
from vitreous.training.config import TrainConfig

SMALL = f"{grids.FILE}:SMALL"
OUTPUTS = {"result.json", "report.md", "table.md", "table.csv", "small.png", "small.svg"}


def run(name: str = SMALL, **fields: Any) -> ExperimentResult:
    return reproduce(name, device="cpu", quiet=True, **fields)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return run(out=tmp_path_factory.mktemp("finished"))


@pytest.fixture
def out(finished: ExperimentResult, tmp_path: Path) -> Path:
    """A copy of the output folder of a finished experiment."""
    assert finished.folder is not None
    shutil.copytree(finished.folder.parent, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of cells that are run in this test."""
    names: list[str] = []
    real = cell_runs.run_cell

    def counted(task: cell_runs.CellTask) -> CellRecord:
        names.append(task.title)
        return real(task)

    monkeypatch.setattr("vitreous.experiments.grid.sweep.run_cell", counted)
    return names


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def values(result: ExperimentResult) -> list[Any]:
    return [(dict(cell.factors), cell.seed, dict(cell.values), cell.error) for cell in result.records]


# ---------------------------------------------------------------- results


def test_result_and_files(finished: ExperimentResult) -> None:
    assert finished.name == "small"
    assert [(cell.factors["width"], cell.seed) for cell in finished.records] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    assert all(set(cell.values) == {"val", "val_images", "sum"} and not cell.error for cell in finished.records)
    assert len({cell.values["sum"] for cell in finished.records}) == 4
    assert [row[0] for row in finished.table.rows] == ["width 8", "width 16"]
    assert finished.verdict.answer == "undecided"
    assert "paired t-tests over 2 seeds" in finished.paragraph()
    folder = finished.folder
    assert folder is not None
    assert folder.name == "small-tiny"
    assert {path.name for path in folder.iterdir()} == OUTPUTS
    assert (folder / "table.md").read_text() == finished.table.markdown()
    with (folder / "table.csv").open(newline="") as file:
        assert next(csv.reader(file))[:3] == ["model", "val", "val: standard deviation"]
    report = (folder / "report.md").read_text()
    for part in (finished.paragraph(), finished.table.markdown(), "![two widths](small.png)", "2 seeds", "8 classes"):
        assert part in report
    stored = json.loads((folder / "result.json").read_text())
    assert [cell["values"] for cell in stored["cells"]] == [dict(cell.values) for cell in finished.records]
    assert stored["verdict"]["answer"] == "undecided"
    assert (folder / "small.png").read_bytes().startswith(b"\x89PNG")
    for cell in finished.records:
        assert (folder.parent / "cells" / cell.run / "last.safetensors").is_file()
        assert cell.settings["width"] == cell.factors["width"]
        assert cell.settings["seed" if cell.seed else "width"]
    assert not list((folder.parent / "cells").glob("*.features"))


def test_a_second_call_runs_nothing(finished: ExperimentResult, out: Path, trained: list[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*")}
    again = run(out=out)
    assert trained == []
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*")} == before
    assert values(again) == values(finished)
    assert contents(out / "small-tiny")["table.csv"] == contents(finished.folder)["table.csv"]  # type: ignore[arg-type]


def test_more_seeds_run_only_the_new_cells(finished: ExperimentResult, out: Path, trained: list[str]) -> None:
    more = run(out=out, seeds=3)
    assert trained == ["small: 8, seed 2", "small: 16, seed 2"]
    assert len(more.records) == 6
    assert [one for one in values(more) if one[1] < 2] == values(finished)
    with pytest.raises(VitreousError, match="holds the result of other settings or data: give another --out"):
        run(out=out, seeds=1)
    fewer = run(out=out, seeds=1, overwrite=True)
    assert len(trained) == 2
    assert "Nothing can be concluded" in fewer.paragraph()
    assert fewer.verdict.answer == "undecided"


def test_other_settings_are_refused_before_anything_runs(out: Path, tmp_path: Path, trained: list[str]) -> None:
    before = contents(out / "small-tiny")
    changed = tmp_path / "changed.py"
    changed.write_text("from grids import WidthGrid\nSMALL = WidthGrid(steps=2)\n")
    with pytest.raises(VitreousError, match="small-tiny holds the result of other settings or data"):
        run(f"{changed}:SMALL", out=out)
    assert trained == []
    assert contents(out / "small-tiny") == before
    run(f"{changed}:SMALL", out=out, seeds=1, overwrite=True)
    assert len(trained) == 2
    assert {path.name for path in (out / "small-tiny").iterdir()} == OUTPUTS


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", "holiday.png"])
def test_files_of_the_user_are_never_deleted(out: Path, trained: list[str], name: str, overwrite: bool) -> None:
    (out / "small-tiny" / name).write_text("mine")
    with pytest.raises(VitreousError, match=f"holds other files \\('{name}'\\)"):
        run(out=out, overwrite=overwrite, seeds=3)
    assert trained == []  # it is refused at the start
    assert (out / "small-tiny" / name).read_text() == "mine"
    (out / "cells" / name).write_text("mine")
    (out / "small-tiny" / name).unlink()
    run(out=out, overwrite=overwrite)
    assert (out / "cells" / name).read_text() == "mine"


def test_a_damaged_record_is_measured_again(finished: ExperimentResult, out: Path, trained: list[str]) -> None:
    for path, text in zip(sorted((out / "cells").glob("*.json")), ("", "[]", '{"x": 1}', "{"), strict=True):
        path.write_text(text)
    assert values(run(out=out)) == values(finished)
    assert len(trained) == 4


def test_cells_are_shared_between_experiments(
    finished: ExperimentResult, out: Path, tmp_path: Path, trained: list[str]
) -> None:
    file = tmp_path / "other.py"
    file.write_text("from grids import WidthGrid\nOTHER = WidthGrid()\nSMALL = WidthGrid()\n")
    assert values(run(f"{file}:OTHER", out=out)) == values(finished)
    assert trained == []
    both = module.ReproduceOptions(out=str(tmp_path / "both"), seeds=1, device="cpu")
    found = module.reproduce_all([SMALL, f"{file}:OTHER"], both, module.ProgressReporter(quiet=True))
    assert len(trained) == 2
    assert [result.name for result in found] == ["small", "other"]
    assert values(found[0]) == values(found[1])
    with pytest.raises(VitreousError, match="two have the same name"):
        module.reproduce_all([SMALL, f"{file}:SMALL"], both, module.ProgressReporter(quiet=True))


# ---------------------------------------------------------------- failed cells


@pytest.mark.parametrize(
    ("kind", "reason"), [("refused", "no | luck\nat all"), ("bug", "RuntimeError: a bug in the measure")]
)
def test_a_failed_cell_is_reported_and_tried_again(
    finished: ExperimentResult, out: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch, kind: str, reason: str
) -> None:
    for path in (out / "cells").glob("small-16-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    monkeypatch.setenv(grids.FAULT, f"16:{kind}")
    result = run(out=out)
    assert [cell.error for cell in result.records] == ["", "", reason, reason]
    assert values(result)[:2] == values(finished)[:2]
    assert result.table.texts()[1] == ["width 16", "–", "–"]
    assert "Nothing can be concluded" in result.verdict.text
    report = (out / "small-tiny" / "report.md").read_text()
    assert f"- failed: 16, seed 0: {reason.replace(chr(10), chr(0xFFFD))}\n" in report
    assert "2 of 4 cells failed" in report
    assert {path.name for path in (out / "small-tiny").iterdir()} == OUTPUTS
    log = next((out / "cells").glob("small-16-seed0-*.error.txt")).read_text()
    assert "Traceback" in log
    assert reason.rsplit(maxsplit=1)[-1] in log
    monkeypatch.delenv(grids.FAULT)
    trained.clear()
    assert values(run(out=out)) == values(finished)
    assert trained == ["small: 16, seed 0", "small: 16, seed 1"]


def test_divergence_is_a_failed_cell(tmp_path: Path) -> None:
    file = tmp_path / "hot.py"
    file.write_text("from grids import WidthGrid\nHOT = WidthGrid(20, lr=1e30, optimiser='sgd', clip=None)\n")
    for _ in range(2):
        result = run(f"{file}:HOT", out=tmp_path / "out", seeds=1)
        assert ["NaN or infinite at step" in cell.error for cell in result.records] == [True, True], result.records
    assert (tmp_path / "out" / "hot-tiny" / "hot.png").is_file()


# ---------------------------------------------------------------- cells that need others

RATES = f"{grids.FILE}:RATES"


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return run(RATES, out=tmp_path_factory.mktemp("rates"))


def test_a_cell_takes_the_learning_rate_that_another_one_selected(rates: ExperimentResult) -> None:
    first, second, _ = rates.records
    assert not rates.records.failed
    assert rates.folder is not None
    cells = rates.folder.parent / "cells"
    configs = [json.loads((cells / cell.run / "config.json").read_text()) for cell in rates.records]
    assert first.values["learning rate"] == 3e-3
    assert [config["config"]["lr"] for config in configs[:2]] == [3e-3, 3e-3]
    assert second.settings["lr"] == 3e-3
    assert configs[2]["config"]["start"].endswith(f"{second.run}/best.safetensors")
    images = len(open_data("digits", vitreous.TrainConfig.from_flat(configs[0]["config"]).reading).train)
    assert first.values["training images"] == images
    assert first.values["images seen"] == 20 * 64
    model = vitreous.load(cells / first.run / "last.safetensors").config
    assert first.values["exaFLOPs"] == pytest.approx(3 * 20 * 64 * vitreous.cost(model).flops.total / 1e18)


def test_cells_that_need_a_failed_one_fail(
    rates: ExperimentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(grids.FAULT, "8-0:refused")
    result = run(RATES, out=tmp_path / "out")
    errors = [cell.error for cell in result.records]
    assert errors[0] == "no | luck\nat all"
    assert errors[1].startswith("the run that it takes its learning rate from has failed: no | luck")
    assert errors[2].startswith("the run that it starts from has failed: the run that it takes")


def test_a_needed_cell_must_be_in_the_grid(tmp_path: Path) -> None:
    file = tmp_path / "gap.py"
    file.write_text(
        "from grids import RateGrid\n"
        "class Gap(RateGrid):\n    def cells(self, setting):\n        return super().cells(setting)[1:]\n"
        "GAP = Gap()\n"
    )
    with pytest.raises(VitreousError, match="gap: a cell takes its learning rate from another one that is not part"):
        run(f"{file}:GAP", out=tmp_path / "out")


# ---------------------------------------------------------------- keys


def pictures(path: Path, seed: int = 0, classes: int = 5) -> str:
    random = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = np.arange(60) % classes
    np.savez(path, x=random.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8), y=labels)
    return str(path)


def key_of(cell: Cell, data: str, version: int = 1, hardware: str = "cpu") -> str:
    fingerprints = {data: dataset_fingerprint(open_data(data))}
    module._add_fingerprints(fingerprints, [cell])
    return cell_key(cell, data, fingerprints, version, hardware)


def test_key_changes_with_everything_that_changes_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, other = pictures(tmp_path / "a.npz"), pictures(tmp_path / "b.npz", seed=1)
    base = Cell({"width": 8}, (ValidationAccuracy(),), 0, TrainConfig().with_(width=8))
    start = replace(base, factors={})
    models = [str(tmp_path / f"{name}.safetensors") for name in "mn"]
    for seed, path in enumerate(models):
        vitreous.save(tiny_vit(registers=seed), path)
    measured = (ValidationAccuracy(), FewShotAccuracy(other, "b"))
    variants = {
        "same": key_of(base, data),
        "data": key_of(base, other),
        "config": key_of(replace(base, config=TrainConfig().with_(width=16)), data),
        "seed": key_of(replace(base, config=TrainConfig().with_(width=8, seed=1)), data),
        "measure": key_of(replace(base, measures=measured), data),
        "shots": key_of(replace(base, measures=(measured[0], replace(measured[1], shots=3))), data),
        "start": key_of(replace(base, start=start), data),
        "other start": key_of(replace(base, start=replace(start, config=TrainConfig())), data),
        "own data": key_of(replace(base, data=other, measures=()), data),
        "learning rate of another cell": key_of(replace(base, lr_of=start), data),
        "learning rate of a third cell": key_of(replace(base, lr_of=replace(start, config=TrainConfig())), data),
        "best weights": key_of(replace(base, weights="best"), data),
        "version": key_of(base, data, version=2),
        "hardware": key_of(base, data, hardware="NVIDIA H200"),
        "model": key_of(Cell({}, (), model=models[0]), data),
        "other model": key_of(Cell({}, (), model=models[1]), data),
    }
    with monkeypatch.context() as patch:
        patch.setattr(cell_runs, "__version__", "99")
        variants["vitreous"] = key_of(base, data)
    assert len(set(variants.values())) == len(variants)
    pictures(Path(other), seed=2)  # the content of data that a cell names itself
    assert key_of(replace(base, data=other, measures=()), data) != variants["own data"]
    assert key_of(replace(base, measures=measured), data) != variants["measure"]
    shutil.copy(models[1], models[0])
    assert key_of(Cell({}, (), model=models[0]), data) == variants["other model"]
    assert open_model(models[0]).digest == open_model(models[1]).digest


def test_key_does_not_change_with_places_and_hardware_settings(tmp_path: Path) -> None:
    here, there = pictures(tmp_path / "a.npz"), pictures(tmp_path / "moved" / "a.npz")

    def key(data: str, **changes: Any) -> str:
        measures = (ValidationAccuracy(), FewShotAccuracy(data, "a"))
        return key_of(Cell({}, measures, 0, TrainConfig().with_(width=8, **changes)), data)

    base = key(here)
    assert key(there) == base
    for changes in ({"out": "elsewhere"}, {"device": "cuda:3"}, {"workers": 3}, {"save_minutes": 1.0}):
        assert key(here, **changes) == base, changes
    factors = Cell({"renamed": 1}, (), 0, TrainConfig())
    assert key_of(factors, here) == key_of(replace(factors, factors={"other": 2}), here)


def test_moved_data_and_an_unfinished_run(tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed continues, although the data and the output folder were moved."""
    data = pictures(tmp_path / "a.npz")
    monkeypatch.setenv(grids.FAULT, "16:bug")
    run(data=data, out=tmp_path / "out", seeds=1)
    unfinished = next((tmp_path / "out" / "cells").glob("small-16-*[!tn]"))
    (unfinished / "result.json").unlink()
    (tmp_path / "moved").mkdir()
    moved = shutil.move(data, tmp_path / "moved")
    shutil.move(tmp_path / "out", tmp_path / "moved")
    monkeypatch.delenv(grids.FAULT)
    trained.clear()
    result = run(data=moved, out=tmp_path / "moved" / "out", seeds=1)
    assert not result.records.failed
    assert trained == ["small: 16, seed 0"]


# ---------------------------------------------------------------- settings


def test_unseen_classes_are_fixed_and_disjoint() -> None:
    names = [f"class {i}" for i in range(100)]
    seen, unseen = split_classes(names)
    assert (len(seen), len(unseen)) == (80, 20)
    assert sorted(seen + unseen) == sorted(names)
    assert split_classes(names) == (seen, unseen)
    assert [len(part) for part in split_classes(names[:4])] == [2, 2]
    with pytest.raises(VitreousError, match="3 classes are too few"):
        split_classes(names[:3])


def test_arguments_are_checked(tmp_path: Path) -> None:
    for fields, message in (
        ({"seed": 1}, "no argument 'seed'; did you mean 'seeds'"),
        ({"seeds": 0}, "seeds = 0"),
        ({"seeds": "2"}, "seeds = '2': expected"),
        ({"jobs": 0}, "jobs = 0"),
        ({"scale": "large"}, "scale = 'large': expected .*'tiny'.*'small'.*'paper'"),
        ({"data": "nowhere"}, "nowhere"),
        ({"transfer": ["a/photos", "b/photos.npz"]}, "'photos' names more than one data set"),
        ({"transfer": ["unseen"]}, "'unseen' names more than one"),
        ({"model": "m.safetensors"}, "takes no --model"),
    ):
        with pytest.raises(VitreousError, match=message):
            run(**{"out": str(tmp_path / "out"), **fields})
    assert not list(tmp_path.iterdir())


def test_names_are_checked(tmp_path: Path) -> None:
    for name, message in (
        ("tabel8", "there is no experiment 'tabel8'; did you mean table8"),
        ("Table 8", "did you mean table8"),
        ("nonsense", "the experiments are table.*, table8"),
        (f"{grids.FILE}:SMAL", "did you mean SMALL"),
        (f"{grids.FILE}:FAULT", "expected an instance of Experiment"),
        (str(tmp_path / "missing.py:A"), "there is no such file"),
    ):
        with pytest.raises(VitreousError, match=message):
            run(name, out=tmp_path / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(VitreousError, match="cannot be written"):
            run(out=tmp_path / "out")
    finally:
        tmp_path.chmod(0o700)


def test_output_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(VitreousError, match="cannot be written"):
        run(out=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


# ---------------------------------------------------------------- redrawing


def test_names_with_odd_characters_are_written(finished: ExperimentResult, tmp_path: Path) -> None:
    odd = "a|b\n\x1b[31m\udcff$x^2$ é"

    class OddTable(grids.WidthGrid):
        title = odd

        def table(self, records: CellRecords) -> Any:
            table = super().table(records)
            return replace(table, columns=(odd, *table.columns[1:]), notes=(odd,))

    description = {**finished.description, "data": odd, "command": odd}
    cells = tuple(replace(cell, factors={"width": cell.factors["width"], "x": odd}) for cell in finished.records)
    cells = (*cells[:3], replace(cells[3], values={}, error=odd))
    result = replace(finished, experiment=OddTable(), description=description, records=CellRecords("tiny", cells))
    result.write(tmp_path / "odd", overwrite=False)
    assert {path.name for path in (tmp_path / "odd").iterdir()} == OUTPUTS
    assert "\x1b" not in (tmp_path / "odd" / "report.md").read_text()
    assert values(ExperimentResult.read(tmp_path / "odd" / "result.json", OddTable())) == values(result)


def test_redraw_is_identical(finished: ExperimentResult, tmp_path: Path) -> None:
    folder = finished.folder
    assert folder is not None
    found = redraw(folder / "result.json", tmp_path, False, (SMALL,))
    assert contents(tmp_path / "small-tiny") == contents(folder)
    assert found.verdict == finished.verdict
    with pytest.raises(VitreousError, match="exists already"):
        redraw(folder / "result.json", tmp_path, False, (SMALL,))
    with pytest.raises(VitreousError, match=r"give its FILE\.py:NAME too"):
        redraw(folder / "result.json", tmp_path, True)
    with pytest.raises(VitreousError, match="is the result of small, not of table8"):
        redraw(folder / "result.json", tmp_path, True, ("table8",))
    with pytest.raises(VitreousError, match="give another --out"):
        redraw(folder / "result.json", folder.parent, True, (SMALL,))
    assert contents(tmp_path / "small-tiny") == contents(folder)


# ---------------------------------------------------------------- all experiments


def without_results(name: str) -> ExperimentResult:
    """The result of an experiment of which every cell has failed."""
    experiment = all_experiments()[name]
    opened = open_data(module.TINY_DATA) if experiment.needs.pretraining else None
    setting = make_setting("tiny", module.TINY_DATA if opened else "", opened, (), 1, None)
    cells = [CellRecord(dict(cell.factors), cell.seed, error="no luck") for cell in experiment.cells(setting)]
    return ExperimentResult(name, experiment, CellRecords("tiny", tuple(cells)), {})


OWN_FILES = ("figure6", "figure7", "figure9", "speed", "table1")  # test_figure6.py ... run these


@pytest.mark.parametrize("name", [name for name in experiment_names() if name not in OWN_FILES])
def test_an_experiment_without_any_result_has_a_report(name: str, tmp_path: Path) -> None:
    result = without_results(name)
    result.write(tmp_path / name, overwrite=False)
    assert result.verdict.answer in ("undecided", "none")
    assert (tmp_path / name / "report.md").read_text().count("no luck") == len(result.records)


SHARED_RUNS = ("figure3", "figure4", "figure5", "table5")  # test_scaling.py runs these together


@pytest.mark.parametrize("name", [name for name in experiment_names() if name not in SHARED_RUNS])
def test_experiment_at_tiny(name: str, tmp_path: Path) -> None:
    result = run(name, out=tmp_path / "out")
    assert [cell.error for cell in result.records.failed] == []
    assert result.table.rows
    assert all(len(row) == len(result.table.columns) for row in result.table.rows)
    folder = result.folder
    assert folder is not None
    for ending in ("png", "svg"):
        assert (folder / f"{name}.{ending}").is_file() == result.experiment_has_figure()
    redraw(folder / "result.json", tmp_path / "again", False)
    assert contents(tmp_path / "again" / folder.name) == contents(folder)
    # One cell after the other without a result: everything is still drawn.
    cells = result.records.cells
    for place in range(0, len(cells), max(1, len(cells) // 2)):
        failed = replace(cells[place], values={}, error="no luck")
        partial = replace(result, records=CellRecords("tiny", (*cells[:place], failed, *cells[place + 1 :])))
        partial.write(tmp_path / str(place), overwrite=False)
