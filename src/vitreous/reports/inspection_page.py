"""The page of `vitreous inspect`: one self-contained HTML file.

Text, facts and figures are plain HTML. Data for the interactive maps is embedded as deflated bytes in base64, which the
script unpacks. A row of attention weights is divided by its maximum and stored as 255 times the square root, so that
small weights keep their precision; the maximum is stored exactly, so that the page can show true weights.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import VitreousError
from vitreous.reports.course import course_reference
from vitreous.reports.html_page import HtmlPage, Section, render_page, write_html
from vitreous.reports.percentages import percentage
from vitreous.utils.html import clean, image_url, text

TINY_SIDE = 64  # images up to this size are stored losslessly and image without smoothing

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ImageText:
    """The sentences about one image: what its figures show, what to see and how to read them."""

    opening: Sequence[str] = ()  # why the page opens on this layer
    attention: Sequence[Sequence[str]] = ()  # for each layer
    rollout: Sequence[str] = ()
    relevance: Sequence[Sequence[str]] = ()  # for each class
    similarity: Sequence[str] = ()
    components: Sequence[str] = ()
    depth: Sequence[str] = ()


@dataclass(frozen=True)
class InspectedImage:
    """One image with the maps and predictions of the model for it."""

    name: str  # file name: untrusted text
    pixels: NDArray[np.uint8]  # (H, W, 3), the input of the model before normalisation
    grid: tuple[int, int]  # (rows, cols) of patches
    answers: tuple[tuple[str, float], ...]  # class names and probabilities, highest first; () without a head
    answer_shares: tuple[str, ...]  # their percentages, and that of the other classes if all add up to 100%
    attention: Floats | None  # (layers, heads, T, T): queries, keys; T = prefix + rows * cols
    coarse: tuple[int, int] | None  # the grid of `attention` if it was pooled to fewer cells
    rollout: Floats | None  # (T', T') with T' = prefix + rows * cols, never pooled
    relevance: Floats  # (classes, rows, cols), for the first of the answers; may be empty
    similarity: Floats  # (N, N) cosine similarity of the patch tokens of the last layer
    components: Floats  # (rows, cols, 3) in 0..1: first three principal components as RGB
    depth: Floats  # (layers + 1, len(answers)): probabilities before the first block and after each; or (0, 0)
    depth_top: tuple[tuple[str, float], ...]  # top class and its probability at each of these depths
    depth_shares: tuple[tuple[str, ...], ...]  # as `answer_shares`, at each of these depths
    opening: int = 0  # the layer that is shown first
    text: ImageText = ImageText()


@dataclass(frozen=True)
class PageFigure:
    """A rendered figure."""

    title: str
    sentences: Sequence[str]
    png: bytes
    more: str = ""  # where the course explains it


@dataclass(frozen=True)
class InspectionPage:
    """Contents of the page."""

    title: str  # name of the model
    facts: tuple[tuple[str, str], ...]  # label, value
    notes: tuple[str, ...]
    random: bool  # the weights are random
    prefix: tuple[str, ...]  # names of the tokens before the patch tokens
    source: str  # what the head uses, from which relevance starts: "class token", "mean of the patches" ...
    query: str  # the query that is shown first: "class token" or "mean of the patches"
    layers: int
    heads: int
    images: tuple[InspectedImage, ...]
    figures: tuple[PageFigure, ...]
    command: str  # command line


def write_inspection_page(path: Path, page: InspectionPage) -> None:
    """Write the page atomically."""
    write_html(path, render_inspection_page(page))


def render_inspection_page(page: InspectionPage) -> str:
    for image in page.images:
        _check(image, page)
    return render_page(
        HtmlPage(
            assets="inspection_page",
            title=f"Inside {page.title}",
            kicker="Inside the model",
            heading=page.title,
            header=f"{_warning(page)}{_facts(page.facts)}{_notes(page.notes)}",
            sections=_sections(page),
            before_main=PROBLEMS,
            data=_data(page),
        )
    )


PROBLEMS = """<noscript><p class="warning">The interactive maps need JavaScript, the figures do not.</p></noscript>
<p class="warning" id="problem" role="alert" hidden></p>
"""
LIVE = " class=live hidden"  # hidden until the script has filled the section


def _sections(page: InspectionPage) -> list[Section]:
    images = page.images
    attended = any(image.attention is not None for image in images)
    rolled = any(image.rollout is not None or len(image.relevance) for image in images)
    tokens = any(image.similarity.size or image.components.size for image in images)
    deep = any(image.depth.size for image in images)
    maps = (ATTENTION if attended else _without_attention(page) + NO_ATTENTION) if images else ""
    titles = {
        "look": "Attention" if attended else "Image",
        "rolled": "Rollout and relevance" if attended else "Relevance",
        "patches": "Patch similarity",
        "depths": "Prediction by depth",
        "figures": "Figures",
        "command": "Command",
    }
    bodies = {
        "look": maps,
        "rolled": ROLLOUT if rolled else "",
        "patches": (TOKENS if attended else FEATURES) if tokens else "",
        "depths": DEPTH if deep else "",
        "figures": _figures(page.figures),
        "command": f"<pre><code>{text(page.command)}</code></pre>" if page.command else "",
    }
    static = ("figures", "command")
    return [Section(id, titles[id], titles[id], body, "" if id in static else LIVE) for id, body in bodies.items()]


def _more(chapter: int, section: str) -> str:
    return f'<p class="quiet">{text(course_reference(chapter, section))}</p>'


STAGE = """<p class="lead words" id="opening"></p>
<div id="images" class="group" role="group" aria-label="Image"></div>
<div class="view">
<figure class="stage"><canvas id="picture" tabindex="0" role="application" aria-describedby="keys"></canvas>
<figcaption><p id="caption" aria-live="polite"></p>CAPTION</figcaption></figure>
SIDE</div>
<p class="quiet" id="keys">HELP</p>
"""
ATTENTION = STAGE.replace(
    "CAPTION",
    """<div class="controls"><label>overlay <input id="strength" type="range" min="0" max="100" value="75"></label>
<label><input id="lift" type="checkbox"> brighten low values</label></div>""",
).replace(
    "SIDE",
    """<div class="side">
<div class="attention-values"><figure><canvas id="attention-map" tabindex="0" role="application"
aria-label="Attention map. Arrow keys read its values."></canvas><div class="scale" id="attention-scale"></div></figure>
<div><p id="reading" role="status"></p><p id="value" aria-live="polite"></p>
<p class="quiet">Point at the map, tap it, or use the arrow keys to read a value.</p></div></div>
<p class="words" id="attention-words"></p>
<div class="control"><h3>Query</h3><div id="tokens" class="group" role="group" aria-label="Query"></div></div>
<div class="control"><h3><label for="layer">Layer</label> <output id="layer-name" for="layer"></output></h3>
<input id="layer" type="range" min="1" step="1">
<div id="layers" class="strip" role="group" aria-label="All layers of this head"></div></div>
<div class="control"><h3>Head</h3>
<div id="heads" class="strip" role="group" aria-label="All heads of this layer"></div></div>
<p class="quiet">Each small map has its own scale.</p></div>""",
).replace(
    "HELP",
    "Click on the image to select another query patch, or use the arrow keys while the image has the focus. "
    "Keys: <kbd>l</kbd> layer, <kbd>h</kbd> head, <kbd>t</kbd> token, <kbd>i</kbd> image, <kbd>c</kbd> class; "
    "with Shift: backwards.",
) + _more(3, "Bright patches and attention sinks")
NO_ATTENTION = (
    STAGE.replace("CAPTION", "")
    .replace("SIDE", '<div class="side"><ol id="answers"></ol><p id="reading" role="status"></p></div>')
    .replace(
        "HELP",
        "Click on the image to select a patch, or use the arrow keys while the image has the focus. "
        "Keys: <kbd>i</kbd> image; with Shift: backwards.",
    )
)
MAP = """<figure id="{name}-figure" class="map"><figcaption><b id="{name}-title"></b></figcaption>
<canvas id="{name}-map" role="img" aria-labelledby="{name}-title"></canvas><div class="scale" id="{name}-scale"></div>
<p class="quiet" id="{name}-value">{text}</p></figure>
"""
ROLLOUT = (
    '<p class="lead">Rollout multiplies the attention of all layers, with the residual connections, '
    "and does not depend on a class. Relevance weights the attention with the gradient of one class: select one."
    '</p>\n<div id="classes" class="strip wide" role="group" aria-label="Class"></div>\n<div class="maps">'
    + MAP.format(name="source", text="")
    + MAP.format(name="rollout", text="")
    + MAP.format(name="relevance", text="")
    + '</div>\n<div class="pair"><p class="words" id="rollout-words"></p>'
    + '<p class="words" id="relevance-words"></p></div>\n'
    + _more(3, "What to remember")
)
TOKENS = (
    '<p class="lead">Tokens of the last layer. Click on a patch to compare it with all others.</p>\n<div class="maps">'
    + MAP.format(name="plain", text="")
    + MAP.format(name="similarity", text="")
    + MAP.format(name="components", text="The first three principal components of the tokens as red, green and blue.")
    + '</div>\n<div class="pair"><p class="words" id="similarity-words"></p>'
    + '<p class="words" id="components-words"></p></div>\n'
)  # fmt: skip
FEATURES = TOKENS.replace("Tokens of the last layer.", "Positions of the last feature map.").replace(
    "tokens", "features"
)
DEPTH = """<p class="lead words" id="depth-words"></p>
<div class="depth-layout"><figure><figcaption id="depth-key"></figcaption><div id="depth"></div></figure>
<div class="scroll" tabindex="0" role="region" aria-label="Prediction by depth as a table">
<table id="depth-table"></table></div></div>
""" + _more(3, "By hand")


def _without_attention(page: InspectionPage) -> str:
    """The introduction of the page for a network without attention."""
    contents = [
        (any(image.answers for image in page.images), "its predictions"),
        (any(len(image.relevance) for image in page.images), "relevance maps of its predictions"),
        (any(image.similarity.size for image in page.images), "similarity between positions of its last feature map"),
        (any(image.depth.size for image in page.images), "its prediction by depth"),
        (bool(page.figures), "the figures below"),
    ]
    words = ", ".join(text for present, text in contents if present) or "the input image"
    return f'<p class="lead" id="instead">This network has no attention. Shown instead: {words}.</p>\n'


def _warning(page: InspectionPage) -> str:
    words = "<b>These weights are random.</b> The model was not trained: the maps show nothing that was learned."
    return f'<p class="warning" id="random">{words}</p>\n' if page.random else ""


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{items}</dl>\n' if items else ""


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>\n' if items else ""


def _figures(figures: Sequence[PageFigure]) -> str:
    html = "".join(
        f"<figure{_span(one.png)}><figcaption><h3>{text(one.title)}</h3>"
        f'<p class="words">{text(" ".join(one.sentences))}</p>'
        f'<p class="quiet">{text(one.more)}</p></figcaption>'
        f'<img alt="{text(one.title)}" src="{image_url(one.png, "png")}"></figure>\n'
        for one in figures
    )
    return f'<div class="figures">{html}</div>' if html else ""


def _span(png: bytes) -> str:
    """A wide figure takes the full width of the page, so that its text is readable."""
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))  # fields of the PNG header
    return ' class="wide"' if width > 1.8 * height else ""


def _data(page: InspectionPage) -> str:
    """Data for the script: one JSON object with names and sizes, and the bytes of each array of each image."""
    table: dict[str, Any] = {
        "layers": page.layers,
        "heads": page.heads,
        "prefix": [clean(name) for name in page.prefix],
        "source": page.source,
        "query": page.query,
        "images": [_image(image) for image in page.images],
    }
    words = json.dumps(table, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    arrays = "".join(
        f'<script type="text/plain" id="{name}-{number}">{_base64(zlib.compress(data))}</script>\n'
        for number, image in enumerate(page.images)
        for name, data in _arrays(image, len(page.prefix))
    )
    return f'<script type="application/json" id="data">{words}</script>\n{arrays}'


def _image(image: InspectedImage) -> dict[str, Any]:
    height, width = image.pixels.shape[:2]
    return {
        "name": clean(image.name),
        "source": _pixels_url(image.pixels),
        "size": (width, height),
        "tiny": max(width, height) <= TINY_SIDE,
        "grid": image.grid,
        "coarse": image.coarse,
        "answers": [(clean(name), round(float(value), 6)) for name, value in image.answers],
        "shares": image.answer_shares,
        "classes": len(image.relevance),
        "depth": [[round(float(value), 6) for value in row] for row in image.depth],
        "top": [(clean(name), percentage(value)) for name, value in image.depth_top],
        "depthShares": image.depth_shares,
        "opening": image.opening,
        "words": _words(image.text),
    }


def _words(one: ImageText) -> dict[str, Any]:
    """Each group of sentences as one text."""

    def join(sentences: Sequence[str]) -> str:
        return clean(" ".join(sentences))

    return {
        "opening": join(one.opening),
        "attention": [join(sentences) for sentences in one.attention],
        "rollout": join(one.rollout),
        "relevance": [join(sentences) for sentences in one.relevance],
        "similarity": join(one.similarity),
        "components": join(one.components),
        "depth": join(one.depth),
    }


def _arrays(image: InspectedImage, prefix: int) -> Iterator[tuple[str, bytes]]:
    if image.attention is not None:
        yield "attention-data", _rows(image.attention)
    if image.rollout is not None:
        to_patches = image.rollout.copy()
        to_patches[:, :prefix] = 0  # not shown; it would be the maximum, relative to which the others are stored
        yield "rollout-data", _rows(to_patches)
    if len(image.relevance):
        yield "relevance-data", _rows(image.relevance.reshape(len(image.relevance), -1))
    if image.similarity.size:  # symmetric: its lower half
        half = image.similarity[np.tril_indices(len(image.similarity))]
        yield "similarity-data", np.rint((half.clip(-1, 1) + 1) * 127).astype(np.uint8).tobytes()
    if image.components.size:
        yield "components-data", np.rint(image.components.clip(0, 1) * 255).astype(np.uint8).tobytes()


def _rows(values: Floats) -> bytes:
    """The maximum of each row as 32-bit floats, then 255 * sqrt(value / maximum) of every value as bytes."""
    values = np.asarray(values, np.float32)
    largest: Floats = values.max(-1, keepdims=True)
    codes: NDArray[np.uint8] = np.rint(np.sqrt(values.clip(0) / np.where(largest > 0, largest, 1)) * 255).astype(
        np.uint8
    )
    return largest.astype("<f4").tobytes() + codes.tobytes()


def _check(image: InspectedImage, page: InspectionPage) -> None:
    """Raise if shapes do not match or values are not finite, since the page would show wrong maps."""
    (rows, cols), prefix = image.grid, len(page.prefix)
    seen, few = prefix + rows * cols, prefix + int(np.prod(image.coarse or image.grid))
    expected: list[tuple[str, NDArray[Any] | None, tuple[int, ...], float]] = [
        ("pixels", image.pixels, (*image.pixels.shape[:2], 3), 0),
        ("attention", image.attention, (page.layers, page.heads, few, few), 0),
        ("rollout", image.rollout, (seen, seen), 0),
        ("relevance", image.relevance, (min(len(image.relevance), len(image.answers)), rows, cols), 0),
        ("similarity", image.similarity, (rows * cols, rows * cols), -1),
        ("components", image.components, (rows, cols, 3), 0),
        ("depth", image.depth, (len(image.depth_top), len(image.answers)), 0),
    ]
    for name, found, shape, minimum in expected:
        if found is None or (not found.size and name != "pixels"):
            continue
        if found.shape != shape or not found.size:
            raise VitreousError(f"{image.name}: {name} of shape {found.shape} cannot be shown; expected {shape}")
        if not (found >= minimum - 1e-3).all() or not np.isfinite(found).all():
            raise VitreousError(
                f"{image.name}: {name} cannot be shown: it has values that are not finite or below {minimum}"
            )


def _pixels_url(pixels: NDArray[np.uint8]) -> str:
    """The image as a data URL: lossless for small images, otherwise JPEG."""
    file, image = io.BytesIO(), Image.fromarray(np.ascontiguousarray(pixels))
    if max(image.size) <= TINY_SIDE:
        image.save(file, "PNG", optimize=True)
        return image_url(file.getvalue(), "png")
    image.save(file, "JPEG", quality=90, subsampling=0)
    return image_url(file.getvalue(), "jpeg")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
