"""Filters, positions and tokens, compared with their definitions."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers import SMALL_RESNET, draw, images, tiny_vit
from vitreous import VitreousError, inspection
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.utils.figures import render_figure

# ---------------------------------------------------------------- filters


@pytest.mark.parametrize("kind", ["vit", "hybrid", "bit"])
def test_filters_equal_principal_components(kind: str) -> None:
    if kind == "bit":
        model: Any = draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7)))
    else:
        model = tiny_vit(**({"patch_size": 1, "backbone": SMALL_RESNET} if kind == "hybrid" else {}))
    weight = model.patch_embed.proj.weight if kind == "vit" else model.backbone.stem.conv.weight
    found = inspection.embedding_filters(model, 5)
    assert found.components.shape == (5, *weight.shape[1:])
    assert ("patch embedding" if kind == "vit" else "first convolution") in found.of
    values, vectors = np.linalg.eigh(np.cov(weight.detach().double().flatten(1).numpy().T))
    assert np.allclose(found.share, values[::-1][:5] / values.sum(), atol=1e-5)
    flat = found.components.flatten(1).double().numpy()
    assert np.allclose(np.abs(np.diag(flat @ vectors[:, ::-1][:, :5])), 1, atol=1e-4)  # up to the sign
    assert render_figure(found.figure(), "png", 50)


def test_number_of_filters() -> None:
    assert len(inspection.embedding_filters(tiny_vit(width=12, heads=3), 500).components) <= 12
    with pytest.raises(VitreousError, match="count = 0"):
        inspection.embedding_filters(tiny_vit(), 0)


# ---------------------------------------------------------------- positions


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "sincos-1d", "sincos-2d"])
@pytest.mark.parametrize("size", [None, (32, 48)])
def test_position_similarity(position: Any, size: Any) -> None:
    """The tokens of a zero image are position embeddings plus a constant."""
    model = tiny_vit(position=position, registers=1)
    grid = model.config.grid_at(size or (32, 32))
    found = inspection.position_similarity(model, size)
    assert found.similarity.shape == (*grid, *grid)
    with torch.no_grad():
        blank = torch.zeros(1, 3, 8 * grid[0], 8 * grid[1])
        places = model.embed(blank)[0][0, model.config.prefix :] - model.patch_embed(blank)[0]
    expected = F.cosine_similarity(places[:, None], places[None], dim=-1)
    torch.testing.assert_close(found.similarity.flatten(2).flatten(0, 1), expected, atol=1e-5, rtol=0)
    assert render_figure(found.figure(), "png", 50)


def test_position_similarity_by_layer() -> None:
    model = tiny_vit(position="learned-1d", position_at="every-layer")
    first, second = (inspection.position_similarity(model, layer=layer).similarity for layer in (0, 1))
    assert not torch.allclose(first, second)
    with pytest.raises(VitreousError, match="the model has 2 layers"):
        inspection.position_similarity(model, layer=2)


@pytest.mark.parametrize("size", [(32, 32), (16, 40)])
def test_relative_position_biases_by_offset(size: tuple[int, int]) -> None:
    """The result is the bias of the mean query for every offset."""
    model, x = tiny_vit(position="relative"), images(2, 3, *size)
    found = inspection.position_similarity(model, size, layer=1, images=x)
    rows, cols = found.grid
    assert found.similarity.shape == (3, 2 * rows - 1, 2 * cols - 1)
    queries: list[torch.Tensor] = []

    def visit(layer: int, block: Any, before: torch.Tensor, after: torch.Tensor, bias: Any) -> None:
        if layer == 1:
            queries.append(block.attn.split(block.norm1(before))[0])

    with torch.no_grad():
        model.encode(x, visit)
        mean = queries[0][:, :, 1:].mean((0, 2))  # (heads, d)
        table = model.rel_pos_embed if (rows, cols) == model.config.grid else None
    if table is not None:  # the table is not resampled
        offsets = table[1 % len(table)].unflatten(-1, (3, -1)).permute(1, 0, 2)  # (heads, offsets, d)
        plain = torch.einsum("hd,hod->ho", mean, offsets) * mean.shape[-1] ** -0.5
        theirs = plain.unflatten(1, (2 * rows - 1, 2 * cols - 1)).flip(
            1, 2
        )  # the table stores offsets from key to query
        torch.testing.assert_close(found.similarity, theirs.detach(), atol=1e-5, rtol=1e-4)
    # With equal queries, the bias of a pair depends only on its offset.
    y, x_ = rows // 2, cols // 2
    constant = mean[None, :, None].expand(1, -1, 1 + rows * cols, -1)
    from vitreous.models.embed import position_biases

    whole = position_biases(model.config, model.rel_pos_embed, found.grid)[1 % model.config.tables](constant)
    pairs = whole[0, :, 1:, 1:].unflatten(2, found.grid).unflatten(1, found.grid)
    for down, right in itertools.product(range(-y, rows - y), range(-x_, cols - x_)):
        torch.testing.assert_close(
            found.similarity[:, rows - 1 + down, cols - 1 + right], pairs[:, y, x_, y + down, x_ + right]
        )
    assert render_figure(found.figure(), "png", 50)


def test_relative_positions_without_images() -> None:
    model = tiny_vit(position="relative")
    assert inspection.position_similarity(model).similarity.any()  # for the bias of the qkv projection as query
    torch.nn.init.zeros_(model.blocks[0].attn.qkv.bias)
    with pytest.raises(VitreousError, match="pass images"):
        inspection.position_similarity(model)


def test_a_model_without_positions_is_an_error() -> None:
    with pytest.raises(VitreousError, match="has no position embeddings"):
        inspection.position_similarity(tiny_vit(position="none"))


# ---------------------------------------------------------------- tokens


def test_patch_similarity() -> None:
    model, x = tiny_vit(), images(2, 3, 32, 48)
    with torch.no_grad():
        (tokens,) = model.intermediates(x, [0])
    found = inspection.patch_similarity(model, x, (1, 4), layer=0)
    expected = F.cosine_similarity(tokens, tokens[:, :, 1:2, 4:5], dim=1)
    torch.testing.assert_close(found.cosines, expected, atol=1e-5, rtol=0)
    assert found.cosines[0, 1, 4].item() == pytest.approx(1, abs=1e-5)
    assert render_figure(found.figure(), "png", 50)
    with pytest.raises(VitreousError, match=r"\(row, column\) of 4 x 6 patches"):
        inspection.patch_similarity(model, x, (4, 0))


def test_components_equal_pca_over_all_images() -> None:
    sklearn = pytest.importorskip("sklearn.decomposition")
    model, x = tiny_vit(), images(3, 3, 32, 48)
    found = inspection.token_pca(model, x)
    assert found.colours.shape == (3, 4, 6, 3)
    with torch.no_grad():
        (tokens,) = model.intermediates(x, [-1])
    theirs = sklearn.PCA(3).fit(tokens.permute(0, 2, 3, 1).flatten(0, 2).double().numpy())
    assert np.allclose(found.share, theirs.explained_variance_ratio_, atol=1e-5)
    scores = theirs.transform(tokens.permute(0, 2, 3, 1).flatten(0, 2).double().numpy())
    inside = (found.colours > 0) & (found.colours < 1)
    for k in range(3):
        where = inside[..., k].flatten().numpy()
        together = np.corrcoef(scores[where, k], found.colours[..., k].flatten().numpy()[where])[0, 1]
        assert abs(together) > 0.9999
    assert torch.equal(found.colours, inspection.token_pca(model, x).colours)
    assert render_figure(found.figure(), "png", 50)


def test_tokens_of_a_single_patch_and_of_a_bit() -> None:
    assert inspection.token_pca(tiny_vit(image_size=8), images(2, 3, 8, 8)).colours.shape == (2, 1, 1, 3)
    bit = draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7)))
    x = images(1, 3, 64, 64)
    assert inspection.token_pca(bit, x).colours.shape[-1] == 3
    assert inspection.patch_similarity(bit, x, (0, 0)).cosines.ndim == 3
    with pytest.raises(VitreousError, match="no attention"):
        inspection.position_similarity(bit)


def test_components_of_equal_tokens_are_an_error() -> None:
    model = tiny_vit(position="none")
    with pytest.raises(VitreousError, match="all tokens are equal"):
        inspection.token_pca(model, torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("changes", [{}, {"pool": "map"}, {"pool": "gap", "final_norm": "after-pool"}])
def test_the_last_readout_is_the_prediction_of_the_model(changes: dict[str, Any]) -> None:
    model, x = tiny_vit(depth=3, representation_size=20, **changes), images(2, 3, 32, 32)
    found = inspection.depth_readout(model, x)
    assert found.probabilities.shape == (4, 2, 7)
    with torch.no_grad():
        torch.testing.assert_close(found.probabilities[-1], model(x).softmax(-1))
        shallow = tiny_vit(depth=3, representation_size=20, **changes)
        shallow.blocks = shallow.blocks[:1]
        torch.testing.assert_close(found.probabilities[1], shallow(x).softmax(-1))
    model.multi_label = True
    with torch.no_grad():
        torch.testing.assert_close(inspection.depth_readout(model, x).probabilities[-1], model(x).sigmoid())
    with pytest.raises(VitreousError, match="no head that classifies"):
        inspection.depth_readout(tiny_vit(num_classes=0), x)
