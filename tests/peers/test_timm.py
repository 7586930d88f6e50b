"""timm computes the same outputs from the same state dict, for configs that no oracle file covers."""

from typing import Any

import pytest
import torch

from helpers import draw, images, outputs, relative_error
from vitreous import ViTConfig
from vitreous.models import VisionTransformer

timm_vit = pytest.importorskip("timm.models.vision_transformer")
layers = pytest.importorskip("timm.layers")

THEIRS: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 7,
    "dynamic_img_size": True,
}
OURS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "width": 48,
    "depth": 2,
    "heads": 3,
    "num_classes": 7,
    "gelu": "erf",
    "resample": "timm",
}
PAIRS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"global_pool": "avg", "class_token": False}, {"pool": "gap", "final_norm": "after-pool"}),
    (
        {"global_pool": "avg", "fc_norm": False},
        {"pool": "gap", "class_token": True},
    ),
    ({"global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"}, {"pool": "map", "gelu": "tanh"}),
    ({"reg_tokens": 3}, {"registers": 3, "position_slots": "all"}),
    ({"reg_tokens": 3, "no_embed_class": True}, {"registers": 3, "position_slots": "patches"}),
    ({"init_values": 0.1, "qk_norm": True}, {"layer_scale": 0.1, "qk_norm": True}),
    ({"qkv_bias": False}, {"qkv_bias": False}),
    (
        {"mlp_layer": layers.SwiGLUPacked, "mlp_ratio": 2.0, "act_layer": "silu"},
        {"mlp": "swiglu", "mlp_dim": 48},
    ),
    ({"img_size": (32, 48), "patch_size": (8, 16)}, {"image_size": (32, 48), "patch_size": (8, 16)}),
]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_same_outputs_at_every_size(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    model = draw(VisionTransformer(ViTConfig(**{**OURS, **ours})))
    peer = timm_vit.VisionTransformer(**{**THEIRS, **theirs}).eval()
    peer.load_state_dict(model.state_dict())
    assert set(peer.state_dict()) == set(model.state_dict())
    for size in ((32, 48), (32, 32), (64, 48), (24, 16), (16, 64)):
        x = images(2, 3, *size)
        with torch.no_grad():
            reference = peer(x)
        assert relative_error(outputs(model, x), reference) <= 1e-5
