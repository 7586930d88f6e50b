"""The sentences of the explanation page: each states the numbers of the model for one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from vitreous.inspection.internals import patch_pixels
from vitreous.models.axial import axis_of
from vitreous.models.vit import ViTConfig
from vitreous.reports.percentages import class_percentages, percentage, percentages
from vitreous.reports.wording import settled
from vitreous.utils.sizes import pair

if TYPE_CHECKING:
    from vitreous.reports.explain_page import ExplainedImage

FIRST = 4  # values of a vector that are written out
TOP = 5  # rows of the tables of attention and of predictions


def four_digits(value: float) -> str:
    """A number with four significant digits."""
    return f"{value:.4g}"


def first_values(vector: Tensor) -> str:
    return ", ".join(four_digits(float(value)) for value in vector[:FIRST])


def length(vector: Tensor) -> str:
    return four_digits(float(vector.norm()))


def place(image: ExplainedImage) -> str:
    row, col = image.steps.patch
    return f"row {row + 1}, column {col + 1}"


def followed(config: ViTConfig) -> str:
    """The vector that is followed through depth."""
    return "class token" if config.class_token and config.pool in ("token", "none") else "mean of the patch tokens"


def cut(image: ExplainedImage) -> list[str]:
    """Step 1."""
    values, (rows, cols), c = image.normalised, image.steps.grid, image.config
    height, width = patch_pixels(c)
    found = [
        f"The input is an image of {values.shape[1]} × {values.shape[2]} pixels; after normalisation its "
        f"values go from "
        f"{four_digits(float(values.min()))} to {four_digits(float(values.max()))}, with mean "
        f"{four_digits(float(values.mean()))}."
    ]
    if c.backbone is None:
        found.append(f"It is cut into {rows} × {cols} = {rows * cols} patches of {height} × {width} pixels.")
    else:
        cell = c.backbone.stride
        p, q = pair(c.patch_size)
        found.append(
            f"This is a hybrid: a convolutional network turns the image into a feature map with one cell for {cell} × "
            f"{cell} pixels, and each of the {rows} × {cols} = {rows * cols} patches is {p} × {q} cells of that map."
        )
    if (left := (values.shape[1] - rows * height, values.shape[2] - cols * width)) > (0, 0) and min(left) >= 0:
        found.append(f"{left[0]} rows and {left[1]} columns of pixels do not fill a patch and are not used.")
    why = ", the patch with the highest contrast" if image.chosen_by_contrast else ""
    found.append(
        f"The page follows the framed patch at {place(image)}{why}: the standard deviation of its pixels is "
        f"{four_digits(image.contrast)} on a scale from 0 to 255."
    )
    return found


def flatten(image: ExplainedImage) -> list[str]:
    """Step 2."""
    flat, c = image.steps.flat, image.config
    p, q = pair(c.patch_size)
    channels = len(flat) // (p * q)
    unit = "pixels" if c.backbone is None else "cells of the feature map"
    return [
        f"{p} × {q} {unit} with {channels} {'channel' if channels == 1 else 'channels'} are {len(flat):,} values, read "
        "channel by channel, row by row.",
        f"The vector begins with {first_values(flat)}; its mean is {four_digits(float(flat.mean()))}.",
        "The vector does not say where in the image the patch was.",
    ]


def embed(image: ExplainedImage) -> list[str]:
    """Step 3."""
    steps, c = image.steps, image.config
    found = [
        f"The learned matrix E has {len(steps.flat):,} × {c.width} values: the patch becomes a vector of "
        f"{c.width} values, "
        f"which begins with {first_values(steps.projected)} and has norm {length(steps.projected)}."
    ]
    tokens = len(steps.embedded)
    extra = [name for name, there in (("the class token", c.class_token), ("registers", c.registers > 0)) if there]
    if extra:
        added = (
            f"{c.prefix} learned {'vector is' if c.prefix == 1 else 'vectors are'} put in front ({', '.join(extra)})"
        )
        found.append(f"{added}, so that the sequence has {tokens} tokens.")
    else:
        found.append(f"This model has no class token: the sequence has {tokens} tokens, one per patch.")
    found.append(_position_sentence(image))
    return found


def _position_sentence(image: ExplainedImage) -> str:
    steps, c = image.steps, image.config
    kinds = {
        "learned-1d": "learned",
        "learned-2d": "learned, by row and column",
        "sincos-1d": "fixed sines and cosines",
        "sincos-2d": "fixed sines and cosines, by row and column",
    }
    total = length(steps.embedded[steps.token])
    if steps.position is not None:
        return (
            f"The position embedding of this patch ({kinds[c.position]}) has norm "
            f"{length(steps.position)}; the sum has "
            f"norm {total}."
        )
    if c.position == "none":
        return f"This model adds no positions, so the token keeps its norm of {total}."
    if c.position == "relative":
        return f"Nothing is added for positions here, so the norm stays {total}: they enter as a bias in attention."
    return f"Positions are added before every block instead of here, so the norm stays {total}."


def attention_parts(image: ExplainedImage) -> tuple[list[int], list[str]]:
    """The tokens with the largest attention weights; their percentages, and that of all other tokens."""
    a = image.steps.attention
    order = a.weights.argsort(descending=True)[: min(TOP, len(a.compared_scores))].tolist()
    rest = 1 - float(a.weights[order].sum())
    return order, percentages([*a.weights[order].tolist(), max(0.0, rest)])


def attend(image: ExplainedImage) -> list[str]:
    """Step 4."""
    a, token = image.steps.attention, image.steps.token
    scores = a.compared_scores
    d, (order, shares) = len(a.query), attention_parts(image)
    best = order[0]
    target = "itself" if best == token else f"the {image.token_name(best)}"
    normed = ", normalised (qk-norm)," if image.config.qk_norm else ""
    bias = " plus the relative position bias" if a.bias is not None else ""
    return [
        f"Each token has a query q, a key k{normed} and a value v of d = {d} numbers; the query of the "
        f"framed patch begins "
        f"with {first_values(a.query)}.",
        f"Its scores q·k / √{d}{bias} go from {four_digits(float(scores.min()))} to "
        f"{four_digits(float(scores.max()))}; with "
        f"itself the score is {four_digits(float(a.scores[token]))}.",
        *_axial_sentence(image),
        f"Softmax turns the {len(scores)} scores into weights that sum to 1, and the largest, "
        f"{shares[0]}, goes to {target}; the weighted sum of the values begins with "
        f"{first_values(a.output)} and has norm {length(a.output)}.",
    ]


def _axial_sentence(image: ExplainedImage) -> list[str]:
    if image.config.attention == "full":
        return []
    line, prefix = axis_of(image.steps.attention.layer), image.config.prefix
    patches = f"the patches of its own {line}"
    also = {0: "", 1: " and the token before the patches"}.get(prefix, f" and the {prefix} tokens before them")
    return [f"Attention is axial: in this block the patch is compared with {patches}{also} only."]


def add(image: ExplainedImage) -> list[str]:
    """Step 5."""
    c, layer, norms = image.config, image.steps.attention.layer, image.steps.norms
    before, attention, middle, mlp, after = (four_digits(float(value)) for value in norms[layer])
    scale = " (after LayerScale)" if c.layer_scale is not None else ""
    branches = norms[:, [1, 3]]
    block, kind = divmod(int(branches.argmax()), 2)
    return [
        f"In block {layer + 1} the token comes in with norm {before}; the {c.heads} heads together add a "
        f"vector of norm "
        f"{attention}{scale}, and the sum has norm {middle}.",
        f"The MLP, with {c.mlp_dim:,} hidden values, adds a vector of norm {mlp}{scale}; the block "
        f"returns norm {after}.",
        f"The largest addition of all {c.depth} blocks has norm {four_digits(float(branches.max()))}: it comes from "
        f"{'the MLP' if kind else 'attention'} in block {block + 1}.",
    ]


def follow(image: ExplainedImage) -> list[str]:
    """Step 6."""
    steps = image.steps
    norms, cosines = steps.stream.norm(dim=-1), steps.similarity_to_final
    half = settled((cosines >= 0.5).tolist())
    found = [
        f"The norm of the {followed(image.config)} goes from {four_digits(float(norms[0]))} to "
        f"{four_digits(float(norms[-1]))}.",
        f"Its cosine similarity to its final value is {float(cosines[0]):.3f} before block 1, and at least 0.5 from "
        f"{'the start' if half == 0 else f'block {half}'} on.",
    ]
    if steps.probabilities is None:
        return [*found, "The model has no head that classifies, so there is no prediction by depth."]
    tops = steps.probabilities.argmax(-1)
    first = settled((tops == tops[-1]).tolist())
    when = "from the start" if first == 0 else f"after block {first}"
    return [
        *found,
        f"If the head is applied at each depth, {image.label(int(tops[-1]))} is the top class {when} and stays it; its "
        f"probability goes from {percentage(float(steps.probabilities[0, tops[-1]]))} to "
        f"{percentage(float(steps.probabilities[-1, tops[-1]]))}.",
    ]


def answer(image: ExplainedImage) -> list[str]:
    """Step 7."""
    steps, c = image.steps, image.config
    pooled = {
        "token": "the class token is taken",
        "gap": f"the mean of all {steps.grid[0] * steps.grid[1]} patch tokens is taken",
        "map": f"attention pooling with a learned query combines the {steps.grid[0] * steps.grid[1]} patch tokens",
        "none": "no pooling follows",
    }[c.pool]
    order = "LayerNorm is applied, and" if c.final_norm == "before-pool" else "After the last block"
    after = " and LayerNorm follows" if c.final_norm == "after-pool" else ""
    vector = steps.representation if steps.representation.ndim == 1 else steps.representation[0]
    extra = ", then a linear layer and tanh" if c.representation_size else ""
    found = [
        f"{order} {pooled}{after}{extra}: the result has {vector.shape[-1]} values, begins with "
        f"{first_values(vector)} and "
        f"has norm {length(vector)}."
    ]
    if steps.logits is None or steps.probabilities is None:
        return [*found, "This model has no head that classifies: this is its output.",
                "A head can be trained on these features."]  # fmt: skip
    best = int(steps.probabilities[-1].argmax())
    part = class_percentages(steps.probabilities[-1], steps.probabilities[-1].argsort(descending=True)[:TOP].tolist())[
        0
    ]
    return [
        *found,
        f"The head multiplies it with a matrix of {c.head_width} × {len(steps.logits):,} values and "
        f"gives one logit per "
        f"class, from {four_digits(float(steps.logits.min()))} to {four_digits(float(steps.logits.max()))}.",
        f"The prediction is {image.label(best)}, with logit {four_digits(float(steps.logits[best]))} and "
        f"probability {part}.",
    ]
