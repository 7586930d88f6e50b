"""Fine-tuning: recipes, settings of the paper, and the learning-rate search."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import SMALL_RESNET, draw, tiny_vit
from runs import complete, draw_folder, start
from vitreous import TrainConfig, VitreousError, finetune, load, open_data, recipe, save, train
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.preprocessing import PRESETS, default_preprocessing
from vitreous.training import lr_search
from vitreous.training.defaults import choose_defaults, evaluation_preprocessing
from vitreous.training.facts import Facts
from vitreous.training.initial_weights import InitialWeights
from vitreous.training.paper_settings import TABLE_4
from vitreous.training.recipes import FINETUNING_RECIPES, finetuning_recipe

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SHORT: dict[str, Any] = {"batch_size": 16, "duration": "4 steps", "device": "cpu"}
RATES = (0.001, 0.03)
CHOICE: dict[str, Any] = {**SHORT, "duration": "6 steps", "lr_candidates": RATES, "dev_fraction": 0.2}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ViT for 7 classes at 16 x 16, with a pre-logits layer."""
    model = tiny_vit(image_size=16, patch_size=4, width=32, heads=2, representation_size=24, resample="timm")
    model.preprocessing = replace(default_preprocessing(16, 3), mean=MEAN, std=STD)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save(model, path)
    return path


@pytest.fixture(scope="module")
def bit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "bit.safetensors"
    save(draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7))), path)
    return path


# ---------------------------------------------------------------- recipes


@pytest.mark.parametrize("name", FINETUNING_RECIPES)
def test_every_recipe_gives_a_loadable_model(name: str, folder: Path, weights: Path, tmp_path: Path) -> None:
    outcome = finetune(folder, weights, name, image_size=(16, 24), **SHORT, out=str(tmp_path / "run"), quiet=True)
    model, before = load(outcome.run), load(weights, num_classes=3, image_size=(16, 24))
    assert model.config == before.config
    assert model.config.representation_size is None
    assert model.labels == ("blau", "grün", "rot")
    assert (model.preprocessing.mean, model.preprocessing.std) == (MEAN, STD)
    assert model.preprocessing.size == (16, 24)
    assert not torch.equal(model.head.weight, before.head.weight)
    kept = torch.equal(model.blocks[0].attn.qkv.weight, before.blocks[0].attn.qkv.weight)
    assert kept == (name == "linear")
    assert torch.equal(model.pos_embed, before.pos_embed) == (name in ("linear", "lora"))  # resampled as by `load`


@pytest.mark.parametrize("name", ["paper", "fast", "linear"])
def test_finetune_a_bit(name: str, folder: Path, bit: Path, tmp_path: Path) -> None:
    outcome = finetune(folder, bit, name, **SHORT, lr=1e-3, out=str(tmp_path / "run"), quiet=True)
    before, after = load_file(bit), load_file(outcome.run / "last.safetensors")
    moved = {key for key in before if key.startswith("backbone.") and not torch.equal(before[key], after[key])}
    assert bool(moved) == (name != "linear")


def test_lora_on_a_hybrid(folder: Path, tmp_path: Path) -> None:
    save(tiny_vit(image_size=32, patch_size=1, backbone=SMALL_RESNET), tmp_path / "hybrid.safetensors")
    outcome = finetune(folder, tmp_path / "hybrid.safetensors", "lora", **SHORT, out=str(tmp_path / "run"), quiet=True)
    before, after = load_file(tmp_path / "hybrid.safetensors"), load_file(outcome.run / "last.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before if key.startswith("backbone."))
    assert not torch.equal(before["blocks.0.mlp.fc2.weight"], after["blocks.0.mlp.fc2.weight"])


def test_heads_and_preprocessing_can_be_given(folder: Path, tmp_path: Path) -> None:
    """Without a config file, the number of heads and the preprocessing of a timm model are guessed."""
    save(tiny_vit(image_size=16, width=64, heads=2, gelu="erf", resample="timm"), tmp_path / "timm", to="timm")
    bare = (tmp_path / "timm" / "model.safetensors").rename(tmp_path / "bare.safetensors")
    said = {"heads": 2, "preprocessing": "deit"}
    outcome = finetune(folder, bare, "linear", **said, **SHORT, out=str(tmp_path / "run"), quiet=True)
    model = load(outcome.run)
    assert model.config.heads == 2
    assert model.preprocessing.mean == PRESETS["deit"].mean


def test_guesses_are_printed_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are not repeated for each candidate."""
    save(tiny_vit(image_size=16, width=64, heads=1, gelu="erf", resample="timm"), tmp_path / "timm", to="timm")
    bare = (tmp_path / "timm" / "model.safetensors").rename(tmp_path / "bare.safetensors")
    finetune(folder, bare, "paper", **CHOICE, out=str(tmp_path / "run"))
    error = capsys.readouterr().err
    assert error.count("trying lr") == len(RATES)
    assert error.count("heads: 1, the usual number") == 1


def test_short_recipe_names() -> None:
    assert FINETUNING_RECIPES == ("paper", "fast", "linear", "lora")
    for name in FINETUNING_RECIPES:
        assert finetuning_recipe(name) == recipe(f"finetune_{name}")
    with pytest.raises(VitreousError, match="unknown fine-tuning recipe 'liner'; did you mean linear"):
        finetuning_recipe("liner")
    with pytest.raises(VitreousError, match="'xyzzy'; the recipes are paper, fast, linear, lora"):
        finetuning_recipe("xyzzy")


# ---------------------------------------------------------------- Table 4 of the paper


def settled(images: int, weights: Path, **fields: Any) -> dict[str, Any]:
    config = finetuning_recipe("paper").with_(start=str(weights), **fields)
    begun = InitialWeights(str(weights), load(weights, num_classes=3).config, default_preprocessing(16, 3), "")
    return choose_defaults(config, Facts(images, 3, 3, 64, None, False, begun))[0].flat()


SMALL, LARGE = (0.001, 0.003, 0.01, 0.03), (0.003, 0.01, 0.03, 0.06)


@pytest.mark.parametrize(
    ("images", "steps", "warmup", "candidates", "share"),
    [
        (800, 2_500, 250, None, None),  # VTAB-1k
        (1_020, 500, 50, SMALL, 0.1),  # Flowers
        (3_680, 500, 50, SMALL, 0.1),  # Pets
        (50_000, 10_000, 500, SMALL, 0.02),  # CIFAR
        (1_281_167, 20_000, 500, LARGE, 0.01),  # ImageNet
    ],
)
def test_table_4(images: int, steps: int, warmup: int, candidates: Any, share: Any, weights: Path) -> None:
    found = settled(images, weights)
    assert (found["duration"], found["warmup"]) == (f"{steps} steps", f"{warmup} steps")
    assert (found["lr_candidates"], found["dev_fraction"]) == (candidates, share)
    assert found["lr"] == (0.01 if candidates is None else None)
    table = {"optimiser": "sgd", "momentum": 0.9, "clip": 1.0, "weight_decay": 0.0, "batch_size": 512, "ema": 0.0}
    code = {"schedule": "cosine", "final_lr": 0.0, "crop": 0.05, "flip": True, "mixup": 0.0, "randaugment": 0}
    assert {name: found[name] for name in table | code} == table | code


def test_given_settings_override_table_4(weights: Path) -> None:
    found = settled(50_000, weights, duration="100 steps", lr=0.02)
    assert (found["duration"], found["warmup"], found["lr"]) == ("100 steps", "10 steps", 0.02)
    assert found["lr_candidates"] is None
    found = settled(800, weights, lr_candidates=RATES)
    assert (found["lr"], found["lr_candidates"], found["dev_fraction"]) == (None, RATES, 0.2)


def test_paper_recipe_evaluates_whole_images(weights: Path) -> None:
    begun = InitialWeights(str(weights), load(weights, num_classes=3).config, default_preprocessing(16, 3), "")
    known = Facts(5_000, 3, 3, 300, None, False, begun)
    config, _ = choose_defaults(finetuning_recipe("paper").with_(image_size=224), known)
    assert evaluation_preprocessing(config, known).resize is None
    config, _ = choose_defaults(finetuning_recipe("fast").with_(image_size=224), known)
    assert evaluation_preprocessing(config, known).resize == 256


# ---------------------------------------------------------------- learning-rate search


def test_best_learning_rate_trains_on_all_training_images(folder: Path, weights: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    finetune(folder, weights, "paper", **CHOICE, out=str(run), quiet=True)
    stored = json.loads((run / "config.json").read_text())
    assert [one["lr"] for one in stored["rates"]] == list(RATES)
    assert {one["images"] for one in stored["rates"]} == {14}  # of 72: 5, 5 and 4 per class
    best = max(stored["rates"], key=lambda one: (one["value"], -one["loss"]))
    assert stored["config"]["lr"] == best["lr"]
    assert stored["choices"][-1]["field"] == "lr"
    page = (run / "report.html").read_text()
    assert "the best of 0.001: " in page
    for rate in RATES:
        place = run / "candidates" / f"lr-{rate}"
        assert not list(place.glob("*.safetensors"))
        assert json.loads((place / "config.json").read_text())["split"] == "20% of train, stratified, seed 0"

    fields = {**CHOICE, "lr_candidates": None, "dev_fraction": None, "lr": best["lr"], "out": str(tmp_path / "plain")}
    finetune(folder, weights, "paper", **fields, quiet=True)
    assert (run / "last.safetensors").read_bytes() == (tmp_path / "plain" / "last.safetensors").read_bytes()


def test_development_split_contains_only_training_images(folder: Path) -> None:
    data = open_data(folder)
    part = lr_search.candidate_splits(data, TrainConfig().with_(dev_fraction=0.25))
    names = {name: {source.name(i) for i in range(len(source))} for name, source in part.splits.items()}
    assert names.keys() == {"train", "val"}
    assert names["train"] | names["val"] == {data.train.name(i) for i in range(len(data.train))}
    assert not names["train"] & names["val"]


def test_candidate_duration(folder: Path, weights: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fields = {**CHOICE, "duration": "20 steps", "warmup": "10 steps", "candidate_duration": "20%"}
    finetune(folder, weights, "paper", **fields, out=str(run), quiet=True)
    stored = json.loads((run / "config.json").read_text())
    assert {one["steps"] for one in stored["rates"]} == {4}
    tried = json.loads((run / "candidates" / "lr-0.03" / "config.json").read_text())["config"]
    assert (tried["duration"], tried["warmup"]) == ("4 steps", "2 steps")
    assert json.loads((run / "result.json").read_text())["steps"] == 20


def test_loss_decides_between_equal_candidates() -> None:
    tried = [
        lr_search.CandidateResult(lr, 1, 9, "top1", value, loss)
        for lr, value, loss in ((1, 0.5, 2.0), (2, 0.5, 1.0), (3, 0.4, 0))
    ]
    assert lr_search._choose_best(tried).value == 2
    by_loss = [
        lr_search.CandidateResult(lr, 1, 9, "loss", loss, loss) for lr, loss in ((1, 2.0), (2, 1.0), (3, float("nan")))
    ]
    assert lr_search._choose_best(by_loss).value == 2


def test_diverging_learning_rate_is_skipped(folder: Path, weights: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    wild = {**CHOICE, "lr_candidates": (0.01, 1e30), "clip": None, "warmup": "0 steps"}
    finetune(folder, weights, "paper", **wild, out=str(run), quiet=True)
    stored = json.loads((run / "config.json").read_text())
    assert stored["config"]["lr"] == 0.01
    assert "is NaN or infinite" in stored["rates"][1]["failure"]
    assert "1e+30: diverged" in stored["choices"][-1]["why"]
    with pytest.raises(VitreousError, match=r"none of the learning rates 1e\+29, 1e\+30 finished with a result"):
        finetune(
            folder, weights, "paper", **{**wild, "lr_candidates": (1e29, 1e30)}, out=str(tmp_path / "no"), quiet=True
        )


def test_learning_rate_search_from_scratch(folder: Path, tmp_path: Path) -> None:
    fields = {"model": "Ti/16", "image_size": 16, "patch_size": 8, "width": 32, "depth": 1, "heads": 2, **CHOICE}
    outcome = train(folder, **fields, out=str(tmp_path / "run"), quiet=True)
    assert json.loads((outcome.run / "config.json").read_text())["config"]["lr"] in RATES


# ---------------------------------------------------------------- resume

ASKED = (
    *("--recipe", "paper", "--lr-candidates", "0.001", "0.03", "--dev-fraction", "0.2", "--duration", "30steps"),
    *("--batch-size", "16", "--device", "cpu", "--workers", "0", "--save-minutes", "0.002"),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    draw_folder(tmp_path / "data")
    return tmp_path


def stop_at(process: subprocess.Popen[str], log: Path, number: int) -> tuple[str, str]:
    """Send a signal when a candidate has started training."""
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") > 9) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    return process.communicate(timeout=120)


def test_killed_learning_rate_search_is_resumed(place: Path, weights: Path) -> None:
    run, first = place / "run", place / "run" / "candidates" / "lr-0.001"
    process = start("finetune", "data", "--from", weights, *ASKED, "--out", "run", cwd=place)
    _, error = stop_at(process, run / "candidates" / "lr-0.03" / "metrics.jsonl", signal.SIGKILL)
    assert not (run / "candidates" / "lr-0.03" / "result.json").exists(), error
    assert json.loads((run / "config.json").read_text())["config"]["lr"] is None
    before = {file.name: file.stat().st_mtime_ns for file in first.iterdir()}
    complete("finetune", "--resume", "run", cwd=place)
    assert before == {file.name: file.stat().st_mtime_ns for file in first.iterdir()}  # not tried again

    complete("finetune", "data", "--from", weights, *ASKED, "--out", "whole", cwd=place)
    ours, theirs = (json.loads((place / name / "config.json").read_text()) for name in ("run", "whole"))
    assert [one["lr"] for one in ours["rates"]] == [0.001, 0.03]
    assert ours["rates"] == theirs["rates"]
    assert (run / "last.safetensors").read_bytes() == (place / "whole" / "last.safetensors").read_bytes()


def test_stopped_learning_rate_search_prints_the_resume_command(place: Path, weights: Path) -> None:
    process = start("finetune", "data", "--from", weights, *ASKED, "--out", "run", cwd=place)
    _, error = stop_at(process, place / "run" / "candidates" / "lr-0.001" / "metrics.jsonl", signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped while trying lr 0.001; to continue: vitreous train --resume run\n" in error


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora": 4, "freeze": ("!head.*",)}, "the adapters would be frozen too"),
        ({"image_size": 18}, "18 x 18 .*patch"),
        ({"image_size": (16, 18)}, "16 x 18 .*patch"),
        ({"lr": 0.1, "lr_candidates": RATES}, "lr and lr_candidates: give one learning rate, or"),
        ({"lr_candidates": (0.1,)}, r"lr_candidates = \(0.1,\): expected two positive numbers or more"),
        ({"lr_candidates": (0.1, -1.0)}, "expected two positive numbers"),
        (
            {"lr_candidates": RATES, "dev_fraction": 0.0},
            "dev_fraction = 0.0: expected a fraction of the",
        ),
        (
            {"lr_candidates": RATES, "candidate_duration": "5 steps"},
            "candidate_duration = '5 steps': expected 1 to 4 steps",
        ),
        ({"lr_candidates": RATES, "candidate_duration": "0%"}, "candidate_duration = '0%': expected 1 to 4 steps"),
        ({"candidate_duration": "50%"}, "candidate_duration: has no effect without lr_candidates"),
        ({"start": None, "rules": "paper", "model": "Ti/16"}, "rules = 'paper': adapts the weights to start from"),
        ({"start": None, "lora": 2, "model": "Ti/16"}, "lora = 2: adapts the weights to start from"),
        (
            {"start": None, "preprocessing": "deit", "model": "Ti/16"},
            "preprocessing: describes the weights to start from",
        ),
        ({"freeze": ("!haed.*",)}, "freeze: 'haed.*' matches no parameter"),
        ({"freeze": ("!head.*", "head.*")}, "every parameter is frozen"),
    ],
    ids=str,
)
def test_invalid_settings(folder: Path, weights: Path, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        train(folder, **{**SHORT, "start": weights, **fields}, out=str(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run").exists()


def test_empty_development_split_is_an_error(weights: Path, tmp_path: Path) -> None:
    draw_folder(tmp_path / "few", images=1)
    with pytest.raises(
        VitreousError, match="the development split for selecting the learning rate would be empty: each"
    ):
        finetune(tmp_path / "few", weights, "paper", **CHOICE, out=str(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "--recipe", "lorra", "--from", "vitreous-mini"), "'lorra'; did you mean lora?"),
        (("data",), "--from is missing: a checkpoint, a run directory, vitreous-mini, a name such as deit-tiny, or hf"),
        (
            ("--from", "vitreous-mini"),
            "DATA is missing: a folder of images, a file, or a name (vitreous finetune --help)",
        ),
        (("data", "--from", "nowhere.npz"), "the weights to start from cannot be used: nowhere.npz: no such file"),
        (("data", "--from", "vitreous-mini", "--sise", "64"), "--size"),
        (("--resume", "nowhere"), "nowhere: there is no such run directory"),
    ],
    ids=str,
)
def test_command_errors(place: Path, vitreous: Callable[..., Any], arguments: Any, message: str) -> None:
    result = vitreous("finetune", *arguments)
    assert result.returncode == 2
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert not (place / "runs").exists()


def test_finetune_command(place: Path, weights: Path, vitreous: Callable[..., Any]) -> None:
    fields = ("--duration", "4steps", "--batch-size", "16", "--device", "cpu", "--out", "run")
    result = vitreous("finetune", "data", "--from", weights, "--recipe", "linear", "--size", "16", "32", *fields)
    assert result.returncode == 0, result.stderr
    assert "of which 99 are trained, 16 x 32 RGB" in result.stdout
    assert load(place / "run").config.image_size == (16, 32)


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom vitreous.cli import main\n"
        "try:\n    main(['finetune', '--help'])\nexcept SystemExit:\n    pass\n"
        "print('HEAVY', [name for name in ('torch', 'numpy', 'PIL') if name in sys.modules])"
    )
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "HEAVY []" in text
    assert "paper, fast, linear, lora" in text
    assert "(default: 0.75)" in text  # of the default recipe


def test_table_4_covers_all_sizes() -> None:
    assert [row.images for row in TABLE_4] == sorted(row.images for row in TABLE_4)
    assert TABLE_4[-1].images == float("inf")
