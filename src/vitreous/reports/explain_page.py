"""The page of `vitreous explain`: one self-contained HTML file without a script of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.inspection.forward_steps import ForwardSteps
from vitreous.inspection.internals import describe_pooling, patch_pixels, prefix_names
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.reports import explain_text
from vitreous.reports.course import course_reference
from vitreous.reports.html_page import HtmlPage, Section, render_page
from vitreous.reports.percentages import class_percentages, percentage
from vitreous.reports.pictures import heat_map, patch_picture, photo, vector_strip
from vitreous.utils.html import text

STRIP = 128  # values of a vector that are drawn


@dataclass(frozen=True)
class ExplainedImage:
    """What the page shows."""

    name: str  # file name: untrusted text
    model_name: str
    config: ViTConfig
    preprocessing: Preprocessing
    pixels: NDArray[np.uint8]  # (H, W, 3): the input before normalisation
    normalised: Tensor  # (C, H, W): the input of the model
    steps: ForwardSteps
    labels: tuple[str, ...] | None
    chosen_by_contrast: bool
    contrast: float  # standard deviation of the pixels of the chosen patch
    random: bool  # the weights are random
    notes: tuple[str, ...]
    command: str

    def label(self, number: int) -> str:
        return self.labels[number] if self.labels else f"class {number}"

    def token_name(self, token: int) -> str:
        """The name of a token in the sequence: class token, register 1, or a patch by row and column, from 1."""
        names = prefix_names(self.config)
        if token < len(names):
            return "class token" if names[token] == "class" else names[token]
        row, col = divmod(token - len(names), self.steps.grid[1])
        return f"patch at row {row + 1}, column {col + 1}"


@dataclass(frozen=True)
class _Step:
    id: str
    nav: str
    title: str
    equation: str  # HTML
    picture: str  # HTML
    sentences: Sequence[str]
    chapter: int  # of the course
    section: str  # of that chapter


def render_explain_page(image: ExplainedImage) -> str:
    """The HTML document."""
    c = image.config
    kind = "ViT" if c.backbone is None else "hybrid ViT"
    facts = f"{kind} of width {c.width}, depth {c.depth}, {c.heads} heads; {image.preprocessing}"
    warning = (
        '<p class="warning"><b>These weights are random.</b> The model was not trained: the numbers show how it '
        "computes, not what it learned.</p>"
        if image.random
        else ""
    )
    notes = "".join(f"<li>{text(note)}</li>" for note in image.notes)
    intro = (
        f"<p>The image <b class=name>{text(image.name)}</b> goes through the model, one equation of the paper "
        "<i>An Image is Worth 16x16 Words</i> after the other. All numbers are those of this model and image.</p>"
    )
    sections = [
        Section(step.id, step.nav, f"{number}. {step.title}", _body(step))
        for number, step in enumerate(_steps(image), 1)
    ]
    command = f"<pre><code>{text(image.command)}</code></pre>" if image.command else ""
    return render_page(
        HtmlPage(
            assets="explain_page",
            title=f"{image.name} through {image.model_name}",
            kicker="One image, step by step",
            heading=image.model_name,
            header=f"{warning}{intro}<p class=quiet>{text(facts)}</p>"
            + (f"<ul class=quiet>{notes}</ul>" if notes else ""),
            sections=[*sections, Section("command", "Command", "Command", command)],
            scripts=False,
        )
    )


def _body(step: _Step) -> str:
    words = " ".join(text(sentence) for sentence in step.sentences)
    more = f'<p class="quiet">{text(course_reference(step.chapter, step.section))}</p>'
    return f'<p class="equation">{step.equation}</p>\n<p class="words">{words}</p>\n{step.picture}\n{more}'


def _steps(image: ExplainedImage) -> list[_Step]:
    steps, c, a = image.steps, image.config, image.steps.attention
    norm = "LN(<i>z</i><sub>ℓ−1</sub>)"
    scale1 = "γ<sub>1</sub> ⊙ " if c.layer_scale is not None else ""
    scale2 = "γ<sub>2</sub> ⊙ " if c.layer_scale is not None else ""
    bias = " + <i>b</i>" if a.bias is not None else ""
    qk = "LN(<i>q</i>) · LN(<i>k</i>)" if c.qk_norm else "<i>q</i> · <i>k</i>"
    cut = "<i>x</i> → <i>x</i><sub>p</sub><sup>1</sup>, …, <i>x</i><sub>p</sub><sup>N</sup>"
    softmax = f"softmax({qk} / √<i>d</i>{bias}) <i>v</i>, with <i>q</i>, <i>k</i>, <i>v</i> from {norm}"
    equation_2 = f"<i>z′</i><sub>ℓ</sub> = {scale1}MSA({norm}) + <i>z</i><sub>ℓ−1</sub>"
    equation_3 = f"<i>z</i><sub>ℓ</sub> = {scale2}MLP(LN(<i>z′</i><sub>ℓ</sub>)) + <i>z′</i><sub>ℓ</sub>"
    journey = "<i>z</i><sub>0</sub> → <i>z</i><sub>1</sub> → … → <i>z</i><sub>L</sub>"
    cutting, positions, by_hand = (
        "Cut an image, and put it back together", "What a position embedding looks like", "By hand"
    )  # fmt: skip
    return [
        _Step("image", "Image", "The image is cut into patches",
              cut, _image_picture(image), explain_text.cut(image), 1, cutting),
        _Step("patch", "Patch", "A patch becomes a vector",
              f"<i>x</i><sub>p</sub> ∈ ℝ<sup>{len(steps.flat):,}</sup>",
              _patch_picture(image), explain_text.flatten(image), 1, cutting),
        _Step("embedding", "Embedding", "Projection and positions (equation 1)",
              _equation_1(image), _embedding_picture(image), explain_text.embed(image), 2, positions),
        _Step("attention", "Attention", f"Attention in block {a.layer + 1}, head {a.head + 1} (inside equation 2)",
              softmax, _attention_picture(image), explain_text.attend(image), 3, by_hand),
        _Step("residual", "Residual stream", "Every block adds to the token (equations 2 and 3)",
              f"{equation_2},&ensp; {equation_3}", _residual_picture(image), explain_text.add(image), 3, by_hand),
        _Step("depth", "Depth", f"The {explain_text.followed(image.config)} through depth",
              journey, _depth_picture(image), explain_text.follow(image), 3, by_hand),
        _Step("output", "Output", "Norm, pooling and head (equation 4)",
              _equation_4(image), _output_picture(image), explain_text.answer(image), 3, by_hand),
    ]  # fmt: skip


def _equation_1(image: ExplainedImage) -> str:
    c = image.config
    class_token = "<i>x</i><sub>class</sub>; " if c.class_token else ""
    registers = "<i>r</i><sub>1</sub>; …; " if c.registers > 1 else "<i>r</i><sub>1</sub>; " if c.registers else ""
    patches = "<i>x</i><sub>p</sub><sup>1</sup><i>E</i>; …; <i>x</i><sub>p</sub><sup>N</sup><i>E</i>"
    positions = " + <i>E</i><sub>pos</sub>" if image.steps.position is not None else ""
    return f"<i>z</i><sub>0</sub> = [{class_token}{registers}{patches}]{positions}"


def _equation_4(image: ExplainedImage) -> str:
    c = image.config
    if c.pool == "token":
        y = "LN(<i>z</i><sub>L</sub><sup>0</sup>)"
    elif c.pool == "none":
        y = "LN(<i>z</i><sub>L</sub>)"
    else:
        name = "mean" if c.pool == "gap" else "MAP"
        y = (
            f"{name}(LN(<i>z</i><sub>L</sub>))"
            if c.final_norm == "before-pool"
            else f"LN({name}(<i>z</i><sub>L</sub>))"
        )
    head = ",&ensp; logits = <i>y W</i> + <i>b</i>" if image.steps.logits is not None else ""
    return f"<i>y</i> = {y}{head}"


# ---------------------------------------------------------------- pictures


def _figure(source: str, alt: str, caption: str, kind: str = "") -> str:
    return (
        f'<figure class="{kind}"><img alt="{text(alt)}" src="{source}">'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def _row(*figures: str) -> str:
    return f'<div class="figures">{"".join(figures)}</div>'


def _strip(values: Tensor, what: str) -> str:
    count = min(STRIP, len(values))
    shown = values[:count].numpy()
    all_ = "all" if count == len(values) else f"the first {count} of"
    high = explain_text.four_digits(float(np.abs(shown).max()))
    caption = (
        f"{what}: {all_} {len(values):,} values, row by row. Blue is negative, yellow positive; full colour is {high}."
    )
    return _figure(vector_strip(shown), caption, caption, "strip")


def _image_picture(image: ExplainedImage) -> str:
    rows, cols = image.steps.grid
    chosen = explain_text.place(image)
    return _row(
        _figure(photo(image.pixels), f"The image {image.name}", "The image after resizing and cropping."),
        _figure(
            photo(image.pixels, patch_pixels(image.config), image.steps.patch),
            f"The image with a grid of {rows} by {cols} patches",
            f"{rows} × {cols} patches; the patch at {chosen} is framed.",
        ),
    )


def _patch_picture(image: ExplainedImage) -> str:
    (height, width), (row, col) = patch_pixels(image.config), image.steps.patch
    cut = image.pixels[row * height : (row + 1) * height, col * width : (col + 1) * width]
    caption = f"The patch: {cut.shape[0]} × {cut.shape[1]} pixels of the image."
    return _row(
        _figure(patch_picture(cut), f"The patch at {explain_text.place(image)}, enlarged", caption, "patch"),
        _strip(image.steps.flat, "The patch as a vector"),
    )


def _embedding_picture(image: ExplainedImage) -> str:
    steps = image.steps
    parts = [_strip(steps.projected, "Patch times E")]
    if steps.position is not None:
        parts.append(_strip(steps.position, "Position embedding of the patch"))
    parts.append(_strip(steps.embedded[steps.token], "Token of the patch in z0"))
    if image.config.class_token:
        parts.append(_strip(steps.embedded[0], "Class token in z0"))
    return _row(*parts)


def _attention_picture(image: ExplainedImage) -> str:
    steps, a, prefix = image.steps, image.steps.attention, image.config.prefix
    patches = a.weights[prefix:].unflatten(0, steps.grid).numpy()
    height, width = patch_pixels(image.config)
    order, shares = explain_text.attention_parts(image)
    brightest = prefix + int(patches.argmax())
    most = shares[order.index(brightest)] if brightest in order else percentage(float(patches.max()))
    caption = f"Attention of the framed patch to all patches: black is 0%, light yellow is {most}."
    compared = len(a.compared_scores)
    rows = [
        (image.token_name(token), explain_text.four_digits(float(a.scores[token])), share)
        for token, share in zip(order, shares, strict=False)
    ]
    if compared > len(order):
        rows.append((f"the other {compared - len(order):,} tokens", "", shares[-1]))
    score = "score with bias" if a.bias is not None else "score q·k/√d"
    table = _table(("key", score, "softmax"), rows, bars=a.weights[order].tolist())
    return _row(_figure(heat_map(patches, width / height, steps.patch), caption, caption), table) + _row(
        _strip(a.query, "Query q of the patch"), _strip(a.output, "Weighted sum of the values v")
    )


def _residual_picture(image: ExplainedImage) -> str:
    rows = [(str(n + 1), *map(explain_text.four_digits, line)) for n, line in enumerate(image.steps.norms.tolist())]
    header = ("block", "input", "attention adds", "after it", "MLP adds", "output")
    note = '<p class="quiet">Norms (lengths) of the vectors of the framed patch.</p>'
    return note + _table(header, rows, marked=image.steps.attention.layer)


def _depth_picture(image: ExplainedImage) -> str:
    steps, rows = image.steps, []
    norms, cosines = steps.stream.norm(dim=-1).tolist(), steps.similarity_to_final.tolist()
    for depth, (norm, cosine) in enumerate(zip(norms, cosines, strict=True)):
        cells = [str(depth) if depth else "embeddings", explain_text.four_digits(norm), f"{cosine:.3f}"]
        if steps.probabilities is not None:
            top = int(steps.probabilities[depth].argmax())
            cells += [image.label(top), percentage(float(steps.probabilities[depth, top]))]
        rows.append(tuple(cells))
    header = ("block", "norm", "cosine to final", "top class", "probability")
    return _table(header[: len(rows[0])], rows, names=(0, 3))


def _output_picture(image: ExplainedImage) -> str:
    steps = image.steps
    if steps.logits is None or steps.probabilities is None:
        values = steps.representation if steps.representation.ndim == 1 else steps.representation[0]
        return _row(_strip(values, "Output"))
    final = steps.probabilities[-1]
    order = final.argsort(descending=True)[: explain_text.TOP].tolist()
    parts = class_percentages(final, order)
    rows = [
        (image.label(k), explain_text.four_digits(float(steps.logits[k])), part)
        for k, part in zip(order, parts, strict=False)
    ]
    if len(parts) > len(order):
        rows.append((f"the other {len(final) - len(order):,} classes", "", parts[-1]))
    table = _table(("class", "logit", "probability"), rows, names=(0,), bars=final[order].tolist())
    return _row(_strip(steps.representation, f"Input of the head ({describe_pooling(image.config)})"), table)


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    names: Sequence[int] = (0,),
    bars: Sequence[float] = (),
    marked: int = -1,
) -> str:
    """`names`: columns of text. `bars`: a share for each of the first rows, drawn behind its last cell."""
    head = "".join(f'<th scope="col"{_cell(i, names)}>{text(name)}</th>' for i, name in enumerate(header))
    lines = []
    for number, row in enumerate(rows):
        cells = [f"<td{_cell(i, names)}>{text(value)}</td>" for i, value in enumerate(row)]
        if number < len(bars):
            style = f' style="--share:{100 * bars[number]:.2f}%"'
            cells[-1] = f'<td class="num bar"{style}>{text(row[-1])}</td>'
        lines.append(f"<tr{' class=chosen' if number == marked else ''}>{''.join(cells)}</tr>")
    label = text(", ".join(header))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(column: int, names: Sequence[int]) -> str:
    return ' class="name"' if column in names else ' class="num"'
