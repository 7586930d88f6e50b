"""Parameter groups, learning rates and steps, compared with torch's optimisers and an SVD."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from helpers import SMALL_RESNET, draw, images, tiny_vit
from vitreous.errors import VitreousError
from vitreous.models import BiT, BiTConfig, VisionTransformer
from vitreous.models.zoo import create
from vitreous.training.config import Objective, Optimiser
from vitreous.training.optim.losses import build_loss
from vitreous.training.optim.muon import newton_schulz, orthogonalise
from vitreous.training.optim.optimisers import Lamb, Muon, Optimisers, build_optimisers, clip_gradients_, layer_of

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "learned-2d, every layer": {"position": "learned-2d", "position_at": "every-layer"},
    "relative": {"position": "relative"},
    "sincos": {"position": "sincos-2d", "pool": "gap"},
    "registers": {"registers": 2, "position_slots": "all"},
    "map": {"pool": "map", "final_norm": "after-pool", "representation_size": 12},
    "hybrid": {"backbone": SMALL_RESNET, "patch_size": 1},
    "layer scale": {"layer_scale": 1e-4, "qk_norm": True, "mlp": "swiglu"},
    "no head": {"num_classes": 0, "qkv_bias": False},
}
KINDS = ("adamw", "sgd", "muon", "lamb")


def options(optimiser: str = "adamw", **changes: Any) -> Optimiser:
    return Optimiser(**{"optimiser": optimiser, "lr": 1e-2, "weight_decay": 0.1, **changes})


def tiny_bit(activation: Any = "pre") -> BiT:
    return draw(BiT(BiTConfig(blocks=(2, 1), width_factor=0.5, image_size=32, num_classes=7, activation=activation)))


def groups_of(model: nn.Module, built: Optimisers) -> dict[str, dict[str, Any]]:
    """Return the group of each trained parameter, by name, with its optimiser as "by"."""
    names = {p: name for name, p in model.named_parameters()}
    found: dict[str, dict[str, Any]] = {}
    for optimiser in built.optimisers:
        for group in optimiser.param_groups:
            for p in group["params"]:
                assert names[p] not in found
                found[names[p]] = {**group, "by": type(optimiser).__name__}
    assert set(found) == {name for name, p in model.named_parameters() if p.requires_grad}
    return found


def train(model: nn.Module, built: Optimisers, steps: int, seed: int = 0) -> None:
    """Train with a learning rate that changes in each step."""
    x = images(4, 3, 32, 32, seed=seed)
    for step in range(steps):
        built.set_factor(1 / (1 + step + seed))
        built.zero_grad()
        model(x).square().mean().backward()
        built.step()


def bits(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_in_one_group(variant: str, kind: str) -> None:
    model = tiny_vit(**VARIANTS[variant])
    found = groups_of(model, build_optimisers(model, options(kind, layer_decay=0.8)))
    for name, group in found.items():
        undecayed = any(part in name for part in ("norm", "bias", "pos_embed", "token", "latent", "gamma"))
        decay = group.get("decay", group["weight_decay"])
        assert decay == (0 if undecayed else 0.1), name
        block_matrix = name.startswith("blocks") and name.endswith("weight") and "norm" not in name
        muon = "Muon" if block_matrix else "AdamW"
        expected = {"adamw": "AdamW", "sgd": "Sgd", "muon": muon, "lamb": "Lamb"}[kind]
        assert group["by"] == expected, name


@pytest.mark.parametrize("activation", ["pre", "post"])
@pytest.mark.parametrize("kind", ["adamw", "sgd", "lamb"])
def test_every_parameter_of_a_bit_is_in_one_group(kind: str, activation: Any) -> None:
    model = tiny_bit(activation)
    found = groups_of(model, build_optimisers(model, options(kind, layer_decay=0.8)))
    for name, group in found.items():
        convolution = "conv" in name or name == "head.weight"
        assert group.get("decay", group["weight_decay"]) == (0.1 if convolution else 0), name


def test_layers_of_a_vit() -> None:
    with torch.device("meta"):
        model = create("B/16", pool="map", representation_size=8, registers=1)
    assert isinstance(model, VisionTransformer)
    expected = {
        "patch_embed.proj.weight": 0,
        "reg_token": 0,
        "pos_embed": 0,
        "blocks.0.norm1.bias": 1,
        "blocks.1.attn.qkv.weight": 2,
        "blocks.11.mlp.fc2.weight": 12,
        "norm.weight": 13,
        "attn_pool.latent": 13,
        "attn_pool.mlp.fc1.weight": 13,
        "pre_logits.weight": 13,
        "head.bias": 13,
    }
    names = [name for name, _ in model.named_parameters()]
    for name, layer in expected.items():
        assert name in names
        assert layer_of(name, model) == layer
    assert {layer_of(name, model) for name in names} == set(range(14))
    for wrong in ("headless.weight", "foo", "block.0.x", ""):
        with pytest.raises(VitreousError, match="no parameter"):
            layer_of(wrong, model)


def test_layers_of_a_hybrid_and_of_a_bit() -> None:
    hybrid = tiny_vit(**VARIANTS["hybrid"])
    assert {layer_of(n, hybrid) for n, _ in hybrid.named_parameters() if n.startswith("backbone")} == {0}
    bit = tiny_bit()
    assert layer_of("backbone.stem.conv.weight", bit) == 0
    assert [layer_of(f"backbone.stages.{u}.conv1.weight", bit) for u in ("0.0", "0.1", "1.0")] == [1, 2, 3]
    assert layer_of("backbone.norm.weight", bit) == layer_of("head.weight", bit) == 4


def test_learning_rates_by_layer_and_pattern() -> None:
    model = tiny_vit()
    rules = ("head.*=10", "*.bias=0.5", "blocks.[0]*=0")
    built = build_optimisers(model, options(layer_decay=0.5, lr_multipliers=rules))
    built.set_factor(0.1)
    assert built.learning_rate == pytest.approx(1e-3)
    found = groups_of(model, built)
    expected = {
        "head.weight": 1e-1,
        "head.bias": 5e-2,
        "norm.weight": 1e-2,
        "norm.bias": 5e-3,
        "blocks.1.norm1.weight": 5e-3,
        "blocks.1.attn.proj.bias": 2.5e-3,
        "blocks.0.mlp.fc1.weight": 0,
        "patch_embed.proj.weight": 1.25e-3,
        "pos_embed": 1.25e-3,
    }
    for name, lr in expected.items():
        assert found[name]["initial_lr"] == pytest.approx(lr), name
        assert found[name]["lr"] == pytest.approx(lr / 10), name
        assert isinstance(found[name]["lr"], float)


def test_pattern_with_equals_sign_and_spaces() -> None:
    with pytest.raises(VitreousError, match="'a=b' matches no parameter"):
        build_optimisers(tiny_vit(), options(lr_multipliers=("a=b=2",)))
    found = build_optimisers(tiny_vit(), options(lr_multipliers=(" head.* = 2e0 ",)))
    assert max(g["lr"] for g in found.optimisers[0].param_groups) == 2e-2


def test_muon_has_its_own_learning_rate() -> None:
    model = tiny_vit()
    built = build_optimisers(model, options("muon", muon_lr=0.05, layer_decay=0.5, lr_multipliers=("*.qkv.weight=2",)))
    found = groups_of(model, built)
    assert found["blocks.0.attn.qkv.weight"]["lr"] == pytest.approx(0.05 * 0.25 * 2)
    assert found["blocks.1.mlp.fc2.weight"]["lr"] == pytest.approx(0.05 * 0.5)
    assert found["head.weight"]["lr"] == pytest.approx(1e-2)
    assert [type(o).__name__ for o in built.optimisers] == ["AdamW", "Muon"]
    assert built.learning_rate == 1e-2


# ---------------------------------------------------------------- freezing


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_do_not_change(kind: str) -> None:
    model = tiny_vit()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    built = build_optimisers(model, options(kind, freeze=("patch_embed.*", "blocks.0.*", "pos_embed")))
    train(model, built, 3)
    for name, p in model.named_parameters():
        frozen = name.startswith(("patch_embed", "blocks.0.", "pos_embed"))
        assert torch.equal(p, before[name]) == frozen, name
        assert p.requires_grad != frozen
    assert len(built.parameters) == sum(p.requires_grad for p in model.parameters())


def test_muon_alone_without_adamw() -> None:
    model = tiny_vit()
    patterns = [n for n, _ in model.named_parameters() if not n.endswith((".qkv.weight", ".fc1.weight"))]
    built = build_optimisers(model, options("muon", freeze=tuple(patterns)))
    assert [type(o).__name__ for o in built.optimisers] == ["Muon"]
    train(model, built, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": ("haed.*",)}, "freeze: 'haed.*' matches no parameter; similar names: head"),
        ({"freeze": ("xyzzy",)}, "names start with cls_token, pos_embed, patch_embed, blocks, norm, head"),
        ({"freeze": ("*",)}, "nothing to train"),
        ({"freeze": ("",)}, "freeze: '' matches no parameter"),
        ({"lr_multipliers": ("hed.weight=2",)}, "similar names: head.weight"),
        ({"lr_multipliers": ("blocks.0.*=2",), "freeze": ("blocks.0.*",)}, "no parameter that is trained"),
        ({"lr_multipliers": ("head.*",)}, "'head.*' is not PATTERN=FACTOR"),
        ({"lr_multipliers": ("head.*=ten",)}, "'head.*=ten' is not PATTERN=FACTOR"),
        ({"lr_multipliers": ("head.*=-1",)}, "factor of 0 or more"),
        ({"lr_multipliers": ("head.*=nan",)}, "factor of 0 or more"),
        ({"lr_multipliers": ("=2",)}, "'=2' is not PATTERN=FACTOR"),
        ({"optimiser": None}, "optimiser = None: expected adamw, sgd, muon or lamb"),
        ({"optimiser": "lion"}, "optimiser = 'lion'"),
        ({"lr": None}, "lr = None"),
        ({"lr": 0.0}, "lr = 0.0: expected a positive number"),
        ({"lr": math.inf}, "lr = inf"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0"),
        ({"weight_decay": None}, "weight_decay = None"),
        ({"layer_decay": 0.0}, "layer_decay = 0.0"),
        ({"layer_decay": 1.1}, "layer_decay = 1.1: expected at most 1"),
        ({"betas": (0.9, 1.0)}, "betas = "),
        ({"clip": 0.0}, "clip = 0.0"),
        ({"momentum": 0.8}, "momentum = 0.8: an option of sgd, not of adamw"),
        (
            {"optimiser": "sgd", "betas": (0.9, 0.95)},
            "an option of adamw, muon and lamb, not of sgd",
        ),
        ({"muon_lr": 0.1}, "muon_lr = 0.1: an option of muon, not of adamw"),
        ({"optimiser": "muon", "freeze": ("blocks.*",)}, "matrices of a ViT's blocks, and all of them are frozen"),
    ],
)
def test_error_messages(changes: dict[str, Any], message: str) -> None:
    model = tiny_vit()
    with pytest.raises(VitreousError) as error:
        build_optimisers(model, options(**changes))
    assert message in str(error.value)


def test_mistyped_pattern_freezes_nothing() -> None:
    model = tiny_vit()
    with pytest.raises(VitreousError):
        build_optimisers(model, options(freeze=("patch_embed.*", "typo")))
    assert all(p.requires_grad for p in model.parameters())


def test_muon_for_a_bit_is_an_error() -> None:
    with pytest.raises(VitreousError, match="matrices of a ViT's blocks, and a BiT has none; use adamw or sgd"):
        build_optimisers(tiny_bit(), options("muon"))


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_adamw_equals_torch(device: str) -> None:
    ours, plain = tiny_vit().to(device), tiny_vit().to(device)
    for model in (ours, plain):  # one group: only matrices
        for p in model.parameters():
            p.requires_grad_(p.ndim == 2)
    built = build_optimisers(ours, options(betas=(0.8, 0.95)))
    trained = [p for p in plain.parameters() if p.requires_grad]
    reference = torch.optim.AdamW(trained, 1e-2, betas=(0.8, 0.95), weight_decay=0.1, fused=device == "cuda")
    assert len(built.optimisers[0].param_groups) == 1
    for step in range(5):
        built.set_factor(1 / (1 + step))
        reference.param_groups[0]["lr"] = 1e-2 / (1 + step)
        for mine, theirs in zip(built.parameters, trained, strict=True):
            mine.grad = torch.randn_like(mine)
            theirs.grad = mine.grad.clone()
        built.step()
        reference.step()
    assert same(bits(ours), bits(plain))


def test_sgd_with_decoupled_decay() -> None:
    model = tiny_vit()
    built = build_optimisers(model, options("sgd", lr=0.1, momentum=0.5))
    weight, bias = model.head.weight, model.head.bias
    assert isinstance(bias, Tensor)
    w, b = weight.detach().clone().double(), bias.detach().clone().double()
    w_speed, b_speed = torch.zeros_like(w), torch.zeros_like(b)
    x = images(4, 3, 32, 32)
    for factor in (1.0, 0.5, 0.25):
        built.set_factor(factor)
        built.zero_grad()
        model(x).square().mean().backward()
        assert weight.grad is not None
        assert bias.grad is not None
        w_speed, b_speed = 0.5 * w_speed + weight.grad.double(), 0.5 * b_speed + bias.grad.double()
        lr = 0.1 * factor
        w, b = (1 - lr * 0.1) * w - lr * w_speed, b - lr * b_speed
        built.step()
        torch.testing.assert_close(weight.detach().double(), w, atol=1e-7, rtol=1e-5)
        torch.testing.assert_close(bias.detach().double(), b, atol=1e-7, rtol=1e-5)


# ---------------------------------------------------------------- Muon


@pytest.mark.parametrize("shape", [(24, 96), (96, 24), (40, 40), (1, 7), (7, 1), (1, 1)])
def test_newton_schulz_brings_singular_values_to_one(shape: tuple[int, int]) -> None:
    u, v = (torch.linalg.qr(torch.randn(n, n))[0] for n in shape)
    values = torch.logspace(0, -1.5, min(shape))
    matrix = 1e-9 * u[:, : len(values)] @ values.diag() @ v[:, : len(values)].T  # also for small gradients
    result = newton_schulz(matrix[None])[0]
    assert result.shape == shape
    found = torch.linalg.svdvals(result)
    assert found.min() > 0.6
    assert found.max() < 1.3
    expected = u[:, : len(values)] @ v[:, : len(values)].T  # the same singular vectors
    cosine = (result * expected).sum() / result.norm() / expected.norm()
    assert cosine > 0.97


def test_newton_schulz_of_zeros() -> None:
    assert torch.equal(newton_schulz(torch.zeros(2, 3, 5)), torch.zeros(2, 3, 5))


def test_orthogonalise_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = [torch.randn(shape) for shape in [(4, 6), (6, 4), (4, 6), (5, 5), (4, 6), (6, 4)]]
    alone = [newton_schulz(m[None])[0] for m in matrices]
    for limit in (2**27, 50, 1):
        monkeypatch.setattr("vitreous.training.optim.muon.MAX_STACKED", limit)
        for ours, expected in zip(orthogonalise(matrices), alone, strict=True):
            torch.testing.assert_close(ours, expected)
    assert orthogonalise([]) == []


def muon_step(weight: Tensor, gradient: Tensor, **settings: Any) -> Tensor:
    p = nn.Parameter(weight.clone())
    p.grad = gradient.clone()
    Muon([p], **settings).step()
    return p.detach()


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_are_orthogonalised_separately(parts: int) -> None:
    weight, gradient = torch.randn(parts * 24, 16), torch.randn(parts * 24, 16)
    whole = muon_step(weight, gradient, parts=parts, weight_decay=0.1)
    pairs = zip(weight.chunk(parts), gradient.chunk(parts), strict=True)
    alone = torch.cat([muon_step(w, g, weight_decay=0.1) for w, g in pairs])
    torch.testing.assert_close(whole, alone)
    assert not torch.allclose(whole, muon_step(weight, gradient, weight_decay=0.1), atol=1e-3)


def test_muon_matrices() -> None:
    model = tiny_vit(mlp="swiglu")
    found = groups_of(model, build_optimisers(model, options("muon")))
    parts = {
        name: found[f"blocks.0.{name}.weight"]["parts"] for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    }
    assert parts == {"attn.qkv": 3, "attn.proj": 1, "mlp.fc1": 2, "mlp.fc2": 1}
    plain = tiny_vit()
    assert groups_of(plain, build_optimisers(plain, options("muon")))["blocks.0.mlp.fc1.weight"]["parts"] == 1


def test_muon_step_with_svd() -> None:
    """Nesterov momentum, the factor of tall matrices and decoupled decay, with an SVD instead of the iteration."""
    weight = torch.randn(32, 8)
    p, w, speed = nn.Parameter(weight.clone()), weight.double(), torch.zeros(32, 8).double()
    muon = Muon([p], lr=0.1, momentum=0.9, weight_decay=0.5)
    for step in range(3):
        gradient = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        p.grad = gradient.clone()
        muon.step()
        speed = 0.9 * speed + gradient.double()
        u, _, v = torch.linalg.svd(gradient.double() + 0.9 * speed, full_matrices=False)
        w = (1 - 0.1 * 0.5) * w - 0.1 * 2 * u @ v  # sqrt(32 / 8) = 2
        assert torch.equal(p.grad, gradient)
    assert (p.detach() - w).norm() < 0.3 * (w - weight).norm()
    plain = (1 - 0.1 * 0.5) ** 3 * weight
    assert ((p.detach() - plain) * (w - plain)).sum() / (p.detach() - plain).norm() / (w - plain).norm() > 0.98


def test_muon_with_other_shapes_is_an_error() -> None:
    for shape, parts in (((3,), 1), ((2, 3, 4), 1), ((4, 4), 3)):
        with pytest.raises(VitreousError, match=r"cannot be split into \d matrices"):
            Muon([nn.Parameter(torch.zeros(shape))], parts=parts)


def test_muon_takes_a_closure_and_parameters_without_gradients() -> None:
    p, idle = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
    before = idle.detach().clone()
    muon = Muon([p, idle], weight_decay=0.1)

    def closure() -> Any:
        value = p.square().sum()
        value.backward()
        return value

    assert muon.step(closure) is not None
    assert torch.equal(idle, before)


# ---------------------------------------------------------------- LAMB


def lamb_by_hand(weight: Tensor, gradients: list[Tensor], lrs: list[float], decay: float, scaled: bool) -> Tensor:
    """Algorithm 2 of the paper with Adam's bias correction, in float64, for one matrix."""
    w, m, v = weight.double(), torch.zeros_like(weight).double(), torch.zeros_like(weight).double()
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), 1):
        g = gradient.double()
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        update = (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-6) + decay * w
        ratio = w.norm() / update.norm() if scaled and w.norm() > 0 and update.norm() > 0 else 1.0
        w = w - lr * ratio * update
    return w


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("scaled", [True, False])
def test_lamb_step(scaled: bool, decay: float, device: str) -> None:
    weights = [torch.randn(6, 4), torch.randn(5), torch.zeros(3, 2), torch.randn(2, 3, 4)]
    gradients = [[torch.randn_like(w) for w in weights] for _ in range(4)]
    gradients[0][3].zero_()  # only decay changes this row
    lrs = [0.1, 0.05, 0.02, 0.01]
    parameters = [nn.Parameter(w.clone().to(device)) for w in weights]
    lamb = Lamb(parameters, betas=(0.8, 0.95), weight_decay=decay, scaled=scaled)
    for lr, found in zip(lrs, gradients, strict=True):
        lamb.param_groups[0]["lr"] = lr
        for p, gradient in zip(parameters, found, strict=True):
            p.grad = gradient.clone().to(device)
        lamb.step()
    for p, w, found in zip(parameters, weights, zip(*gradients, strict=True), strict=True):
        expected = lamb_by_hand(w, list(found), lrs, decay, scaled)
        torch.testing.assert_close(p.detach().cpu().double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_scales_parameters_with_weight_decay(decay: float) -> None:
    """Also if decay is 0: it must not change which parameters are scaled."""
    model = tiny_vit(layer_scale=0.1, registers=1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    built = build_optimisers(model, options("lamb", lr=1e-2, weight_decay=decay))
    groups = groups_of(model, built)
    train(model, built, 1)
    for name, p in model.named_parameters():
        matrix = name.endswith("weight") and p.ndim > 1
        assert groups[name]["scaled"] == matrix, name
        moved, length = (p - before[name]).norm().item(), before[name].norm().item()
        if matrix:
            assert moved == pytest.approx(1e-2 * length, rel=1e-3), name
        else:  # Adam's first step has the same size for every element
            assert moved <= 1e-2 * p.numel() ** 0.5 * (1 + 1e-3), name


def test_lamb_is_invariant_to_the_scale_of_gradients() -> None:
    results = []
    for scale in (1.0, 1000.0):
        p = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
        lamb = Lamb([p], lr=0.1, weight_decay=0.1)
        for step in range(3):
            p.grad = scale * torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            lamb.step()
        results.append(p.detach())
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_lamb_takes_a_closure_and_parameters_without_gradients() -> None:
    p, idle = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
    before = idle.detach().clone()
    lamb = Lamb([p, idle], weight_decay=0.1)

    def closure() -> Any:
        value = p.square().sum()
        value.backward()
        return value

    assert lamb.step(closure) is not None
    assert torch.equal(idle, before)
    assert (lamb.state[p]["step"], lamb.state[idle]["step"]) == (1, 0)


@pytest.mark.gpu
def test_muon_equals_torch() -> None:
    weight, gradients = torch.randn(96, 64, device="cuda"), torch.randn(5, 96, 64, device="cuda")
    ours, theirs = nn.Parameter(weight.clone()), nn.Parameter(weight.clone())
    pair = [
        Muon([ours], lr=0.02, momentum=0.95, weight_decay=0.1),
        torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.1),
    ]
    for gradient in gradients:
        for p, optimiser in zip((ours, theirs), pair, strict=True):
            p.grad = gradient.clone()
            optimiser.step()
    moved = (theirs - weight).norm()
    assert (ours - theirs).norm() < 0.03 * moved


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_steps_do_not_synchronise_with_the_gpu(kind: str) -> None:
    model = tiny_vit().cuda()
    built = build_optimisers(model, options(kind))
    x = images(4, 3, 32, 32).cuda()
    model(x)  # warm up
    torch.cuda.set_sync_debug_mode("error")
    try:
        for factor in (1.0, 0.5):
            built.set_factor(factor)
            built.zero_grad()
            model(x).square().mean().backward()
            clip_gradients_(built.parameters, 1.0)
            built.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---------------------------------------------------------------- clipping


def test_clipping() -> None:
    model = tiny_vit()
    model(images(2, 3, 32, 32)).square().sum().backward()
    parameters = list(model.parameters())
    before = [p.grad.clone() for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(g.double().square().sum().item() for g in before))
    assert clip_gradients_(parameters, None).item() == pytest.approx(norm, rel=1e-5)
    assert clip_gradients_(parameters, 2 * norm).item() == pytest.approx(norm, rel=1e-5)
    assert same([p.grad for p in parameters if p.grad is not None], before)
    assert clip_gradients_(parameters, norm / 4).item() == pytest.approx(norm, rel=1e-5)
    for p, gradient in zip(parameters, before, strict=True):
        torch.testing.assert_close(p.grad, gradient / 4, rtol=1e-5, atol=0)
    assert clip_gradients_([nn.Parameter(torch.zeros(2))], 1.0).item() == 0


def test_clip_returns_a_norm_that_is_not_finite() -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([1.0, math.inf])
    assert clip_gradients_([p], None).isinf()
    assert p.grad[0] == 1
    assert not clip_gradients_([p], 1.0).isfinite()


# ---------------------------------------------------------------- state


def plain_round_trip(model: nn.Module, old: Optimisers, new: Optimisers, clone: nn.Module) -> None:
    for mine, other in zip(old.optimisers, new.optimisers, strict=True):
        other.load_state_dict(copy.deepcopy(mine.state_dict()))


def distributed_round_trip(model: nn.Module, old: Optimisers, new: Optimisers, clone: nn.Module) -> None:
    state = copy.deepcopy(get_optimizer_state_dict(model, old.optimisers))
    set_optimizer_state_dict(clone, new.optimisers, state)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("adamw", {"layer_decay": 0.7, "freeze": ("patch_embed.*",)}),
    ("sgd", {"lr_multipliers": ("head.*=3",)}),
    ("sgd", {"momentum": 0.0}),
    ("muon", {"layer_decay": 0.7}),
    ("lamb", {"layer_decay": 0.7, "freeze": ("patch_embed.*",)}),
    ("lamb", {"weight_decay": 0.0}),
]


@pytest.mark.parametrize(("kind", "changes"), CASES)
@pytest.mark.parametrize("round_trip", [plain_round_trip, distributed_round_trip])
@pytest.mark.parametrize("steps", [0, 3])
def test_restored_optimiser_continues_exactly(
    kind: str, changes: dict[str, Any], round_trip: Callable[..., None], steps: int
) -> None:
    model, clone, unstopped = (tiny_vit(mlp="swiglu") for _ in range(3))
    built, other, free = (build_optimisers(m, options(kind, **changes)) for m in (model, clone, unstopped))
    train(model, built, steps)
    train(unstopped, free, steps)
    built.zero_grad()
    clone.load_state_dict(model.state_dict())
    round_trip(model, built, other, clone)
    for m, b in ((model, built), (clone, other), (unstopped, free)):
        train(m, b, 3, seed=5)
    assert same(bits(model), bits(unstopped))  # saving has no effect on training
    assert same(bits(clone), bits(unstopped))
    for optimiser in other.optimisers:
        for group in optimiser.param_groups:
            assert type(group["lr"]) is float
            assert type(group["initial_lr"]) is float


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_overfits_a_small_batch(kind: str, loss: Any) -> None:
    model = tiny_vit().train()
    x, labels = images(8, 3, 32, 32), torch.arange(8) % 7
    objective = build_loss(Objective(loss=loss, label_smoothing=0.0), labels, 7, "cpu")
    lr = {"adamw": 1e-2, "sgd": 1e-1, "muon": 1e-2, "lamb": 2e-2}[kind]
    built = build_optimisers(model, options(kind, lr=lr, weight_decay=1e-3))
    value = math.inf
    for step in range(100):
        built.zero_grad()
        mean = objective(model(x), labels).mean()
        value = mean.item()
        if value < 0.01:
            break
        mean.backward()
        clip_gradients_(built.parameters, 1.0)
        built.set_factor(min(1.0, (step + 1) / 10))
        built.step()
    assert value < 0.01
