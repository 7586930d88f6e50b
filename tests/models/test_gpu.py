"""What is claimed of a GPU, on one: `make test-gpu`."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import vitreous
from helpers import FIXTURES, SMALL_RESNET, images, oracle, outputs, relative_error, tiny_vit
from vitreous.models.embed import project_by_convolution, project_by_linear

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    """fp32 means fp32 here: no TF32 in the references."""
    saved = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = saved


def full_size(name: str) -> nn.Module:
    """As it starts training, but for the zeros that would hide what is behind them. Units of a ResNet stay near their
    shortcuts, as in a trained one: with gains of 1, gradients on noise are chaos, and any rounding replaces them."""
    torch.manual_seed(0)
    model = vitreous.create(name, device="cuda")
    nn.init.normal_(model.head.weight, std=0.02)
    for parameter_name, p in model.named_parameters():
        if parameter_name.endswith("norm3.weight"):
            nn.init.constant_(p, 0.05)
    return model


def run(model: nn.Module, x: Tensor, dtype: torch.dtype | None) -> list[Tensor]:
    """Logits and every gradient of one training step."""
    model.zero_grad()
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, torch.arange(len(x), device="cuda"))
    loss.backward()
    return [logits.detach().float(), *(p.grad.clone() for p in model.parameters())]


def distance(ours: Tensor, reference: Tensor) -> float:
    return ((ours - reference).norm() / reference.norm()).item()


def whole(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])


def nudged(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """The same in fp32 with weights and pixels rounded to bf16: what the format alone costs."""
    copy = deepcopy(model)
    with torch.no_grad():
        for p in copy.parameters():
            p.copy_(p.bfloat16())
    return copy, x.bfloat16().float()


@pytest.mark.parametrize("name", ["B/16", "R50+B/16", "BiT-R50x1"])
@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_agrees_within_its_rounding(name: str, compiled: bool) -> None:
    """Forward and backward in bf16 are off by less than three times what rounding weights and pixels once does."""
    torch._dynamo.reset()
    model = full_size(name)
    x = torch.randn(16, 3, 224, 224, device="cuda")
    exact, allowed = run(model, x, None), run(*nudged(model, x), None)
    rounded = run(torch.compile(model, fullgraph=True) if compiled else model, x, torch.bfloat16)
    for what, select in (("forward", lambda r: r[0]), ("gradient", lambda r: whole(r[1:]))):
        error, unit = (distance(select(r), select(exact)) for r in (rounded, allowed))
        print(f"\n{name} {'compiled' if compiled else 'eager'} {what}: bf16 {error:.1e}, rounding alone {unit:.1e}")
        assert unit < 0.1
        assert error < 3 * unit


@pytest.mark.parametrize("name", ["B/16", "R50+B/16", "BiT-R50x1"])
def test_weights_in_bf16(name: str) -> None:
    model = full_size(name).eval()
    x = torch.randn(8, 3, 256, 224, device="cuda")
    exact = outputs(model, x)
    copy, rounded_x = nudged(model, x)
    unit = distance(outputs(copy, rounded_x), exact)
    rounded = outputs(model.bfloat16(), x.bfloat16())
    assert rounded.dtype == torch.bfloat16
    error = distance(rounded.float(), exact)
    print(f"\n{name} weights in bf16: {error:.1e}, rounding alone {unit:.1e}")
    assert error < 6 * unit  # every activation is rounded too, the residual stream included


@pytest.mark.filterwarnings("ignore:TensorFloat32")  # off on purpose
@pytest.mark.parametrize("name", ["B/16", "BiT-R50x1"])
def test_compiled_batches_share_one_graph(name: str) -> None:
    torch._dynamo.reset()
    model = full_size(name).eval()
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for batch in (2, 5, 16):
        x = torch.randn(batch, 3, 224, 224, device="cuda")
        torch._dynamo.mark_dynamic(x, 0)
        assert distance(outputs(compiled, x), outputs(model, x)) < 1e-4
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["google_vit_token_prelogits", "google_hybrid_r", "bv_map_learn", "bit_v2_small"])
def test_oracles(name: str) -> None:
    _, facts = oracle(name)
    model = vitreous.load(FIXTURES / f"{name}.npz", device="cuda")
    assert all(p.is_cuda for p in model.parameters())
    for key in facts:
        if key.startswith("input_"):
            x = torch.from_numpy(facts[key]).permute(0, 3, 1, 2).cuda()
            assert relative_error(outputs(model, x).cpu(), facts[key.replace("input", "logits")]) <= 1e-5


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d", "none"])
@pytest.mark.parametrize("size", [(32, 32), (48, 40)])
def test_positions(position: str, size: tuple[int, int]) -> None:
    model = tiny_vit(position=position, registers=1)
    x = images(2, 3, *size)
    here = outputs(model, x)
    assert relative_error(outputs(model.cuda(), x.cuda()).cpu(), here) <= 1e-5


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("position", ["learned-1d", "relative", "sincos-1d", "sincos-2d"])
def test_compiled_at_another_size(position: str) -> None:
    torch._dynamo.reset()
    model = tiny_vit(position=position).cuda()
    compiled = torch.compile(model, fullgraph=True)
    for size in ((32, 32), (48, 40), (24, 64)):
        x = images(2, 3, *size).cuda()
        assert relative_error(outputs(compiled, x), outputs(model, x)) < 1e-4


def test_both_patch_projections() -> None:
    x = torch.randn(4, 3, 230, 224, device="cuda")
    weight, bias = torch.randn(768, 3, 16, 16, device="cuda") / 30, torch.randn(768, device="cuda")
    torch.testing.assert_close(
        project_by_linear(x, weight, bias), project_by_convolution(x, weight, bias), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("changes", [{}, {"backbone": SMALL_RESNET, "patch_size": 1}, {"position": "relative"}])
def test_training_at_another_size_can_be_deterministic(changes: dict[str, Any]) -> None:
    """Positions are resampled in the graph; interpolation's own backward has no deterministic form on CUDA."""
    model = tiny_vit(**changes).cuda().train()
    x = images(4, 3, 64, 48).cuda()
    torch.use_deterministic_algorithms(True, warn_only=False)
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            first, second = (run(model, x, None) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_estimate_of_activations_is_near_the_truth() -> None:
    model = vitreous.create("B/16", device="cuda").train()
    measured = []
    for batch in (8, 24):
        x = torch.randn(batch, 3, 224, 224, device="cuda")
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        logits = model(x)
        measured.append(torch.cuda.memory_allocated() - before)
        del logits
    one_image = (measured[1] - measured[0]) / 16
    estimate = vitreous.cost(model).activation_bytes
    print(f"\nB/16 fp32: {one_image / 2**20:.1f} MiB measured, {estimate / 2**20:.1f} MiB estimated")
    assert estimate == pytest.approx(one_image, rel=0.05)
