"""The formulas against torch's own counters."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import vitreous
from helpers import SMALL_RESNET, TINY, tiny_vit
from vitreous import BiTConfig, ViTConfig
from vitreous.models import zoo

ROOT = Path(__file__).parents[2]


def counted(model: torch.nn.Module, size: tuple[int, int]) -> int:
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, *size, device="meta"))
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["B/16", "L/32", "R50+B/16", "R+Ti/16", "BiT-R50x1", "DINOv2-S/14-reg"])
@pytest.mark.parametrize("size", [(224, 224), (448, 448), (224, 448)])
def test_flops_equal_torchs_count(name: str, size: tuple[int, int]) -> None:
    """Of a model called at a size that is not its own, and of one made for it."""
    cost = vitreous.cost(zoo.config(name), size)
    assert counted(vitreous.create(name, device="meta"), size) == cost.flops.total
    assert counted(vitreous.create(name, image_size=size, device="meta"), size) == cost.flops.total


VARIATIONS: list[dict[str, Any]] = [
    {"pool": "gap"},
    {"pool": "map", "representation_size": 20, "registers": 3},
    {"pool": "none", "mlp": "swiglu", "qk_norm": True},
    {"position": "relative", "layer_scale": 1e-5},
    {"backbone": SMALL_RESNET, "patch_size": 1, "image_size": 64},
    {"attention": "axial"},
    {"attention": "axial", "pool": "gap", "depth": 3},
    {"attention": "axial", "registers": 3, "depth": 1},
]


@pytest.mark.parametrize("changes", VARIATIONS)
def test_flops_of_variations(changes: dict[str, Any]) -> None:
    config = ViTConfig(**{**TINY, **changes})
    with torch.device("meta"):
        model = vitreous.VisionTransformer(config)
    assert counted(model, (64, 96)) == vitreous.cost(config, (64, 96)).flops.total
    assert sum(p.numel() for p in model.parameters()) == vitreous.cost(model).parameters


@pytest.mark.parametrize("activation", ["pre", "post"])
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_flops_of_bit(activation: str, stem: str) -> None:
    config = BiTConfig(blocks=(2, 1, 1), activation=activation, stem=stem)
    with torch.device("meta"):
        model = vitreous.BiT(config)
    assert counted(model, (63, 50)) == vitreous.cost(config, (63, 50)).flops.total


def kept(model: torch.nn.Module, size: tuple[int, int], batch: int) -> int:
    """Bytes of all that autograd saves in a forward pass, each storage once, parameters apart."""
    storages: dict[int, torch.Tensor] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = model.train()(torch.randn(batch, 3, *size))
    total = sum(t.untyped_storage().nbytes() for t in storages.values())
    del output
    return total


ACTIVATIONS: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    ("B/16", {"depth": 3}, (224, 160)),
    ("S/16", {"depth": 3, "layer_scale": 1e-4, "pool": "gap"}, (224, 224)),
    ("S/16", {"depth": 2, "mlp": "swiglu", "pool": "map"}, (128, 128)),
    ("S/16", {"depth": 2, "qk_norm": True, "registers": 3}, (128, 128)),
    ("S/16", {"depth": 2, "position": "relative"}, (160, 160)),
    ("S/16", {"depth": 3, "attention": "axial"}, (128, 192)),
    ("S/16", {"depth": 3, "attention": "axial", "pool": "gap"}, (192, 128)),
    ("S/16", {"depth": 2, "attention": "axial", "pool": "gap", "registers": 3}, (64, 192)),
    ("R50+B/16", {"depth": 2}, (224, 224)),
    ("BiT-R26x1", {}, (160, 160)),
    ("BiT-R26x1", {"activation": "post"}, (160, 160)),
    ("BiT-R26x1", {"stem": "small"}, (32, 32)),
]


@pytest.mark.parametrize(("name", "changes", "size"), ACTIVATIONS)
def test_activation_bytes_are_what_autograd_keeps(name: str, changes: dict[str, Any], size: tuple[int, int]) -> None:
    model = vitreous.create(name, **changes)
    one_image = kept(model, size, 3) - kept(model, size, 2)  # what does not grow with the batch falls out
    assert vitreous.cost(model, size).activation_bytes == pytest.approx(one_image, rel=0.02)


def test_the_papers_numbers() -> None:
    b16 = vitreous.cost(zoo.config("B/16"))
    assert b16.flops.total / 1e9 == pytest.approx(35.1, abs=0.05)
    # Seven epochs of JFT's 303M images.
    assert b16.training_flops * 7 * 303e6 / 1e18 == pytest.approx(224, rel=0.01)
    large = vitreous.cost(zoo.config("B/16"), 640)
    assert (large.tokens, large.pairs) == (1600, 1_279_200)
    assert large.pixel_pairs / 1e9 == pytest.approx(83.9, abs=0.05)


def table_rows() -> Iterator[list[str]]:
    text = (ROOT / "docs" / "model.md").read_text()
    table = text.split("<!-- cost -->")[1].split("<!-- /cost -->")[0]
    for line in table.strip().splitlines()[2:]:
        yield [re.sub(r"[,\s]", "", cell) for cell in line.strip("|").split("|")]


def test_the_table_in_the_docs_is_costs_own() -> None:
    rows = list(table_rows())
    assert len(rows) >= 12
    for size, patch, tokens, pairs, pixel_pairs, gflops, activations in rows:
        cost = vitreous.cost(zoo.config("B/16", patch_size=int(patch), image_size=int(size)))
        assert (cost.tokens, cost.pairs) == (int(tokens), int(pairs))
        assert f"{cost.pixel_pairs / 1e9:.1f}" == pixel_pairs
        assert f"{cost.flops.total / 1e9:.1f}" == gflops
        assert f"{cost.activation_bytes / 2**20:.0f}" == activations


@pytest.mark.parametrize("size", [0, -16, 224.0, "224", (224, 224, 3), (224, -2)])
def test_sizes_that_are_none(size: Any) -> None:
    for name in ("B/16", "BiT-R50x1"):
        with pytest.raises(vitreous.VitreousError, match="expected a positive integer, or a pair"):
            vitreous.cost(name, size)


def test_a_model_that_is_not_what_its_config_says() -> None:
    model = tiny_vit()
    expected = vitreous.cost(model.config)
    model.blocks[0].register_forward_hook(lambda *a: None)
    model.blocks[1].compile()
    model.requires_grad_(False)
    for same in (model, torch.compile(model), model.half()):
        assert vitreous.cost(same) == expected
    model.head = torch.nn.Linear(48, 3)
    with pytest.raises(vitreous.VitreousError, match=r"head\.out_features is 3, not 7.*cost\(model\.config\)"):
        vitreous.cost(model)
    assert vitreous.cost(model.config) == expected
    shared: Any = tiny_vit()
    shared.blocks[1].mlp = shared.blocks[0].mlp
    with pytest.raises(vitreous.VitreousError, match="is shared with"):
        vitreous.cost(shared)
    with pytest.raises(vitreous.VitreousError, match="got Linear"):
        vitreous.cost(torch.nn.Linear(2, 2))


def test_a_name_will_do() -> None:
    assert vitreous.cost("B/16").parameters == 86_567_656
