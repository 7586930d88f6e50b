"""A model that a dialect accepts without an error computes the same outputs after a round trip, at two sizes."""

import tempfile
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitreous
from helpers import TINY, draw, images, outputs, relative_error
from vitreous import VitreousError
from vitreous.models import VisionTransformer, ViTConfig
from vitreous.weights.dialect_names import DialectName
from vitreous.weights.dialects import DIALECTS

# Configs that each dialect accepts, with one or two random changes, so that many draws are accepted.
NEAR: dict[str, dict[str, Any]] = {
    "google": {},
    "big-vision": {"pool": "map", "position_slots": "patches"},
    "timm": {"gelu": "erf", "resample": "timm"},
    "huggingface": {"gelu": "erf", "resample": "hf", "norm_eps": 1e-12},
    "torchvision": {"gelu": "erf", "resample": "torchvision"},
    "dino": {"gelu": "erf", "resample": "dino", "num_classes": 0},
    "dinov2": {"gelu": "erf", "resample": "dinov2", "num_classes": 0, "layer_scale": 1e-5},
    "native": {},
}
STEPS: dict[str, list[Any]] = {
    "image_size": [24, 35, (32, 16), (16, 64)],
    "patch_size": [(8, 16), 4],
    "num_classes": [0, 3],
    "channels": [1, 4],
    "mlp_dim": [100, 128],
    "pool": ["token", "gap", "map", "none"],
    "class_token": [True],
    "registers": [1, 4],
    "final_norm": ["after-pool"],
    "representation_size": [40, 48],
    "position": ["learned-2d", "relative", "sincos-1d", "sincos-2d", "none"],
    "position_slots": ["patches", "class", "all"],
    "position_at": ["every-layer", "every-layer-shared"],
    "resample": ["google", "timm", "hf", "torchvision", "dino", "dinov2", "dinov2-registers"],
    "attention": ["axial"],
    "mlp": ["swiglu"],
    "gelu": ["tanh", "erf"],
    "norm_eps": [1e-12, 1e-6],
    "qkv_bias": [False],
    "qk_norm": [True],
    "layer_scale": [1e-5],
    "remainder": ["crop"],
    "dropout": [0.1],
}
assert set(STEPS) <= set(ViTConfig.__dataclass_fields__)
steps = st.lists(st.sampled_from([(k, v) for k, values in STEPS.items() for v in values]), max_size=2).map(dict)


@pytest.mark.parametrize("dialect", [name for name in get_args(DialectName) if name != "bit"])
@given(change=steps)
@settings(max_examples=100, deadline=None)
def test_a_converted_model_computes_the_same(dialect: str, change: dict[str, Any]) -> None:
    try:
        config = ViTConfig(**{**TINY, **NEAR[dialect], **change})
    except VitreousError:
        return
    model = draw(VisionTransformer(config))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x{''.join(DIALECTS[dialect].suffixes[:1])}"
        try:
            vitreous.save(model, path, to=dialect)
        except VitreousError:  # refused
            assert not path.exists()
            return
        back = vitreous.load(path, heads=3)
    patch = config.patch_size
    native = (config.grid[0] * patch[0], config.grid[1] * patch[1])
    for size in (native, (3 * patch[0], 5 * patch[1])):
        x = images(1, config.channels, *size)
        assert relative_error(outputs(back, x), outputs(model, x)) <= 1e-5
    if dialect == "native":
        assert back.config == config
        assert all(torch.equal(a, b) for a, b in zip(back.parameters(), model.parameters(), strict=True))
