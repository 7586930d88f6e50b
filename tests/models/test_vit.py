"""The model's contracts: what each call returns, what each field does."""

import multiprocessing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vitreous
from helpers import SMALL_RESNET, TINY, images, outputs, tiny_vit
from vitreous import ResNetConfig, VisionTransformer, ViTConfig, VitreousError


def test_the_contracts() -> None:
    model = tiny_vit(registers=2, representation_size=20, image_size=(32, 48))
    x = images(2, 3, 32, 48)
    with torch.no_grad():
        assert model(x).shape == (2, 7)
        assert model.features(x).shape == (2, 20)
        tokens, grid = model.tokens(x)
        assert (tokens.shape, grid) == ((2, 3 + 24, 48), (4, 6))
        first, last = model.intermediates(x, [0, -1])
        assert first.shape == last.shape == (2, 48, 4, 6)
        normed = model.intermediates(x, [-1], norm=True)[0]
        torch.testing.assert_close(normed.flatten(2).transpose(1, 2), tokens[:, 3:])
        (attention,) = model.attention(x, [1])
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 3, 27))
        torch.testing.assert_close(model.head(model.features(x)), model(x))


@pytest.mark.parametrize("layers", [[2], [-3], [0, 5], [0.5], 1, "0"])
def test_a_layer_that_is_not_there(layers: Any) -> None:
    with pytest.raises(VitreousError, match=r"layers: .*(use -2 to 1|list of integers)"):
        tiny_vit().intermediates(images(1, 3, 32, 32), layers)


def test_looking_at_an_early_layer_runs_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_vit(depth=4)
    monkeypatch.setattr(model.blocks[2], "forward", lambda *_: pytest.fail("ran on"))
    assert len(model.intermediates(images(1, 3, 32, 32), [1, 0])) == 2
    assert model.attention(images(1, 3, 32, 32), []) == []


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's, about attention
@pytest.mark.parametrize(
    "changes", [{}, {"position": "relative"}, {"position_at": "every-layer"}, {"attention": "axial"}]
)
def test_functional_calls_and_gradients_of_each_image(changes: dict[str, Any]) -> None:
    """torch.func replaces parameters by plain tensors."""
    model = tiny_vit(**changes)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x = images(3, 3, 40, 32)
    torch.testing.assert_close(torch.func.functional_call(model, parameters, (x,)), model(x))

    def loss(parameters: dict[str, torch.Tensor], image: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (image[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    model(x).square().sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(each[name].sum(0), p.grad, rtol=1e-3, atol=1e-3 * p.grad.abs().max().item())


@pytest.mark.parametrize("changes", [{}, {"position": "relative"}, {"backbone": SMALL_RESNET, "patch_size": 1}])
def test_double_precision_is_double_all_the_way(changes: dict[str, Any]) -> None:
    model = tiny_vit(width=12, depth=1, image_size=32, **changes).double()
    x = images(1, 3, 32, 48).double()

    def f(weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, {name: weight}, (x,))

    wanted = ("pos_embed", "rel_pos_embed", "backbone.stem.norm.weight")
    found = [name for name, _ in model.named_parameters() if name.endswith(wanted)]
    assert found
    for name in found:
        assert torch.autograd.gradcheck(f, model.get_parameter(name).detach().requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("position", ["learned-1d", "relative"])
def test_attention_weights_are_what_the_forward_pass_uses(position: str) -> None:
    model = tiny_vit(position=position, depth=1, qk_norm=True)
    x = images(2, 3, 32, 32)
    seen: list[Any] = []
    with torch.no_grad():
        model.encode(x, lambda _, __, z, ___, bias: seen.extend((z, bias)))
        z, bias = seen
        block = model.blocks[0]
        _, _, v = block.attn.split(block.norm1(z))
        (weights,) = model.attention(x, [0])
        by_hand = block.attn.proj((weights @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(by_hand, block.attn(block.norm1(z), bias))


@pytest.mark.parametrize("changes", [{"registers": 1}, {"pool": "gap"}])
def test_axial_attention_weights_are_what_the_forward_pass_uses(changes: dict[str, Any]) -> None:
    model, x, seen = tiny_vit(attention="axial", **changes), images(2, 3, 32, 48), []

    def visit(layer: int, block: Any, before: torch.Tensor, after: torch.Tensor, bias: Any, grid: Any) -> None:
        y = block.norm1(before)
        _, _, v = block.attn.split(y)
        weights = block.attn.weights(y, bias, grid)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        by_hand = block.attn.proj((weights @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(by_hand, block.attn(y, bias, grid), rtol=1e-4, atol=1e-5)
        seen.append(layer)

    with torch.no_grad():
        model.encode(x, visit)
    assert seen == [0, 1]


def test_axial_attention_needs_the_grid() -> None:
    block, x = tiny_vit(attention="axial").blocks[0], images(1, 17, 48)
    for call in (block, block.attn, block.attn.weights):
        with pytest.raises(VitreousError, match="axial attention needs the grid"):
            call(x)
        with pytest.raises(VitreousError, match="axial attention does not support a bias"):
            call(x, lambda q: q.new_zeros(17, 17), (4, 4))


@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}])
def test_dropout_of_axial_attention_keeps_the_mean(changes: dict[str, Any]) -> None:
    model = tiny_vit(attention="axial", attention_dropout=0.5, **changes)
    tokens = model.config.prefix + 6
    x = images(1, tokens, 48).expand(6000, -1, -1)
    with torch.no_grad():
        for block in model.blocks:
            attn = block.attn
            expected = attn.eval()(x[:1], None, (2, 3))
            drawn = attn.train()(x, None, (2, 3))
            spread = drawn.std(0).clamp(min=1e-3)
            assert (spread > 0.05).all()  # every output varies, those of prefix tokens too
            assert ((drawn.mean(0) - expected[0]) / spread).abs().max() < 6 / 6000**0.5
    assert torch.equal(outputs(model.eval(), images(1, 3, 32, 32)), outputs(model, images(1, 3, 32, 32)))


def test_pooling_by_hand() -> None:
    x = images(2, 3, 32, 32)
    with torch.no_grad():
        gap = tiny_vit(pool="gap", class_token=True, registers=1, num_classes=0)
        tokens, _ = gap.tokens(x)
        torch.testing.assert_close(gap(x), tokens[:, 2:].mean(1))  # patches alone
        token = tiny_vit(num_classes=0)
        torch.testing.assert_close(token(x), token.tokens(x)[0][:, 0])
        everything = tiny_vit(pool="none")
        assert everything(x).shape == (2, 16, 7)
        assert tiny_vit(pool="map", registers=1)(x).shape == (2, 7)


def test_the_norm_can_come_after_pooling() -> None:
    before, after = tiny_vit(pool="gap", num_classes=0), tiny_vit(pool="gap", final_norm="after-pool", num_classes=0)
    state = before.state_dict()
    after.load_state_dict(
        {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: t for name, t in state.items()}
    )
    x = images(2, 3, 32, 32)
    with torch.no_grad():
        tokens, _ = after.tokens(x)
        torch.testing.assert_close(after(x), after.fc_norm(tokens.mean(1)))
    assert (outputs(after, x) - outputs(before, x)).abs().max() > 1e-3
    with pytest.raises(VitreousError, match="applies its final norm after pooling"):
        after.intermediates(x, [0], norm=True)


def test_initialisation() -> None:
    model = vitreous.create("Ti/16", num_classes=5, head_bias=-10.0, representation_size=30, registers=3, depth=3)
    assert not model.head.weight.any()
    assert (model.head.bias == -10).all()
    assert not model.cls_token.any()
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    bound = (6 / (192 + 192)) ** 0.5
    q, k, v = model.blocks[0].attn.qkv.weight.chunk(3)
    for weight in (q, k, v, model.blocks[0].attn.proj.weight):
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert model.blocks[0].mlp.fc1.bias.std().item() == pytest.approx(1e-6, rel=0.2)
    assert model.patch_embed.proj.weight.std().item() == pytest.approx((1 / 768) ** 0.5, rel=0.02)
    with torch.no_grad():
        assert (model(images(2, 3, 224, 224)) == -10).all()


def test_one_seed_gives_one_model() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(vitreous.create("Ti/16", depth=1).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("changes", [{}, {"position": "relative"}, {"backbone": SMALL_RESNET, "patch_size": 1}])
def test_activation_checkpointing_gives_the_same_gradients(changes: dict[str, Any]) -> None:
    model = tiny_vit(dropout=0.1, attention_dropout=0.1, stochastic_depth=0.3, **changes).train()
    x = images(3, 3, 32, 40)
    gradients = []
    for flag in (False, True):
        model.checkpoint_activations = flag
        model.zero_grad()
        torch.manual_seed(5)
        model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_activation_checkpointing_keeps_less() -> None:
    def kept(model: VisionTransformer) -> int:
        total = 0

        def pack(t: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += t.nbytes
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(images(2, 3, 32, 32))
        return total

    model = tiny_vit(depth=6).train()
    plain = kept(model)
    model.checkpoint_activations = True
    assert kept(model) < plain / 4


def test_stochastic_depth_drops_whole_branches_on_a_ramp() -> None:
    model = tiny_vit(depth=5, stochastic_depth=0.4).train()
    assert [block.drop1.depth for block in model.blocks] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    drop = model.blocks[-1].drop1
    out = drop(torch.ones(4000, 3, 2))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert (out.flatten(1).std(1) == 0).all()  # a branch goes as a whole
    assert out.mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(model.eval().blocks[-1].drop1(out), out)


def test_dropout_is_off_when_evaluating() -> None:
    model = tiny_vit(dropout=0.5, attention_dropout=0.5, stochastic_depth=0.5)
    x = images(2, 3, 32, 32)
    assert torch.equal(outputs(model, x), outputs(model, x))
    model.train()
    assert not torch.equal(outputs(model, x), outputs(model, x))


def test_layer_scale_starts_at_its_value() -> None:
    model = VisionTransformer(ViTConfig(**TINY, layer_scale=1e-5))
    assert (model.blocks[0].ls1.gamma == 1e-5).all()


def test_swiglu_gates_with_the_first_half() -> None:
    mlp = tiny_vit(mlp="swiglu", mlp_dim=20).blocks[0].mlp
    x = images(2, 5, 48)
    gate, value = mlp.fc1(x).split(20, dim=-1)
    torch.testing.assert_close(mlp(x), mlp.fc2(gate * torch.sigmoid(gate) * value))


def test_channels_and_oblong_patches() -> None:
    model = tiny_vit(channels=5, patch_size=(8, 4), image_size=(16, 24))
    assert model.patch_embed.proj.weight.shape == (48, 5, 8, 4)
    assert model.config.grid == (2, 6)
    assert outputs(model, images(2, 5, 24, 20)).shape == (2, 7)


@pytest.mark.parametrize("blocks", [(), (1,), (1, 1), (1, 1, 2, 1)])
def test_a_backbone_of_any_depth(blocks: tuple[int, ...]) -> None:
    backbone = ResNetConfig(blocks=blocks, width_factor=0.5, activation="post")
    patch = 32 // backbone.stride
    model = tiny_vit(backbone=backbone, patch_size=patch, image_size=64)
    assert model.config.grid == (2, 2)
    assert outputs(model, images(1, 3, 96, 64)).shape == (1, 7)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 32, 32), r"expected \(batch, 3, height, width\), got \(3, 32, 32\)"),
        (torch.zeros(1, 1, 32, 32), r"expected \(batch, 3"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "floating-point pixels, not torch.uint8"),
        (torch.zeros(1, 3, 0, 32), r"got \(1, 3, 0, 32\)"),
        (np.zeros((1, 3, 32, 32), np.float32), "expected a tensor, got ndarray"),
        (torch.zeros(1, 3, 32, 32).to_sparse(), "expected a dense tensor, got a sparse one"),
        (torch.zeros(1, 3, 33, 32), "nearest height that works is 32 or 40"),
    ],
)
def test_wrong_images(x: torch.Tensor, message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        tiny_vit()(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_images(layout: torch.layout) -> None:
    with pytest.raises(VitreousError, match="expected a dense tensor, got a nested one"):
        tiny_vit()(torch.nested.nested_tensor([torch.zeros(3, 32, 32)] * 2, layout=layout))


@pytest.mark.parametrize("hybrid", [False, True])
def test_images_have_the_type_of_the_model(hybrid: bool) -> None:
    backbone = ResNetConfig(blocks=(1,), width_factor=0.5, activation="post")
    model = tiny_vit(backbone=backbone, patch_size=8) if hybrid else tiny_vit()
    x = images(1, 3, 32, 32)
    for ours, theirs in (
        (torch.float32, torch.float16),
        (torch.float32, torch.float64),
        (torch.float16, torch.float32),
    ):
        words = rf"are {str(theirs)[6:]} and the model is {str(ours)[6:]}: convert the images \(images.to\({ours}\)\)"
        for call in (model.to(ours).forward, model.features, model.tokens):
            with pytest.raises(VitreousError, match=words):
                call(x.to(theirs))
    assert model.double()(x.double()).dtype == torch.float64
    with torch.autocast("cpu", torch.float16):  # which casts both, but for float64
        for dtype in (torch.float16, torch.float32):
            assert model.float()(x.to(dtype)).dtype == torch.float16
        with pytest.raises(VitreousError, match="images are float64 and the model is float32"):
            model(x.double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": "avg"}, "ViTConfig.pool = 'avg': expected one of 'token', 'gap', 'map', 'none'"),
        ({"width": "768"}, "ViTConfig.width = '768': expected an integer"),
        ({"width": 768.0}, "ViTConfig.width"),
        ({"qkv_bias": 1}, "ViTConfig.qkv_bias = 1: expected True or False"),
        ({"heads": 5}, "ViTConfig.heads = 5: must divide the width"),
        ({"depth": 0}, "ViTConfig.depth = 0: must be positive"),
        ({"norm_eps": float("nan")}, "ViTConfig.norm_eps"),
        ({"dropout": 1.0}, "ViTConfig.dropout = 1.0: must be at least 0 and below 1"),
        ({"patch_size": 0}, "ViTConfig.patch_size = 0"),
        ({"patch_size": (8, 8, 8)}, "ViTConfig.patch_size"),
        ({"image_size": 33}, r"ViTConfig.image_size = \(33, 33\): .* 32 or 40"),
        ({"class_token": False, "pool": "token"}, "ViTConfig.pool = 'token': needs class_token=True"),
        ({"position": "relative", "position_at": "stem"}, "ViTConfig.position_at = 'stem'"),
        ({"position": "relative", "attention": "axial"}, "ViTConfig.attention = 'axial': position='relative' needs"),
        ({"attention": "rows"}, "ViTConfig.attention = 'rows': expected"),
        ({"position": "sincos-2d", "position_at": "every-layer"}, "ViTConfig.position_at = 'every-layer'"),
        ({"position": "none", "position_at": "every-layer"}, "ViTConfig.position_at"),
        ({"position": "sincos-2d", "position_slots": "class"}, "ViTConfig.position_slots"),
        ({"position": "sincos-2d", "width": 50, "heads": 5}, "ViTConfig.position = 'sincos-2d': needs a width divis"),
        ({"position_slots": "all"}, "ViTConfig.position_slots = 'all': needs registers"),
        ({"pool": "gap", "position_slots": "class"}, "ViTConfig.position_slots = 'class': needs class_token=True"),
        ({"pool": "none", "final_norm": "after-pool"}, "ViTConfig.final_norm"),
        ({"backbone": vitreous.BiTConfig()}, "ViTConfig.backbone"),
        ({"resample": "bicubic"}, "ViTConfig.resample = 'bicubic': expected one of 'google', 'timm'"),
        ({"remainder": "pad"}, "ViTConfig.remainder = 'pad': expected one of 'error', 'crop'"),
    ],
)
def test_a_wrong_config_names_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        ViTConfig(**{**TINY, **changes})


def test_a_config_is_settled_frozen_and_comparable() -> None:
    config = ViTConfig()
    assert (config.mlp_dim, config.class_token, config.position_at, config.position_slots) == (
        3072,
        True,
        "stem",
        "class",
    )
    assert config == ViTConfig(image_size=[224, 224], patch_size=(16, 16))
    assert hash(config) == hash(ViTConfig())
    with pytest.raises(AttributeError):
        config.width = 3
    assert replace(config, pool="gap", class_token=None, position_slots=None) == ViTConfig(pool="gap")


def _child(queue: "multiprocessing.Queue[tuple[int, ...]]") -> None:
    torch.set_num_threads(1)
    queue.put(tuple(outputs(tiny_vit(), images(1, 3, 48, 32)).shape))


def test_a_spawned_process_can_use_it() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_child, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == (1, 7)
    process.join(30)
    assert process.exitcode == 0


class NoPromotion(TorchDispatchMode):
    """Fails if an operation turns a float32 tensor into a float64 one. Constants may be computed in float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        single = any(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in tree_leaves(args))
        assert not (single and isinstance(out, torch.Tensor) and out.dtype == torch.float64), func
        return out


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d"])
def test_no_activation_becomes_float64(position: str) -> None:
    model = tiny_vit(position=position, layer_scale=0.1, stochastic_depth=0.1).train()
    with NoPromotion():
        model(images(1, 3, 40, 48)).sum().backward()


def test_a_tensor_made_while_inferring_does_not_poison_training() -> None:
    model = tiny_vit()
    x = images(1, 3, 72, 56)
    with torch.inference_mode():
        model(x)
    model.train()(x).sum().backward()
    assert model.pos_embed.grad.abs().sum() > 0
