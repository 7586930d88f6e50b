"""What is claimed of the fused kernels and of what is built on them. On a GPU tests call these; elsewhere
`test_kernels.py` has a child process run them all in Triton's interpreter."""

import json
import sys
import traceback
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from vitreous import ResNetConfig, VitreousError
from vitreous.fast import eligibility, kernels
from vitreous.fast.attention import joined, split
from vitreous.fast.fused_inference import FastViT
from vitreous.fast.fused_training import TrainingViT
from vitreous.fast.short_attention import attention, attention_backward
from vitreous.models.drop import keyed_drops
from vitreous.preprocessing import Preprocessing

HALF = 4e-3  # relative error of a bf16 number, all in all
FP8 = 0.13  # of an e4m3 number; the interpreter cuts digits off where a GPU rounds
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def error(ours: Tensor, reference: Tensor) -> float:
    reference = reference.double()
    assert ours.shape == reference.shape
    assert torch.isfinite(ours.double()).all()
    return ((ours.double() - reference).norm() / reference.norm().clamp_min(1e-30)).item()


def near(ours: Tensor, reference: Tensor, most: float = HALF) -> None:
    assert (found := error(ours, reference)) < most, f"relative error {found:.2e}, at most {most:.2e}"


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).bfloat16()


def vector(size: int, mean: float = 0.0) -> Tensor:
    return torch.randn(size, device=DEVICE) * 0.3 + mean


# ---------------------------------------------------------------- kernels


@check
def residual_and_norm() -> None:
    for images, tokens, width in ((3, 7, 48), (2, 5, 64), (1, 3, 200)):
        x, branch = drawn(images * tokens, width), drawn(images * tokens, width)
        w, b, kept = vector(width, 1), vector(width), torch.rand(images, device=DEVICE).round() * 1.25
        each = kept.repeat_interleave(tokens)[:, None]
        for z, k in ((None, None), (branch, None), (branch, kept)):
            out, y, mean, rstd = kernels.add_norm(x, z, k, w, b, 1e-6, tokens, statistics=True)
            added = x.float() if z is None else x.float() + z.float() * (1 if k is None else each)
            near(out, added)
            near(y, F.layer_norm(out.float(), (width,), w, b, 1e-6))
            near(mean, out.float().mean(1), 1e-3)
            near(rstd, (out.float().var(1, correction=0) + 1e-6).rsqrt(), 1e-3)
            eighth = kernels.add_norm(x, z, k, w, b, 1e-6, tokens, factor=20.0)[1]
            near(eighth.float() / 20, F.layer_norm(out.float(), (width,), w, b, 1e-6), FP8)


@check
def residual_and_norm_backward() -> None:
    images, tokens, width = 3, 7, 72
    x, dy, passed = (drawn(images * tokens, width) for _ in range(3))
    w, b, kept = vector(width, 1), vector(width), torch.tensor([0.0, 1.25, 1.25], device=DEVICE)
    _, _, mean, rstd = kernels.add_norm(x, None, None, w, b, 1e-6, statistics=True)
    leaves = [x.float().requires_grad_(), w.clone().requires_grad_(), b.clone().requires_grad_()]
    y = F.layer_norm(leaves[0], (width,), leaves[1], leaves[2], 1e-6)
    y.backward(dy.float())
    for k in (None, kept):
        dx, dz, again, sums = kernels.norm_backward(dy, x, mean, rstd, w, b, passed, k, tokens)
        whole = leaves[0].grad + passed.float()
        each = 1 if k is None else kept.repeat_interleave(tokens)[:, None]
        near(dx, whole)
        near(dz, whole * each, 2 * HALF)
        near(again, y)
        for part, reference in zip(sums.sum(0), (leaves[1].grad, leaves[2].grad, dz.float().sum(0)), strict=True):
            near(part, reference, 2 * HALF)


@check
def gelu() -> None:
    for tanh in (True, False):
        h, dg = drawn(21, 200, scale=2), drawn(21, 200)
        leaf = h.float().requires_grad_()
        reference = F.gelu(leaf, approximate="tanh" if tanh else "none")
        reference.backward(dg.float())
        near(kernels.gelu(h, tanh), reference, 1.3 * HALF)
        near(kernels.gelu(h, tanh, 30.0).float() / 30, reference, FP8)
        dh, sums = kernels.gelu_backward_(h, dg.clone(), tanh)
        near(dh, leaf.grad, 1.3 * HALF)
        near(sums.sum(0), dh.float().sum(0), 1e-5)
        near(kernels.gelu_backward_(None, dh, tanh)[1].sum(0), dh.float().sum(0), 1e-5)


@check
def gelu_far_from_zero() -> None:
    """Tails, where approximations go wrong: to the last digit of bf16, and no NaN for any number."""
    h = torch.tensor([-1e30, -300, -40, -12, -6, -3, -1e-3, 0, 1e-3, 3, 6, 40, 300, 1e30], device=DEVICE).bfloat16()
    for tanh in (True, False):
        exact = F.gelu(h.double(), approximate="tanh" if tanh else "none")
        ours = kernels.gelu(h[None].contiguous(), tanh)[0].double()
        assert ((ours - exact).abs() <= 0.01 * exact.abs() + 1e-6).all(), (ours, exact)
        slope, _ = kernels.gelu_backward_(h[None].contiguous(), torch.ones_like(h)[None].contiguous(), tanh)
        assert torch.isfinite(slope[0, 1:-1].float()).all()


@check
def merging_gradients_of_attention() -> None:
    batch, tokens, heads, head = 2, 7, 3, 16
    for order in ((2, 0, 3, 1, 4), (2, 0, 1, 3, 4)):
        parts = drawn(batch, tokens if order[2] == 3 else heads, 3, heads if order[2] == 3 else tokens, head)
        merged, sums = kernels.merge(*parts.permute(order))
        reference = torch.stack([*parts.permute(order)]).permute(1, 3, 0, 2, 4).reshape(batch * tokens, -1)
        assert torch.equal(merged, reference)
        near(sums.sum(0), merged.float().sum(0), 1e-5)


@check
def attention_of_short_sequences() -> None:
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # the interpreter has no products of bf16
    for batch, tokens, heads, head in ((2, 37, 2, 32), (1, 5, 1, 64), (1, 64, 2, 32), (1, 197, 1, 64), (3, 2, 2, 32)):
        qkv, do = (drawn(batch * tokens, n * heads * head).to(dtype) for n in (3, 1))
        q, k, v = (t.double().requires_grad_() for t in split(qkv, batch, heads))
        o = F.scaled_dot_product_attention(q, k, v)
        (gradient,) = split(do, batch, heads, parts=1)
        parts = torch.autograd.grad(o, (q, k, v), gradient.double())
        exact = torch.stack(parts).permute(1, 3, 0, 2, 4).reshape(batch * tokens, -1)
        output, lse = attention(qkv, batch, heads)
        near(output, joined(o.detach()))
        near(lse, ((q @ k.transpose(-2, -1)) * head**-0.5).logsumexp(-1).detach(), 1e-3)
        dqkv, sums = attention_backward(qkv, output, do, lse, batch, heads)
        near(dqkv, exact, 0.02)
        near(sums.sum(0), dqkv.float().sum(0), 0.02)


@check
def patches_and_tokens() -> None:
    for channels, patch, size in ((3, (4, 3), (10, 13)), (1, (2, 2), (4, 4)), (5, (3, 8), (3, 16))):
        whole = torch.randint(0, 256, (2, channels, *size), dtype=torch.uint8, device=DEVICE)
        for images in (whole, whole.float() / 255, whole.contiguous(memory_format=torch.channels_last)):
            rows, cols = size[0] // patch[0], size[1] // patch[1]
            cut = images[:, :, : rows * patch[0], : cols * patch[1]].float() - 0.5
            reference = F.unfold(cut, patch, stride=patch).transpose(1, 2).flatten(0, 1)
            near(kernels.patches(images, patch, torch.bfloat16, 0.5), reference)
    z, front, places = drawn(2 * 5, 40), vector(2 * 40).view(2, 40), vector(7 * 40).view(7, 40)
    tokens = torch.cat([front.expand(2, -1, -1), z.float().view(2, 5, 40)], 1)
    near(kernels.assemble(z, front, places, 2), tokens + places)
    near(kernels.assemble(z, front, None, 2), tokens)
    near(kernels.assemble(z, front[:0], None, 2), tokens[:, 2:])


# ---------------------------------------------------------------- models

VARIANTS: dict[str, dict[str, Any]] = {
    "class token": {},
    "class token, registers, erf": {"registers": 2, "gelu": "erf", "head_bias": -3.0, "position_slots": "all"},
    "class token, norm behind it": {"final_norm": "after-pool", "norm_eps": 1e-2, "position_slots": "patches"},
    "mean of patches, 2-d positions": {"pool": "gap", "position": "learned-2d", "remainder": "crop"},
    "attention pooling, no qkv bias": {"pool": "map", "qkv_bias": False, "position": "sincos-1d"},
    "pre-training head": {"representation_size": 24},
    "sincos, mean with a class token": {"pool": "gap", "class_token": True, "position": "sincos-2d"},
    "no positions, grey": {"position": "none", "channels": 1},
}
INFERENCE: dict[str, dict[str, Any]] = {
    **VARIANTS,
    "all tokens, LayerScale": {"pool": "none", "num_classes": 0, "layer_scale": 0.5},
    "norm behind the mean": {"pool": "gap", "final_norm": "after-pool", "dropout": 0.1, "stochastic_depth": 0.1},
}
TRAINING: dict[str, dict[str, Any]] = {
    **VARIANTS,
    "hybrid": {"backbone": ResNetConfig(blocks=(1,), width_factor=0.5, activation="post"), "patch_size": 2},
}


def small(**fields: Any) -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 3, "heads": 4, "mlp_dim": 128}
    model = vitreous.create("Ti/16", **{**shape, "num_classes": 7, **fields})
    for name, p in model.named_parameters():
        if p.ndim == 1:
            nn.init.normal_(p, mean=1.0 if "norm" in name and name.endswith("weight") else 0.0, std=0.1)
    if isinstance(model.head, nn.Linear):
        nn.init.normal_(model.head.weight, std=0.1)
    shown = Preprocessing(32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    model.preprocessing = shown.for_channels(model.config.channels)
    return model.to(DEVICE)


def gradients(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logits = forward(x)
    F.cross_entropy(logits.float(), torch.arange(len(x), device=x.device) % 5).backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def no_worse(ours: Tensor, usual: Tensor, exact: Tensor) -> None:
    """About as near to fp32 as the plain model is under autocast, which keeps the residuals in fp32."""
    near(ours, exact, 2.5 * error(usual, exact) + HALF)


def training(size: tuple[int, int] = (32, 32), skips: bool = False, **fields: Any) -> None:
    model = small(**fields).train()
    assert eligibility.why_not(model, eligibility.TRAINING) is None
    x = torch.randn(4, model.config.channels, *size, device=DEVICE)
    keys = torch.arange(len(x), device=DEVICE) + 7

    def half(images: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            output: Tensor = model(images)
            return output

    with keyed_drops(model, keys):
        exact, exact_gradients = gradients(model, model, x)
        usual, usual_gradients = gradients(model, half, x)
        ours, our_gradients = gradients(model, TrainingViT(model, skips), x)
    no_worse(ours, usual, exact)
    assert our_gradients.keys() == exact_gradients.keys()
    for name, gradient in our_gradients.items():
        assert gradient.dtype == torch.float32
        no_worse(gradient, usual_gradients[name], exact_gradients[name])


@check
def training_at_another_size() -> None:
    training((24, 48))


@check
def training_with_stochastic_depth() -> None:
    training(stochastic_depth=0.4)
    training(stochastic_depth=0.4, pool="gap")


@check
def training_without_what_is_dropped() -> None:
    """Branches that an image loses are not computed for it; also where all images lose one, and where none does."""
    for depth, pool in ((0.4, "token"), (0.9, "gap"), (0.02, "gap")):
        training(skips=True, stochastic_depth=depth, pool=pool)


@check
def training_twice_gives_the_same() -> None:
    """What a pass keeps is let go of, and the next one starts from the model's own weights."""
    model = small().train()
    x, fast = torch.randn(2, 3, 32, 32, device=DEVICE), TrainingViT(model)
    _, first = gradients(model, fast, x)
    _, second = gradients(model, fast, x)
    for name in first:
        near(second[name], first[name], 1e-3)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    exact, _ = gradients(model, model, x)
    near(fast(x), exact, 0.12)


@check
def training_what_is_frozen() -> None:
    model = small().train()
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(("blocks.0", "patch_embed", "pos_embed")))
    x = torch.randn(4, 3, 32, 32, device=DEVICE)
    _, exact = gradients(model, model, x)
    _, ours = gradients(model, TrainingViT(model), x)
    assert ours.keys() == exact.keys()
    near(ours["blocks.1.mlp.fc1.weight"], exact["blocks.1.mlp.fc1.weight"], 0.05)


def inference(
    precision: str, most: float, size: tuple[int, int] = (32, 32), dtype: torch.dtype = torch.float32, **fields: Any
) -> None:
    """`dtype`: of the model's weights."""
    model = small(**fields).eval().to(dtype)
    assert eligibility.why_not(model, eligibility.FP8 if precision == "fp8" else eligibility.BF16) is None
    pixels = torch.randint(0, 256, (3, model.config.channels, *size), dtype=torch.uint8, device=DEVICE)
    images = model.preprocessing.normalise(pixels)
    fast = FastViT(model, precision)
    with torch.no_grad():
        exact = deepcopy(model).float()(images)
        before = fast(images)
        near(before, exact, most)
        near(fast(pixels), exact, most)
        for p in model.parameters():
            p.zero_()
        assert torch.equal(fast(images), before), "changes of the model must not show in a snapshot"


@check
def inference_in_bf16_at_another_size() -> None:
    inference("bf16", 0.03, (24, 48))


@check
def inference_with_weights_of_another_dtype() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        inference("bf16", 0.03, dtype=dtype, depth=2)


@check
def inference_in_fp8() -> None:
    inference("fp8", 0.25)
    inference("fp8", 0.25, gelu="erf", pool="gap", qkv_bias=False, layer_scale=0.5, dtype=torch.bfloat16)


@check
def every_value_that_is_allowed_was_checked() -> None:
    for path, variants in ((eligibility.BF16, INFERENCE), (eligibility.TRAINING, TRAINING)):
        configs = [small(**fields).config for fields in variants.values()]
        for field, rule in path.table.items():
            if isinstance(rule, tuple):
                assert {getattr(config, field) for config in configs} >= set(rule), field


@check
def no_images_at_all() -> None:
    for fields in ({}, {"pool": "none", "num_classes": 0}):
        model = small(**fields).eval()
        fast = FastViT(model, "bf16")
        for x in (torch.zeros(0, 3, 32, 32), torch.zeros(0, 3, 24, 48, dtype=torch.uint8)):
            expected = model(x.float().to(DEVICE))
            assert fast(x.to(DEVICE)).shape == expected.shape
    model = small().train()
    logits = TrainingViT(model)(torch.zeros(0, 3, 32, 32, device=DEVICE))
    assert logits.shape == (0, 7)
    logits.sum().backward()
    assert all(not p.grad.any() for p in model.parameters())


@check
def second_derivatives_are_refused() -> None:
    """Of the blocks and of the embedding: they would lack terms."""
    x = torch.randn(2, 3, 32, 32, device=DEVICE)
    for fields, frozen in (({}, "nothing"), ({"pool": "gap"}, "head"), ({}, "blocks")):
        model = small(depth=2, **fields).train()
        for name, p in model.named_parameters():
            p.requires_grad_(not name.startswith(frozen))
        chosen = [p for p in model.parameters() if p.requires_grad]
        loss = TrainingViT(model)(x).sum()  # the gradient that comes back is a constant where the head is frozen
        with pytest.raises(VitreousError, match="first derivatives only"):
            torch.autograd.grad(loss, chosen, create_graph=True)


@check
def keys_of_another_batch() -> None:
    model = small(stochastic_depth=0.4).train()
    x, message = torch.randn(1, 3, 32, 32, device=DEVICE), "a batch of 1 images with keys for 4"
    with keyed_drops(model, torch.arange(4, device=DEVICE)), pytest.raises(VitreousError, match=message):
        TrainingViT(model)(x)


@check
def fp8_never_overflows() -> None:
    """Norms with a few enormous gains, and inputs that drive one channel as far as a norm lets it go."""
    model = small(depth=2).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.norm1.weight[3], block.norm2.weight[5] = 300.0, 300.0
            block.mlp.fc1.weight[7] = 2.0
        fast = FastViT(model, "fp8")
        x = torch.randn(3, 3, 32, 32, device=DEVICE) * 50
        assert torch.isfinite(fast(x)).all()
        block = fast.blocks[-2] if len(fast.blocks) > 2 else fast.blocks[0]
        spike = torch.zeros(4, 64, dtype=torch.bfloat16, device=DEVICE)
        spike[:, 5] = 1000.0
        eighth = block.norm2(spike, block.norm2.factor()).float()
        assert eighth.abs().max() <= 448
        assert eighth.abs().max() > 400  # and the bound is reached


@check
def one_image_is_as_good_as_many() -> None:
    model = small().eval()
    fast = FastViT(model, "bf16")
    x = torch.randn(3, 3, 32, 32, device=DEVICE)
    near(torch.cat([fast(image[None]) for image in x]), fast(x), 0.02)


def _named(name: str, fields: dict[str, Any]) -> None:
    if name in TRAINING:
        CHECKS[f"training: {name}"] = lambda: training(**fields)
    if name in INFERENCE:
        CHECKS[f"inference in bf16: {name}"] = lambda: inference("bf16", 0.03, **fields)


for _name, _fields in (INFERENCE | TRAINING).items():
    _named(_name, _fields)


def main() -> None:
    found: dict[str, str] = {}
    for name, function in CHECKS.items():
        torch.manual_seed(0)
        try:
            function()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
