"""Every number that a reference implementation computed from the same weights, to 1e-5 of the largest."""

import numpy as np
import pytest
import torch

import vitreous
from helpers import FIXTURES, oracle, outputs, relative_error
from vitreous.models import VisionTransformer, ViTConfig

GOOGLE = [
    "google_vit_token_prelogits",
    "google_vit_gap_linen",
    "google_hybrid_r",
    "google_hybrid_stem_only",
    "bv_gap_sincos",
    "bv_map_learn",
    "bit_v2_small",
]


@pytest.mark.parametrize("name", GOOGLE)
def test_google(name: str) -> None:
    _, facts = oracle(name)
    model = vitreous.load(FIXTURES / f"{name}.npz")
    sizes = [key.removeprefix("input_") for key in facts if key.startswith("input_")]
    assert sizes
    for size in sizes:
        x = torch.from_numpy(facts[f"input_{size}"]).permute(0, 3, 1, 2)
        assert relative_error(outputs(model, x), facts[f"logits_{size}"]) <= 1e-5
        if f"pre_logits_{size}" in facts:
            with torch.no_grad():
                assert relative_error(model.features(x), facts[f"pre_logits_{size}"]) <= 1e-5


@pytest.mark.parametrize("size", ["32x32", "48x80"])
def test_dino(size: str) -> None:
    """Its tensor names are ours. The last layer's attention too, which the forward pass never computes as such."""
    parameters, facts = oracle("dino_vit")
    config = ViTConfig(
        image_size=32, patch_size=8, width=48, depth=2, heads=3, num_classes=0, gelu="erf", resample="dino"
    )
    model = VisionTransformer(config).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in parameters.items()})
    x = torch.from_numpy(facts[f"input_{size}"])
    assert relative_error(outputs(model, x), facts[f"cls_{size}"]) <= 1e-5
    with torch.no_grad():
        (attention,) = model.attention(x, [-1])
    assert relative_error(attention, facts[f"attn_last_{size}"]) <= 1e-5


@pytest.mark.parametrize("change", [{"norm_eps": 1e-3}, {"gelu": "tanh"}, {"resample": "timm"}])
def test_the_oracles_can_tell(change: dict[str, object]) -> None:
    """The wrong epsilon, GELU or resampling is far outside the tolerance: the tests above can fail."""
    parameters, facts = oracle("dino_vit")
    fields = {"gelu": "erf", "resample": "dino", **change}
    config = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=3, num_classes=0, **fields)
    model = VisionTransformer(config).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in parameters.items()})
    error = relative_error(outputs(model, torch.from_numpy(facts["input_48x80"])), facts["cls_48x80"])
    assert np.isfinite(error)
    assert error > 3e-5
