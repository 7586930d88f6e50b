"""The sentences of the inspection page about one image: what each figure shows, what to see, and how to read it.

Pure functions from numbers to text. `inspection_model_text` has those about the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitreous.inspection.attention_sinks import SINK_ATTENTION, SINK_LENGTH, LayerAttention, OpeningLayer
from vitreous.inspection.pair_similarity import PairSimilarity
from vitreous.reports.percentages import percentage, percentages, precise_percentage
from vitreous.reports.wording import counted, grid_place, listed, of_patches, patches, settled, times

ALIKE, DIFFERENT = 0.9, 0.5  # cosines of two relevance maps: from here on they are alike; below, different
NEARER = 0.1  # by so much neighbours are more similar than other pairs
EVEN = 3.0  # the largest rollout weight is less than this many times the smallest
RANDOM = "The weights are random, so nothing in this figure was learned."


def layer_list(layers: Sequence[LayerAttention]) -> str:
    """`Layer 3`, or `Layers 11 and 12`."""
    return f"Layer{'s' * (len(layers) != 1)} {listed([str(one.layer + 1) for one in layers])}"


# ---------------------------------------------------------------- attention


ONE_PATCH = "The image has one patch only, so this map shows nothing."


def attention_of(query: str) -> str:
    """The attention of the class token to patches; without one, that of all patches."""
    return (
        "the attention of the class token to patches" if query == "class token" else "the mean attention of all patches"
    )


def describe_opening(layers: Sequence[LayerAttention], opening: OpeningLayer, query: str, random: bool) -> list[str]:
    """Why the page opens on this layer."""
    one, with_sinks = layers[opening.layer], [layer for layer in layers if layer.has_sinks]
    if one.patches == 1:
        return [f"This image opens on layer {one.layer + 1} of {len(layers)}. {ONE_PATCH}"]
    start = f"This image opens on layer {one.layer + 1} of {len(layers)}"
    spread = f"spread over {one.spread:.0f} of {patches(one.patches)}"
    if len(layers) == 1:
        found = [f"{start}, the only one: {attention_of(query)} is {spread}."]
    elif opening.why == "all have sinks":
        found = [
            f"{start}: all layers have attention sinks, and here they receive the smallest share of "
            f"{attention_of(query)}, {percentage(one.sink_share)}."
        ]
    else:
        among = "of the layers without attention sinks" if with_sinks else "of all layers"
        found = [f"{start}: {among}, {attention_of(query)} is the most concentrated here, {spread}."]
        if opening.why == "nearly uniform":
            found.append("Even here it is nearly uniform, so no layer picks out patches.")
    if with_sinks and not random and opening.why != "all have sinks":
        verb = "has" if len(with_sinks) == 1 else "have"
        found.append(f"{layer_list(with_sinks)} {verb} attention sinks: select one to read about them.")
    return [*found, RANDOM] if random else found


def describe_attention(
    one: LayerAttention, query: str, heads: int, alternative: int | None, relevance: bool, random: bool
) -> list[str]:
    """Attention of the query in one layer. `alternative`: a layer without sinks. `relevance`: there are relevance
    maps."""
    mean = "its only head" if heads == 1 else f"mean of the {heads} heads"
    where = f"Layer {one.layer + 1}, {mean}"
    if one.patches == 1:
        return [ONE_PATCH]
    found = [
        f"{where}: {attention_of(query)} is spread over {one.spread:.0f} of {patches(one.patches)} (the "
        f"exponential of its entropy; uniform attention: {one.patches:,})."
    ]
    if (percent := round(100 * one.to_patches)) < 50:
        found.append(f"Only about {percent}% of the attention goes to patches at all.")
    if random:
        return [*found, RANDOM]
    if one.has_sinks:
        return [*found, *_describe_sinks(one, alternative, relevance)]
    brightest_patch = f"the brightest patch receives {times(one.largest)} the average"
    if one.uniform:
        return [*found, f"That is nearly uniform: {brightest_patch}, and the colours stretch this difference."]
    reader = "the class token takes" if query == "class token" else "the patches take"
    more = "; relevance, further down, takes the answer into account" if relevance else ""
    return [
        *found,
        f"{brightest_patch[0].upper()}{brightest_patch[1:]}, and {_few_sinks(one)}.",
        f"In this layer {reader} information from bright patches, which is no proof that the answer depends on "
        f"them{more}.",
    ]


def _few_sinks(one: LayerAttention) -> str:
    if not one.sinks:
        return "no patch is an attention sink"
    receive = "receives" if len(one.sinks) == 1 else "receive"
    return f"{counted(len(one.sinks), 'attention sink')} {receive} only {precise_percentage(one.sink_share)} of it"


def _describe_sinks(one: LayerAttention, alternative: int | None, relevance: bool) -> list[str]:
    single = len(one.sinks) == 1
    instead = [f"at layer {alternative + 1}"] if alternative is not None else []
    instead += ["at the relevance further down"] if relevance else []
    look = f": look {' or '.join(instead)} instead" if instead else ""
    return [
        f"{of_patches(len(one.sinks), one.patches)} {'receives' if single else 'receive'} {percentage(one.sink_share)} "
        f"of this attention and {'is an attention sink' if single else 'are attention sinks'}: averaged over all "
        f"patches as queries, {'it' if single else 'each'} receives at least {SINK_ATTENTION:g} times the average "
        f"attention, and {'its token is' if single else 'their tokens are'} at least {SINK_LENGTH:g} times as long as "
        f"the median ({times(one.sink_length)}{'' if single else ' on average'}).",
        "Darcet et al. (2023) found that the sinks of large ViTs, with tokens about ten times as long, carry global "
        "information about the image instead of what is at their place; this is not tested here.",
        f"Do not read {'it' if single else 'them'} as the object{look}.",
    ]


# ---------------------------------------------------------------- rollout and relevance


def brightest(values: Tensor, count: int) -> set[int]:
    return set(values.flatten().topk(min(count, values.numel())).indices.tolist())


def sinks_among(values: Tensor, layers: Sequence[LayerAttention]) -> str:
    """How many of the ten brightest patches are sinks of a layer; empty if none."""
    sinks = {patch for one in layers if one.has_sinks for patch in one.sinks}
    top = brightest(values, 10)
    shared = len(sinks & top)
    if not shared or values.numel() <= 10:
        return ""
    are = "is an attention sink" if shared == 1 else "are attention sinks"
    return f"{shared} of its 10 brightest patches {are} of a layer, so do not read all that is bright as the object."


def describe_rollout(
    values: Tensor, query: str, layers: Sequence[LayerAttention], depth: int, random: bool
) -> list[str]:
    """Rollout from the query, (rows, cols)."""
    flat = values.flatten().double()
    total, high, low = float(flat.sum()), float(flat.max()), float(flat.min())
    if len(flat) == 1:
        return [ONE_PATCH]
    start = "the layer" if depth == 1 else f"all {depth} layers"
    found = [
        f"Rollout estimates how much each patch contributes to the {query} through {start}: "
        f"{precise_percentage(high)} for the brightest, at {grid_place(int(flat.argmax()), values.shape[1])}, and "
        f"{precise_percentage(total / len(flat))} on average."
    ]
    if low > 0 and high / low < EVEN:
        found.append(
            f"The brightest patch has only {times(high / low)} the weight of the darkest: the colours stretch a small "
            "difference."
        )
    elif low > 0:
        found.append(f"The brightest patch has {times(high / low)} the weight of the darkest.")
    sinks = sinks_among(flat, layers)
    if sinks and not random:
        found.append(sinks)
    found.append(
        RANDOM
        if random
        else "Rollout multiplies attention weights only: it ignores values and MLPs, and all classes have the same."
    )
    return found


def half_of(values: Tensor) -> int:
    """The smallest number of patches that together have half of the total."""
    ordered = values.flatten().double().sort(descending=True).values.cumsum(0)
    return int((ordered < 0.5 * float(ordered[-1])).sum()) + 1


def describe_relevance(
    maps: Tensor, which: int, names: Sequence[str], probability: str, layers: Sequence[LayerAttention], random: bool
) -> list[str]:
    """One of the relevance maps (classes, rows, cols). `probability`: of this class, as text."""
    one, name = maps[which], names[which]
    if one.numel() == 1:
        return [ONE_PATCH]
    found = [
        f"What speaks for {name} (probability {probability}): half of the relevance lies in "
        f"{of_patches(half_of(one), one.numel())}, and the highest is at {grid_place(int(one.argmax()), one.shape[1])}."
    ]
    if random:
        return [*found, RANDOM]
    if len(maps) > 1:
        cosines = torch.cosine_similarity(one.flatten()[None].double(), maps.flatten(1).double(), dim=-1)
        cosines[which] = -torch.inf
        other = int(cosines.argmax())
        alike = float(cosines[other])
        meaning = (
            "the two show what speaks for both classes, and not what tells them apart"
            if alike >= ALIKE
            else "the two overlap in part"
            if alike >= DIFFERENT
            else "mostly different patches speak for the two classes"
        )
        found.append(f"The most similar of the other maps is that of {names[other]} (cosine {alike:.2f}): {meaning}.")
    found += [sinks] if (sinks := sinks_among(one, layers)) else []
    found.append(
        "Only contributions in favour of the class count, and every map has its own scale, so compare places and not "
        "brightness."
    )
    return found


# ---------------------------------------------------------------- tokens


def describe_similarity(pairs: PairSimilarity | None, what: str, random: bool) -> list[str]:
    """Cosine similarity of the patch tokens. `what`: `tokens`, or `features` of a BiT."""
    if pairs is None:
        return [f"The image has one patch only, so there are no other {what} to compare it with."]
    found = [
        f"Two {what} have a cosine similarity of {pairs.mean:.2f} on average, direct neighbours {pairs.neighbours:.2f}."
    ]
    if random:
        return [*found, RANDOM]
    near = pairs.neighbours - pairs.mean >= NEARER
    found.append(
        f"Neighbours are more alike, and {percentage(pairs.nearest)} of the patches are most similar to one of their "
        "neighbours."
        if near
        else f"Neighbours are hardly more alike than other pairs: where a patch lies says little about which {what} "
        "are similar to its own."
    )
    found.append(
        "Similar colours in the map mean similar vectors, not the same object; the scale ends at the most similar "
        "other patch."
    )
    return found


def describe_components(share: Tensor | None, what: str, random: bool) -> list[str]:
    """The first three principal components. `share`: of the variance of all tokens; None if all tokens are equal."""
    if share is None:
        return [f"All {what} of this image are equal, so there are no components; the map is grey."]
    first = [float(value) for value in share]
    parts = percentages([*first, max(0.0, 1 - sum(first))])
    found = [
        f"Red, green and blue are the directions in which the {what} of this image differ most: they have {parts[0]}, "
        f"{parts[1]} and {parts[2]} of the variance, and the other {parts[3]} is not shown."
    ]
    return [
        *found,
        RANDOM
        if random
        else "Patches of one colour are alike in these three directions. The colours themselves have no meaning, and "
        "those of two images cannot be compared.",
    ]


# ---------------------------------------------------------------- prediction by depth


def describe_depth(
    probabilities: Tensor, first_and_last: tuple[str, str], tops: Sequence[int], names: Sequence[str], random: bool
) -> list[str]:
    """Probabilities (depth + 1,) of the final top class by depth, the first and the last of them as text, and number
    and name of the top class at every depth."""
    values, from_depth = probabilities.double(), settled([top == tops[-1] for top in tops])
    name, depth = names[-1], len(values) - 1
    step = values.diff()
    block = int(step.argmax()) + 1
    found = [
        f"The head is applied to the tokens after every block: the probability of {name}, the final top class, goes "
        f"from {first_and_last[0]} before block 1 to {first_and_last[1]} after block {depth}."
    ]
    if random:
        return [*found, RANDOM]
    if from_depth == 0:
        found.append(f"At every depth, {name} is the top class.")
    else:
        found.append(f"From block {from_depth} on, {name} is the top class.")
    if depth > 1 and float(step[block - 1]) > 0:
        points = f"{100 * float(step[block - 1]):.1f} percentage points"
        found.append(f"The largest rise, by {points}, is in block {block}.")
    if from_depth > 0:
        found.append(
            f"The head was trained on the last layer only, so an early top class, such as {names[0]} before block 1, "
            "is no first guess of the model."
        )
    return found
