"""Patches, positions and their resampling."""

from typing import get_args

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from helpers import images, outputs, tiny_vit
from vitreous import VitreousError
from vitreous.models import ViTConfig, embed
from vitreous.models.embed import (
    RESAMPLING,
    Policy,
    patch_grid,
    project_by_convolution,
    project_by_linear,
    relative_bias,
    resample,
    sincos_1d,
    sincos_2d,
)

side = st.integers(1, 12)


def test_every_policy_has_its_row() -> None:
    assert set(RESAMPLING) == set(get_args(Policy))


@given(
    st.integers(1, 3), st.integers(1, 4), side, side, st.integers(1, 5), st.integers(1, 5), st.integers(0, 4), st.data()
)
@settings(max_examples=60, deadline=None)
def test_convolution_and_linear_projection_agree(
    batch: int, channels: int, h: int, w: int, rows: int, cols: int, extra: int, data: st.DataObject
) -> None:
    """For any patch, square or not, and whatever is left over at the border."""
    pad = data.draw(st.tuples(st.integers(0, min(extra, h - 1)), st.integers(0, min(extra, w - 1))))
    x = images(batch, channels, rows * h + pad[0], cols * w + pad[1])
    weight, bias = images(5, channels, h, w, seed=2), images(5, seed=3)
    expected = project_by_convolution(x, weight, bias)
    assert expected.shape == (batch, rows * cols, 5)
    torch.testing.assert_close(project_by_linear(x, weight, bias), expected, rtol=1e-4, atol=1e-4)


def interpolate(table: torch.Tensor, policy: str, old: tuple[int, int], new: tuple[int, int]) -> torch.Tensor:
    """Each policy as its own program calls torch."""
    grid = table.unflatten(1, old).permute(0, 3, 1, 2).double()
    if policy == "google":
        grid = F.interpolate(grid, size=new, mode="bilinear", align_corners=True)
    elif policy == "torchvision":
        grid = F.interpolate(grid, size=new, mode="bicubic", align_corners=True)
    elif policy in ("dino", "dinov2"):
        scale = tuple((n + 0.1) / o for n, o in zip(new, old, strict=True))
        grid = F.interpolate(grid, scale_factor=scale, mode="bicubic")
    else:
        grid = F.interpolate(grid, size=new, mode="bicubic", antialias=policy in ("timm", "dinov2-registers"))
    assert grid.shape[-2:] == new
    return grid.flatten(2).transpose(1, 2).float()


@given(st.sampled_from(sorted(RESAMPLING)), side, side, side, side)
@settings(max_examples=200, deadline=None)
def test_resampling_equals_what_each_program_does(policy: str, r: int, c: int, rows: int, cols: int) -> None:
    table = images(2, r * c, 3)
    ours = resample(table, (r, c), (rows, cols), policy)
    torch.testing.assert_close(ours, interpolate(table, policy, (r, c), (rows, cols)), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("old", "new"), [((4, 4), (7, 7)), ((14, 14), (24, 24)), ((4, 4), (2, 8)), ((5, 3), (2, 9))])
def test_google_resampling_is_scipy_zoom(old: tuple[int, int], new: tuple[int, int]) -> None:
    table = images(1, old[0] * old[1], 6)
    zoomed = scipy.ndimage.zoom(table.numpy().reshape(*old, 6), (new[0] / old[0], new[1] / old[1], 1), order=1)
    np.testing.assert_allclose(resample(table, old, new, "google")[0].numpy(), zoomed.reshape(-1, 6), atol=1e-6)


@pytest.mark.parametrize("policy", sorted(RESAMPLING))
def test_same_number_of_tokens_is_not_the_same_grid(policy: str) -> None:
    """4 x 4 to 2 x 8 is resampled, where a count of tokens would reuse the table as it is."""
    model = tiny_vit(resample=policy)
    native = model.pos_embed[:, 1:].unflatten(1, (4, 4))
    table = embed.position_table(model.config, {"pos_embed": model.pos_embed}, (2, 8), like=model.pos_embed)
    assert table is not None
    stretched = table[:, 1:].unflatten(1, (2, 8))
    assert not torch.allclose(stretched.flatten(1, 2), native.flatten(1, 2), atol=0.1)
    torch.testing.assert_close(table[:, 0], model.pos_embed[:, 0])  # the class token's stays
    assert outputs(model, images(1, 3, 16, 64)).shape == (1, 7)


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d"])
def test_another_size_in_inference_mode_then_in_training(position: str) -> None:
    """Tensors made in inference mode must not reach a later training step."""
    model = tiny_vit(position=position, position_slots="patches")
    with torch.inference_mode():
        first = model(images(1, 3, 72, 40))
    torch.testing.assert_close(model(images(1, 3, 72, 40)), first)
    model.train()(images(1, 3, 72, 40)).sum().backward()


def test_another_size_under_function_transforms_and_fake_tensors() -> None:
    """Real, transformed and fake tensors do not mix, in any order of use."""
    model = tiny_vit()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    torch.func.grad(lambda p: torch.func.functional_call(model, p, (images(1, 3, 80, 24),)).sum())(parameters)
    mode = FakeTensorMode()
    fakes = {name: mode.from_tensor(p) for name, p in parameters.items()}
    for _ in range(2):
        with mode:
            shape = torch.func.functional_call(model, fakes, (torch.empty(1, 3, 80, 24),)).shape
        assert shape == (1, 7)
        assert outputs(model, images(1, 3, 80, 24)).isfinite().all()


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d", "none"])
def test_the_native_size_never_touches_the_resampler(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("resampled at the native size")

    model = tiny_vit(position=position, image_size=(32, 48))
    monkeypatch.setattr(embed, "resample", forbidden)
    assert outputs(model, images(1, 3, 32, 48)).shape == (1, 7)
    if position in ("learned-1d", "learned-2d", "relative"):
        with pytest.raises(AssertionError, match="resampled"):
            outputs(model, images(1, 3, 48, 32))


def test_learned_2d_is_two_tables_side_by_side() -> None:
    model = tiny_vit(position="learned-2d", image_size=(16, 32))
    tables = {name: model.get_parameter(name) for name in ("pos_embed_x", "pos_embed_y", "pos_embed_slots")}
    table = embed.position_table(model.config, tables, (2, 4), like=model.pos_embed_x)
    assert table is not None
    for row in range(2):
        for col in range(4):
            place = table[0, 1 + row * 4 + col]
            assert torch.equal(place[:24], model.pos_embed_x[0, col])
            assert torch.equal(place[24:], model.pos_embed_y[0, row])


def test_sincos_1d_is_the_transformers() -> None:
    table = sincos_1d(50, 16, like=torch.empty(1))
    for pos, i in ((0, 0), (3, 2), (49, 7)):
        angle = pos / 10000 ** (2 * i / 16)
        assert table[pos, 2 * i] == pytest.approx(np.sin(angle), abs=1e-6)
        assert table[pos, 2 * i + 1] == pytest.approx(np.cos(angle), abs=1e-6)


def test_sincos_2d_at_one_place() -> None:
    table = sincos_2d((3, 5), 16, like=torch.empty(1)).reshape(3, 5, 16)
    omega = [1e4 ** -(i / 3) for i in range(4)]
    x, y = 4, 2
    expected = [f(v * o) for v, f in ((x, np.sin), (x, np.cos), (y, np.sin), (y, np.cos)) for o in omega]
    np.testing.assert_allclose(table[y, x], expected, atol=1e-6)


def test_relative_bias_by_its_definition() -> None:
    """Each query attends to the embedding of its offset to each key; the prefix has no place."""
    rows, cols, heads, d, prefix = 2, 3, 2, 4, 1
    q = images(2, heads, prefix + rows * cols, d)
    table = images((2 * rows - 1) * (2 * cols - 1), heads * d, seed=2)
    bias = relative_bias(q, table, (rows, cols), prefix)
    assert bias.shape == (2, heads, 7, 7)
    assert not bias[:, :, 0].any()
    assert not bias[:, :, :, 0].any()
    embeddings = table.view(2 * rows - 1, 2 * cols - 1, heads, d)
    for i in range(rows * cols):
        for j in range(rows * cols):
            offset = (i // cols - j // cols + rows - 1, i % cols - j % cols + cols - 1)
            expected = (q[:, :, prefix + i] * embeddings[offset]).sum(-1) / d**0.5
            torch.testing.assert_close(bias[:, :, prefix + i, prefix + j], expected)


def test_relative_positions_matter_and_reach_every_layer() -> None:
    model = tiny_vit(position="relative", pool="gap")
    assert model.rel_pos_embed.shape == (2, 49, 48)
    assert tiny_vit(position="relative", position_at="every-layer-shared").rel_pos_embed.shape == (1, 49, 48)
    x = images(1, 3, 32, 32)
    moved = torch.roll(x, 8, dims=3)
    assert (outputs(model, x) - outputs(model, moved)).abs().max() > 1e-3
    model.train()(x).sum().backward()
    assert all(layer.abs().sum() > 0 for layer in model.rel_pos_embed.grad)


def test_positions_at_every_layer() -> None:
    """Shared is the one table again and again; its own for each layer starts equal when the tables are."""
    shared, own = (tiny_vit(position_at=at) for at in ("every-layer-shared", "every-layer"))
    assert (shared.pos_embed.shape, own.pos_embed.shape) == ((1, 17, 48), (2, 17, 48))
    state = shared.state_dict() | {"pos_embed": shared.pos_embed.expand(2, -1, -1)}
    own.load_state_dict(state)
    x = images(2, 3, 32, 40)
    torch.testing.assert_close(outputs(own, x), outputs(shared, x))
    with torch.no_grad():
        own.pos_embed[1] *= -1
    assert (outputs(own, x) - outputs(shared, x)).abs().max() > 1e-3


def test_registers_without_a_slot_get_no_position() -> None:
    model = tiny_vit(registers=2)
    table = embed.position_table(model.config, {"pos_embed": model.pos_embed}, (4, 4), like=model.pos_embed)
    assert table is not None
    assert table.shape == (1, 19, 48)
    assert not table[:, 1:3].any()
    assert tiny_vit(registers=2, position_slots="all").pos_embed.shape == (1, 19, 48)
    assert tiny_vit(registers=2, position_slots="patches").pos_embed.shape == (1, 16, 48)


@pytest.mark.parametrize(
    ("size", "stride", "patch", "crop", "grid"),
    [
        ((224, 224), 1, (16, 16), False, (14, 14)),
        ((230, 239), 1, (16, 16), True, (14, 14)),
        ((64, 48), 1, (8, 16), False, (8, 3)),
        ((224, 230), 16, (1, 1), False, (14, 15)),  # a backbone rounds up
        ((224, 224), 4, (8, 8), False, (7, 7)),
    ],
)
def test_patch_grid(
    size: tuple[int, int], stride: int, patch: tuple[int, int], crop: bool, grid: tuple[int, int]
) -> None:
    assert patch_grid(size, stride, patch, crop) == grid


def test_a_remainder_names_the_sizes_that_work() -> None:
    with pytest.raises(VitreousError, match=r"225 x 224 .* height that works is 224 or 240, width 224; .*crop"):
        ViTConfig().grid_at((225, 224))
    with pytest.raises(VitreousError, match=r"height that works is 16, width 16"):
        ViTConfig(remainder="crop").grid_at((10, 12))


def test_crop_is_what_a_valid_convolution_does() -> None:
    model = tiny_vit(remainder="crop")
    x = images(2, 3, 39, 33)
    torch.testing.assert_close(outputs(model, x), outputs(model, x[:, :, :32, :32]))
