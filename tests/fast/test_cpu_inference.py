"""Inference on a CPU with packed weights, compared with the plain model."""

from typing import Any

import pytest
import torch

from helpers import images, relative_error, tiny_vit
from vitreous import VitreousError
from vitreous.fast import cpu_inference
from vitreous.fast.cpu_inference import CpuViT
from vitreous.fast.eligibility import CPU_TABLE

VARIANTS: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers, erf": {"registers": 2, "gelu": "erf", "position_slots": "all"},
    "no qkv bias": {"qkv_bias": False},
    "mean of patches": {"pool": "gap"},
    "mean of patches with a class token": {"pool": "gap", "class_token": True, "position_slots": "patches"},
    "mean of patches, norm after pooling": {"pool": "gap", "final_norm": "after-pool"},
    "attention pooling": {"pool": "map"},
    "all tokens": {"pool": "none", "num_classes": 0},
    "SwiGLU": {"mlp": "swiglu"},
    "LayerScale": {"layer_scale": 0.3},
    "pre-training head": {"representation_size": 24},
    "2-d positions": {"position": "learned-2d"},
    "sincos": {"position": "sincos-2d", "pool": "gap"},
    "1-d sincos": {"position": "sincos-1d", "registers": 1},
    "no positions": {"position": "none"},
    "positions at every layer": {"position_at": "every-layer"},
    "shared positions at every layer": {"position_at": "every-layer-shared"},
    "remainder cropped": {"remainder": "crop"},
    "one block": {"depth": 1},
    "grey": {"channels": 1},
    "no head": {"num_classes": 0},
    "another eps": {"norm_eps": 0.1},
    "no dropout in inference": {"dropout": 0.2, "attention_dropout": 0.2, "stochastic_depth": 0.2},
    "heads of width 1": {"width": 6, "heads": 6},
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_the_plain_model(fields: dict[str, Any], batch: int) -> None:
    model = tiny_vit(**fields)
    run = CpuViT(model)
    for size in ((32, 32), (24, 48), (16, 16)):
        x = images(batch, model.config.channels, *size)
        with torch.no_grad():
            assert relative_error(run(x), model(x)) < 1e-5
            assert relative_error(run.features(x), model.features(x)) < 1e-5


def test_an_empty_batch() -> None:
    for fields in ({}, {"pool": "none", "num_classes": 0}):
        model, x = tiny_vit(**fields), images(0, 3, 24, 48)
        assert CpuViT(model)(x).shape == model(x).shape
        assert CpuViT(model).features(x).shape == model.features(x).shape


def test_image_sizes_that_patches_do_not_divide() -> None:
    with pytest.raises(VitreousError, match="cannot be divided into patches"):
        CpuViT(tiny_vit())(images(1, 3, 30, 32))
    model = tiny_vit(remainder="crop")
    x = images(2, 3, 30, 35)
    assert relative_error(CpuViT(model)(x), model(x).detach()) < 1e-5


def test_large_batches_are_split_into_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_inference, "GROUP_BYTES", 20_000)
    model = tiny_vit()
    x = images(11, 3, 32, 32)
    assert relative_error(CpuViT(model)(x), model(x).detach()) < 1e-5


def test_without_the_packing_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_inference, "has_packed_linear", lambda: False)
    for fields in ({}, {"mlp": "swiglu"}, {"gelu": "erf", "pool": "gap"}):
        model = tiny_vit(**fields)
        x = images(2, 3, 32, 32)
        assert relative_error(CpuViT(model)(x), model(x).detach()) < 1e-5


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
def test_later_changes_of_the_model_have_no_effect(fields: dict[str, Any]) -> None:
    model = tiny_vit(**fields)
    x = images(2, model.config.channels, 24, 48)
    run = CpuViT(model)
    before = model(x).detach()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    assert relative_error(run(x), before) < 1e-5


def test_the_output_is_a_normal_tensor_of_its_own() -> None:
    run = CpuViT(tiny_vit())
    first = run(images(2, 3, 32, 32))
    kept = first.clone()
    run(images(2, 3, 32, 32, seed=5))
    assert torch.equal(first, kept)
    assert not first.is_inference()


def test_every_allowed_value_is_tested() -> None:
    configs = [tiny_vit(**fields).config for fields in VARIANTS.values()]
    for field, rule in CPU_TABLE.items():
        if isinstance(rule, tuple):
            assert {getattr(config, field) for config in configs} >= set(rule), field


def test_ineligible_models_are_refused() -> None:
    with pytest.raises(VitreousError, match="position = 'relative' is not supported; call the model itself"):
        CpuViT(tiny_vit(position="relative"))


@pytest.mark.parametrize("x", [torch.zeros(1, 3, 32, 32).double(), torch.zeros(1, 4, 32, 32), torch.zeros(3, 32, 32)])
def test_invalid_images(x: torch.Tensor) -> None:
    with pytest.raises(VitreousError, match="images"):
        CpuViT(tiny_vit())(x)
