"""Concentration of attention, attention sinks and the opening layer, compared with explicit loops."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import images, plant_sinks, tiny_vit
from vitreous.inspection.attention_sinks import LayerAttention, opening_layer, summarise_layer, token_lengths
from vitreous.inspection.filter_kinds import grey_share, neighbour_correlation
from vitreous.inspection.pair_similarity import summarise_pairs
from vitreous.models.vit import VisionTransformer

SUMMARY = LayerAttention(0, 16, 0.9, 10.0, 2.0, (), 0.0, 0.0)


@torch.no_grad()
def before_each_layer(model: VisionTransformer, x: Tensor) -> list[Tensor]:
    tokens, _ = model.embed(x)
    found = []
    for block in model.blocks:
        found.append(tokens[0])
        tokens = block(tokens)
    return found


@pytest.mark.parametrize(
    ("changes", "sinks", "query"),
    [({}, (5,), 0), ({"registers": 2}, (0, 11), 0), ({"pool": "gap"}, (5,), None), ({}, (), 0)],
)
def test_summaries_are_those_of_explicit_loops(
    changes: dict[str, Any], sinks: tuple[int, ...], query: int | None
) -> None:
    model = plant_sinks(tiny_vit(**changes), sinks, 1)
    x, prefix = images(1, 3, 32, 32), model.config.prefix
    lengths = token_lengths(model, x)[:, 0]
    with torch.no_grad():
        weights = [w[0] for w in model.attention(x, [0, 1])]
    for layer, tokens in enumerate(before_each_layer(model, x)):
        norms = [math.sqrt(float(token.double().square().sum())) for token in tokens]
        assert lengths[layer].tolist() == pytest.approx(norms, rel=1e-5)
        rows = weights[layer].mean(0).tolist()
        patches = range(prefix, len(rows))
        row = rows[query] if query is not None else [sum(rows[i][k] for i in patches) / 16 for k in range(len(rows))]
        total = sum(row[k] for k in patches)
        shares = [row[k] / total for k in patches]
        received = [sum(rows[i][k] for i in patches) for k in patches]
        median = sorted(norms[prefix:])[7]  # of 16: torch's median is the lower of the two in the middle
        expected = [k for k in range(16) if received[k] >= 3 * sum(received) / 16 and norms[prefix + k] >= 1.5 * median]
        found = summarise_layer(layer, weights[layer], lengths[layer], prefix, query)
        assert (found.layer, found.patches, list(found.sinks)) == (layer, 16, expected)
        assert found.to_patches == pytest.approx(total, rel=1e-5)
        assert found.spread == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares if p)), rel=1e-4)
        assert found.largest == pytest.approx(16 * max(shares), rel=1e-5)
        assert found.sink_share == pytest.approx(sum(shares[k] for k in expected), abs=1e-6)
        long = [norms[prefix + k] / median for k in expected]
        assert found.sink_length == pytest.approx(sum(long) / len(long) if long else 0, rel=1e-5)
        if layer == 1:
            assert found.sinks == sinks


def test_the_opening_layer_is_the_most_concentrated_without_sinks() -> None:
    layers = [replace(SUMMARY, layer=i, spread=s) for i, s in enumerate((15.0, 9.0, 12.0, 2.0))]
    layers[3] = replace(layers[3], sinks=(1,), sink_share=0.6)
    assert (opening_layer(layers).layer, opening_layer(layers).why) == (1, "concentrated")
    layers[3] = replace(layers[3], sink_share=0.04)  # too little to matter
    assert opening_layer(layers).layer == 3
    even = [replace(SUMMARY, layer=i, spread=s) for i, s in enumerate((15.9, 14.5))]
    assert (opening_layer(even).layer, opening_layer(even).why) == (1, "nearly uniform")
    sinks = [replace(SUMMARY, layer=i, sinks=(1,), sink_share=s) for i, s in enumerate((0.5, 0.2, 0.3))]
    assert (opening_layer(sinks).layer, opening_layer(sinks).why) == (1, "all have sinks")


def test_pairs_of_patches() -> None:
    vectors = torch.nn.functional.normalize(images(6, 4), dim=1)
    similarity = vectors @ vectors.T
    places = [(row, col) for row in range(2) for col in range(3)]
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    near = [(i, j) for i, j in pairs if abs(places[i][0] - places[j][0]) + abs(places[i][1] - places[j][1]) == 1]
    nearest = [max((j for j in range(6) if j != i), key=lambda j, i=i: float(similarity[i, j])) for i in range(6)]
    found = summarise_pairs(similarity, (2, 3))
    assert found is not None
    assert found.mean == pytest.approx(sum(float(similarity[p]) for p in pairs) / 30)
    assert found.neighbours == pytest.approx(sum(float(similarity[p]) for p in near) / len(near))
    assert found.nearest == pytest.approx(sum((i, j) in near for i, j in enumerate(nearest)) / 6)
    assert summarise_pairs(torch.ones(1, 1), (1, 1)) is None


def test_kinds_of_filters() -> None:
    ramp = torch.linspace(1, 2, 8).expand(8, 8)
    checks = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(4, 4)
    one = images(8, 8)
    smooth = neighbour_correlation(torch.stack([ramp, checks, one])[:, None])
    assert smooth is not None
    pairs = [(one[y, x], one[y + 1, x]) for y in range(7) for x in range(8)]
    pairs += [(one[y, x], one[y, x + 1]) for y in range(8) for x in range(7)]
    first, second = sum(float(a) ** 2 for a, _ in pairs), sum(float(b) ** 2 for _, b in pairs)
    expected = sum(float(a * b) for a, b in pairs) / math.sqrt(first * second)
    assert smooth.tolist() == [pytest.approx(1, abs=0.02), pytest.approx(-1), pytest.approx(expected, rel=1e-5)]
    assert neighbour_correlation(torch.ones(4, 3, 1, 1)) is None
    colours = torch.stack([torch.stack([ramp, ramp, ramp]), torch.stack([ramp, -ramp, 0 * ramp])])
    grey = grey_share(colours)
    assert grey is not None
    assert grey.tolist() == pytest.approx([1, 0], abs=1e-6)
    assert grey_share(torch.ones(4, 1, 2, 2)) is None
