"""The default initial weights of small data sets, and runs that fit into a time budget."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runs import draw_folder
from vitreous import TrainConfig, VitreousError, load, resume, train
from vitreous.data.arrays import ArraySource
from vitreous.data.dataset import DataSet
from vitreous.training.budget import RunTime, estimate_run_time, fit_to_budget
from vitreous.training.defaults import choose_defaults, choose_start
from vitreous.training.distributed import World
from vitreous.training.durations import parse_time
from vitreous.training.facts import Facts, collect_facts
from vitreous.training.initial_weights import load_initial_weights


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.training.budget.MEASURED_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("3h", 10_800), ("90 s", 90), ("1h30m", 5_400), ("1.5 hours", 5_400), ("2 days", 172_800)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text, "budget") == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "ten minutes", "-3m", "0s", "3 parsecs", "1e9d", "nan s", "5m5"])
def test_wrong_times(text: str) -> None:
    with pytest.raises(VitreousError, match=r"budget = .*expected"):
        parse_time(text, "budget")


def test_epochs_that_fit() -> None:
    time = RunTime(0.01, 0.003, 5.0, 200, 40, 2, 1.0, torch.device("cpu"), 20)
    for seconds in (8.0, 60.0, 601.5, 5e4):
        epochs = time.epochs_within(seconds)
        assert epochs == int(epochs) >= 1
        assert time.of_epochs(epochs) <= seconds < time.of_epochs(epochs + 1)
    assert 0 < time.epochs_within(6.0) < 1  # not even one epoch: a part of it
    assert time.epochs_within(4.0) == 0
    assert time.of_epochs(10) == pytest.approx(5 + 10 * 200 * 0.01 + 10 * 40 * 2 * 0.003)
    often = replace(time, evaluate_every="1 step")
    assert often.of_epochs(10) == pytest.approx(5 + 10 * 200 * 0.01 + 100 * 40 * 2 * 0.003)


def facts(images: int = 300, side: int = 100, **changes: Any) -> Facts:
    return Facts(
        **{"classes": 5, "multi_label": False, "channels": 3, "shape": None} | changes, images=images, side=side
    )


def test_start_of_small_data() -> None:
    for found in (facts(), facts(channels=1, side=28), facts(multi_label=True), facts(19_999)):
        config, choices = choose_start(TrainConfig(), found)
        assert config.architecture.start == "vitreous-mini"
        assert [choice.field for choice in choices] == ["start"]
        assert "--from none" in choices[0].why


@pytest.mark.parametrize("found", [facts(20_000), facts(side=8), facts(50_000, 32)])
def test_random_weights_for_many_or_tiny_images(found: Facts) -> None:
    config, (choice,) = choose_start(TrainConfig(), found)
    assert config == TrainConfig()
    assert choice.value is None
    assert "20,000 images or more" in choice.why or "(8 px)" in choice.why


@pytest.mark.parametrize(
    "given",
    [
        {"start": "none"},
        {"model": "Ti/16"},
        {"width": 64},
        {"patch_size": 4},
        {"pool": "token"},
        {"position": "none"},
        {"registers": 2},
        {"image_size": 100},  # not a multiple of the patch size of vitreous-mini
        {"preprocessing": "deit"},
    ],
)
def test_options_of_another_model_mean_random_weights(given: dict[str, Any]) -> None:
    config, choices = choose_start(TrainConfig().with_(**given), facts())
    assert config.architecture.start is None
    if given == {"start": "none"}:
        assert choices == []
    else:
        assert ("multiple of 8" if "image_size" in given else next(iter(given))) in choices[0].why


def test_given_weights_are_kept() -> None:
    config = TrainConfig().with_(start="other.safetensors")
    assert choose_start(config, facts()) == (config, [])


@pytest.mark.parametrize(
    ("ratio", "given", "expected"),
    [
        (2.9, {}, "none"),
        (3.1, {}, "balanced"),
        (3.1, {"class_weights": "none"}, "none"),
        (3.1, {"balanced": True}, "none"),
    ],
)
def test_class_weights_of_unequal_classes(ratio: float, given: dict[str, Any], expected: str) -> None:
    config, choices = choose_defaults(TrainConfig().with_(**given), facts(imbalance=ratio))
    assert config.objective.class_weights == expected
    if expected == "balanced":
        why = next(choice.why for choice in choices if choice.field == "class_weights")
        assert "3.1 times" in why
        assert "--class-weights none" in why


def test_imbalance_is_counted_in_the_training_images() -> None:
    labels = torch.tensor([0] * 12 + [1] * 3)
    data = DataSet("set", ("a", "b"), 1, ArraySource(np.zeros((15, 8, 8, 1), np.uint8), labels, "x"))
    assert collect_facts(data).imbalance == 4


@pytest.fixture(scope="module")
def arrays() -> DataSet:
    pixels = np.random.default_rng(0).integers(0, 256, (96, 16, 16, 3)).astype(np.uint8)
    return DataSet("set", ("a", "b"), 3, ArraySource(pixels, torch.arange(96) % 2, "x"))


def fitted_duration(data: DataSet, budget: str, **given: Any) -> tuple[str, str, str]:
    fitted = fit_to_budget(
        TrainConfig().with_(budget=budget, device="cpu", **given), data, collect_facts(data), World(), 32
    )
    why = next(choice.why for choice in fitted.choices if choice.field == "duration")
    return fitted.config.schedule.duration or "", why, fitted.note


def test_enough_time_does_not_change_the_default(arrays: DataSet) -> None:
    default, _ = choose_defaults(TrainConfig(), collect_facts(arrays))
    duration, why, note = fitted_duration(arrays, "3h")
    assert duration == default.schedule.duration
    assert "fits into 3h" in why
    assert "images/s measured on cpu" in why
    assert note == ""


def test_no_time_means_one_step_and_a_note(arrays: DataSet) -> None:
    duration, why, note = fitted_duration(arrays, "1s")
    assert duration == "1 step"
    assert "without a budget: 100 epochs" in why
    assert "too short for a good result" in note
    assert note.endswith("--epochs 100")
    assert "only 1 epoch fits into" in fitted_duration(arrays, "1s", batch_size=96)[2]


def test_settings_of_the_paper_fit_the_shorter_run(tmp_path: Path) -> None:
    """The warm-up of the paper has hundreds of steps."""
    folder = draw_folder(tmp_path / "photos", images=8, side=40)
    paper = {"rules": "paper", "lr": 0.01, "optimiser": "sgd", "batch_size": 4}
    run = train(folder, budget="1s", **paper, device="cpu", workers=0, out=tmp_path / "run", quiet=True).run
    config = json.loads((run / "config.json").read_text())["config"]
    assert (config["duration"], config["warmup"]) == ("1 step", "1 steps")


def test_progressive_sizes_are_not_invalidated(arrays: DataSet) -> None:
    """A smaller image size would be smaller than the size of the first stage."""
    config = TrainConfig().with_(
        start="vitreous-mini", budget="1s", device="cpu", progressive=("64@50%",), batch_size=4
    )
    start, _ = load_initial_weights(config, 2)
    fitted = fit_to_budget(config, arrays, collect_facts(arrays, start), World(), 32)
    assert fitted.config.architecture.image_size == 96


def test_search_of_the_learning_rate_takes_part_of_the_budget(arrays: DataSet) -> None:
    config, _ = choose_defaults(TrainConfig().with_(lr_candidates=(1e-3, 1e-4), candidate_duration="50%"), facts())
    time = estimate_run_time(config.with_(device="cpu", lr=None), arrays, collect_facts(arrays), World(), 32)
    assert time.repeats == pytest.approx(2)


def test_budget_and_duration_exclude_each_other(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "photos", images=4)
    with pytest.raises(VitreousError, match="budget = '5m' and duration = '3 epochs': give the time or the length"):
        train(folder, budget="5m", duration=3, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_run_of_a_small_folder(tmp_path: Path) -> None:
    """A run with a budget of no time starts from vitreous-mini at a smaller size, and can be resumed."""
    folder = draw_folder(tmp_path / "photos", images=8, side=40)
    outcome = train(folder, budget="1s", device="cpu", workers=0, out=tmp_path / "run", quiet=True)
    described = json.loads((outcome.run / "config.json").read_text())
    assert described["config"]["start"] == "vitreous-mini"
    assert described["config"]["budget"] is None
    assert described["start"]["config"]["image_size"] == [48, 48]
    chosen = {choice["field"]: choice for choice in described["choices"]}
    assert chosen["image_size"]["value"] == 48
    assert "1s" in chosen["image_size"]["why"]
    assert chosen["duration"]["value"] == "1 step"
    assert load(outcome.run).config.image_size in (48, (48, 48))
    with pytest.raises(VitreousError, match=r"budget = '1h': .*keeps its length of 1 step.*--epochs extends it"):
        resume(outcome.run, budget="1h", quiet=True)
    (outcome.run / "result.json").unlink()
    assert resume(outcome.run, quiet=True).result == outcome.result  # with the same length, whatever the device takes


def test_from_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = draw_folder(tmp_path / "photos", images=8, side=40)
    run = train(folder, start="none", duration="1 step", device="cpu", workers=0, out=tmp_path / "run", quiet=True).run
    described = json.loads((run / "config.json").read_text())
    assert described["config"]["start"] is None
    assert described["start"] is None
    train(folder, duration="1 step", device="cpu", workers=0, out=tmp_path / "again")
    assert "--from none: random weights" in " ".join(capsys.readouterr().out.split())


def test_a_model_that_is_too_large_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    """The measurement builds the model, and the system would kill the process without a message."""
    folder = draw_folder(tmp_path / "photos", images=4)
    huge: dict[str, Any] = {"model": "Ti/16", "width": 2**15, "depth": 100, "heads": 128, "mlp_dim": 2**17}
    with pytest.raises(VitreousError, match=r"TiB of memory .* use a smaller model"):
        train(folder, **huge, device="cpu", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
