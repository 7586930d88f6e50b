"""The sentences of the inspection page: every number is recomputed from the model, every branch has an example."""

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from helpers import draw, plant_sinks, tiny_vit
from vitreous.inspection import relevance
from vitreous.inspection.attention_sinks import LayerAttention, OpeningLayer
from vitreous.inspection.distance import Distances
from vitreous.inspection.embeddings import Positions
from vitreous.inspection.pair_similarity import PairSimilarity
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.reports import inspect_model
from vitreous.reports.course import CHAPTERS, course_reference
from vitreous.reports.inspect_model import InputImage, ModelDescription
from vitreous.reports.inspection_model_text import describe_distances, describe_positions
from vitreous.reports.inspection_text import (
    RANDOM,
    describe_attention,
    describe_components,
    describe_depth,
    describe_opening,
    describe_relevance,
    describe_rollout,
    describe_similarity,
)
from vitreous.reports.percentages import class_percentages, precise_percentage
from vitreous.weights.model_info import preprocessing_of

pytest.importorskip("matplotlib")


@dataclass(frozen=True)
class Inspected:
    model: Any
    numbers: dict[str, Any]
    inputs: list[Tensor]  # (1, C, H, W) each

    @property
    def text(self) -> dict[str, Any]:
        """The sentences about the first image."""
        return dict(self.numbers["images"][0]["text"])


def models() -> dict[str, Any]:
    return {
        "one sink": plant_sinks(tiny_vit(depth=3), (5,), 2),
        "two sinks, registers": plant_sinks(tiny_vit(registers=2), (0, 11), 1),
        "gap": tiny_vit(pool="gap", position="sincos-2d"),
        "relative": tiny_vit(pool="map", position="relative", heads=2),
        "features": tiny_vit(num_classes=0, depth=1, heads=1),
        "random": tiny_vit(),
        "bit": draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7))),
    }


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Inspected]:
    """Each model on two images. Figures are not rendered."""
    result = {}
    pictures = [Image.fromarray(np.random.default_rng(k).integers(0, 256, (32, 32, 3), dtype=np.uint8)) for k in (3, 4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect_model, "render_figure", lambda figure, kind, dpi: kind.encode())
        for name, model in models().items():
            out = tmp_path_factory.mktemp("inspected") / "out"
            inputs = [InputImage(f"{k}.png", picture) for k, picture in enumerate(pictures)]
            inspect_model.inspect_model(model, inputs, out, ModelDescription(name, random=name == "random"))
            preprocessing = preprocessing_of(model)
            x = [preprocessing.normalise(preprocessing.pixels(picture))[None] for picture in pictures]
            result[name] = Inspected(model, json.loads((out / "numbers.json").read_text()), x)
    return result


@torch.no_grad()
def mean_attention(one: Inspected, layer: int, image: int = 0) -> Any:
    """(T, T), the mean of the heads."""
    return one.model.attention(one.inputs[image], [layer])[0][0].double().mean(0).numpy()


def from_query(one: Inspected, weights: Any) -> Any:
    """The row of the class token, or the mean of the rows of the patches."""
    prefix = one.model.config.prefix
    return (weights[0] if one.model.config.class_token else weights[prefix:].mean(0))[prefix:]


def spread(shares: Any) -> float:
    shares = shares / shares.sum()
    return math.exp(-sum(p * math.log(p) for p in shares if p > 0))


# ---------------------------------------------------------------- one image


@pytest.mark.parametrize("name", ["one sink", "two sinks, registers", "gap", "relative"])
def test_attention_sentences_state_the_numbers_of_the_layer(inspected: dict[str, Inspected], name: str) -> None:
    one = inspected[name]
    heads = one.model.config.heads
    for layer, sentences in enumerate(one.text["attention"]):
        row = from_query(one, mean_attention(one, layer))
        assert sentences[0].startswith(f"Layer {layer + 1}, mean of the {heads} heads: the ")
        assert f"spread over {spread(row):.0f} of 16 patches (" in sentences[0]
        few = f"Only about {100 * row.sum():.0f}% of the attention goes to patches at all."
        assert (few in sentences) == (row.sum() < 0.495)
        if "attention sink" in " ".join(sentences) and "no patch is" not in " ".join(sentences):
            continue  # the next test
        factor = f"he brightest patch receives {row.max() / row.mean():.1f} times the average"
        assert factor in " ".join(sentences)


@pytest.mark.parametrize(("name", "sinks"), [("one sink", (5,)), ("two sinks, registers", (0, 11))])
def test_attention_sinks_are_named_with_their_share(
    inspected: dict[str, Inspected], name: str, sinks: tuple[int, ...]
) -> None:
    one = inspected[name]
    last = one.model.config.depth - 1
    row = from_query(one, mean_attention(one, last))
    share = f"{100 * row[list(sinks)].sum() / row.sum():.1f}%"
    sentences = " ".join(one.text["attention"][last])
    if len(sinks) == 1:
        assert f"1 of 16 patches receives {share} of this attention and is an attention sink:" in sentences
        assert "Do not read it as the object: look at layer" in sentences
    else:
        assert f"2 of 16 patches receive {share} of this attention and are attention sinks:" in sentences
        assert "Do not read them as the object: look at layer" in sentences
    with torch.no_grad():
        tokens, _ = one.model.embed(one.inputs[0])
        for block in one.model.blocks[:last]:
            tokens = block(tokens)
    norms = np.linalg.norm(tokens[0, one.model.config.prefix :].double().numpy(), axis=1)
    longer = norms[list(sinks)].mean() / np.sort(norms)[7]
    assert f"as long as the median ({longer:.1f} times{'' if len(sinks) == 1 else ' on average'})." in sentences
    assert "Darcet et al. (2023)" in sentences
    assert "this is not tested here" in sentences
    assert one.numbers["images"][0]["layers"][last]["sinks"] == list(sinks)
    assert not any("Darcet" in sentence for layer in range(last) for sentence in one.text["attention"][layer])
    assert f"Layer {last + 1} has attention sinks" in " ".join(one.text["opening"])


def test_the_opening_sentence_names_the_most_concentrated_layer_without_sinks(inspected: dict[str, Inspected]) -> None:
    one = inspected["one sink"]
    spreads = {layer: spread(from_query(one, mean_attention(one, layer))) for layer in (0, 1)}  # layer 3 has sinks
    best = min(spreads, key=lambda layer: spreads[layer])
    numbers = one.numbers["images"][0]
    sinks = {layer: numbers["layers"][layer]["sink_share"] >= 0.05 for layer in range(3)}
    assert sinks == {0: False, 1: False, 2: True}
    assert numbers["opening_layer"] == best + 1
    assert numbers["text"]["opening"][0] == (
        f"This image opens on layer {best + 1} of 3: of the layers without attention sinks, the attention of the class "
        f"token to patches is the most concentrated here, spread over {spreads[best]:.0f} of 16 patches."
    )
    assert f"look at layer {best + 1} or at the relevance further down" in " ".join(numbers["text"]["attention"][2])
    only = inspected["features"].text["opening"][0]
    row = from_query(inspected["features"], mean_attention(inspected["features"], 0))
    assert only == (
        "This image opens on layer 1 of 1, the only one: the attention of the class token to patches is spread over "
        f"{spread(row):.0f} of 16 patches."
    )


@pytest.mark.parametrize("name", ["one sink", "gap"])
def test_rollout_sentences(inspected: dict[str, Inspected], name: str) -> None:
    one, whole = inspected[name], None
    for layer in range(one.model.config.depth):
        step = mean_attention(one, layer) + np.eye(16 + one.model.config.prefix)
        step /= step.sum(1, keepdims=True)
        whole = step if whole is None else step @ whole
    values = from_query(one, whole)
    sentences = " ".join(one.text["rollout"])
    row, col = divmod(int(values.argmax()), 4)
    best = f"{precise_percentage(values.max())} for the brightest, at row {row + 1}, column {col + 1}, and "
    assert best in sentences
    assert float(sentences.split(best)[1].split("%")[0]) == pytest.approx(100 * values.mean(), abs=0.051)
    factor = values.max() / values.min()
    only = "only " if factor < 3 else ""
    assert f"The brightest patch has {only}{factor:.1f} times the weight of the darkest" in sentences
    top = set(np.argsort(-values)[:10].tolist())
    sinks = {k for layer in one.numbers["images"][0]["layers"] if layer["sink_share"] >= 0.05 for k in layer["sinks"]}
    shared = len(top & sinks)
    assert (f"{shared} of its 10 brightest patches" in sentences) == (shared > 0)


def test_relevance_sentences(inspected: dict[str, Inspected]) -> None:
    one = inspected["two sinks, registers"]
    maps = relevance(one.model, one.inputs[0], top=5).maps[0].double().numpy()
    with torch.no_grad():
        probabilities = one.model(one.inputs[0]).softmax(-1)[0]
    order = probabilities.argsort(descending=True)[:5].tolist()
    parts = class_percentages(probabilities, order)
    assert len(one.text["relevance"]) == 5
    for k, sentences in enumerate(one.text["relevance"]):
        values = sorted(maps[k].flatten().tolist(), reverse=True)
        count = next(n for n in range(1, 17) if sum(values[:n]) >= sum(values) / 2)
        row, col = np.unravel_index(maps[k].argmax(), (4, 4))
        assert sentences[0] == (
            f"What speaks for class {order[k]} (probability {parts[k]}): half of the relevance lies in {count} of 16 "
            f"patches, and the highest is at row {row + 1}, column {col + 1}."
        )
        cosines = {
            j: float((maps[k] * maps[j]).sum() / np.linalg.norm(maps[k]) / np.linalg.norm(maps[j]))
            for j in range(5)
            if j != k
        }
        other = max(cosines, key=lambda j: cosines[j])
        alike = cosines[other]
        meaning = (
            "not what tells them apart" if alike >= 0.9 else "overlap in part" if alike >= 0.5 else "different patches"
        )
        assert f"that of class {order[other]} (cosine {alike:.2f}): " in sentences[1]
        assert meaning in sentences[1]


@pytest.mark.parametrize("name", ["one sink", "bit"])
def test_similarity_and_component_sentences(inspected: dict[str, Inspected], name: str) -> None:
    one = inspected[name]
    what = "features" if name == "bit" else "tokens"
    with torch.no_grad():
        last = -1 if name != "bit" else len(one.model.config.blocks) - 1
        tokens = one.model.intermediates(one.inputs[0], [last])[0][0].double()
    rows, cols = tokens.shape[1:]
    vectors = tokens.flatten(1).T.numpy()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    count = rows * cols
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    near = [(i, j) for i, j in pairs if abs(i // cols - j // cols) + abs(i % cols - j % cols) == 1]
    mean, neighbours = (float(np.mean([cosines[p] for p in some])) for some in (pairs, near))
    assert one.text["similarity"][0] == (
        f"Two {what} have a cosine similarity of {mean:.2f} on average, direct neighbours {neighbours:.2f}."
    )
    assert ("hardly more alike" in one.text["similarity"][1]) == (neighbours - mean < 0.1)
    power = np.sort(np.linalg.eigvalsh(np.cov(vectors.T)))[::-1]
    shares = power[:3] / power.sum()
    found = one.text["components"][0]
    stated = [float(word.strip(",").rstrip("%")) for word in found.split() if word.strip(",").endswith("%")]
    assert stated[:3] == pytest.approx(100 * shares, abs=0.11)
    assert round(10 * sum(stated)) == 1000  # parts of a whole


@pytest.mark.parametrize("name", ["one sink", "gap"])
def test_depth_sentences(inspected: dict[str, Inspected], name: str) -> None:
    one = inspected[name]
    model, probabilities = one.model, []
    with torch.no_grad():
        tokens, _ = model.embed(one.inputs[0])
        for block in (None, *model.blocks):
            tokens = tokens if block is None else block(tokens)
            normed = model.norm(tokens)[0]
            pooled = normed[0] if model.config.pool == "token" else normed[model.config.prefix :].mean(0)
            probabilities.append(model.head(pooled).softmax(-1))
    tops = [int(p.argmax()) for p in probabilities]
    best = tops[-1]
    order = probabilities[-1].argsort(descending=True)[:5].tolist()
    ends = [class_percentages(p, order)[0] for p in (probabilities[0], probabilities[-1])]
    found = one.text["depth"]
    assert found[0].endswith(
        f"the probability of class {best}, the final top class, goes from {ends[0]} before block 1 to {ends[1]} after "
        f"block {model.config.depth}."
    )
    first = max([k + 1 for k, top in enumerate(tops) if top != best], default=0)
    expected = f"From block {first} on, class {best} is" if first else f"At every depth, class {best} is"
    assert found[1] == f"{expected} the top class."
    rises = [float(b[best] - a[best]) for a, b in pairwise(probabilities)]
    if max(rises) > 0:
        block = rises.index(max(rises)) + 1
        assert found[2] == f"The largest rise, by {100 * max(rises):.1f} percentage points, is in block {block}."


# ---------------------------------------------------------------- the model


def test_filter_sentences(inspected: dict[str, Inspected]) -> None:
    one = inspected["one sink"]
    weight = one.model.patch_embed.proj.weight.detach().double().flatten(1).numpy()
    power = np.sort(np.linalg.eigvalsh(np.cov(weight.T)))[::-1][:48]
    share = power / power.sum()
    found = one.numbers["text"]["filters"]
    shown = 100 * share[:28].sum()
    assert found[0] == (
        f"28 principal components of the patch embedding (48 filters): together {shown:.1f}% of their variance, the "
        f"first alone {100 * share[0]:.1f}%; the other components have {100 - shown:.1f}%."
    )
    components = np.asarray(one.numbers["filters"]["components"])
    smooth = colour = 0
    for filter_ in components:
        first = np.concatenate([filter_[:, 1:].ravel(), filter_[:, :, 1:].ravel()])
        second = np.concatenate([filter_[:, :-1].ravel(), filter_[:, :, :-1].ravel()])
        smooth += first @ second / np.linalg.norm(first) / np.linalg.norm(second) >= 0.5
        colour += (filter_ - filter_.mean(0)).ravel() @ (filter_ - filter_.mean(0)).ravel() > 0.5
    assert found[1].startswith(f"{smooth} of 28 are smooth ")
    assert found[1].endswith(f"and {colour} differ between the colours more than they agree.")


def test_position_sentences(inspected: dict[str, Inspected]) -> None:
    for name in ("one sink", "gap"):
        one = inspected[name]
        with torch.no_grad():
            table = one.model.positions((4, 4))[0, one.model.config.prefix :].double().numpy()
        unit = table / np.linalg.norm(table, axis=1, keepdims=True)
        cosines = unit @ unit.T
        pairs = [(i, j) for i in range(16) for j in range(16) if i != j]
        near = [(i, j) for i, j in pairs if abs(i // 4 - j // 4) + abs(i % 4 - j % 4) == 1]
        mean, neighbours = (np.mean([cosines[p] for p in some]) for some in (pairs, near))
        found = one.numbers["text"]["positions"]
        assert found[0] == (
            f"One map for each of the 4 × 4 positions: two position embeddings have a cosine similarity of {mean:.2f} "
            f"on average, direct neighbours {neighbours:.2f}."
        )
        assert ("sines and cosines" in found[1]) == (name == "gap")
        if name != "gap":
            best = [max((j for j in range(16) if j != i), key=lambda j, i=i: cosines[i, j]) for i in range(16)]
            share = sum((i, j) in near for i, j in enumerate(best)) / 16
            assert found[1].startswith(
                f"For {100 * share:.1f}% of the positions a direct neighbour is the most similar:"
            )
    one = inspected["relative"]
    biases = np.asarray(one.numbers["positions"])
    places = [np.unravel_index(bias.argmax(), (7, 7)) for bias in biases]
    near = sum(abs(row - 3) <= 1 and abs(col - 3) <= 1 for row, col in places)
    assert "for 2 heads." in one.numbers["text"]["positions"][0]
    assert one.numbers["text"]["positions"][1].startswith(f"In {near} of 2 the largest bias is at the query")


def test_distance_sentences(inspected: dict[str, Inspected]) -> None:
    one = inspected["one sink"]
    prefix = one.model.config.prefix
    between = [[8 * math.hypot(i // 4 - j // 4, i % 4 - j % 4) for j in range(16)] for i in range(16)]
    uniform = float(np.mean(between))
    distance = np.zeros((3, 3))
    for x in one.inputs:
        with torch.no_grad():
            weights = [w[0][:, prefix:, prefix:].double().numpy() for w in one.model.attention(x, [0, 1, 2])]
        for layer in range(3):
            shares = weights[layer] / weights[layer].sum(-1, keepdims=True)
            distance[layer] += (shares * between).sum(-1).mean(-1) / 2
    local, far = int((distance <= uniform / 2).sum()), int((distance >= 0.75 * uniform).sum())
    found = one.numbers["text"]["distances"]
    assert found[0].endswith(f"averaged over 2 images; uniform attention would have {uniform:.0f} px.")
    assert found[1].startswith(
        f"The mean of the heads is {distance[0].mean():.0f} px in layer 1 and {distance[2].mean():.0f} px in layer 3; "
        f"{local} of 9 heads {'is' if local == 1 else 'are'} local "
    )
    assert f", {far} attend" in found[1]


def test_random_weights_mean_nothing(inspected: dict[str, Inspected]) -> None:
    one = inspected["random"]
    text = one.text
    groups = [text[name] for name in ("opening", "rollout", "similarity", "components", "depth")]
    groups += [*text["attention"], *text["relevance"], *one.numbers["text"].values()]
    assert all(RANDOM in group for group in groups)
    assert "object" not in json.dumps([text["attention"], text["relevance"], text["rollout"]])


def test_a_bit_has_only_sentences_about_what_it_has(inspected: dict[str, Inspected]) -> None:
    one = inspected["bit"]
    assert not any(one.text[name] for name in ("opening", "attention", "rollout", "relevance", "depth"))
    assert set(one.numbers["text"]) == {"filters"}
    assert "the first convolution" in one.numbers["text"]["filters"][0]
    assert not inspected["features"].text["relevance"]
    assert not inspected["features"].text["depth"]


# ---------------------------------------------------------------- branches

ONE = LayerAttention(
    layer=11, patches=196, to_patches=0.8, spread=36.2, largest=31.7, sinks=(), sink_share=0.0, sink_length=0.0
)
SINKS = replace(ONE, sinks=(1, 2, 3, 4), sink_share=0.61, sink_length=2.04)


def test_attention_with_sinks_says_where_to_look_instead() -> None:
    found = describe_attention(SINKS, "class token", 3, 7, relevance=True, random=False)
    assert found[1].startswith("4 of 196 patches receive 61.0% of this attention and are attention sinks: ")
    assert found[1].endswith("at least 1.5 times as long as the median (2.0 times on average).")
    assert found[-1] == "Do not read them as the object: look at layer 8 or at the relevance further down instead."
    found = describe_attention(SINKS, "class token", 3, 7, relevance=False, random=False)
    assert found[-1] == "Do not read them as the object: look at layer 8 instead."
    found = describe_attention(SINKS, "class token", 3, None, relevance=False, random=False)
    assert found[-1] == "Do not read them as the object."


def test_attention_without_sinks() -> None:
    found = describe_attention(ONE, "class token", 1, 7, relevance=True, random=False)
    assert found[0].startswith("Layer 12, its only head: the attention of the class token to patches is spread over 36")
    assert found[1] == "The brightest patch receives 31.7 times the average, and no patch is an attention sink."
    assert found[2].endswith("relevance, further down, takes the answer into account.")
    few = replace(ONE, sinks=(3,), sink_share=0.021)
    assert "1 attention sink receives only 2.1% of it." in " ".join(describe_attention(few, "", 3, 7, False, False))
    few = replace(ONE, sinks=(3, 4), sink_share=0.021)
    assert "2 attention sinks receive only 2.1% of it." in " ".join(describe_attention(few, "", 3, 7, False, False))
    even = replace(ONE, spread=190.0, largest=1.9)
    assert describe_attention(even, "mean of the patches", 3, 7, False, False) == [
        "Layer 12, mean of the 3 heads: the mean attention of all patches is spread over 190 of 196 patches (the "
        "exponential of its entropy; uniform attention: 196).",
        "That is nearly uniform: the brightest patch receives 1.9 times the average, and the colours stretch this "
        "difference.",
    ]


def test_openings() -> None:
    layers = [replace(ONE, layer=k) for k in range(3)]
    found = describe_opening(layers, OpeningLayer(1, "nearly uniform"), "class token", False)
    assert "of all layers" in found[0]
    assert found[1] == "Even here it is nearly uniform, so no layer picks out patches."
    layers[0] = layers[2] = SINKS
    found = describe_opening(layers, OpeningLayer(1, "concentrated"), "class token", False)
    assert "of the layers without attention sinks" in found[0]
    assert found[1] == "Layers 12 and 12 have attention sinks: select one to read about them."
    found = describe_opening([SINKS] * 3, OpeningLayer(0, "all have sinks"), "class token", False)
    assert found[0].endswith("the attention of the class token to patches, 61.0%.")
    assert len(found) == 1


def test_one_patch() -> None:
    one, shows_nothing = replace(ONE, patches=1), ["The image has one patch only, so this map shows nothing."]
    value = torch.ones(1, 1)
    assert describe_attention(one, "class token", 3, None, True, False) == shows_nothing
    assert describe_rollout(value, "class token", [one], 2, False) == shows_nothing
    assert describe_relevance(value[None], 0, ["cat"], "90.0%", [one], False) == shows_nothing
    assert shows_nothing[0] in describe_opening([one], OpeningLayer(0, "nearly uniform"), "class token", False)[0]
    assert "one patch only" in describe_similarity(None, "tokens", False)[0]
    assert "one position only" in describe_positions(Positions(torch.ones(1, 1, 1, 1), (1, 1), "", 0), True, False)[0]
    flat = Distances(torch.zeros(2, 3), torch.zeros(2, 3), 1, 0.0, 2.0)
    assert describe_distances(flat, False) == [
        "The image has one patch only, so all distances are zero (averaged over 1 image)."
    ]


def test_other_branches() -> None:
    assert "All tokens of this image are equal" in describe_components(None, "tokens", False)[0]
    near = describe_similarity(PairSimilarity(0.3, 0.6, 0.5, 16), "tokens", False)
    assert near[1] == "Neighbours are more alike, and 50.0% of the patches are most similar to one of their neighbours."
    maps = torch.eye(4).reshape(4, 2, 2)
    other = describe_relevance(maps, 1, ["a", "b", "c", "d"], "9.0%", [ONE], False)
    assert "mostly different patches speak for the two classes" in other[1]
    assert not any("similar" in sentence for sentence in describe_relevance(maps[:1], 0, ["a"], "9.0%", [ONE], False))
    values = torch.arange(1.0, 17.0).reshape(4, 4)
    found = describe_rollout(values / values.sum(), "class token", [replace(SINKS, sinks=(15,))], 1, False)
    assert "1 of its 10 brightest patches is an attention sink of a layer" in found[2]
    learned = torch.cdist(*[torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0))] * 2).neg().exp()
    positions = Positions(learned.reshape(4, 4, 4, 4), (4, 4), "learned-1d", 0)
    assert "the model has learned which patches lie next to each other" in describe_positions(positions, True, False)[1]
    assert "They were resampled" in " ".join(describe_positions(positions, False, False))
    heads = Distances(torch.tensor([[10.0, 100.0]]), torch.zeros(1, 2), 1, 100.0, 17.0)
    assert describe_distances(heads, False)[1].startswith(
        "The mean of the heads is 55 px in layer 1; 1 of 2 heads is local"
    )
    assert ", 1 attends to most" in describe_distances(heads, False)[1]
    steps = torch.tensor([0.5, 0.4])
    assert len(describe_depth(steps, ("50.0%", "40.0%"), (1, 1), ("a", "a"), False)) == 2  # nothing rises


def test_small_shares_keep_two_digits() -> None:
    assert [precise_percentage(share) for share in (0, 1e-6, 0.000123, 0.00445, 0.0995, 0.5)] == [
        "0%", "less than 0.001%", "0.012%", "0.45%", "10.0%", "50.0%",
    ]  # fmt: skip


def test_the_course_has_the_chapters_and_sections_that_pages_name() -> None:
    root = Path(__file__).parents[2]
    source = "\n".join(path.read_text() for path in (root / "src/vitreous/reports").glob("*.py"))
    for number, name in CHAPTERS.items():
        assert (root / "docs/learn" / name).read_text().startswith(f"# {number}. ")
    titles = {
        number: [line[3:] for line in (root / "docs/learn" / name).read_text().splitlines() if line.startswith("## ")]
        for number, name in CHAPTERS.items()
    }
    assert course_reference(3, "By hand") == (
        'More: chapter 3 of the course, "By hand" (docs/learn/3-attention.md in the source of Vitreous).'
    )
    named = {
        1: ["Cut an image, and put it back together", "The embedding is one matrix product"],
        2: ["What a position embedding looks like"],
        3: [
            "By hand",
            "How far, and how widely, does a token attend",
            "Bright patches and attention sinks",
            "What to remember",
        ],
    }
    for number, sections in named.items():
        for section in sections:
            assert section in titles[number]
            assert f'"{section}"' in source
