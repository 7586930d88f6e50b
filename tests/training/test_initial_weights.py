"""Runs with `--from`: the model, its preprocessing, errors and resume."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers import SMALL_RESNET, draw, tiny_vit
from runs import TINY_RUN, complete, draw_folder, kill_at, start, step_of
from vitreous import TrainConfig, VitreousError, load, recipe, resume, save, train
from vitreous.data.open_data import open_data
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.preprocessing import default_preprocessing
from vitreous.training.defaults import choose_defaults, evaluation_preprocessing, make_model_config
from vitreous.training.facts import collect_facts
from vitreous.training.initial_weights import load_initial_weights

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SHORT: dict[str, Any] = {"batch_size": 16, "duration": "4 steps", "evaluate_every": "2 steps", "device": "cpu"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ViT for 7 classes at 8 x 8, with learned positions."""
    model = tiny_vit(image_size=8, patch_size=4, width=32, heads=2, pool="gap", representation_size=24)
    model.preprocessing = replace(default_preprocessing(8, 3), mean=MEAN, std=STD)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save(model, path)
    return path


def with_(weights: Path | str, **changes: Any) -> TrainConfig:
    return TrainConfig().with_(start=str(weights), **{**SHORT, **changes})


# ---------------------------------------------------------------- the model of the weights


def test_model_of_the_weights_with_a_new_head(folder: Path, weights: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(folder, with_(weights, image_size=16, lr=1e-30, ema=0.0, out=str(run), dropout=0.1), quiet=True)
    trained, before = load(run / "last.safetensors"), load(weights, num_classes=3, image_size=16)
    assert trained.config == replace(before.config, dropout=0.1)
    assert trained.config.representation_size is None
    for (name, ours), theirs in zip(trained.named_parameters(), before.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-28), name  # the head is zero, up to one step with this lr
    assert trained.labels == ("blau", "grün", "rot")
    assert (trained.preprocessing.mean, trained.preprocessing.std) == (MEAN, STD)
    assert trained.preprocessing.size == (16, 16)


@pytest.mark.parametrize(
    ("dialect", "name", "own"),
    [
        ("google", "model.npz", {}),
        ("timm", "model", {"gelu": "erf", "resample": "timm"}),
        ("huggingface", "model", {"gelu": "erf", "resample": "hf", "norm_eps": 1e-12}),
    ],
)
def test_start_from_any_dialect(folder: Path, tmp_path: Path, dialect: Any, name: str, own: dict[str, Any]) -> None:
    model, path = tiny_vit(image_size=16, **own), tmp_path / name
    save(model, path, to=dialect)
    outcome = train(folder, with_(path, out=str(tmp_path / "run"), lr=1e-30, ema=0.0), quiet=True)
    trained = load(outcome.run / "last.safetensors")
    assert trained.config == load(path, num_classes=3).config
    assert torch.allclose(trained.blocks[1].mlp.fc1.weight, model.blocks[1].mlp.fc1.weight)


@pytest.mark.parametrize("kind", ["hybrid", "bit"])
def test_start_from_hybrids_and_resnets(folder: Path, tmp_path: Path, kind: str) -> None:
    if kind == "bit":
        model: Any = draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7)))
    else:
        model = tiny_vit(image_size=32, patch_size=1, backbone=SMALL_RESNET)
    save(model, tmp_path / "begin.safetensors")
    outcome = train(folder, with_(tmp_path / "begin.safetensors", out=str(tmp_path / "run")), quiet=True)
    assert load(outcome.run).config == replace(model.config, num_classes=3)
    page = (outcome.run / "report.html").read_text()
    assert "starting from begin.safetensors" in page
    assert "started from begin.safetensors with a new head for 3 classes" in page


def test_guesses_are_printed(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are printed again on resume, without the file."""
    torch.save(load_file(_bare(tmp_path)), tmp_path / "bare.pth")
    train(folder, with_(tmp_path / "bare.pth", out=str(tmp_path / "run")))
    guess = "bare.pth: guessed, because the file does not contain it: preprocessing:"
    assert guess in capfd.readouterr().err
    (tmp_path / "bare.pth").unlink()
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "report.html").unlink()
    resume(tmp_path / "run", quiet=True)
    assert guess in (tmp_path / "run" / "report.html").read_text()


def _bare(folder: Path) -> Path:
    """The tensors of a timm model, without a config."""
    save(tiny_vit(image_size=16, width=64, heads=1, gelu="erf", resample="timm"), folder / "timm", to="timm")
    return folder / "timm" / "model.safetensors"


def test_start_from_a_run(folder: Path, weights: Path, tmp_path: Path) -> None:
    train(folder, with_(weights, out=str(tmp_path / "first")), quiet=True)
    train(folder, with_(tmp_path / "first", out=str(tmp_path / "second"), lr=1e-30, ema=0.0), quiet=True)
    first, second = load(tmp_path / "first"), load(tmp_path / "second" / "last.safetensors")
    assert torch.equal(first.blocks[0].attn.qkv.weight, second.blocks[0].attn.qkv.weight)


def test_images_are_converted_to_the_channels_of_the_model(weights: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    pixels = np.clip(random.normal(60 + 120 * labels[:, None, None], 20, (60, 10, 10)), 0, 255).astype(np.uint8)
    np.savez(tmp_path / "grey.npz", images=pixels, labels=labels)
    outcome = train(tmp_path / "grey.npz", with_(weights, out=str(tmp_path / "run"), duration="20 steps"), quiet=True)
    assert load(outcome.run).config.channels == 3
    assert outcome.result.top1 == 1  # dark and light images


def test_freeze_and_layer_decay(folder: Path, weights: Path, tmp_path: Path) -> None:
    options = {"freeze": ("blocks.0.*",), "layer_decay": 0.1, "ema": 0.0, "warmup": "0%", "lr": 1e-2, "clip": None}
    train(folder, with_(weights, out=str(tmp_path / "run"), **options), quiet=True)
    after, before = load_file(tmp_path / "run" / "last.safetensors"), load_file(weights)
    shared = after.keys() & before.keys() - {"head.weight", "head.bias"}
    moved = {name: float((after[name] - before[name]).abs().max()) for name in shared}
    assert not any(change for name, change in moved.items() if name.startswith("blocks.0."))
    assert 0 < moved["patch_embed.proj.weight"] < 0.05 * moved["norm.weight"]
    assert 0 < moved["blocks.1.mlp.fc1.weight"] < 0.5 * moved["norm.weight"]


# ---------------------------------------------------------------- defaults


def test_defaults_keep_the_architecture_of_the_weights(folder: Path, weights: Path) -> None:
    data = open_data(folder)
    begun, _ = load_initial_weights(TrainConfig().with_(start=str(weights)), len(data.classes))
    known = collect_facts(data, begun)
    config, choices = choose_defaults(TrainConfig().with_(start=str(weights)), known)
    scratch, _ = choose_defaults(TrainConfig(), collect_facts(data))
    chosen = {choice.field: choice for choice in choices}
    assert not {"model", "patch_size", "width", "depth", "heads", "mlp_dim", "pool"} & chosen.keys()
    assert config.architecture.image_size == 8
    assert config.optimiser.lr < scratch.optimiser.lr
    assert int(config.schedule.duration.split()[0]) < int(scratch.schedule.duration.split()[0])
    assert all("small.safetensors" in chosen[name].why for name in ("image_size", "duration"))
    assert evaluation_preprocessing(config, known).mean == MEAN
    assert make_model_config(config, known) == replace(begun.model, stochastic_depth=0.0)


def test_matching_architecture_may_be_given(folder: Path, weights: Path, tmp_path: Path) -> None:
    agreeing = {"width": 32, "depth": 2, "heads": 2, "patch_size": 4, "pool": "gap", "position": "learned-1d"}
    settings = with_(weights, out=str(tmp_path / "run"), **agreeing, registers=0, qk_norm=False, attention="full")
    model = load(train(folder, settings, quiet=True).run).config
    assert (model.width, model.depth, model.heads, model.pool) == (32, 2, 2, "gap")


def test_matching_model_name_may_be_given() -> None:
    """The shipped weights, and the architecture of the same name."""
    begun, _ = load_initial_weights(
        TrainConfig().with_(start="vitreous-mini", model="vitreous-mini", image_size=32), 10
    )
    assert begun.model.image_size == (32, 32)
    assert begun.source == begun.name == "vitreous-mini"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 48, "pool": "token"}, "width = 48, pool = 'token': .* is a ViT with width = 32, pool = 'gap'"),
        ({"patch_size": 8}, "patch_size = 8: .* patch_size = 4"),
        ({"layer_scale": 0.1}, "layer_scale = 0.1: .* layer_scale = None"),
        ({"attention": "axial"}, "attention = 'axial': .* attention = 'full'"),
        ({"position_at": "every-layer"}, "position_at = 'every-layer': .* position_at = 'stem'"),
        ({"stem": "small"}, "stem = 'small': .* is a ViT; remove"),
        ({"model": "S/16"}, "model = 'S/16': .* is a ViT with patch_size = 4, width = 32"),
        ({"model": "BiT-R50x1"}, "model = 'BiT-R50x1': .* is a ViT; remove"),
        ({"model": "S/61"}, "unknown model 'S/61'"),
        ({"image_size": 18}, "18 x 18 px cannot be divided into patches"),
        ({"start": "nowhere"}, "nowhere: no such file or folder"),
        ({"start": " "}, "start is empty"),
        ({"start": "hf://nobody"}, "expected hf://owner/name"),
        ({"freeze": ("nothing",)}, "matches no parameter"),
    ],
)
def test_errors_before_anything_is_written(
    folder: Path, weights: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(VitreousError, match=message):
        train(folder, with_(weights, out=str(tmp_path / "run")).with_(**changes), quiet=True)
    assert not list(tmp_path.iterdir())


def test_path_without_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("weights")
    for source, message in ((folder, "a folder without weights"), (tmp_path / "text.txt", "it contains text")):
        with pytest.raises(VitreousError, match=f"the weights to start from cannot be used: .*{message}"):
            train(folder, with_(source, out=str(tmp_path / "run")), quiet=True)


def test_other_settings_for_a_bit_are_an_error(folder: Path, tmp_path: Path) -> None:
    model = draw(BiT(BiTConfig(blocks=(1,), width_factor=0.5, image_size=32, num_classes=7)))
    save(model, tmp_path / "bit.safetensors")
    for changes, text in (
        ({"dropout": 0.1}, "dropout = 0.1"),
        ({"attention": "axial"}, "attention = 'axial'"),
        ({"position_at": "stem"}, "position_at = 'stem'"),
        ({"stem": "small"}, "stem = 'small'"),
    ):
        with pytest.raises(VitreousError, match=f"{text}: the run starts from bit.safetensors, which is a BiT"):
            train(folder, with_(tmp_path / "bit.safetensors", **changes), quiet=True)


# ---------------------------------------------------------------- resume

RUN = (
    "--duration",
    "40steps",
    "--evaluate-every",
    "10steps",
    "--batch-size",
    "16",
    "--device",
    "cpu",
    "--workers",
    "0",
)
KILLED = (*RUN, "--save-minutes", "0.002", "--cache", "never", "--dropout", "0.1", "--mixup", "0.5", "--from", "w.st")


@pytest.fixture
def place(tmp_path: Path, weights: Path) -> Path:
    draw_folder(tmp_path / "data")
    shutil.copy(weights, tmp_path / "w.st")
    return tmp_path


def test_killed_and_resumed_without_the_weights(place: Path) -> None:
    assert "start from w.st with a new head for 3 classes" in complete(
        "train", "data", *KILLED, "--out", "whole", cwd=place
    )
    run = place / "run"
    kill_at(start("train", "data", *KILLED, "--out", "run", cwd=place), run, 23)
    assert 0 < step_of(run) < 40
    (place / "w.st").unlink()
    complete("train", "--resume", "run", cwd=place)
    assert (run / "last.safetensors").read_bytes() == (place / "whole" / "last.safetensors").read_bytes()
    assert (run / "best.safetensors").read_bytes() == (place / "whole" / "best.safetensors").read_bytes()


def test_interrupted_before_the_first_state(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    run = place / "run"
    train("data", with_("w.st", out="run"), quiet=True)
    assert json.loads((run / "config.json").read_text())["config"]["start"] == str(place / "w.st")
    whole = (run / "last.safetensors").read_bytes()
    shutil.rmtree(run / "state")
    for name in ("result.json", "report.html", "best.safetensors", "last.safetensors"):
        (run / name).unlink()
    monkeypatch.chdir(place.parent)  # a run can be resumed from any folder
    kept = (place / "w.st").rename(place / "kept")
    with pytest.raises(
        VitreousError, match=r"has no saved state, so it starts from the beginning; .*w.st: no such file"
    ):
        resume(run, quiet=True)
    save(draw(load(kept), seed=1), place / "other.safetensors")
    (place / "other.safetensors").rename(place / "w.st")
    with pytest.raises(VitreousError, match="not the weights that the run started from"):
        resume(run, quiet=True)
    kept.rename(place / "w.st")
    resume(run, quiet=True)
    assert (run / "last.safetensors").read_bytes() == whole


def test_other_initial_weights_on_resume_are_an_error(place: Path, vitreous: Any) -> None:
    result = vitreous("train", "data", *TINY_RUN[-6:], "--from", "w.st", "--image-size", "16", "--out", "run")
    assert result.returncode == 0, result.stderr
    result = vitreous("train", "--resume", "run", "--from", "vitreous-mini")
    assert result.returncode == 2
    assert "'vitreous-mini' now" in result.stderr
    assert vitreous("train", "--resume", "run", "--from", "w.st").returncode == 0  # the same file by its relative path


# ---------------------------------------------------------------- the recipe of `make demo`


def test_initial_weights_of_a_recipe_can_be_removed(vitreous: Any) -> None:
    assert recipe("digits_transfer").architecture.start == "vitreous-mini"
    asked = ("train", "digits", "--recipe", "digits_transfer")
    assert "the run starts from vitreous-mini" in vitreous(*asked, "--model", "S/16").stderr
    assert "unknown model 'S/61'" in vitreous(*asked, "--from", "None", "--model", "S/61").stderr
