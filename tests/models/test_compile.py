"""One graph for every batch of two and more."""

import warnings
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from helpers import SMALL_RESNET, draw, images, outputs, tiny_vit
from vitreous import BiT, BiTConfig

MODELS: list[dict[str, Any]] = [
    {},
    {"pool": "map", "registers": 2, "mlp": "swiglu", "qk_norm": True, "layer_scale": 0.1},
    {"pool": "gap", "position": "sincos-2d"},
    {"position": "sincos-1d"},
    {"position": "relative"},
    {"position": "learned-2d", "position_at": "every-layer"},
    {"backbone": SMALL_RESNET, "patch_size": 1},
    {"attention": "axial", "depth": 3},
    {"attention": "axial", "pool": "gap", "registers": 0},
]


def share_one_graph(model: torch.nn.Module, size: tuple[int, int]) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for batch in (2, 3, 7):
        x = images(batch, 3, *size)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(outputs(compiled, x), outputs(model, x), rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1


@pytest.mark.parametrize("changes", MODELS)
@pytest.mark.parametrize("size", [(32, 32), (48, 40)])
def test_vit_shares_one_graph(changes: dict[str, Any], size: tuple[int, int]) -> None:
    share_one_graph(tiny_vit(**changes), size)


@pytest.mark.parametrize("activation", ["pre", "post"])
def test_bit_shares_one_graph(activation: str) -> None:
    share_one_graph(draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, activation=activation))), (64, 48))


@pytest.mark.parametrize("attention", ["full", "axial"])
def test_one_compiled_model_takes_many_sizes(attention: str) -> None:
    torch._dynamo.reset()
    model = tiny_vit(attention=attention)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for side in (32, 48, 64, 40):
        x = images(2, 3, side, 32)
        torch.testing.assert_close(outputs(compiled, x), outputs(model, x))


@pytest.mark.parametrize("changes", [{}, {"backbone": SMALL_RESNET, "patch_size": 1}, {"attention": "axial"}])
def test_inductor_agrees_forward_and_backward(changes: dict[str, Any]) -> None:
    torch._dynamo.reset()
    model = tiny_vit(**changes).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's own, about this machine
        compiled = torch.compile(model, fullgraph=True)
        for batch in (2, 5):
            x = images(batch, 3, 32, 40)
            torch._dynamo.mark_dynamic(x, 0)
            gradients = []
            for run in (model, compiled):
                model.zero_grad()
                logits = run(x)
                logits.square().sum().backward()
                gradients.append([logits, *(p.grad.clone() for p in model.parameters())])
            for eager, fused in zip(*gradients, strict=True):
                torch.testing.assert_close(fused, eager, rtol=1e-3, atol=1e-3 * eager.abs().max().item())


def test_export_at_another_size_leaves_no_trace() -> None:
    """torch.export runs the model on tensors that are not there; none of them may be kept."""
    model = tiny_vit()
    x = images(2, 3, 56, 24)
    model(x)  # what this size needs is kept from here on
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)
    y = images(3, 3, 56, 24)
    torch.testing.assert_close(program.module()(y), model(y))
