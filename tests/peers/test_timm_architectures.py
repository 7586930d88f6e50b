"""Every ViT architecture of timm, by its name in config.json: the same logits as timm, or refused."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

import vitreous
from helpers import draw, images, relative_error
from vitreous.models.aliases import known_elsewhere
from vitreous.models.zoo import ZOO
from vitreous.weights.timm_architectures import ARCHITECTURES

NAMES = timm.list_models()
# Each of these computes something that its tensors do not show.
OTHERS = {
    "vit_base_patch16_rope_ape_224": "rotary positions",
    "vit_small_patch16_rope_ape_224": "rotary positions",
    "vit_large_patch16_rope_ape_224": "rotary positions",
    "test_vit3": "registers",
    "vit_base_patch16_rpn_224": "norms come after",
    "vit_base_patch16_clip_224": "norm before its blocks",
    "vit_dwee_patch16_reg1_gap_256": "differential",
}


def small(name: str, **changes: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return a small model of an architecture, with its number of heads, and the arguments that made it small."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old names are deprecated
        with torch.device("meta"):
            whole = timm.create_model(name, depth=1)
        patch = whole.patch_embed.patch_size[0]
        arguments = {"depth": 2, "embed_dim": 8 * whole.blocks[0].attn.num_heads, "img_size": 2 * patch, **changes}
        return draw(timm.create_model(name, num_classes=5, **arguments)), arguments


def write(folder: Path, name: str, model: torch.nn.Module, arguments: dict[str, Any]) -> Path:
    """Write a folder whose config.json contains only the architecture and the changed arguments."""
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": name, "model_args": arguments}))
    return folder


def compare(folder: Path, peer: torch.nn.Module, size: int) -> float:
    x = images(2, 3, size, size)
    with torch.no_grad():
        return relative_error(vitreous.load(folder)(x), peer(x))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_supported_architecture_computes_the_same(name: str, tmp_path: Path) -> None:
    peer, arguments = small(name)
    assert compare(write(tmp_path / "in", name, peer, arguments), peer, arguments["img_size"]) <= 1e-5


@pytest.mark.parametrize("saved", ["save_for_hf", "architecture alone"])
@pytest.mark.parametrize("name", ["vit_so400m_patch14_siglip_384", "vit_so400m_patch14_siglip_gap_384"])
def test_a_size_that_the_patch_does_not_divide(name: str, saved: str, tmp_path: Path) -> None:
    """timm resizes to 384 px, and its convolution drops the last 6: the patches must contain the same pixels."""
    arguments = {"depth": 2, "embed_dim": 128}
    peer = draw(timm.create_model(name, num_classes=5, **arguments))
    folder = write(tmp_path / "in", name, peer, arguments)
    if saved == "save_for_hf":
        timm.models.save_for_hf(peer, folder, safe_serialization=True, model_args=arguments)
    model = vitreous.load(folder)
    assert (model.config.image_size, model.config.remainder, model.preprocessing.size) == (
        (384, 384),
        "crop",
        (384, 384),
    )
    assert compare(folder, peer, 384) <= 1e-5
    vitreous.save(model, tmp_path / "native.safetensors")
    assert compare(tmp_path / "native.safetensors", peer, 384) <= 1e-5
    vitreous.save(model, tmp_path / "out", to="timm")
    with torch.no_grad():
        x = images(1, 3, 384, 384)
        again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
        assert relative_error(again(x), peer(x)) <= 1e-5


def test_every_other_name_is_refused(tmp_path: Path) -> None:
    """Because of the name alone: the tensors are those of a plain ViT, as with rotary positions without tensors."""
    peer, arguments = small("vit_tiny_patch16_224")
    folder = write(tmp_path / "in", "vit_tiny_patch16_224", peer, arguments)
    vitreous.load(folder)
    refused = [name for name in NAMES if name not in ARCHITECTURES]
    assert len(refused) > 1000
    refused += ["vit_tiny_patch16_224_rope", "rope_vit_tiny_patch16_224", "vit_tiny_patch16_rope_224", "", None, 3]
    for name in refused:
        (folder / "config.json").write_text(json.dumps({"architecture": name, "model_args": arguments}))
        with pytest.raises(vitreous.VitreousError, match=r"architecture = .* is not one of the architectures"):
            vitreous.load(folder)


def test_a_tag_does_not_change_the_architecture(tmp_path: Path) -> None:
    peer, arguments = small("deit_tiny_patch16_224")
    folder = write(tmp_path / "in", "deit_tiny_patch16_224.fb_in1k", peer, arguments)
    assert compare(folder, peer, arguments["img_size"]) <= 1e-5


@pytest.mark.parametrize("name", OTHERS)
def test_unsupported_architectures_are_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    """In folders that timm wrote."""
    peer, _ = small(name)
    timm.models.save_for_hf(peer, tmp_path, safe_serialization=True)
    with pytest.raises(vitreous.VitreousError, match=f"architecture = '{name}'.*{OTHERS[name]}.*Load it with timm"):
        vitreous.load(tmp_path)


PLAIN: list[dict[str, Any]] = [
    {"norm_layer": "layernorm"},
    {"attn_layer": "attn", "pre_norm": False, "final_norm": True, "proj_bias": True, "pool_include_prefix": False},
    {"drop_path_rate": 0.1, "drop_rate": 0.1, "pos_drop_rate": 0.1, "patch_drop_rate": 0.1, "weight_init": "jax"},
    {"dynamic_img_size": True, "dynamic_img_pad": True},
    {"qkv_bias": False, "qk_norm": True, "init_values": 0.1, "mlp_ratio": 2.7, "in_chans": 3, "fc_norm": True},
    {"class_token": False, "global_pool": "avg", "reg_tokens": 2, "no_embed_class": True, "act_layer": "gelu_tanh"},
    {"reg_tokens": 4, "no_embed_class": False},  # nine positions: 4 of patches, not 9
    {"pos_embed": "none"},
]


@pytest.mark.parametrize("arguments", PLAIN)
def test_supported_arguments_are_used(arguments: dict[str, Any], tmp_path: Path) -> None:
    peer, all_arguments = small("vit_tiny_patch16_224", **arguments)
    assert compare(write(tmp_path / "in", "vit_tiny_patch16_224", peer, all_arguments), peer, 32) <= 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pool_include_prefix": True, "global_pool": "avg"}, "pool_include_prefix = True"),
        ({"attn_layer": "diff"}, "attn_layer = 'diff'"),
        ({"norm_layer": "rmsnorm"}, "norm_layer = 'rmsnorm'"),
        ({"final_norm": False}, "final_norm = False"),
        ({"scale_attn_norm": True}, "scale_attn_norm = True"),
        ({"proj_bias": False}, "proj_bias = False"),
        ({"rope_type": "axial"}, "model_args has unknown arguments, .*: rope_type = 'axial'"),
        ({"depth": 3}, "depth = 3, which contradicts the tensors"),
        ({"patch_size": 8}, "patch_size = 8, which contradicts the tensors"),
        ({"mlp_ratio": 3}, "mlp_ratio = 3, which contradicts the tensors"),
        ({"qkv_bias": False}, "qkv_bias = False, which contradicts the tensors"),
        ({"init_values": 1e-5}, "init_values = 1e-05, which contradicts the tensors"),
    ],
)
def test_unsupported_arguments_are_refused_by_name(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    """With the tensors of a plain ViT, so that only the argument can be the reason."""
    peer, plain = small("vit_tiny_patch16_224")
    with pytest.raises(vitreous.VitreousError, match=message):
        vitreous.load(write(tmp_path / "in", "vit_tiny_patch16_224", peer, plain | arguments))


def test_guesses_for_a_file_without_config_json(tmp_path: Path) -> None:
    """A file alone does not show rotary positions without tensors. That it has none is reported as a guess."""
    peer, _ = small("vit_small_patch16_rope_ape_224")
    save_file(peer.state_dict(), tmp_path / "x.safetensors")
    report = vitreous.load(tmp_path / "x.safetensors", heads=6).report
    assert report.guesses["positions"] == "not rotary"
    assert len(report.notes) == 1
    assert report.notes[0].index("preprocessing") < report.notes[0].index("positions")


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "vit_base_patch32_384", "deit3_small_patch16_224", "vit_large_patch14_dinov2"]
)
def test_the_model_that_an_error_suggests_has_the_same_size(name: str) -> None:
    here, changes = known_elsewhere(name, ZOO)
    ours = vitreous.create(here, **changes, device="meta")
    with torch.device("meta"):
        theirs = timm.create_model(name)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("ratio", [10**400, 1e308, float("inf"), float("nan"), -4.0, 0])
def test_an_impossible_mlp_ratio_is_an_error(ratio: float, tmp_path: Path) -> None:
    peer, arguments = small("vit_tiny_patch16_224")
    folder = write(tmp_path / "in", "vit_tiny_patch16_224", peer, {**arguments, "mlp_ratio": ratio})
    with pytest.raises(vitreous.VitreousError, match="mlp_ratio"):
        vitreous.load(folder)
