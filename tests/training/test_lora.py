"""Low-rank adapters: their output, gradients and EMA, and saved models with merged adapters."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import draw, images, relative_error, tiny_vit
from runs import complete, draw_folder, kill_at, records, start, step_of
from vitreous import TrainConfig, VitreousError, finetune, load, save
from vitreous.data.open_data import open_data
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.training.config import Finetuning, Optimiser
from vitreous.training.distributed import World
from vitreous.training.initial_weights import load_initial_weights
from vitreous.training.lora import ADAPTED, add_adapters_, merged_adapters
from vitreous.training.optim import optimisers
from vitreous.training.optim.ema import Ema
from vitreous.training.optim.parameters import trainable_part
from vitreous.training.plan import make_plan

SHORT: dict[str, Any] = {"batch_size": 16, "duration": "6 steps", "evaluate_every": "3 steps", "device": "cpu"}


def adapted(rank: int = 3, alpha: float | None = None, **changes: Any) -> Any:
    """A small ViT with adapters that are not zero."""
    model = tiny_vit(**changes)
    torch.manual_seed(0)
    add_adapters_(model, Finetuning(lora=rank, lora_alpha=alpha))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("lora_b"):
                p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    return model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save(tiny_vit(image_size=16, patch_size=4, width=32, heads=2), path)
    return path


# ---------------------------------------------------------------- output


@pytest.mark.parametrize(
    "changes", [{}, {"mlp": "swiglu", "qkv_bias": False}, {"pool": "map"}, {"attention": "axial"}], ids=str
)
def test_merged_model_computes_the_same(changes: dict[str, Any]) -> None:
    model, plain, x = adapted(**changes), tiny_vit(**changes), images(3, 3, 32, 40)
    own = {name: p.clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        unmerged, without = model(x), plain(x)
        with merged_adapters(model):
            assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
            assert relative_error(model(x), unmerged) < 1e-5
    assert relative_error(without, unmerged) > 0.05  # the adapters have an effect
    assert own.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(p, own[name]) for name, p in model.named_parameters())


def test_new_adapters_do_not_change_the_output() -> None:
    model, x = tiny_vit(), images(2, 3, 32, 32)
    before = model(x)
    add_adapters_(model, Finetuning(lora=4))
    assert torch.equal(model(x), before)


def test_alpha_scales_the_adapters() -> None:
    one, two, by_itself = (adapted(rank=3, alpha=alpha) for alpha in (3.0, 6.0, None))
    plain = tiny_vit()
    name = "blocks.1.mlp.fc1"
    x = images(5, 48)
    layers = [model.get_submodule(name)(x) - plain.get_submodule(name)(x) for model in (one, two, by_itself)]
    assert relative_error(layers[1], (2 * layers[0]).detach()) < 1e-4
    assert torch.equal(layers[1], layers[2])


def test_gradients_with_activation_checkpointing_and_compiled() -> None:
    x = images(4, 3, 32, 32)

    def gradients(model: Any, forward: Any) -> dict[str, torch.Tensor]:
        forward(x).square().sum().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain = adapted()
    expected = gradients(plain, plain)
    assert {name for name in expected if not name.startswith("head.")} == {
        f"blocks.{n}.{part}.lora_{letter}" for n in range(2) for part in ADAPTED for letter in "ab"
    }
    recomputed = adapted()
    recomputed.checkpoint_activations = True
    compiled = adapted()
    for model, forward in ((recomputed, recomputed), (compiled, torch.compile(compiled, backend="aot_eager"))):
        found = gradients(model, forward)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert relative_error(found[name], gradient) < 1e-4, name


def test_ema_of_adapters() -> None:
    model = adapted()
    ema = Ema(model, 0.9)
    assert set(ema.shadow) == {name for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("lora_b"):
                p.zero_()
    ema.update(10**6)
    x, plain = images(2, 3, 32, 32), tiny_vit()
    with torch.no_grad():
        assert relative_error(model(x), plain(x)) < 1e-6
        with ema.applied():
            mean = model(x)
            with merged_adapters(model):
                assert relative_error(model(x), mean) < 1e-5
    assert relative_error(mean, plain(x).detach()) > 0.01


# ---------------------------------------------------------------- runs


def test_run_changes_matrices_by_low_rank_updates_only(folder: Path, weights: Path, tmp_path: Path) -> None:
    outcome = finetune(
        folder, weights, "lora", lora=2, lora_alpha=None, lr=1e-2, **SHORT, out=str(tmp_path / "run"), quiet=True
    )
    before, after = load_file(weights), load_file(outcome.run / "last.safetensors")
    assert before.keys() == after.keys()
    matrices = {f"blocks.{n}.{part}.weight" for n in range(2) for part in ADAPTED}
    for name in before.keys() - {"head.weight", "head.bias"}:
        if name in matrices:
            change = after[name] - before[name]
            values = torch.linalg.svdvals(change)
            assert values[1] > 1e-4, name
            assert values[2] < 1e-5 * values[0] + 1e-6, name
        else:
            assert torch.equal(before[name], after[name]), name
    assert load(outcome.run).labels == ("blau", "grün", "rot")


def test_saved_file_has_the_evaluated_weights(folder: Path, weights: Path, tmp_path: Path) -> None:
    """The merged weights in the file have the loss that was measured with adapters, raw or EMA."""
    run = tmp_path / "run"
    finetune(folder, weights, "lora", lr=1e-2, ema=0.8, **{**SHORT, "duration": "12 steps"}, out=str(run), quiet=True)
    summary = json.loads((run / "result.json").read_text())
    best = summary["best"]
    found = [r for r in records(run, "eval") if (r["step"], r["weights"]) == (best["step"], best["weights"])]
    assert summary["split"] == "val"
    assert summary["result"]["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)


def test_killed_run_is_resumed_exactly(weights: Path, tmp_path: Path) -> None:
    draw_folder(tmp_path / "data")
    asked = ("data", "--from", weights, "--recipe", "lora", "--duration", "40steps", "--evaluate-every", "10steps")
    asked += ("--save-minutes", "0.002", "--batch-size", "16", "--device", "cpu", "--workers", "0", "--ema", "0.9")
    complete("finetune", *asked, "--out", "whole", cwd=tmp_path)
    run = tmp_path / "run"
    kill_at(start("finetune", *asked, "--out", "run", cwd=tmp_path), run, 23)
    assert 0 < step_of(run) < 40
    complete("finetune", "--resume", "run", cwd=tmp_path)
    for name in ("last.safetensors", "best.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# ---------------------------------------------------------------- plan


def test_trained_parameters_and_memory(folder: Path, weights: Path) -> None:
    data = open_data(folder)

    def planned(**fields: Any) -> Any:
        config = TrainConfig().with_(start=str(weights), **SHORT, **fields)
        return make_plan(data, config, World(), load_initial_weights(config, 3)[0])

    full, lora, linear = planned(), planned(lora=4), planned(freeze=("!head.*",))
    width, hidden = 32, 128
    adapters = 2 * 4 * ((width + 3 * width) + (width + width) + 2 * (width + hidden))
    assert lora.trainable.parameters == adapters + 33 * 3
    assert linear.trainable.parameters == 33 * 3
    assert linear.memory < lora.memory < full.memory


def test_freeze_with_adapters() -> None:
    model = tiny_vit()
    add_adapters_(model, Finetuning(lora=2))
    whole = trainable_part(model).parameters
    built = optimisers.build_optimisers(
        model, Optimiser(optimiser="adamw", lr=1e-3, weight_decay=0.1, freeze=("blocks.0.*",))
    )
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name.split(".")[0] for name in names} == {"blocks", "head"}
    assert not any(name.startswith("blocks.0.") for name in names)
    assert sum(p.numel() for p in built.parameters) < whole


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora": -1}, "lora = -1: expected 0, or a rank below the width of the model, 32"),
        ({"lora": 32}, "lora = 32: expected 0, or a rank below the width"),
        ({"lora": 4, "lora_alpha": 0.0}, "lora_alpha = 0: expected a positive number"),
        ({"lora_alpha": 8.0}, "lora_alpha = 8: has no effect, since lora = 0"),
        ({"lora": 4, "optimiser": "muon"}, "all of them are frozen"),
    ],
)
def test_invalid_settings(folder: Path, weights: Path, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        finetune(folder, weights, "fast", out=str(tmp_path / "run"), **fields, **SHORT, quiet=True)
    assert not (tmp_path / "run").exists()


def test_adapters_for_a_bit_are_an_error(folder: Path, tmp_path: Path) -> None:
    save(draw(BiT(BiTConfig(blocks=(1,), width_factor=0.5, image_size=32, num_classes=7))), tmp_path / "b.safetensors")
    with pytest.raises(VitreousError, match=r"lora = 8: .* a BiT has none; train all of it"):
        finetune(folder, tmp_path / "b.safetensors", "lora", out=str(tmp_path / "run"), **SHORT, quiet=True)
