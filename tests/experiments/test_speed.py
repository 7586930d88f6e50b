"""Appendix D.5: speed and largest batch. Measured values are made up where a GPU would be needed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from vitreous import VitreousError
from vitreous.experiments import speed
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.grid.experiment import CellRecord
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.settings import Setting
from vitreous.experiments.reproduce import redraw, reproduce
from vitreous.models import zoo
from vitreous.models.cost import cost

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return reproduce("speed", quiet=True, device="cpu", out=tmp_path_factory.mktemp("speed"))


def values_of(model: str, px: int, speed_factor: float = 1.0, memory_factor: float = 1.0) -> dict[str, Any]:
    """Make up values of a GPU: ViTs are faster and need less memory by these factors."""
    config = zoo.config(model)
    size = speed.usable_size(config, px)
    flops, is_vit = cost(config, size).flops.total, not model.startswith("BiT")
    plain = 1e14 / flops * (speed_factor if is_vit else 1)
    images = int(5e13 / flops * (memory_factor if is_vit else 1))
    return {
        **{"size": size, "flops": flops, "precision": "bf16", "path": "fused kernels" if is_vit else "plain"},
        **{"images/s": 2 * plain if is_vit else plain, "images/s, plain": plain, "images/s: spread (%)": 3.0},
        **{"largest training batch": images, "training: not verified": "" if px != 64 else "out of memory"},
        **{"largest inference batch": 20 * images, "memory": 150 * 10**9},
    }


def made_up(**factors: float) -> CellRecords:
    models, sizes = speed.MODELS["paper"], speed.SIZES["paper"]
    cells = [CellRecord({"model": m, "px": px}, 0, values_of(m, px, **factors)) for m in models for px in sizes]
    return CellRecords("paper", tuple(cells))


def test_the_grid() -> None:
    experiment = speed.EXPERIMENT
    cells = experiment.cells(Setting("small", ""))
    assert all(cell.alone for cell in cells)
    assert len(cells) == 8 * 5
    assert {cell.config for cell in cells} == {None}
    assert {seed.seed for seed in experiment.cells(Setting("tiny", "", seeds=2))} == {0, 1}
    for vit, resnet in speed.PAIRS:
        assert 0.9 < cost(vit, 224).flops.total / cost(resnet, 224).flops.total < 1.4
    sizes = [speed.usable_size(zoo.config("H/14"), px) for px in speed.SIZES["small"]]
    assert sizes == [70, 126, 224, 378, 518]


def test_batch_sizes_follow_from_the_flops() -> None:
    gpu = torch.device("cuda", 0)
    assert speed.batch_sizes(zoo.config("B/16"), 224, gpu) == (128, 512)
    assert speed.batch_sizes(zoo.config("H/14"), 518, gpu) == (4, 16)
    assert speed.batch_sizes(zoo.config("B/32"), 64, gpu) == (2048, 8192)


def test_a_tiny_run_on_the_cpu(result: ExperimentResult) -> None:
    assert not result.records.failed
    for cell in result.records:
        assert cell.values["images/s"] > 0
        assert cell.values["images/s, plain"] > 0
        assert cell.values["precision"] == "fp32"
    assert result.records.first("path", model="S/16") == "packed weights"
    bit = result.records.where(model="BiT-R50x1", px=32).cells[0].values
    assert bit["path"].startswith("plain")
    assert bit["images/s"] == bit["images/s, plain"]
    assert "The largest batch is measured on GPUs only." in result.table.notes
    assert all(row[-3:] == (None, None, None) for row in result.table.rows)
    assert "The memory of large ViTs was not measured." in result.verdict.text
    assert result.verdict.answer != "yes"


def test_a_result_is_redrawn(result: ExperimentResult, tmp_path: Path) -> None:
    assert result.folder is not None
    again = redraw(result.folder / "result.json", tmp_path, False)
    assert again.folder is not None
    for name in ("table.md", "table.csv", "report.md", "speed.svg", "speed.png"):
        assert (again.folder / name).read_bytes() == (result.folder / name).read_bytes()


def test_a_cell_without_memory_fails_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def create(name: str, **options: Any) -> Any:
        if name == "S/16" and options["image_size"] == 64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")
        return original(name, **options)

    original = zoo.create
    monkeypatch.setattr(zoo, "create", create)
    result = reproduce("speed", quiet=True, device="cpu", out=tmp_path)
    (failed,) = result.records.failed
    assert failed.error == "out of memory on cpu: S/16 at 64 px"
    assert f"S/16, 64, seed 0: {failed.error}" in result.markdown()
    assert [row[2] is None for row in result.table.rows] == [False, False, False, True, False, False]
    assert "1 cell failed and is left out." in result.verdict.text
    assert (tmp_path / "speed-tiny" / "speed.png").is_file()


def test_other_devices_are_refused() -> None:
    with (
        pytest.raises(VitreousError, match="measured on cpu and cuda only"),
        speed.measurement(torch.device("mps"), "B/16", 224),
    ):
        pass


@pytest.mark.parametrize(
    ("factors", "answer"),
    [
        ({"speed_factor": 0.8, "memory_factor": 3.0}, "yes"),
        ({"speed_factor": 3.0, "memory_factor": 3.0}, "yes"),
        ({"speed_factor": 0.3, "memory_factor": 3.0}, "no"),
        ({"speed_factor": 0.8, "memory_factor": 0.5}, "no"),
    ],
)
def test_the_verdict_follows_its_rules(factors: dict[str, float], answer: str) -> None:
    records = made_up(**factors)
    verdict = speed.EXPERIMENT.verdict(records)
    assert verdict.answer == answer
    assert "no statistical test" in verdict.text
    assert speed.EXPERIMENT.verdict(CellRecords("paper", ())).answer == "undecided"


def test_the_table_of_a_gpu() -> None:
    records = made_up()
    table = speed.EXPERIMENT.table(records)
    assert len(table.rows) == len(records) == 9 * 5
    assert table.rows[0][:2] == ("B/32", 64)
    assert [row[-1] for row in table.rows[:5]] == ["no", "yes", "yes", "yes", "yes"]
    notes = " ".join(table.notes)
    assert "70 px instead of 64" in notes
    assert "for 139.7 GiB of memory: extrapolated from the peak memory of two small batches" in notes
    assert "Not verified: H/14 at 70 px: out of memory." in notes
    assert "Images/s of B/32, L/32, B/16, L/16, H/14: bf16, fused kernels." in notes


def test_the_figure_has_a_panel_for_the_largest_batch() -> None:
    records = made_up()
    figure = speed.EXPERIMENT.draw(records)
    assert figure is not None
    left, right = figure.axes
    assert len(left.lines) == len(right.lines) == len(speed.MODELS["paper"])
    looks = {(line.get_color(), line.get_linestyle()) for line in left.lines}
    assert len(looks) == len(left.lines)
    failed = CellRecords("paper", tuple(replace(cell, values={}, error="failed") for cell in records))
    assert speed.EXPERIMENT.draw(failed) is not None


@pytest.mark.gpu
def test_a_gpu_measures_the_largest_batch(tmp_path: Path) -> None:
    result = reproduce("speed", quiet=True, device="cuda", out=tmp_path)
    assert not result.records.failed
    for cell in result.records:
        assert cell.values["largest training batch"] > 0
        assert cell.values["largest inference batch"] > cell.values["largest training batch"]
