"""Names, their parameter counts, and what creating one does."""

import re

import pytest
import torch

import vitreous
from limits import limited
from vitreous import BiT, VisionTransformer, VitreousError
from vitreous.models import zoo

# The official model tests' counts, at 224 px with 1,000 classes.
COUNTS = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "S/32": 22_878_952,
    "B/8": 86_576_872,
    "B/16": 86_567_656,
    "B/32": 88_224_232,
    "L/16": 304_326_632,
    "L/32": 306_535_400,
    "H/14": 632_045_800,
    "R+Ti/16": 6_337_704,
    "R26+S/32": 36_431_912,
    "R26+B/32": 101_383_976,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
    "BiT-R50x1": 25_549_352,
    "BiT-R101x1": 44_541_480,
    "BiT-R152x2": 236_335_208,
    "vitreous-mini": 3_155_348,  # at its own size and classes
}
GAP_COUNTS = {"S/16": 22_049_896, "S/32": 22_878_184, "B/16": 86_566_120, "B/32": 88_222_696}


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "parameters"), COUNTS.items())
def test_parameter_counts(name: str, parameters: int) -> None:
    assert count(vitreous.create(name, device="meta")) == parameters
    assert vitreous.cost(zoo.config(name)).parameters == parameters


@pytest.mark.parametrize(("name", "parameters"), GAP_COUNTS.items())
def test_parameter_counts_with_gap(name: str, parameters: int) -> None:
    assert count(vitreous.create(name, pool="gap", device="meta")) == parameters


@pytest.mark.parametrize("name", vitreous.names())
def test_every_name_builds_and_runs_on_meta(name: str) -> None:
    model = vitreous.create(name, num_classes=10, device="meta")
    assert all(p.is_meta for p in model.parameters())
    height, width = model.config.image_size
    assert model(torch.empty(2, 3, height, width, device="meta")).shape == (2, 10)


def test_the_zoo_is_complete() -> None:
    names = vitreous.names()
    for variant in ("Ti", "S", "B", "L", "H", "So400m", "g", "G"):
        assert [f"{variant}/{patch}" for patch in (8, 14, 16, 32)] == vitreous.names(f"{variant}/*")
    assert {"BiT-R50x1", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3", "BiT-R152x2", "BiT-R152x4"} <= set(names)
    assert vitreous.names("R50*") == ["R50+B/16", "R50+L/32"]
    assert vitreous.names("nothing*") == []
    giant = zoo.config("DINOv2-giant/14")
    assert (giant.width, giant.depth, giant.heads, giant.mlp, giant.mlp_dim) == (1536, 40, 24, "swiglu", 4096)


def test_create_with_changes() -> None:
    model = vitreous.create("Ti/16", num_classes=10, image_size=(96, 64), pool="gap", depth=2)
    assert isinstance(model, VisionTransformer)
    assert model.pos_embed.shape == (1, 24, 192)
    assert model(torch.randn(2, 3, 96, 64)).shape == (2, 10)
    bit = vitreous.create("BiT-R26x1", num_classes=3, image_size=64, stem="small", blocks=(1, 1))
    assert isinstance(bit, BiT)
    assert bit.config.image_size == (64, 64)
    assert vitreous.create("Ti/16", depth=1, dtype=torch.float16).head.weight.dtype == torch.float16


def test_stem_and_width_of_a_hybrid_are_those_of_its_resnet() -> None:
    hybrid = vitreous.create("R26+S/32", num_classes=3, image_size=32, depth=1, stem="small", width_factor=0.5)
    assert isinstance(hybrid, VisionTransformer)
    backbone = hybrid.config.backbone
    assert backbone is not None
    assert (backbone.stem, backbone.width_factor, backbone.blocks) == ("small", 0.5, (2, 2, 2, 2))
    assert hybrid.config.grid == (4, 4)  # the stride is 8 instead of 32
    assert hybrid(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert zoo.config("R26+S/32") != hybrid.config
    with pytest.raises(vitreous.VitreousError, match="no field 'stem'"):
        zoo.config("S/16", stem="small")


@pytest.mark.parametrize(
    "changes", [{"num_classes": 2 * 10**9}, {"image_size": 16 * 60_000}, {"depth": 10_000, "width": 192_000}]
)
def test_models_that_no_memory_holds(changes: dict[str, int]) -> None:
    """They are refused before anything is built: a billion layers would take all memory one by one."""
    said = limited(refusal_to_create, changes, memory=2**30)
    assert re.fullmatch(r"Ti/16 takes [\d,.]+ TiB of memory, and .* are free", said), said


def refusal_to_create(changes: dict[str, int]) -> str:
    with pytest.raises(VitreousError) as caught:
        vitreous.create("Ti/16", **changes)
    return str(caught.value)


def test_sizes_that_no_tensor_has() -> None:
    with pytest.raises(VitreousError, match="a head of 2,000,000,000 classes takes"):
        vitreous.create("Ti/16", depth=1).reset_head(2 * 10**9)
    with pytest.raises(VitreousError, match=r"num_classes = .*: must be below"):
        vitreous.create("Ti/16", num_classes=2**63)
    assert vitreous.create("Ti/16", device="meta", depth=1, num_classes=10**9).head.weight.shape[0] == 10**9


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("B/15", {}, "unknown model 'B/15': did you mean B/16"),
        ("b/16", {}, "did you mean B/16"),
        ("BiT-R50x9", {}, "did you mean BiT-R50x"),
        ("qqqq", {}, "unknown model 'qqqq': `vitreous models` lists all"),
        ("vit_base_patch16_clip_224", {}, "unknown model 'vit_base_patch16_clip_224': `vitreous models` lists"),
        ("resnet50", {}, "unknown model 'resnet50': `vitreous models` lists"),
        ("B/16", {"widht": 3}, "ViTConfig has no field 'widht'; did you mean 'width'"),
        ("BiT-R50x1", {"qk_norm": True}, "BiTConfig has no field 'qk_norm'; it has blocks, "),
    ],
)
def test_unknown_names_and_changes(name: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        vitreous.create(name, **changes)


ELSEWHERE = {
    "vit_base_patch16_224": 'create("B/16", image_size=224)',
    "vit_tiny_patch16_384": 'create("Ti/16", image_size=384)',
    "vit_small_patch32_224.augreg_in21k": 'create("S/32", image_size=224)',
    "vit_base_patch16_224_in21k": 'create("B/16", image_size=224)',
    "timm/vit_large_patch14_224.x": 'create("L/14", image_size=224)',
    "vit_giant_patch14_224": 'create("g/14", image_size=224)',
    "deit_small_patch16_224": 'create("S/16", image_size=224)',
    "deit3_base_patch16_384": "create(\"B/16\", image_size=384, layer_scale=1e-06, position_slots='patches')",
    "vit_base_patch14_dinov2": 'create("DINOv2-B/14")',
    "vit_giant_patch14_reg4_dinov2": 'create("DINOv2-giant/14-reg")',
    "vit_base_r50_s16_384": 'create("R50+B/16", image_size=384)',
    "vit_tiny_r_s16_p8_224": 'create("R+Ti/16", image_size=224)',
    "resnetv2_50x1_bit": 'create("BiT-R50x1")',
    "resnetv2_152x4_bitm": 'create("BiT-R152x4")',
    "google/vit-base-patch16-224": 'create("B/16", image_size=224)',
    "google/vit-huge-patch14-224-in21k": 'create("H/14", image_size=224)',
    "facebook/deit-tiny-patch16-224": 'create("Ti/16", image_size=224)',
    "facebook/dinov2-base": 'create("DINOv2-B/14")',
    "facebook/dinov2-with-registers-giant": 'create("DINOv2-giant/14-reg")',
    "facebook/dino-vitb8": 'create("B/8", num_classes=0)',
    "dinov2_vitl14": 'create("DINOv2-L/14")',
    "vit_b_16": 'create("B/16")',
    "vit_l_32": 'create("L/32")',
    "vit_h_14": 'create("H/14")',
    "ViT-B/16": 'create("B/16")',
    "ViT-B_16": 'create("B/16")',
    "vit-b16": 'create("B/16")',
    "ViT-G/14": 'create("G/14")',
    "R50+ViT-B_16": 'create("R50+B/16")',
    "BiT-M-R101x3": 'create("BiT-R101x3")',
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_of_other_libraries_are_translated(name: str) -> None:
    with pytest.raises(VitreousError) as error:
        vitreous.create(name)
    said = str(error.value)
    assert said.startswith(f"unknown model {name!r}: its name here is ")
    assert f"{ELSEWHERE[name]} makes it with initial weights, and vitreous.load(" in said
    model = eval(ELSEWHERE[name], {"create": lambda *a, **k: vitreous.create(*a, **k, device="meta")})
    assert isinstance(model, VisionTransformer | BiT)


def test_trained_weights_of_a_name_are_where_the_hub_has_them() -> None:
    for name, source in (
        ("google/vit-base-patch16-224", "hf://google/vit-base-patch16-224"),
        ("vit_base_patch16_224", "hf://timm/vit_base_patch16_224.TAG"),
        ("timm/vit_base_patch16_224.augreg_in1k", "hf://timm/vit_base_patch16_224.augreg_in1k"),
        ("vit_b_16", "FILE"),
    ):
        with pytest.raises(VitreousError, match=re.escape(f'vitreous.load("{source}")')):
            vitreous.create(name)
