"""No option is silently ignored: one that would have no effect is an error or a printed note."""

from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_vit
from runs import config, draw_folder
from vitreous import VitreousError, finetune, open_data, save, train
from vitreous.training.config import TrainConfig
from vitreous.training.distributed import World
from vitreous.training.initial_weights import load_initial_weights
from vitreous.training.plan import make_plan

HEAD_ONLY = ("!head.*",)
MATRICES_ONLY = ("!blocks.*.mlp.fc*.weight",)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save(tiny_vit(image_size=16, patch_size=4, width=32, heads=2), path)
    return path


def notes(folder: Path, weights: Path | None = None, **changes: Any) -> tuple[str, ...]:
    """Return the notes of the plan of a run from scratch, or from `weights`."""
    if weights is None:
        settings = config(Path(), **changes)
    else:
        common = {"start": str(weights), "batch_size": 16, "duration": "12 steps", "device": "cpu"}
        settings = TrainConfig().with_(**common, **changes)
    data = open_data(folder, settings.reading)
    start = None if weights is None else load_initial_weights(settings, len(data.classes))[0]
    return make_plan(data, settings, World(), start).notes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimiser": "adamw", "momentum": 0.8}, "momentum = 0.8: an option of sgd, not of adamw"),
        ({"optimiser": "muon", "momentum": 0.8}, "momentum = 0.8: an option of sgd, not of muon"),
        ({"optimiser": "sgd", "betas": (0.8, 0.99)}, r"betas = .*: an option of adamw, muon and lamb, not of sgd"),
        ({"optimiser": "adamw", "muon_lr": 0.1}, "muon_lr = 0.1: an option of muon, not of adamw"),
        ({"optimiser": "lamb", "muon_momentum": 0.9}, "muon_momentum = 0.9: an option of muon, not of lamb"),
        ({"schedule": "cosine", "cooldown": "5%"}, "cooldown = '5%': cosine decays over the whole run"),
        ({"schedule": "constant", "final_lr": 0.1}, "final_lr = 0.1: has no effect"),
        ({"schedule": "linear", "rsqrt_timescale": "5%"}, "rsqrt_timescale = '5%': has no effect"),
        ({"crop": 1.0, "aspect": 1.5}, "aspect = 1.5: has no effect, since crop = 1"),
        ({"randaugment": 0, "magnitude": 5.0}, "magnitude = 5.0: has no effect, since randaugment = 0"),
        ({"lr": 1e-3, "lr_candidates": (1e-3, 1e-2)}, "lr and lr_candidates: give one learning rate, or several"),
        ({"dev_fraction": 0.1}, "dev_fraction: has no effect without lr_candidates"),
        ({"candidate_duration": "50%"}, "candidate_duration: has no effect without lr_candidates"),
        ({"preprocessing": "deit"}, "preprocessing: describes the weights to start from, and none are given"),
        ({"lora": 2}, "lora = 2: adapts the weights to start from, and none are given"),
        ({"lora_alpha": 2.0}, "lora_alpha = 2: has no effect, since lora = 0"),
        ({"rules": "paper"}, "rules = 'paper': adapts the weights to start from, and none are given"),
        ({"balanced": True, "class_weights": "balanced"}, "use one of them"),
        ({"val_fraction": 0.0, "patience": 2, "evaluate_every": None}, "patience: there are no validation images"),
        ({"val_fraction": 0.0, "evaluate_every": "2 steps"}, "evaluate_every: there are no validation images"),
        ({"val_fraction": 0.0, "best_by": "loss", "evaluate_every": None}, "best_by: there are no validation images"),
        ({"data_dir": "elsewhere"}, "data_dir is only for data sets that are given by name"),
        ({"image_column": "x"}, "no columns"),
        ({"wandb": " "}, "wandb = ' ': expected the name of a project"),
        ({"freeze": ("haed.*",)}, "freeze: 'haed.*' matches no parameter"),
        ({"lr_multipliers": ("haed.*=2",)}, "lr_multipliers: 'haed.*' matches no parameter"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_options_without_effect_are_errors(folder: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message.replace("*", r"\*") if ".*" not in message else message):
        notes(folder, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patience": 1}, "patience = 1 has no effect: the run has 2 evaluations, too few to stop before the end"),
        ({"patience": 9, "evaluate_every": "1 steps"}, None),
        ({"patience": 11, "evaluate_every": "1 steps"}, "patience = 11 has no effect: the run has 12 evaluations"),
        (
            {"split_seed": 3, "val_fraction": 0.0, "evaluate_every": None},
            "split_seed = 3 has no effect: no split is held out from train",
        ),
        ({"split_seed": 3}, None),
        ({"batch_size": 1, "mixup": 0.2}, "mixup and cutmix have no effect: they mix pairs of images"),
        ({"micro_batch": 5, "mixup": 0.2}, "micro_batch = 5: passes have 6 images"),
        ({"micro_batch": 5}, None),
        ({"optimiser": "muon", "freeze": MATRICES_ONLY, "lr": 0.1}, "lr = 0.1 has no effect: Muon trains all"),
        ({"optimiser": "muon", "freeze": MATRICES_ONLY, "betas": (0.8, 0.9)}, r"betas = (0.8, 0.9) has no effect"),
        ({"optimiser": "muon", "lr": 0.1, "betas": (0.8, 0.9)}, None),
        ({"freeze": ("!norm.*",), "weight_decay": 0.1}, "weight_decay = 0.1 has no effect: it is for weight matrices"),
        ({"freeze": HEAD_ONLY, "weight_decay": 0.1}, None),
        ({"freeze": HEAD_ONLY, "layer_decay": 0.7}, "layer_decay = 0.7 has no effect: only the head is trained"),
        ({"freeze": ("blocks.0.*",), "layer_decay": 0.7}, None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_options_without_effect_are_noted(folder: Path, fields: dict[str, Any], message: str | None) -> None:
    found = notes(folder, **fields)
    assert [note.startswith(message or "") for note in found] == ([] if message is None else [True]), found


def test_freeze_of_parameters_that_lora_freezes(folder: Path, weights: Path) -> None:
    (note,) = notes(folder, weights, lora=2, freeze=("patch_embed.*", "blocks.0.*"))
    assert note == "freeze = patch_embed.* has no effect: with lora, only the adapters and the head are trained"


def test_bias_of_the_new_head(folder: Path, tmp_path: Path) -> None:
    """The new head is zero, even if the head of the file was created with the same bias."""
    save(tiny_vit(image_size=16, patch_size=4, head_bias=-10.0), tmp_path / "biased.safetensors")
    with pytest.raises(VitreousError, match=r"head_bias = -10\.0: the run starts from biased\.safetensors"):
        notes(folder, tmp_path / "biased.safetensors", head_bias=-10.0)
    assert notes(folder, tmp_path / "biased.safetensors") == ()


def test_fractions_of_splits_that_the_data_has(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        draw_folder(tmp_path / split, images=4)
    given = {"val_fraction": 0.2, "test_fraction": 0.2, "split_seed": 1}
    found = open_data(tmp_path, config(Path(), **given).reading).notes
    assert [note for note in found if "is not used" in note] == [
        "val_fraction is not used: the data has a validation split",
        "test_fraction is not used: the data has a test split",
        "split_seed is not used: the data has a validation split",
    ]


def test_notes_are_printed(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(folder, config(tmp_path / "run", duration="2 steps", patience=3, workers=0))
    assert "patience = 3 has no effect" in capfd.readouterr().err
    assert "patience = 3 has no effect" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_recipes_have_no_options_without_effect(folder: Path, weights: Path, tmp_path: Path) -> None:
    short = {"duration": "1 steps", "batch_size": 8, "workers": 0, "device": "cpu"}
    for name in ("fast", "linear", "lora"):
        outcome = finetune(folder, weights, name, **short, out=tmp_path / name, quiet=True)
        assert "has no effect" not in (outcome.run / "report.html").read_text("utf-8")
