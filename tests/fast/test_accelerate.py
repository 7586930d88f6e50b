"""`accelerate`: which path it chooses, and that its results are those of the model."""

import importlib.util
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

import vitreous
from helpers import draw, images, outputs, relative_error, tiny_vit
from vitreous import VitreousError
from vitreous.fast import accelerate, accelerate_if_faster
from vitreous.fast.accelerate import kernels_unavailable_reason
from vitreous.fast.attention import ClassTokenAttention
from vitreous.models.vit import Mlp
from vitreous.preprocessing import Preprocessing
from vitreous.training.config import Finetuning
from vitreous.training.lora import add_adapters_

gpu = pytest.mark.gpu


def test_fp32_on_a_cpu_gives_the_results_of_the_plain_model() -> None:
    model = tiny_vit()
    x = images(3, 3, 32, 32)
    run = accelerate(model)
    assert run.precision == "fp32"
    assert "packed" in run.path
    assert relative_error(run(x), model(x).detach()) < 1e-5
    assert relative_error(run.features(x), model.features(x).detach()) < 1e-5


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"position": "relative"}, "position = 'relative' is not supported"),
        ({"qk_norm": True, "pool": "gap"}, "qk_norm = True is not supported"),
        ({"attention": "axial"}, "attention = 'axial' is not supported"),
    ],
)
def test_models_without_a_faster_path_run_plain_and_give_the_reason(fields: dict[str, Any], words: str) -> None:
    model = tiny_vit(**fields)
    run = accelerate(model)
    x = images(2, 3, 32, 32)
    assert run.path == f"plain; no packed weights: {words}"
    assert relative_error(run(x), model(x).detach()) < 1e-5
    assert relative_error(run.features(x), model.features(x).detach()) < 1e-5


def test_weights_in_another_precision() -> None:
    for dtype in (torch.float16, torch.float64):
        model = tiny_vit().to(dtype)
        x = images(2, 3, 32, 32)
        exact = model.double()(x.double()).detach()
        assert relative_error(accelerate(model.to(dtype))(x), exact) < 1e-5
        assert next(model.parameters()).dtype == dtype


def test_a_model_with_adapters() -> None:
    model = tiny_vit()
    add_adapters_(model, Finetuning(lora=2))
    draw(model)
    x = images(2, 3, 32, 32)
    run = accelerate(model)
    assert run.path == "plain; no packed weights: blocks.0.attn.qkv is of type LoraLinear, not Linear"
    assert relative_error(run(x), model.eval()(x).detach()) < 1e-5


def test_bit_models() -> None:
    model = draw(vitreous.create("BiT-R50x1", num_classes=5, blocks=(1, 1), width_factor=0.5))
    x = images(1, 3, 64, 64)
    run = accelerate(model)
    assert run.path == "plain; no packed weights: the model is a BiT, not a VisionTransformer"
    assert relative_error(run(x), model(x).detach()) < 1e-5


def test_pixels_are_normalised_with_the_preprocessing_of_the_model() -> None:
    model = tiny_vit()
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    with pytest.raises(VitreousError, match="the model has no normalisation"):
        accelerate(model)(pixels)
    model.preprocessing = Preprocessing(32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    expected = model(model.preprocessing.normalise(pixels)).detach()
    assert relative_error(accelerate(model)(pixels), expected) < 1e-5
    features = model.features(model.preprocessing.normalise(pixels)).detach()
    assert relative_error(accelerate(model).features(pixels), features) < 1e-5


@pytest.mark.parametrize("make", [tiny_vit, lambda: tiny_vit(position="relative")])
def test_images_of_other_dtypes_raise_the_error_of_the_model(make: Callable[[], nn.Module]) -> None:
    """On the fast path and on the plain path. Floating-point images are cast."""
    model = draw(make()).eval()
    fast, x = accelerate(model), images(2, 3, 32, 32)
    for dtype in (torch.int64, torch.int32, torch.int8, torch.bool, torch.complex64):
        with pytest.raises(VitreousError) as plain:
            model(x.to(dtype))
        with pytest.raises(VitreousError) as ours:
            fast(x.to(dtype))
        assert str(ours.value) == str(plain.value)
    for dtype in (torch.float64, torch.float16):
        torch.testing.assert_close(fast(x.to(dtype)), fast(x.to(dtype).float()), rtol=0, atol=0)


@pytest.mark.parametrize(("fields", "path"), [({}, "packed weights"), ({"qk_norm": True}, "plain; ")])
def test_the_copy_and_the_model_do_not_affect_each_other(fields: dict[str, Any], path: str) -> None:
    model = tiny_vit(**fields).train()
    x = images(2, 3, 32, 32)
    weights = deepcopy(model.state_dict())
    run = accelerate(model)
    before = run(x)
    assert run.path.startswith(path)
    assert model.training
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(run(x), before)


def storages(found: Any, seen: set[int]) -> Iterator[int]:
    """Return the memory addresses of all tensors that can be reached from an object."""
    if id(found) in seen or isinstance(found, type | ModuleType):
        return
    seen.add(id(found))
    if isinstance(found, torch.Tensor) and found.layout is torch.strided:
        yield found.untyped_storage().data_ptr()
        return
    parts = list(found.values()) if isinstance(found, dict) else []
    parts += found if isinstance(found, list | tuple | set) else []
    parts += [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]
    parts += vars(found).values() if hasattr(found, "__dict__") else []
    for part in parts:
        yield from storages(part, seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("fields", [{}, {"pool": "gap", "qkv_bias": False}, {"layer_scale": 0.1, "pool": "map"}])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_fused_inference_copies_every_weight(dtype: torch.dtype, fields: dict[str, Any], precision: str) -> None:
    """Also if the model already has the required dtype, so that a conversion would return the same tensor."""
    from vitreous.fast.fused_inference import FusedViT

    model = tiny_vit(width=64, heads=4, depth=4, registers=1, representation_size=16, **fields).to(dtype)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found = set(storages(FusedViT(model, precision), set()))
    assert len(found) > len(own) // 2  # `storages` finds the tensors
    assert not found & own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cpu_inference_copies_every_weight(dtype: torch.dtype, precision: Any) -> None:
    for fields in ({}, {"qk_norm": True}, {"width": 6, "heads": 6, "num_classes": 0}):
        model = tiny_vit(**fields).to(dtype)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        found = set(storages(accelerate(model, precision).run, set()))
        assert found
        assert not found & own


# ---------------------------------------------------------------- modified models


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments: Any) -> torch.Tensor:
        output: torch.Tensor = 2 * self.inner(*arguments)
        return output


class Squared(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 2


def squared(model: Any) -> None:
    model.blocks[0].mlp.__class__ = Squared


def replace_module(name: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda model: model.set_submodule(name, make(model.get_submodule(name)))


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "compiled block": (replace_module("blocks.0", lambda b: torch.compile(b, backend="eager")), "OptimizedModule"),
    "wrapped block": (replace_module("blocks.0", Doubled), "Doubled"),
    "hook": (lambda m: m.blocks[0].register_forward_hook(lambda m, x, y: 2 * y), "blocks.0 has hooks"),
    "hook before": (lambda m: m.blocks[1].attn.register_forward_pre_hook(lambda m, x: (2 * x[0],)), "has hooks"),
    "hook on the model": (lambda m: m.register_forward_hook(lambda m, x, y: y + 1), "the model has hooks"),
    "subclass": (squared, "Squared"),
    "other head": (replace_module("head", lambda h: nn.Linear(48, 3)), "head.out_features is 3, not 7"),
    "two heads": (replace_module("head", lambda h: nn.Sequential(h, nn.ReLU())), "Sequential"),
    "parametrization": (lambda m: orthogonal(m.blocks[0].mlp.fc1), "Parametrized"),
    "fewer blocks": (lambda m: m.blocks.pop(1), "blocks.1 is missing"),
}


@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "compiled"])
def test_modified_models_run_by_their_own_code(change: Callable[[Any], Any], words: str, wrapped: bool) -> None:
    model, x = tiny_vit(), images(2, 3, 32, 32)
    unchanged = outputs(model, x)
    change(model)
    expected = outputs(model, x)
    if words != "OptimizedModule":
        assert expected.shape != unchanged.shape or relative_error(expected, unchanged) > 1e-3
    run = accelerate(torch.compile(model, backend="eager") if wrapped else model)
    assert run.path.startswith("plain; no packed weights: ")
    assert words in run.path
    assert torch.equal(run(x), expected)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    assert torch.equal(run(x), expected)  # compiled blocks are copied too


def test_modules_compiled_in_place_stay_eligible() -> None:
    model, x = tiny_vit(), images(2, 3, 32, 32)
    expected = outputs(model, x)
    model.blocks[0].compile(backend="eager")
    run = accelerate(model)
    assert run.path == "packed weights"
    assert relative_error(run(x), expected) < 1e-5
    assert relative_error(accelerate(torch.compile(model, backend="eager"))(x), expected) < 1e-5


def test_objects_that_are_not_models() -> None:
    compiled = torch.compile(tiny_vit(), backend="eager")
    compiled.register_forward_hook(lambda m, x, y: 2 * y)
    for what, words in (
        (nn.Linear(3, 3), "expected a model from vitreous.load or vitreous.create, got Linear"),
        (Doubled(tiny_vit()), "got Doubled"),
        ("B/16", "got str"),
        (compiled, "OptimizedModule has hooks or a forward of its own"),
    ):
        with pytest.raises(VitreousError, match=words):
            accelerate(what)


def test_a_model_that_cannot_be_copied() -> None:
    model = tiny_vit()
    model.blocks[0].scale = model.head.weight * 2  # not a leaf tensor: torch does not copy it
    model.blocks[0].register_forward_hook(lambda m, x, y: y * m.scale.mean())
    with pytest.raises(VitreousError, match=r"the model cannot be copied .* call the model itself"):
        accelerate(model)


def referring(model: Any, how: str) -> Any:
    """Return a hook that refers to the model, so that its copy would too."""
    weight = model.head.weight

    def closure(module: Any, inputs: Any, output: Any) -> Any:
        return output * weight.mean()

    def default(module: Any, inputs: Any, output: Any, weights: Any = (weight,)) -> Any:
        return output * weights[0].mean()

    return {"closure": closure, "default": default, "function in a function": partial(closure)}[how]


@pytest.mark.parametrize("how", ["closure", "default", "function in a function"])
def test_hooks_that_refer_to_the_model_cannot_be_copied(how: str) -> None:
    """Later changes of the model would affect parts of the copy. `accelerate_if_faster` runs the model itself."""
    model = tiny_vit()
    model.blocks[0].register_forward_hook(referring(model, how))
    with pytest.raises(VitreousError, match=r"a function in blocks\.0 refers to parts of the original model"):
        accelerate(model)
    assert accelerate_if_faster(model) is model


def test_hooks_that_refer_to_copied_modules() -> None:
    model, x = tiny_vit(), images(2, 3, 32, 32)
    block: Any = model.blocks[0]
    block.scale = torch.tensor(3.0)
    block.scaled = MethodType(lambda self, module, inputs, output: output * self.scale, block)
    block.register_forward_hook(block.scaled)
    block.register_forward_hook(partial(lambda weight, module, inputs, output: output * weight, block.norm2.weight))
    block.register_forward_hook(lambda module, inputs, output: output + module.norm1.weight)
    expected = outputs(model, x)
    run = accelerate(model)
    with torch.no_grad():
        block.scale.zero_()
        block.norm1.weight.zero_()
        block.norm2.weight.zero_()
    assert torch.equal(run(x), expected)


def test_accelerate_if_faster_returns_the_model_if_no_path_is_faster() -> None:
    model = tiny_vit().double().train()
    assert accelerate_if_faster(model) is model
    assert not model.training
    assert "packed" in accelerate_if_faster(tiny_vit()).path


# ---------------------------------------------------------------- devices


def test_the_kernels_need_an_nvidia_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch calls AMD GPUs "cuda" too."""
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert "AMD" in str(kernels_unavailable_reason(torch.device("cuda")))
    assert "need a CUDA GPU, not cpu" in str(kernels_unavailable_reason(torch.device("cpu")))


def test_empty_batches() -> None:
    for model in (tiny_vit(), tiny_vit(qk_norm=True)):
        model.preprocessing = Preprocessing(32)
        for x in (torch.zeros(0, 3, 32, 32), torch.zeros(0, 3, 32, 32, dtype=torch.uint8)):
            assert accelerate(model)(x).shape == (0, 7)


@pytest.mark.parametrize(("precision", "words"), [("fp8", "needs a GPU"), ("int4", "expected fp32, bf16, fp8")])
def test_unavailable_precisions(precision: Any, words: str) -> None:
    with pytest.raises(VitreousError, match=words):
        accelerate(tiny_vit(), precision)


@pytest.mark.parametrize("bias", [True, False])
def test_class_token_attention_equals_attention(bias: bool) -> None:
    """Output and gradients, in float64."""
    model = tiny_vit(qkv_bias=bias).double()
    attn: Any = model.blocks[0].attn
    y = images(4, 9, 48).double().requires_grad_()

    def gradients(o: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(o.square().sum(), [y, *attn.qkv.parameters()]))

    plain = nn.functional.scaled_dot_product_attention(*attn.split(y)).transpose(1, 2).flatten(2)[:, 0]
    alone = ClassTokenAttention.from_linear(attn.qkv, attn.heads, torch.float64)(y[:, 0], y)
    assert relative_error(alone.detach(), plain.detach()) < 1e-12
    for ours, theirs in zip(gradients(alone), gradients(plain), strict=True):
        assert relative_error(ours, theirs) < 1e-10


@pytest.mark.parametrize("constant", [False, True])
def test_second_derivatives_of_class_token_attention_are_refused(constant: bool) -> None:
    """They would lack terms. Also if the incoming gradient is a constant, which torch does not detect."""
    attn: Any = tiny_vit().double().blocks[0].attn
    y = images(2, 9, 48).double().requires_grad_()
    o = ClassTokenAttention.from_linear(attn.qkv, attn.heads, torch.float64)(y[:, 0], y)
    loss = o.sum() if constant else o.square().sum()
    with pytest.raises(VitreousError, match="first derivatives only"):
        torch.autograd.grad(loss, y, create_graph=True)


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
def test_a_full_size_model(precision: Any, most: float, gelu: str) -> None:
    model = full_size("B/16", gelu=gelu)
    pixels = torch.randint(0, 256, (100, 3, 224, 224), dtype=torch.uint8, device="cuda")
    images = model.preprocessing.normalise(pixels)
    run = accelerate(model, precision)
    with torch.no_grad():
        exact = model(images)
    for _ in range(3):  # small batches: eager, then captured, then replayed
        for count in (100, 1, 5):
            assert distance(run(images[:count]), exact[:count]) < most
            assert distance(run(pixels[:count]), exact[:count]) < most
    assert run(images[:1]).dtype == torch.float32


@gpu
def test_a_graph_replay_does_not_overwrite_earlier_outputs() -> None:
    run = accelerate(full_size("Ti/16"), "bf16")
    x, y = torch.randn(2, 2, 3, 224, 224, device="cuda")
    for _ in range(3):
        first = run(x)
        kept = first.clone()
        run(y)
        assert torch.equal(first, kept)


@gpu
def test_fp8_gives_the_reason_if_it_is_not_available() -> None:
    with pytest.raises(VitreousError, match="swiglu"):
        accelerate(full_size("Ti/16", mlp="swiglu"), "fp8")
    assert "swiglu" in accelerate(full_size("Ti/16", mlp="swiglu"), "bf16").path


@gpu
def test_matmuls_with_fused_epilogues() -> None:
    """cuBLASLt at sizes that fit its tiles and sizes that do not."""
    from vitreous.fast import cublaslt
    from vitreous.fast.kernels import FP8

    for rows, inner, outer in ((1000, 256, 512), (197, 768, 768), (33, 72, 40)):
        x, add = (torch.randn(rows, n, device="cuda").bfloat16() for n in (inner, outer))
        weight, bias = torch.randn(outer, inner, device="cuda").bfloat16() * 0.1, torch.randn(outer, device="cuda")
        exact = nn.functional.linear(x.double(), weight.double(), bias.bfloat16().double())
        half = bias.bfloat16()
        assert distance(cublaslt.linear(x, weight, half, add).double(), exact + add.double()) < 4e-3
        assert distance(cublaslt.linear(x, weight, None, add).double(), exact - half.double() + add.double()) < 4e-3
        if (found := cublaslt.linear_gelu(x, weight, half, keep_input=True)) is not None:
            assert distance(found[0].double(), nn.functional.gelu(exact, approximate="tanh")) < 4e-3
            assert distance(found[1].double(), exact) < 4e-3
            dz, back = torch.randn(rows, inner, device="cuda").bfloat16(), weight.t().contiguous()
            leaf = found[1].double().requires_grad_()
            nn.functional.gelu(leaf, approximate="tanh").backward(dz.double() @ back.double())
            dh, sums = cublaslt.matmul_gelu_backward(dz, back, found[1], True)
            assert distance(dh.double(), leaf.grad) < 1e-2
            assert distance(sums.sum(0).double(), dh.double().sum(0)) < 1e-4
        if inner % 16 == 0 and outer % 16 == 0:
            scales = cublaslt.Fp8Scales(torch.tensor(1 / 64, device="cuda"), torch.tensor(1 / 16, device="cuda"))
            x8, w8 = (x.float() * 16).to(FP8), (weight.float() * 64).to(FP8)
            exact = nn.functional.linear(x8.double() / 16, w8.double() / 64, half.double())
            assert distance(cublaslt.linear_fp8(x8, w8, scales, half).double(), exact) < 8e-3
            assert distance(cublaslt.linear_fp8(x8, w8, scales, half, add).double(), exact + add.double()) < 8e-3
            factor = torch.tensor(8.0, device="cuda")
            if (found8 := cublaslt.linear_gelu_fp8(x8, w8, scales, half, factor)) is not None:
                assert distance(found8.double() / 8, nn.functional.gelu(exact, approximate="tanh")) < 0.04


@gpu
def test_accelerate_leaves_a_model_on_the_gpu_unchanged() -> None:
    model = full_size("Ti/16")
    copy = deepcopy(model)
    accelerate(model, "fp8")(torch.randn(2, 3, 224, 224, device="cuda"))
    for ours, theirs in zip(model.parameters(), copy.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.requires_grad


def test_autocast_does_not_change_the_precision() -> None:
    """On the plain path and on the packed one."""
    packed, plain = tiny_vit(), tiny_vit()
    plain.blocks[0].register_forward_hook(lambda *arguments: None)
    x = images(2, 3, 32, 32)
    for model in (packed, plain):
        run = accelerate(model)
        expected = run(x)
        with torch.autocast("cpu", torch.float16):
            found = run(x)
        assert found.dtype == torch.float32
        assert found.equal(expected)
