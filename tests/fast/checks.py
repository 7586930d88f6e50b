"""Checks of the fused kernels and of the models that use them. On a GPU `test_kernels.py` calls them directly. Without
one it runs them all in a child process, in Triton's interpreter."""

import json
import sys
import traceback
from collections.abc import Callable
from copy import deepcopy
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from vitreous import ResNetConfig, VitreousError
from vitreous.fast import eligibility, fused_blocks, fused_training, kernels
from vitreous.fast.attention import merge_heads, split_heads
from vitreous.fast.fused_inference import FusedViT
from vitreous.fast.fused_training import FusedTrainingViT
from vitreous.fast.short_attention import short_attention, short_attention_backward
from vitreous.models.drop import keyed_drops
from vitreous.preprocessing import Preprocessing

BF16_ERROR = 4e-3  # relative rounding error of bf16
FP8_ERROR = 0.13  # of e4m3; the interpreter truncates where a GPU rounds
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


def assert_near(ours: Tensor, reference: Tensor, tolerance: float = BF16_ERROR) -> None:
    assert (found := error(ours, reference)) < tolerance, f"relative error {found:.2e}, tolerance {tolerance:.2e}"


def random_bf16(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).bfloat16()


def random_vector(size: int, mean: float = 0.0) -> Tensor:
    return torch.randn(size, device=DEVICE) * 0.3 + mean


# ---------------------------------------------------------------- kernels


@check
def residual_and_norm() -> None:
    for images, tokens, width in ((3, 7, 48), (2, 5, 64), (1, 3, 200)):
        x, branch = random_bf16(images * tokens, width), random_bf16(images * tokens, width)
        w, b, kept = random_vector(width, 1), random_vector(width), torch.rand(images, device=DEVICE).round() * 1.25
        each = kept.repeat_interleave(tokens)[:, None]
        for z, k in ((None, None), (branch, None), (branch, kept)):
            out, y, mean, rstd = kernels.add_norm(x, z, k, w, b, 1e-6, tokens, statistics=True)
            added = x.float() if z is None else x.float() + z.float() * (1 if k is None else each)
            assert_near(out, added)
            assert_near(y, F.layer_norm(out.float(), (width,), w, b, 1e-6))
            assert_near(mean, out.float().mean(1), 1e-3)
            assert_near(rstd, (out.float().var(1, correction=0) + 1e-6).rsqrt(), 1e-3)
            in_fp8 = kernels.add_norm(x, z, k, w, b, 1e-6, tokens, fp8_scale=20.0)[1]
            assert_near(in_fp8.float() / 20, F.layer_norm(out.float(), (width,), w, b, 1e-6), FP8_ERROR)


@check
def residual_and_norm_backward() -> None:
    images, tokens, width = 3, 7, 72
    x, dy, passed = (random_bf16(images * tokens, width) for _ in range(3))
    w, b, kept = random_vector(width, 1), random_vector(width), torch.tensor([0.0, 1.25, 1.25], device=DEVICE)
    _, _, mean, rstd = kernels.add_norm(x, None, None, w, b, 1e-6, statistics=True)
    leaves = [x.float().requires_grad_(), w.clone().requires_grad_(), b.clone().requires_grad_()]
    y = F.layer_norm(leaves[0], (width,), leaves[1], leaves[2], 1e-6)
    y.backward(dy.float())
    for k in (None, kept):
        dx, dz, again, sums = kernels.norm_backward(dy, x, mean, rstd, w, b, passed, k, tokens)
        whole = leaves[0].grad + passed.float()
        each = 1 if k is None else kept.repeat_interleave(tokens)[:, None]
        assert_near(dx, whole)
        assert_near(dz, whole * each, 2 * BF16_ERROR)
        assert_near(again, y)
        for part, reference in zip(sums.sum(0), (leaves[1].grad, leaves[2].grad, dz.float().sum(0)), strict=True):
            assert_near(part, reference, 2 * BF16_ERROR)


@check
def gelu() -> None:
    for tanh in (True, False):
        h, dg = random_bf16(21, 200, scale=2), random_bf16(21, 200)
        leaf = h.float().requires_grad_()
        reference = F.gelu(leaf, approximate="tanh" if tanh else "none")
        reference.backward(dg.float())
        assert_near(kernels.gelu(h, tanh), reference, 1.3 * BF16_ERROR)
        assert_near(kernels.gelu(h, tanh, 30.0).float() / 30, reference, FP8_ERROR)
        dh, sums = kernels.gelu_backward_(h, dg.clone(), tanh)
        assert_near(dh, leaf.grad, 1.3 * BF16_ERROR)
        assert_near(sums.sum(0), dh.float().sum(0), 1e-5)
        assert_near(kernels.gelu_backward_(None, dh, tanh)[1].sum(0), dh.float().sum(0), 1e-5)


@check
def gelu_far_from_zero() -> None:
    """The tails of GELU, where approximations fail: accurate to bf16, and no NaN."""
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
        parts = random_bf16(batch, tokens if order[2] == 3 else heads, 3, heads if order[2] == 3 else tokens, head)
        merged, sums = kernels.merge_qkv_gradients(*parts.permute(order))
        reference = torch.stack([*parts.permute(order)]).permute(1, 3, 0, 2, 4).reshape(batch * tokens, -1)
        assert torch.equal(merged, reference)
        assert_near(sums.sum(0), merged.float().sum(0), 1e-5)


@check
def attention_of_short_sequences() -> None:
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # the interpreter does not support bf16 matmuls
    for batch, tokens, heads, head in ((2, 37, 2, 32), (1, 5, 1, 64), (1, 64, 2, 32), (1, 197, 1, 64), (3, 2, 2, 32)):
        qkv, do = (random_bf16(batch * tokens, n * heads * head).to(dtype) for n in (3, 1))
        q, k, v = (t.double().requires_grad_() for t in split_heads(qkv, batch, heads))
        o = F.scaled_dot_product_attention(q, k, v)
        (gradient,) = split_heads(do, batch, heads, parts=1)
        parts = torch.autograd.grad(o, (q, k, v), gradient.double())
        exact = torch.stack(parts).permute(1, 3, 0, 2, 4).reshape(batch * tokens, -1)
        output, lse = short_attention(qkv, batch, heads)
        assert_near(output, merge_heads(o.detach()))
        assert_near(lse, ((q @ k.transpose(-2, -1)) * head**-0.5).logsumexp(-1).detach(), 1e-3)
        dqkv, sums = short_attention_backward(qkv, output, do, lse, batch, heads)
        assert_near(dqkv, exact, 0.02)
        assert_near(sums.sum(0), dqkv.float().sum(0), 0.02)


@check
def patches_and_tokens() -> None:
    for channels, patch, size in ((3, (4, 3), (10, 13)), (1, (2, 2), (4, 4)), (5, (3, 8), (3, 16))):
        whole = torch.randint(0, 256, (2, channels, *size), dtype=torch.uint8, device=DEVICE)
        for images in (whole, whole.float() / 255, whole.contiguous(memory_format=torch.channels_last)):
            rows, cols = size[0] // patch[0], size[1] // patch[1]
            cut = images[:, :, : rows * patch[0], : cols * patch[1]].float() - 0.5
            reference = F.unfold(cut, patch, stride=patch).transpose(1, 2).flatten(0, 1)
            assert_near(kernels.extract_patches(images, patch, torch.bfloat16, 0.5), reference)
    z, prefix, positions = random_bf16(2 * 5, 40), random_vector(2 * 40).view(2, 40), random_vector(7 * 40).view(7, 40)
    tokens = torch.cat([prefix.expand(2, -1, -1), z.float().view(2, 5, 40)], 1)
    assert_near(kernels.assemble_tokens(z, prefix, positions, 2), tokens + positions)
    assert_near(kernels.assemble_tokens(z, prefix, None, 2), tokens)
    assert_near(kernels.assemble_tokens(z, prefix[:0], None, 2), tokens[:, 2:])


# ---------------------------------------------------------------- models

VARIANTS: dict[str, dict[str, Any]] = {
    "class token": {},
    "class token, registers, erf": {"registers": 2, "gelu": "erf", "head_bias": -3.0, "position_slots": "all"},
    "class token, norm after pooling": {"final_norm": "after-pool", "norm_eps": 1e-2, "position_slots": "patches"},
    "mean of patches, 2-d positions": {"pool": "gap", "position": "learned-2d", "remainder": "crop"},
    "attention pooling, no qkv bias": {"pool": "map", "qkv_bias": False, "position": "sincos-1d"},
    "pre-training head": {"representation_size": 24},
    "sincos, mean with a class token": {"pool": "gap", "class_token": True, "position": "sincos-2d"},
    "no positions, grey": {"position": "none", "channels": 1},
}
INFERENCE: dict[str, dict[str, Any]] = {
    **VARIANTS,
    "all tokens, LayerScale": {"pool": "none", "num_classes": 0, "layer_scale": 0.5},
    "norm after the mean": {"pool": "gap", "final_norm": "after-pool", "dropout": 0.1, "stochastic_depth": 0.1},
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


def assert_as_accurate(ours: Tensor, autocast: Tensor, exact: Tensor) -> None:
    """Assert that the error is about that of the plain model under autocast, which keeps the residuals in fp32."""
    assert_near(ours, exact, 2.5 * error(autocast, exact) + BF16_ERROR)


def check_training(size: tuple[int, int] = (32, 32), skip_dropped: bool = False, **fields: Any) -> None:
    model = small(**fields).train()
    assert eligibility.ineligibility_reason(model, eligibility.TRAINING) is None
    x = torch.randn(4, model.config.channels, *size, device=DEVICE)
    keys = torch.arange(len(x), device=DEVICE) + 7

    def run_autocast(images: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            output: Tensor = model(images)
            return output

    with keyed_drops(model, keys):
        exact, exact_gradients = gradients(model, model, x)
        autocast, autocast_gradients = gradients(model, run_autocast, x)
        ours, our_gradients = gradients(model, FusedTrainingViT(model, skip_dropped), x)
    assert_as_accurate(ours, autocast, exact)
    assert our_gradients.keys() == exact_gradients.keys()
    for name, gradient in our_gradients.items():
        assert gradient.dtype == torch.float32
        assert_as_accurate(gradient, autocast_gradients[name], exact_gradients[name])


@check
def training_at_another_size() -> None:
    check_training((24, 48))


@check
def training_with_stochastic_depth() -> None:
    check_training(stochastic_depth=0.4)
    check_training(stochastic_depth=0.4, pool="gap")


@check
def training_with_dropped_branches_skipped() -> None:
    """Also if all images of a batch lose a branch, and if none does."""
    for depth, pool in ((0.4, "token"), (0.9, "gap"), (0.02, "gap")):
        check_training(skip_dropped=True, stochastic_depth=depth, pool=pool)


@check
def training_twice_gives_the_same() -> None:
    """The second step does not use saved activations or weight copies of the first."""
    model = small().train()
    x, fast = torch.randn(2, 3, 32, 32, device=DEVICE), FusedTrainingViT(model)
    _, first = gradients(model, fast, x)
    _, second = gradients(model, fast, x)
    for name in first:
        assert_near(second[name], first[name], 1e-3)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    exact, _ = gradients(model, model, x)
    assert_near(fast(x), exact, 0.12)


FROZEN: dict[str, tuple[str, ...]] = {
    "first block": ("blocks.0", "patch_embed", "pos_embed", "cls_token"),
    "first block, but not the embedding": ("blocks.0",),
    "all blocks": ("blocks", "patch_embed", "pos_embed", "cls_token"),
    "all but the head": ("blocks", "patch_embed", "pos_embed", "cls_token", "norm"),
    "attention": ("blocks.0.attn", "blocks.1.attn", "blocks.2.attn"),
    "patch projection": ("patch_embed",),
}


def freeze(model: nn.Module, prefixes: tuple[str, ...]) -> None:
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(prefixes))


@check
def training_with_frozen_parameters() -> None:
    for pool in ("token", "gap"):
        for prefixes in FROZEN.values():
            model = small(pool=pool, class_token=True).train()
            freeze(model, prefixes)
            x = torch.randn(4, 3, 32, 32, device=DEVICE)
            _, exact = gradients(model, model, x)
            _, ours = gradients(model, FusedTrainingViT(model), x)
            assert ours.keys() == exact.keys()
            for name, gradient in ours.items():
                assert_near(gradient, exact[name], 0.05)


@check
def gradients_of_frozen_parameters_are_not_computed() -> None:
    """Count the blocks in the backward pass, the weight gradients of their matrices, and those of the embedding."""
    expected = {
        "first block": (2, 8, 0),
        "all blocks": (0, 0, 0),
        "attention": (3, 6, 1),
        "patch projection": (3, 12, 0),
    }
    for name, counts in expected.items():
        model = small(pool="gap", class_token=True).train()
        freeze(model, FROZEN[name])
        x = torch.randn(2, 3, 32, 32, device=DEVICE)
        with (
            spy(fused_training, "block_backward") as blocks,
            spy(fused_blocks, "weight_gradient") as matrices,
            spy(fused_training, "weight_gradient") as embedding,
        ):
            gradients(model, FusedTrainingViT(model), x)
        assert (blocks.call_count, matrices.call_count, embedding.call_count) == counts, name


def spy(module: ModuleType, name: str) -> Any:
    """Count the calls of a function of a module."""
    return mock.patch.object(module, name, wraps=getattr(module, name))


def check_inference(
    precision: str,
    tolerance: float,
    size: tuple[int, int] = (32, 32),
    dtype: torch.dtype = torch.float32,
    **fields: Any,
) -> None:
    """`dtype`: of the model's weights."""
    model = small(**fields).eval().to(dtype)
    path = eligibility.FP8 if precision == "fp8" else eligibility.BF16
    assert eligibility.ineligibility_reason(model, path) is None
    pixels = torch.randint(0, 256, (3, model.config.channels, *size), dtype=torch.uint8, device=DEVICE)
    images = model.preprocessing.normalise(pixels)
    fused = FusedViT(model, precision)
    with torch.no_grad():
        exact, exact_features = deepcopy(model).float()(images), deepcopy(model).float().features(images)
        before = fused(images)
        assert_near(before, exact, tolerance)
        assert_near(fused(pixels), exact, tolerance)
        assert_near(fused.features(images), exact_features, tolerance)
        for p in model.parameters():
            p.zero_()
        assert torch.equal(fused(images), before), "later changes of the model must not affect the copy"


@check
def inference_in_bf16_at_another_size() -> None:
    check_inference("bf16", 0.03, (24, 48))


@check
def inference_with_weights_of_another_dtype() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        check_inference("bf16", 0.03, dtype=dtype, depth=2)


@check
def inference_in_fp8() -> None:
    check_inference("fp8", 0.25)
    check_inference("fp8", 0.25, gelu="erf", pool="gap", qkv_bias=False, layer_scale=0.5, dtype=torch.bfloat16)


@check
def every_allowed_value_is_checked() -> None:
    for path, variants in ((eligibility.BF16, INFERENCE), (eligibility.TRAINING, TRAINING)):
        configs = [small(**fields).config for fields in variants.values()]
        for field, rule in path.table.items():
            if isinstance(rule, tuple):
                assert {getattr(config, field) for config in configs} >= set(rule), field


@check
def empty_batches() -> None:
    for fields in ({}, {"pool": "none", "num_classes": 0}):
        model = small(**fields).eval()
        fast = FusedViT(model, "bf16")
        for x in (torch.zeros(0, 3, 32, 32), torch.zeros(0, 3, 24, 48, dtype=torch.uint8)):
            expected = model(x.float().to(DEVICE))
            assert fast(x.to(DEVICE)).shape == expected.shape
            assert fast.features(x.to(DEVICE)).shape == model.features(x.float().to(DEVICE)).shape
    model = small().train()
    logits = FusedTrainingViT(model)(torch.zeros(0, 3, 32, 32, device=DEVICE))
    assert logits.shape == (0, 7)
    logits.sum().backward()
    assert all(not p.grad.any() for p in model.parameters())


@check
def second_derivatives_are_refused() -> None:
    """Second derivatives of blocks and embedding would lack terms."""
    x = torch.randn(2, 3, 32, 32, device=DEVICE)
    for fields, frozen in (({}, "nothing"), ({"pool": "gap"}, "head"), ({}, "blocks")):
        model = small(depth=2, **fields).train()
        for name, p in model.named_parameters():
            p.requires_grad_(not name.startswith(frozen))
        chosen = [p for p in model.parameters() if p.requires_grad]
        loss = FusedTrainingViT(model)(x).sum()  # with a frozen head the incoming gradient is a constant
        with pytest.raises(VitreousError, match="first derivatives only"):
            torch.autograd.grad(loss, chosen, create_graph=True)


@check
def wrong_number_of_keys() -> None:
    model = small(stochastic_depth=0.4).train()
    x, message = torch.randn(1, 3, 32, 32, device=DEVICE), "1 images with 4 keys"
    with keyed_drops(model, torch.arange(4, device=DEVICE)), pytest.raises(VitreousError, match=message):
        FusedTrainingViT(model)(x)


@check
def fp8_never_overflows() -> None:
    """Norms with a few very large weights, and inputs that drive one channel to the largest value after a norm."""
    model = small(depth=2).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.norm1.weight[3], block.norm2.weight[5] = 300.0, 300.0
            block.mlp.fc1.weight[7] = 2.0
        fast = FusedViT(model, "fp8")
        x = torch.randn(3, 3, 32, 32, device=DEVICE) * 50
        assert torch.isfinite(fast(x)).all()
        block = fast.blocks[-2] if len(fast.blocks) > 2 else fast.blocks[0]
        spike = torch.zeros(4, 64, dtype=torch.bfloat16, device=DEVICE)
        spike[:, 5] = 1000.0
        in_fp8 = block.norm2(spike, block.norm2.output_scale()).float()
        assert in_fp8.abs().max() <= 448
        assert in_fp8.abs().max() > 400  # the bound is tight


@check
def batch_size_does_not_change_results() -> None:
    model = small().eval()
    fast = FusedViT(model, "bf16")
    x = torch.randn(3, 3, 32, 32, device=DEVICE)
    assert_near(torch.cat([fast(image[None]) for image in x]), fast(x), 0.02)


def _add_checks(name: str, fields: dict[str, Any]) -> None:
    if name in TRAINING:
        CHECKS[f"training: {name}"] = lambda: check_training(**fields)
    if name in INFERENCE:
        CHECKS[f"inference in bf16: {name}"] = lambda: check_inference("bf16", 0.03, **fields)


for _name, _fields in (INFERENCE | TRAINING).items():
    _add_checks(_name, _fields)


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
