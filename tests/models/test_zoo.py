"""Names, their parameter counts, and what creating one does."""

import pytest
import torch

import vitreous
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


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("B/15", {}, "no model is called 'B/15': did you mean B/16"),
        ("b/16", {}, "did you mean B/16"),
        ("BiT-R50x9", {}, "did you mean BiT-R50x"),
        ("qqqq", {}, "`vitreous models` lists all"),
        ("B/16", {"widht": 3}, "ViTConfig has no field 'widht'; did you mean 'width'"),
        ("BiT-R50x1", {"qk_norm": True}, "BiTConfig has no field 'qk_norm'; it has blocks, "),
    ],
)
def test_unknown_names_and_changes(name: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        vitreous.create(name, **changes)
