"""`accelerate`: which way it chooses, and that it gives the model's own numbers."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import vitreous
from helpers import draw, images, relative_error, tiny_vit
from vitreous import VitreousError
from vitreous.fast import accelerate
from vitreous.fast.attention import Asking
from vitreous.preprocessing import Preprocessing
from vitreous.training.config import Finetuning
from vitreous.training.lora import adapt_

gpu = pytest.mark.gpu


def test_fp32_on_a_cpu_is_the_plain_model() -> None:
    model = tiny_vit()
    x = images(3, 3, 32, 32)
    run = accelerate(model)
    assert run.precision == "fp32"
    assert "packed" in run.path
    assert relative_error(run(x), model(x).detach()) < 1e-5


@pytest.mark.parametrize("fields", [{"position": "relative"}, {"qk_norm": True, "pool": "gap"}])
def test_what_has_no_faster_way_is_run_as_it_is_and_says_so(fields: dict[str, Any]) -> None:
    model = tiny_vit(**fields)
    run = accelerate(model)
    x = images(2, 3, 32, 32)
    assert run.path.startswith(("plain", "packed"))
    assert relative_error(run(x), model(x).detach()) < 1e-5


def test_weights_in_another_precision() -> None:
    for dtype in (torch.float16, torch.float64):
        model = tiny_vit().to(dtype)
        x = images(2, 3, 32, 32)
        exact = model.double()(x.double()).detach()
        assert relative_error(accelerate(model.to(dtype))(x), exact) < 1e-5
        assert next(model.parameters()).dtype == dtype


def test_a_model_with_adapters() -> None:
    model = tiny_vit()
    adapt_(model, Finetuning(lora=2))
    draw(model)
    x = images(2, 3, 32, 32)
    run = accelerate(model)
    assert "adapters" in run.path
    assert relative_error(run(x), model.eval()(x).detach()) < 1e-5


def test_a_bit_is_run_too() -> None:
    model = draw(vitreous.create("BiT-R50x1", num_classes=5, blocks=(1, 1), width_factor=0.5))
    x = images(1, 3, 64, 64)
    assert relative_error(accelerate(model)(x), model(x).detach()) < 1e-5


def test_pixels_are_normalised_as_the_model_says() -> None:
    model = tiny_vit()
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    with pytest.raises(VitreousError, match="how they are normalised"):
        accelerate(model)(pixels)
    model.preprocessing = Preprocessing(32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    expected = model(model.preprocessing.normalise(pixels)).detach()
    assert relative_error(accelerate(model)(pixels), expected) < 1e-5


def test_it_is_a_snapshot_and_leaves_the_model_alone() -> None:
    model = tiny_vit().train()
    x = images(2, 3, 32, 32)
    run = accelerate(model)
    assert model.training
    before = run(x)
    with torch.no_grad():
        model.head.weight.zero_()
    assert torch.equal(run(x), before)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize(("precision", "words"), [("fp8", "needs a GPU"), ("int4", "expected fp32, bf16, fp8")])
def test_a_precision_that_cannot_be_had(precision: Any, words: str) -> None:
    with pytest.raises(VitreousError, match=words):
        accelerate(tiny_vit(), precision)


@pytest.mark.parametrize("bias", [True, False])
def test_one_token_asks_all_the_others(bias: bool) -> None:
    """Without keys and values, to the digits of float64, and with the same gradients."""
    model = tiny_vit(qkv_bias=bias).double()
    attn: Any = model.blocks[0].attn
    y = images(4, 9, 48).double().requires_grad_()

    def gradients(o: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(o.square().sum(), [y, *attn.qkv.parameters()]))

    plain = nn.functional.scaled_dot_product_attention(*attn.split(y)).transpose(1, 2).flatten(2)[:, 0]
    alone = Asking.of(attn.qkv, attn.heads, torch.float64)(y[:, 0], y)
    assert relative_error(alone.detach(), plain.detach()) < 1e-12
    for ours, theirs in zip(gradients(alone), gradients(plain), strict=True):
        assert relative_error(ours, theirs) < 1e-10


# ---------------------------------------------------------------- on a GPU


def full_size(name: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    model = vitreous.create(name, device="cuda", **fields).eval()
    nn.init.normal_(model.head.weight, std=0.02)
    model.preprocessing = Preprocessing(224)
    return model


def distance(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return ((ours - reference).norm() / reference.norm()).item()


@gpu
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-5), ("bf16", 0.02), ("fp8", 0.12)])
@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_a_whole_model(precision: Any, most: float, gelu: str) -> None:
    model = full_size("B/16", gelu=gelu)
    pixels = torch.randint(0, 256, (100, 3, 224, 224), dtype=torch.uint8, device="cuda")
    images = model.preprocessing.normalise(pixels)
    run = accelerate(model, precision)
    with torch.no_grad():
        exact = model(images)
    for _ in range(3):  # large, as it is; small: as it is, then recorded, then replayed
        for count in (100, 1, 5):
            assert distance(run(images[:count]), exact[:count]) < most
            assert distance(run(pixels[:count]), exact[:count]) < most
    assert run(images[:1]).dtype == torch.float32


@gpu
def test_answers_of_a_recorded_call_stay() -> None:
    run = accelerate(full_size("Ti/16"), "bf16")
    x, y = torch.randn(2, 2, 3, 224, 224, device="cuda")
    for _ in range(3):
        first = run(x)
        kept = first.clone()
        run(y)
        assert torch.equal(first, kept)


@gpu
def test_fp8_says_what_it_cannot_do() -> None:
    with pytest.raises(VitreousError, match="SwiGLU"):
        accelerate(full_size("Ti/16", mlp="swiglu"), "fp8")
    assert "SwiGLU" in accelerate(full_size("Ti/16", mlp="swiglu"), "bf16").path


@gpu
def test_products_with_an_end() -> None:
    """cuBLASLt, asked for more than torch asks it for, at sizes that fit and sizes that do not."""
    from vitreous.fast import blas
    from vitreous.fast.kernels import FP8

    for rows, inner, outer in ((1000, 256, 512), (197, 768, 768), (33, 72, 40)):
        x, add = (torch.randn(rows, n, device="cuda").bfloat16() for n in (inner, outer))
        weight, bias = torch.randn(outer, inner, device="cuda").bfloat16() * 0.1, torch.randn(outer, device="cuda")
        exact = nn.functional.linear(x.double(), weight.double(), bias.bfloat16().double())
        half = bias.bfloat16()
        assert distance(blas.linear(x, weight, half, add).double(), exact + add.double()) < 4e-3
        assert distance(blas.linear(x, weight, None, add).double(), exact - half.double() + add.double()) < 4e-3
        if (found := blas.linear_gelu(x, weight, half, keep=True)) is not None:
            assert distance(found[0].double(), nn.functional.gelu(exact, approximate="tanh")) < 4e-3
            assert distance(found[1].double(), exact) < 4e-3
            dz, back = torch.randn(rows, inner, device="cuda").bfloat16(), weight.t().contiguous()
            leaf = found[1].double().requires_grad_()
            nn.functional.gelu(leaf, approximate="tanh").backward(dz.double() @ back.double())
            for tanh in (True,):
                dh, sums = blas.product_gelu_backward(dz, back, found[1], tanh)
                assert distance(dh.double(), leaf.grad) < 1e-2
                assert distance(sums.sum(0).double(), dh.double().sum(0)) < 1e-4
        if inner % 16 == 0 and outer % 16 == 0:
            scales = blas.Scales(torch.tensor(1 / 64, device="cuda"), torch.tensor(1 / 16, device="cuda"))
            x8, w8 = (x.float() * 16).to(FP8), (weight.float() * 64).to(FP8)
            exact = nn.functional.linear(x8.double() / 16, w8.double() / 64, half.double())
            assert distance(blas.linear_fp8(x8, w8, scales, half).double(), exact) < 8e-3
            assert distance(blas.linear_fp8(x8, w8, scales, half, add).double(), exact + add.double()) < 8e-3
            factor = torch.tensor(8.0, device="cuda")
            if (found8 := blas.linear_gelu_fp8(x8, w8, scales, half, factor)) is not None:
                assert distance(found8.double() / 8, nn.functional.gelu(exact, approximate="tanh")) < 0.04


@gpu
def test_a_run_on_the_gpu_can_be_trained_on_afterwards() -> None:
    model = full_size("Ti/16")
    copy = deepcopy(model)
    accelerate(model, "fp8")(torch.randn(2, 3, 224, 224, device="cuda"))
    for ours, theirs in zip(model.parameters(), copy.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.requires_grad
