"""The sentences of the inspection page about the model: filters, positions and attention distance."""

from __future__ import annotations

from torch import Tensor

from vitreous.inspection.distance import Distances
from vitreous.inspection.embeddings import Filters, Positions
from vitreous.inspection.filter_kinds import COLOUR, SMOOTH, grey_share, neighbour_correlation
from vitreous.inspection.pair_similarity import summarise_pairs
from vitreous.reports.inspection_text import NEARER, RANDOM
from vitreous.reports.percentages import percentage, percentages
from vitreous.reports.wording import counted

LOCAL, GLOBAL = 0.5, 0.75  # shares of the distance of uniform attention, as in experiments/figure7.py
LEARNED = 0.9  # share of positions whose most similar other position is a neighbour


def describe_filters(filters: Filters, random: bool) -> list[str]:
    """The principal components of the first layer."""
    share, count = filters.share.double(), len(filters.share)
    shown, rest = percentages([float(share.sum()), max(0.0, 1 - float(share.sum()))])
    left = f"the other components have {rest}" if float(rest.rstrip("%")) else "there are no others"
    found = [
        f"{counted(count, 'principal component')} of {filters.of}: together {shown} of their variance, the first alone "
        f"{percentage(float(share[0]))}; {left}."
    ]
    if random:
        return [*found, RANDOM]
    kinds = []
    if (smooth := neighbour_correlation(filters.components)) is not None:
        kinds.append(
            f"{int((smooth >= SMOOTH).sum())} of {count} are smooth (the correlation of neighbouring pixels is at "
            f"least {SMOOTH:g})"
        )
    if (grey := grey_share(filters.components)) is not None:
        kinds.append(f"{int((grey < COLOUR).sum())} differ between the colours more than they agree")
    if kinds:
        found.append(f"{', and '.join(kinds)}.")
    found.append(
        "Smooth blobs, bars and edges are patterns that the first layer responds to; patterns that change from pixel "
        "to pixel are fine textures or noise. Each filter has its own scale."
    )
    return found


def describe_positions(positions: Positions, trained_size: bool, random: bool) -> list[str]:
    """Similarity of position embeddings, or relative biases. `trained_size`: the model's own image size."""
    if positions.relative:
        return _describe_biases(positions.similarity, positions.layer, random)
    rows, cols = positions.grid
    pairs = summarise_pairs(positions.similarity.flatten(2).flatten(0, 1), positions.grid)
    if pairs is None:
        return ["There is one position only, so there is nothing to compare it with."]
    fixed = positions.kind.startswith("sincos")
    found = [
        f"One map for each of the {rows} × {cols} positions: two position embeddings have a cosine similarity of "
        f"{pairs.mean:.2f} on average, direct neighbours {pairs.neighbours:.2f}."
    ]
    if fixed:
        found.append(
            "These embeddings are fixed sines and cosines of row and column: the pattern is computed, it was not "
            "learned."
        )
    elif random:
        found.append(RANDOM)
    elif pairs.nearest >= LEARNED and pairs.neighbours - pairs.mean >= NEARER:
        found.append(
            f"For {percentage(pairs.nearest)} of the positions a direct neighbour is the most similar: the model has "
            "learned which patches lie next to each other."
        )
    else:
        found.append(
            f"For {percentage(pairs.nearest)} of the positions a direct neighbour is the most similar: the layout of "
            "the patches is hardly visible in these embeddings."
        )
    if not trained_size:
        found.append("They were resampled from the image size of the model.")
    found.append(
        "A map that is bright at its own place and dark elsewhere means that the embedding tells places apart."
    )
    return found


def _describe_biases(biases: Tensor, layer: int, random: bool) -> list[str]:
    """Biases (heads, 2 rows - 1, 2 cols - 1) by offset from query to key."""
    heads, height, width = biases.shape
    best = biases.flatten(1).argmax(1)
    near = ((best // width - height // 2).abs() <= 1) & ((best % width - width // 2).abs() <= 1)
    found = [
        f"Relative positions add a bias to the scores of layer {layer + 1}; each map shows it by the offset of the key "
        f"from the query, for {counted(heads, 'head')}."
    ]
    if random:
        return [*found, RANDOM]
    return [
        *found,
        f"In {int(near.sum())} of {heads} the largest bias is at the query or at one of its 8 neighbours: such a head "
        "attends to what is near, as far as the position decides.",
        "The bias is that of the mean query of the images; the score of a patch also depends on its content.",
    ]


def describe_distances(found: Distances, random: bool) -> list[str]:
    """Mean attention distance and entropy of the heads."""
    distance, average = found.distance, f"averaged over {counted(found.images, 'image')}"
    if not found.largest:
        return [f"The image has one patch only, so all distances are zero ({average})."]
    sentences = [
        f"A dot is a head: how far the patches that it attends to are from the query, {average}; uniform attention "
        f"would have {found.largest:.0f} px."
    ]
    if random:
        return [*sentences, RANDOM]
    local, far = int((distance <= LOCAL * found.largest).sum()), int((distance >= GLOBAL * found.largest).sum())
    means = distance.mean(1)
    change = f"The mean of the heads is {float(means[0]):.0f} px in layer 1"
    change += f" and {float(means[-1]):.0f} px in layer {len(means)}" if len(means) > 1 else ""
    total = distance.numel()
    return [
        *sentences,
        f"{change}; {local} of {counted(total, 'head')} {'is' if total == 1 or local == 1 else 'are'} local (at most "
        f"half of the distance of uniform attention), {far} {'attends' if far == 1 else 'attend'} to most of the image "
        "(at least three quarters of it).",
        "A long distance does not mean that attention is uniform: the entropy on the right tells how many tokens share "
        "it.",
    ]
