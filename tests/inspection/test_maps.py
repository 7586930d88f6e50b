"""Attention maps, rollout, relevance and attention distance, compared with explicit loops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import SMALL_RESNET, draw, images, oracle, relative_error, tiny_vit
from vitreous import VisionTransformer, ViTConfig, VitreousError, inspection
from vitreous.inspection import internals
from vitreous.models.resnet import BiT, BiTConfig

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"registers": 2},
    "gap": {"pool": "gap"},
    "gap with a class token": {"pool": "gap", "class_token": True},
    "map": {"pool": "map"},
    "relative": {"position": "relative", "qk_norm": True},
    "hybrid": {"patch_size": 1, "backbone": SMALL_RESNET},
    "features": {"num_classes": 0},
    "axial": {"attention": "axial", "registers": 1},
    "axial without prefix": {"attention": "axial", "pool": "gap"},
    "every layer": {"position": "sincos-2d", "position_at": "every-layer-shared", "layer_scale": 0.1},
}


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> VisionTransformer:
    return tiny_vit(depth=3, **KINDS[request.param])


def bit() -> BiT:
    return draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7)))


# ---------------------------------------------------------------- attention


def test_attention_weights_are_exact(model: VisionTransformer) -> None:
    x = images(2, 3, 32, 64)
    found = inspection.attention(model, x)
    tokens = model.config.prefix + found.grid[0] * found.grid[1]
    assert found.weights.shape == (3, 2, 3, tokens, tokens)
    assert (found.weights.sum(-1) - 1).abs().max() < 1e-5
    with torch.no_grad():
        for ours, theirs in zip(found.weights, model.attention(x, [0, 1, 2]), strict=True):
            torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_axial_attention_maps_have_zeros_outside_of_the_row_or_column() -> None:
    found = inspection.attention(tiny_vit(depth=2, attention="axial"), images(1, 3, 32, 48))
    assert found.grid == (4, 6)
    rows, columns = found.seen_from((2, 3))[:, 0].bool()
    assert not rows[:, torch.arange(4) != 2].any()
    assert rows[:, 2].all()
    assert not columns[:, :, torch.arange(6) != 3].any()
    assert columns[:, :, 3].all()
    assert found.weights[..., 0].all()  # all tokens attend to the class token
    assert found.weights[..., 0, :].all()  # and it attends to all


def test_layers_and_heads_in_the_requested_order() -> None:
    model, x = tiny_vit(depth=3), images(1, 3, 32, 32)
    whole, part = inspection.attention(model, x), inspection.attention(model, x, layers=[-1, 0], heads=[2, 0])
    assert (part.layers, part.heads) == ((2, 0), (2, 0))
    assert torch.equal(part.weights, whole.weights[[2, 0]][:, :, [2, 0]])
    assert torch.equal(
        part.seen_from((1, 2)), whole.weights[[2, 0]][:, :, [2, 0], 1 + 1 * 4 + 2, 1:].unflatten(-1, (4, 4))
    )
    assert torch.equal(part.seen_from(6), part.seen_from((1, 2)))


@pytest.mark.parametrize("size", ["32x32", "48x80"])
def test_attention_equals_dino(size: str) -> None:
    parameters, facts = oracle("dino_vit")
    fields: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 3, "num_classes": 0}
    model = VisionTransformer(ViTConfig(**fields, gelu="erf", resample="dino"))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in parameters.items()})
    found = inspection.attention(model, torch.from_numpy(facts[f"input_{size}"]), layers=[-1])
    assert relative_error(found.weights[0], facts[f"attn_last_{size}"]) <= 1e-5


def test_a_bit_has_no_attention() -> None:
    x = images(1, 3, 32, 32)
    for inspect in (inspection.attention, inspection.rollout, inspection.relevance, inspection.attention_distance):
        with pytest.raises(VitreousError, match="no attention; available are embedding_filters"):
            inspect(bit(), x)


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"layers": [3]}, r"layers: \[3\] out of range: the model has 3 layers; use -3 to 2"),
        ({"layers": []}, "layers: the list is empty; expected 0 to 2"),
        ({"heads": [5]}, r"heads: \[5\] out of range: the model has 3 heads; use -3 to 2"),
    ],
)
def test_layers_and_heads_out_of_range(requested: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        inspection.attention(tiny_vit(depth=3), images(1, 3, 32, 32), **requested)


@pytest.mark.parametrize("source", ["register 1", "cls", (4, 0), (0, -1), 16, -1])
def test_unknown_source_tokens_are_an_error(source: Any) -> None:
    found = inspection.rollout(tiny_vit(), images(1, 3, 32, 32))
    with pytest.raises(VitreousError, match="source = "):
        found.seen_from(source)


def test_the_memory_error_names_an_image_size_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = tiny_vit(depth=3), images(1, 3, 256, 512)  # 32 x 64 patches
    need = 4 * (9 + 6) * (1 + 32 * 64) ** 2
    monkeypatch.setattr(internals, "free_memory", lambda device: need / internals.MEMORY_SHARE / 4)
    with pytest.raises(VitreousError, match=r"256 x 512 px.*176 x 360 px would fit") as error:
        inspection.attention(model, x)
    assert "GiB" in str(error.value)
    inspection.attention(model, images(1, 3, 176, 360))
    monkeypatch.setattr(internals, "free_memory", lambda device: 1 + need / internals.MEMORY_SHARE)
    assert inspection.attention(model, x).grid == (32, 64)


# ---------------------------------------------------------------- rollout


@pytest.mark.parametrize(("fusion", "discard"), [("mean", 0.0), ("max", 0.0), ("min", 0.0), ("mean", 0.6)])
def test_rollout_equals_the_product_of_layers(model: VisionTransformer, fusion: Any, discard: float) -> None:
    x = images(2, 3, 32, 32)
    weights = inspection.attention(model, x).weights.double().numpy()
    tokens = weights.shape[-1]
    for number in range(2):
        rolled = np.eye(tokens)
        for layer in weights[:, number]:
            fused = {"mean": layer.mean(0), "max": layer.max(0), "min": layer.min(0)}[fusion].copy()
            for row in fused:
                row[np.argsort(row)[: int(discard * tokens)]] = 0
            fused += np.eye(tokens)
            rolled = fused / fused.sum(1, keepdims=True) @ rolled
        found = inspection.rollout(model, x, fusion=fusion, discard=discard)
        assert np.abs(found.weights[number].numpy() - rolled).max() < 1e-6
        patch = rolled[model.config.prefix + 5, model.config.prefix :].reshape(found.grid)
        assert np.abs(found.seen_from(5)[number].numpy() - patch).max() < 1e-6


def test_rollout_starts_from_what_the_head_pools() -> None:
    x = images(1, 3, 32, 32)
    for pool, expected in (("token", [0]), ("gap", list(range(16)))):
        found = inspection.rollout(tiny_vit(pool=pool), x)
        mean = found.weights[0, expected].mean(0)[len(found.names) :].unflatten(0, (4, 4))
        torch.testing.assert_close(found.seen_from()[0], mean)
    model = tiny_vit(pool="map")
    found = inspection.rollout(model, x)
    assert found.pooling.sum().item() == pytest.approx(1, abs=1e-5)
    assert found.pooling.std() > 1e-4  # attention pooling is not uniform
    assert found.seen_from("class") is not None if "class" in found.names else found.names == ()


@pytest.mark.parametrize("wrong", [{"fusion": "sum"}, {"discard": 1.0}, {"discard": -0.1}])
def test_wrong_rollout_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(VitreousError, match=next(iter(wrong))):
        inspection.rollout(tiny_vit(), images(1, 3, 32, 32), **wrong)


# ---------------------------------------------------------------- distance and entropy


def distance_by_loops(model: VisionTransformer, x: Tensor, step: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean distance in pixels and entropy in bits, (layers, heads)."""
    found = inspection.attention(model, x)
    rows, cols = found.grid
    prefix = model.config.prefix
    distance, entropy = np.zeros((2, *found.weights.shape[:1], found.weights.shape[2]))
    for place in np.ndindex(distance.shape):
        for image in range(len(x)):
            weights = found.weights[place[0], image, place[1]].double().numpy()
            for q in range(rows * cols):
                row = weights[prefix + q]
                entropy[place] -= sum(w * np.log2(w) for w in row if w > 0) / (rows * cols * len(x))
                patches = row[prefix:] / row[prefix:].sum()
                for k in range(rows * cols):
                    apart = np.hypot(step[0] * (q // cols - k // cols), step[1] * (q % cols - k % cols))
                    distance[place] += patches[k] * apart / (rows * cols * len(x))
    return distance, entropy


@pytest.mark.parametrize("kind", ["plain", "registers", "gap", "hybrid", "axial"])
def test_distance_and_entropy_equal_loops(kind: str) -> None:
    model, x = tiny_vit(depth=2, **KINDS[kind]), images(2, 3, 32, 48)
    step = (8, 8) if kind != "hybrid" else (SMALL_RESNET.stride, SMALL_RESNET.stride)
    distance, entropy = distance_by_loops(model, x, step)
    found = inspection.attention_distance(model, x)
    assert found.images == 2
    assert np.abs(found.distance.numpy() - distance).max() < 1e-4
    assert np.abs(found.entropy.numpy() - entropy).max() < 1e-5


def test_distance_over_batches_equals_one_batch() -> None:
    model, x = tiny_vit(depth=2), images(5, 3, 32, 32)
    whole, parts = inspection.attention_distance(model, x), inspection.attention_distance(model, x.split(2))
    torch.testing.assert_close(whole.distance, parts.distance)
    torch.testing.assert_close(whole.entropy, parts.entropy)
    assert parts.images == 5
    with pytest.raises(VitreousError, match="there are no images"):
        inspection.attention_distance(model, [])


# ---------------------------------------------------------------- relevance


@pytest.mark.parametrize("attention", ["full", "axial"])
def test_relevance_of_one_layer_equals_its_formula(attention: str) -> None:
    """Attention times the gradient of a logit with respect to it, computed step by step."""
    model, x = tiny_vit(depth=1, attention=attention), images(2, 3, 32, 32)
    block = model.blocks[0]
    with torch.no_grad():
        tokens, grid = model.embed(x)
        weights = block.attn.weights(block.norm1(tokens), grid=grid)
        values = block.attn.split(block.norm1(tokens))[2]
    weights.requires_grad_()
    z = block.attn.proj((weights @ values).transpose(1, 2).flatten(2)) + tokens
    z = block.mlp(block.norm2(z)) + z
    logits = model.head(model.norm(z)[:, 0])
    (gradient,) = torch.autograd.grad(logits[:, 3].sum(), weights)
    expected = (weights * gradient).clamp(min=0).mean(1)[:, 0, 1:].detach()
    found = inspection.relevance(model, x, [3, 5])
    assert found.classes.tolist() == [[3, 5], [3, 5]]
    torch.testing.assert_close(found.maps[:, 0].flatten(1), expected, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found.probabilities[:, 0], logits.softmax(-1)[:, 3].detach())


def test_relevance_is_rolled_out_over_layers() -> None:
    """R + E R starting with the identity, from the recorded attention."""
    from vitreous.inspection.relevance_maps import record_attention

    model, x = tiny_vit(depth=3, pool="gap"), images(1, 3, 32, 32)
    kept: list[Tensor] = []
    with record_attention(model, kept):
        logits = model(x)
    gradients = torch.autograd.grad(logits[0, 2], kept)
    rolled = np.eye(16)
    for weights, gradient in zip(kept, gradients, strict=True):
        rolled = rolled + (weights * gradient).clamp(min=0).mean(1)[0].detach().double().numpy() @ rolled
    expected = (rolled - np.eye(16)).mean(0).reshape(4, 4)
    found = inspection.relevance(model, x, [2]).maps[0, 0].numpy()
    assert np.abs(found - expected).max() < 1e-5 * expected.max()


def test_relevance_differs_between_classes(model: VisionTransformer) -> None:
    x = images(2, 3, 32, 32)
    if model.config.num_classes == 0:
        with pytest.raises(VitreousError, match="does not classify images"):
            inspection.relevance(model, x)
        return
    found = inspection.relevance(model, x, top=3)
    with torch.no_grad():
        assert torch.equal(found.classes, model(x).topk(3).indices)
    assert (found.maps[:, 0] - found.maps[:, 1]).abs().max() > 0.05 * found.maps.max()
    assert found.maps.min() >= 0
    assert not found.maps.requires_grad


def test_relevance_locates_two_objects_in_one_image() -> None:
    """A model trained to classify the colour of one patch gets an image with two coloured patches."""
    torch.manual_seed(0)
    colours = torch.tensor([[2.0, -1, -1], [-1, 2, -1], [-1, -1, 2]])

    def image(objects: list[tuple[int, int]]) -> Tensor:
        x = 0.3 * torch.randn(3, 32, 32)
        for colour, place in objects:
            y, x_ = 8 * (place // 4), 8 * (place % 4)
            x[:, y : y + 8, x_ : x_ + 8] += colours[colour][:, None, None]
        return x

    model = VisionTransformer(ViTConfig(image_size=32, patch_size=8, width=32, depth=2, heads=2, num_classes=3))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(120):
        truth, places = torch.randint(0, 3, (32,)), torch.randint(0, 16, (32,))
        x = torch.stack([image([one]) for one in zip(truth.tolist(), places.tolist(), strict=True)])
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), truth).backward()
        optimiser.step()
    found = inspection.relevance(model, image([(0, 1), (1, 14)])[None], [0, 1]).maps[0].flatten(1)
    assert found.argmax(1).tolist() == [1, 14]
    assert found[0, 1] > 3 * found[0, 14]
    assert found[1, 14] > 3 * found[1, 1]


def test_relevance_of_a_zero_head_is_an_error() -> None:
    model = tiny_vit()
    torch.nn.init.zeros_(model.head.weight)
    with pytest.raises(VitreousError, match="are the head's weights all zero"):
        inspection.relevance(model, images(1, 3, 32, 32))


@pytest.mark.parametrize(
    ("requested", "message"),
    [({"classes": [7]}, r"\[7\] out of range: the model has 7 classes"), ({"top": 8}, "1 to 7")],
)
def test_classes_out_of_range(requested: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        inspection.relevance(tiny_vit(), images(1, 3, 32, 32), **requested)


# ---------------------------------------------------------------- state of the model


def test_modes_and_gradients_of_the_model_are_restored(model: VisionTransformer) -> None:
    x = images(1, 3, 32, 32)
    model.train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    marked = torch.ones_like(model.patch_embed.proj.weight)
    model.patch_embed.proj.weight.grad = marked
    for parameter in model.blocks[0].parameters():
        parameter.requires_grad_(False)
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    with torch.inference_mode():  # the caller may be in inference mode
        inspection.attention(model, x)
        inspection.rollout(model, x)
        inspection.attention_distance(model, x)
        inspection.token_pca(model, x)
        if model.config.num_classes:
            inspection.relevance(model, x)
            inspection.depth_readout(model, x)
    assert modes == [module.training for module in model.modules()]
    assert wanted == [parameter.requires_grad for parameter in model.parameters()]
    assert model.patch_embed.proj.weight.grad is marked
    assert torch.equal(marked, torch.ones_like(marked))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "patch_embed.proj.weight")
    assert not any("forward" in vars(block.attn) for block in model.blocks)
    model.eval()
    assert model(x).requires_grad  # it can still be trained


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 32, 32), "got a tensor of shape \\(3, 32, 32\\)"),
        (torch.zeros(0, 3, 32, 32), "a batch of one or more"),
        (np.zeros((1, 3, 32, 32)), "got ndarray"),
        (torch.full((1, 3, 32, 32), torch.nan), "some pixels are NaN"),
    ],
)
def test_wrong_batches_are_an_error(x: Any, message: str) -> None:
    model = tiny_vit()
    for inspect in (inspection.attention, inspection.rollout, inspection.relevance, inspection.depth_readout):
        with pytest.raises(VitreousError, match=message):
            inspect(model, x)
    for inspect in (inspection.token_pca, lambda m, x: inspection.attention_distance(m, [x])):
        with pytest.raises(VitreousError, match=message):
            inspect(model, x)


def test_wrapped_and_compiled_models() -> None:
    model, x = tiny_vit(), images(1, 3, 32, 32)
    expected = inspection.relevance(model, x)
    for wrapper in (torch.compile(model), torch.nn.DataParallel(model)):
        assert torch.equal(inspection.attention(wrapper, x).weights, inspection.attention(model, x).weights)
        assert torch.equal(inspection.relevance(wrapper, x).maps, expected.maps)
    model.checkpoint_activations = True
    assert torch.equal(inspection.relevance(model, x).maps, expected.maps)
    assert model.checkpoint_activations
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(inspection.rollout(model, x).weights, inspection.rollout(tiny_vit(), x).weights)
    with pytest.raises(
        VitreousError, match=r"attention: expected a model from vitreous\.load or vitreous\.create, got Linear"
    ):
        inspection.attention(torch.nn.Linear(3, 3), x)  # type: ignore[arg-type]


INSPECTIONS: dict[str, Any] = {
    "attention": inspection.attention,
    "rollout": inspection.rollout,
    "relevance": inspection.relevance,
    "attention_distance": inspection.attention_distance,
    "depth_readout": inspection.depth_readout,
    "token_pca": inspection.token_pca,
    "embedding_filters": lambda model, x: inspection.embedding_filters(model),
    "position_similarity": lambda model, x: inspection.position_similarity(model),
}


def scaled(module: Any, inputs: Any) -> Any:
    return (2 * inputs[0], *inputs[1:])


CHANGES: dict[str, tuple[Any, str, set[str]]] = {  # change, error message, inspections that still work
    "hook before a block": (
        lambda m: m.blocks[0].register_forward_pre_hook(scaled),
        "blocks.0 has hooks",
        {"depth_readout", "token_pca", "embedding_filters"},
    ),
    "hook before attention": (
        lambda m: m.blocks[0].attn.register_forward_pre_hook(scaled),
        "blocks.0.attn has hooks",
        {"depth_readout", "token_pca", "embedding_filters"},
    ),
    "hook before the model": (lambda m: m.register_forward_pre_hook(scaled), "the model has hooks", set()),
    "hook on the MLP": (lambda m: m.blocks[0].mlp.register_forward_hook(lambda *a: None), "", set(INSPECTIONS)),
    "fewer blocks": (lambda m: m.blocks.pop(0), "blocks.2 is missing", set()),
    "other heads": (
        lambda m: setattr(m.blocks[0].attn, "heads", 2),
        "blocks.0.attn.heads is 2, not 3",
        {"depth_readout", "token_pca", "embedding_filters"},
    ),
    "other head": (
        lambda m: setattr(m, "head", torch.nn.Linear(48, 3)),
        "head.out_features is 3, not 7",
        set(INSPECTIONS) - {"relevance", "depth_readout"},
    ),
    "compiled in place": (lambda m: m.compile(backend="eager"), "", set(INSPECTIONS)),
}


@pytest.mark.parametrize(("change", "message", "working"), CHANGES.values(), ids=CHANGES)
def test_modified_models_are_refused_if_results_would_be_wrong(change: Any, message: str, working: set[str]) -> None:
    model, x = tiny_vit(depth=3), images(1, 3, 32, 32)
    change(model)
    for name, inspect in INSPECTIONS.items():
        if name in working:
            inspect(model, x)
            continue
        with pytest.raises(VitreousError) as caught:
            inspect(model, x)
        assert str(caught.value).startswith(f"{name}: the model differs from its config")
        assert message in str(caught.value)


def test_shared_blocks() -> None:
    model, x = tiny_vit(depth=3), images(1, 3, 32, 32)
    model.blocks = torch.nn.ModuleList([model.blocks[0]] * 3)
    copies = tiny_vit(depth=3)
    copies.load_state_dict(model.state_dict())
    for inspect in (inspection.relevance, inspection.relevance):  # the first call restores the model
        assert torch.equal(inspect(model, x).maps, inspect(copies, x).maps)


def test_relevance_of_a_class_with_zero_weights_is_an_error() -> None:
    model = tiny_vit()
    torch.nn.init.zeros_(model.head.weight[1])
    with pytest.raises(VitreousError, match="class 1 does not depend on the image"):
        inspection.relevance(model, images(1, 3, 32, 32), [0, 1])


@pytest.mark.parametrize("wrong", [[1.5], ["a"], []])
def test_indices_must_be_integers(wrong: Any) -> None:
    model, x = tiny_vit(), images(1, 3, 32, 32)
    with pytest.raises(VitreousError, match="classes: "):
        inspection.relevance(model, x, wrong)
    with pytest.raises(VitreousError, match="layers: "):
        inspection.attention(model, x, wrong)
    assert inspection.attention(model, x, [np.int64(1)]).layers == (1,)


def test_figures(model: VisionTransformer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vitreous.utils.figures import render_figure

    x, pixels = images(1, 3, 32, 64), np.zeros((32, 64, 3), np.uint8)
    drawn = [
        inspection.attention(model, x, [0, -1]).figure(pixels, (1, 2)),
        inspection.rollout(model, x).figure([pixels]),
        inspection.attention_distance(model, x).figure(),
    ]
    if model.config.num_classes:
        drawn += [inspection.relevance(model, x, top=2).figure(pixels), inspection.depth_readout(model, x).figure()]
    for figure in drawn:
        assert render_figure(figure, "png", 50).startswith(b"\x89PNG")
        assert b"<svg" in render_figure(figure, "svg")
