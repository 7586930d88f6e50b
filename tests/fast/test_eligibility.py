"""Eligibility for the fast paths: only models on the allow-list are accepted."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import nn

from helpers import SMALL_RESNET, draw, tiny_vit
from vitreous import ViTConfig, create
from vitreous.fast.eligibility import BF16, CPU, FP8, TRAINING, FastPath, ineligibility_reason
from vitreous.models.vit import VisionTransformer
from vitreous.training.config import Finetuning
from vitreous.training.engine import choose_training_path
from vitreous.training.lora import add_adapters_

PATHS = {"CPU": CPU, "bf16": BF16, "fp8": FP8, "training": TRAINING}
EVERY = tuple(PATHS)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_each_table_lists_exactly_the_fields_of_the_config(path: FastPath) -> None:
    assert list(path.table) == [field.name for field in fields(ViTConfig)]


@dataclass(frozen=True)
class ExtendedConfig(ViTConfig):
    window: int = 0


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_field_missing_from_the_tables_makes_a_model_ineligible(path: FastPath) -> None:
    model = VisionTransformer(ExtendedConfig(image_size=32, width=64, depth=2, heads=4))
    assert ineligibility_reason(model, path) == "window = 0: the fast path does not implement this field"


def model_of(**changes: Any) -> Any:
    return tiny_vit(**{"width": 64, "heads": 4, "depth": 3, **changes})


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_unmodified_models_are_accepted(path: FastPath) -> None:
    model = model_of()
    assert ineligibility_reason(model, path) is None
    for p in model.blocks[0].parameters():
        p.requires_grad_(False)
    assert ineligibility_reason(model.train(), path) is None


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "relative": ({"position": "relative"}, EVERY, "position = 'relative' is not supported"),
    "axial": ({"attention": "axial"}, EVERY, "attention = 'axial' is not supported"),
    "norm of q and k": ({"qk_norm": True}, EVERY, "qk_norm = True"),
    "backbone": ({"backbone": SMALL_RESNET, "patch_size": 1}, ("CPU", "bf16", "fp8"), "backbone = "),
    "SwiGLU": ({"mlp": "swiglu"}, ("bf16", "fp8", "training"), "mlp = 'swiglu'"),
    "positions": ({"position_at": "every-layer"}, ("bf16", "fp8", "training"), "position_at = 'every-layer'"),
    "narrow heads": (
        {"width": 48, "heads": 4},
        ("bf16", "fp8", "training"),
        "width of a head must be a multiple of 8",
    ),
    "odd width": ({"width": 60, "heads": 3}, ("bf16", "fp8", "training"), "width = 60: must be a multiple of"),
    "odd MLP": ({"mlp_dim": 100}, ("bf16", "fp8", "training"), "mlp_dim = 100: must be a multiple of"),
    "width in fp8": ({"width": 24, "heads": 3}, ("fp8",), "width = 24: must be a multiple of 16"),
    "LayerScale": ({"layer_scale": 0.1}, ("training",), "layer_scale = 0.1"),
    "dropout": ({"dropout": 0.1}, ("training",), "dropout = 0.1"),
    "attention dropout": ({"attention_dropout": 0.1}, ("training",), "attention_dropout = 0.1"),
    "norm after the mean": ({"pool": "gap", "final_norm": "after-pool"}, ("training",), "final_norm = 'after-pool'"),
    "one block": ({"depth": 1}, ("training",), "depth = 1: must be 2 or more"),
    "all tokens": ({"pool": "none"}, ("training",), "pool = 'none'"),
}


@pytest.mark.parametrize(("changes", "paths", "words"), REFUSED.values(), ids=REFUSED)
def test_unsupported_settings(changes: dict[str, Any], paths: tuple[str, ...], words: str) -> None:
    model = model_of(**changes)
    for name, path in PATHS.items():
        reason = ineligibility_reason(model, path)
        assert words in str(reason) if name in paths else reason is None, (name, reason)


def half_precision_blocks(model: Any) -> None:
    model.blocks.half()


def strided(model: Any) -> None:
    model.norm.weight = nn.Parameter(torch.ones(128)[::2])


def checkpoint_activations(model: Any) -> None:
    model.checkpoint_activations = True


CHANGED: dict[str, tuple[Callable[[Any], Any], tuple[str, ...], str]] = {
    "hook": (lambda m: m.blocks[0].mlp.register_forward_hook(lambda *a: None), EVERY, "blocks.0.mlp has hooks"),
    "adapters": (lambda m: add_adapters_(m, Finetuning(lora=2)), EVERY, "blocks.0.attn.qkv is of type LoraLinear"),
    "compiled in place": (lambda m: m.blocks[0].compile(), ("training",), "blocks.0 is compiled"),
    "activation checkpointing": (checkpoint_activations, ("training",), "checkpoint_activations is set"),
    "float64": (lambda m: m.double(), ("CPU", "training"), "float64"),
    "bfloat16": (lambda m: m.bfloat16(), ("CPU", "training"), "bfloat16"),
    "complex": (lambda m: m.to(torch.complex64), EVERY, "complex64"),
    "two dtypes": (half_precision_blocks, EVERY, "float16"),
    "meta": (lambda m: m.to("meta"), ("CPU",), "on meta"),
    "two devices": (lambda m: m.head.to("meta"), EVERY, "meta"),
    "strided": (strided, EVERY, "norm.weight is not contiguous"),
    "channels last": (lambda m: m.to(memory_format=torch.channels_last), (), ""),
}


@pytest.mark.parametrize(("change", "paths", "words"), CHANGED.values(), ids=CHANGED)
@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
def test_modified_models(change: Callable[[Any], Any], paths: tuple[str, ...], words: str) -> None:
    model = model_of()
    change(model)
    for name, path in PATHS.items():
        reason = ineligibility_reason(model, path)
        assert words in str(reason) if name in paths else reason is None, (name, reason)


def test_other_networks() -> None:
    for model in (nn.Linear(2, 2), draw(create("BiT-R50x1", blocks=(1,), width_factor=0.5))):
        assert ineligibility_reason(model, CPU) == f"the model is a {type(model).__name__}, not a VisionTransformer"


def test_training_gives_the_reason_for_not_using_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    assert "they are for bf16" in choose_training_path(model, "fp32")
    assert "they need a CUDA GPU" in choose_training_path(model, "bf16")
    monkeypatch.setattr("vitreous.training.engine.kernels_unavailable_reason", lambda device: None)
    assert choose_training_path(model, "bf16") == "fused kernels"
    model.blocks[1].register_forward_hook(lambda *a: None)
    assert choose_training_path(model, "bf16") == "compiled; no fused kernels: blocks.1 has hooks"
