"""`bench`: consistent measurements and clear errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny_vit
from runs import draw_folder
from vitreous import save
from vitreous.benchmark import machine
from vitreous.benchmark.bench import ThroughputResult, bench
from vitreous.benchmark.input_pipeline import PipelineResult
from vitreous.benchmark.machine import Energy, PeakMemory, StepTimes, copy_bandwidth, matmul_peak, time_steps
from vitreous.errors import VitreousError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine.MATMUL_SIDES, "cpu", 96)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save(tiny_vit(), tmp_path / "tiny.safetensors")
    return tmp_path / "tiny.safetensors"


def measured(*arguments: Any, **options: Any) -> ThroughputResult:
    found = bench(*arguments, device="cpu", seconds=0.02, **options)
    assert isinstance(found, ThroughputResult)
    return found


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_checkpoint(checkpoint: Path, mode: Any) -> None:
    found = measured(checkpoint, mode, batch_size=4)
    written = json.loads(json.dumps(found.to_json()))
    assert (written["model"], written["mode"], written["precision"]) == ("tiny", mode, "fp32")
    assert written["images_per_second"] == pytest.approx(4e3 / written["batch_ms"]["median"])
    assert written["batch_ms"]["10%"] <= written["batch_ms"]["median"] <= written["batch_ms"]["90%"]
    forward = found.cost.flops.total * written["images_per_second"]
    assert written["model_flops_per_second"] == pytest.approx(forward * (3 if mode == "train" else 1))
    share = written["model_flops_per_second"] / written["matmul_flops_per_second"]
    assert written["share_of_peak"] == pytest.approx(share)
    assert written["repeats"] >= 3
    assert written["peak_memory_bytes"] > 0
    assert written["start_up_seconds"] > 0
    assert {"date", "command", "hardware", "environment", "path", "warm_up"} <= set(written)
    table = dict(found.facts())
    assert "4 images" in table["batch"]
    assert "default" not in table["batch"]
    assert "fp32" in table["mode"]


def test_a_model_name_with_an_image_size() -> None:
    found = measured("Ti/16", size=(16, 32))
    assert found.cost.size == (16, 32)
    assert found.cost.tokens == 2
    assert "8 images; default for the model and the device" in dict(found.facts())["batch"]


def test_training_changes_the_weights(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that is timed is a complete training step."""
    from vitreous.benchmark import bench as module

    seen = []
    opened = module._open_model

    def watched(*arguments: Any) -> Any:
        seen.append(opened(*arguments))
        return seen[0]

    monkeypatch.setattr(module, "_open_model", watched)
    before = opened(str(checkpoint), CPU).model.state_dict()
    measured(checkpoint, "train", batch_size=2)
    after = seen[0].model.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)


def test_the_input_pipeline(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "photos")
    found = bench(mode="data", data=folder, recipe="imagenette", size=16, batch_size=8, device="cpu", seconds=0.05)
    assert isinstance(found, PipelineResult)
    assert found.size == (16, 16)
    assert found.decoding is not None
    assert found.decoding.one_process > 0
    assert found.decoding.all_workers > 0
    assert found.decoding.workers >= 1
    rows = found.facts()
    assert any("with one process" in text for _, text in rows)
    written = json.loads(json.dumps(found.to_json()))
    assert written["augmentation"]["images_per_second"] == pytest.approx(found.images_per_second)


def test_augmentation_without_data() -> None:
    """Also of recipes whose settings depend on the data."""
    for recipe in ("cifar10", "finetune_fast", "digits"):
        found = bench(mode="data", recipe=recipe, size=16, batch_size=4, device="cpu", seconds=0.01)
        assert isinstance(found, PipelineResult)
        assert found.images_per_second > 0
        assert found.decoding is None
        assert "--data" in dict(found.facts())["decoding"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "train", "precision": "fp8"}, "fp8' is for inference"),
        ({"model": "nothing.safetensors"}, "no such file, and unknown model"),
        ({"model": "b/16"}, "did you mean B/16"),
        ({"model": "Ti/16", "size": 100}, "nearest height that works is 96 or 112"),
        ({"mode": "data", "model": "B/16"}, "model: not used by mode = 'data'; remove it"),
        ({"mode": "data", "precision": "bf16"}, "precision: not used by"),
        ({"data": "photos"}, "data: not used by mode = 'infer'"),
        ({"mode": "data", "workers": 2}, "workers = 2: workers decode images, so data must be set"),
        ({"mode": "data", "data": "digits", "workers": -1}, "workers = -1"),
        ({"mode": "data", "recipe": "cifar"}, "unknown recipe 'cifar'"),
        ({"mode": "sleep"}, "expected train, infer or data"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"seconds": 0}, "seconds = 0"),
        ({"model": "DINOv2-S/14", "mode": "train", "size": 28}, "needs a head with 2 or more classes"),
        ({"device": "cuda:99"}, "cannot be used here"),
    ],
)
def test_mistakes(options: dict[str, Any], words: str) -> None:
    with pytest.raises(VitreousError, match=words):
        bench(**{"device": "cpu", **options})


# ---------------------------------------------------------------- the machine


def test_quantiles() -> None:
    times = StepTimes((3.0, 1.0, 2.0, 5.0, 4.0))
    assert times.median == 3
    assert times.quantile(0.1) == pytest.approx(1.4)
    assert times.quantile(1.0) == 5
    assert str(StepTimes((0.002,))).startswith("2 ms per batch (median of 1;")


def test_the_number_of_repeats() -> None:
    calls = []
    assert len(time_steps(lambda: calls.append(1), CPU, repeats=7, warm_up=2).seconds) == 7
    assert len(calls) == 9


def test_peaks() -> None:
    assert matmul_peak(CPU, "fp32", side=64, repeats=2) > 1e6
    assert copy_bandwidth(CPU, 2**16, repeats=2) > 1e6


def test_peak_memory_since_the_reset() -> None:
    memory = PeakMemory(CPU)
    before = memory.read()
    allocated = torch.ones(2**25)  # 128 MiB
    assert memory.read() - before > 2**26
    del allocated


def test_energy_counters(tmp_path: Path) -> None:
    for package, used in ((0, 1_000_000), (1, 500_000)):
        folder = tmp_path / f"intel-rapl:{package}"
        folder.mkdir()
        (folder / "energy_uj").write_text(str(used))
        (folder / "max_energy_range_uj").write_text("2000000")
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of the first package
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("77")
    read = machine._rapl(tmp_path)
    assert read is not None
    assert read() == 1.5
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("400000")  # the counter wrapped around
    assert read() == pytest.approx(3.4)
    assert machine._rapl(tmp_path / "nothing") is None
    assert Energy(CPU).read() is None or Energy(CPU).read() > 0  # type: ignore[operator]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_on_a_gpu(precision: Any) -> None:
    found = bench("Ti/16", batch_size=8, precision=precision, device="cuda", seconds=0.2)
    assert isinstance(found, ThroughputResult)
    assert found.joules is None or found.joules > 0
    assert 0 < found.utilisation < 1


@pytest.mark.gpu
def test_training_and_images_on_a_gpu() -> None:
    found = bench("Ti/16", "train", batch_size=8, device="cuda", seconds=0.2)
    assert isinstance(found, ThroughputResult)
    assert found.notes == ()
    assert isinstance(bench(mode="data", device="cuda", seconds=0.2), PipelineResult)
