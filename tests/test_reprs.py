"""What an interactive session shows of results, data and settings: the main numbers, and no tensors."""

from pathlib import Path

import numpy as np

import runs
import vitreous
from helpers import tiny_vit
from vitreous.models.calibration import Calibration
from vitreous.training.config import TrainConfig

MOST = 1200  # characters: about a third of a screen


def test_models_data_and_settings() -> None:
    model = vitreous.load("vitreous-mini")
    assert repr(vitreous.cost(model)) == "Cost(3,155,348 parameters; 1.01 GFLOPs at 96 x 96 px, 144 patches)"
    assert repr(model.report) == str(model.report) == "vitreous-mini: native (safetensors), 90 tensors used"
    data = vitreous.open_data("digits")
    assert repr(data) == "DataSet('digits': 10 classes, grey; train 1,293, val 144, test 360)"
    assert repr(data.train) == "Subset(1,293 images)"
    assert repr(vitreous.accelerate(tiny_vit())) == "Accelerated(precision='fp32', path='packed weights')"
    assert "digests" not in repr(Calibration(1.5, 3, "pets", "val", "A" * 32))


def test_the_repr_of_a_config_builds_it_again() -> None:
    for config in (TrainConfig(), vitreous.recipe("digits"), TrainConfig().with_(lr=1e-3, only_classes=("a", "b"))):
        assert eval(repr(config), {"TrainConfig": TrainConfig}) == config
    assert repr(TrainConfig()) == "TrainConfig()"


def test_results_of_a_run(tmp_path: Path) -> None:
    data = str(runs.draw_folder(tmp_path / "colours", 24))
    small = {"model": "Ti/16", "image_size": 16, "patch_size": 8, "width": 32, "depth": 1, "heads": 2}
    outcome = vitreous.train(
        data, out=str(tmp_path / "run"), duration="4 steps", device="cpu", workers=0, quiet=True, **small
    )
    assert outcome.result is not None
    assert repr(outcome).startswith(f"Outcome({str(tmp_path / 'run')!r}: 4 steps in ")
    assert f"top-1 {outcome.result.top1:.2%} (95% interval" in repr(outcome)
    assert all(text in repr(outcome) for text in outcome.selection)
    (row,) = vitreous.runs(tmp_path)
    assert repr(row).startswith("RunRow('run': complete, colours, top1 ")
    found = vitreous.calibrate(tmp_path / "run", data, tmp_path / "c.safetensors", split="all")
    assert "log-loss: " in repr(found)
    check = vitreous.check_data(data, model=tmp_path / "run", cache=tmp_path / "cache", workers=0)
    assert repr(check).startswith("DataCheck(DataSet('colours': 3 classes, colour; ")
    prediction = vitreous.predict(tmp_path / "run", np.zeros((20, 20, 3), np.uint8), quiet=True)
    for shown in (outcome, row, found, check, prediction, vitreous.info(tmp_path / "run")):
        assert len(repr(shown)) < MOST
        assert "tensor(" not in repr(shown)
        assert "array(" not in repr(shown)
