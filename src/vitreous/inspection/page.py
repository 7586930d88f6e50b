"""The page of `vitreous inspect`: one file, complete in itself, that any browser opens from anywhere.

Words, facts and drawings are plain HTML. What one looks at by clicking is embedded as numbers: bytes, deflated, in
base64, which the script unpacks. A row of attention is divided by its maximum and stored as 255 times its square root,
so that faint weights keep their digits; the maximum is kept as it is, so that the page tells true shares.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import VitreousError
from vitreous.pages import clean, policy, text
from vitreous.weights.files import replacing

TINY_SIDE = 64  # up to here a picture is kept pixel by pixel, and shown so

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Shown:
    """One image and what was found in the model while it looked at it."""

    name: str  # of the file: untrusted text
    pixels: NDArray[np.uint8]  # (H, W, 3), what the model was shown
    grid: tuple[int, int]  # (rows, cols) of patches
    answers: tuple[tuple[str, float], ...]  # classes with probabilities, the likeliest first; () without a head
    attention: Floats | None  # (layers, heads, T, T), queries before keys; T = prefix + rows * cols
    coarse: tuple[int, int] | None  # the grid of `attention` where it was pooled to fewer cells, else None
    rollout: Floats | None  # (T', T') with T' = prefix + rows * cols, never pooled
    relevance: Floats  # (classes, rows, cols), one map for each of the first answers; may have none
    similarity: Floats  # (N, N) cosine of the patch tokens of the last layer, -1..1
    components: Floats  # (rows, cols, 3) in 0..1: first three principal components as colours
    depth: Floats  # (layers + 1, len(answers)): probability before the first block and after every block; or (0, 0)
    depth_top: tuple[tuple[str, float], ...]  # the top class and its probability at each of those depths


@dataclass(frozen=True)
class Drawing:
    """A figure that is a file by now."""

    title: str
    text: str  # what it shows, one or two sentences
    png: bytes


@dataclass(frozen=True)
class Page:
    """Everything that the page shows."""

    title: str  # the model's name
    facts: tuple[tuple[str, str], ...]  # label, value
    notes: tuple[str, ...]  # what one should know
    random: bool  # the weights were never trained
    prefix: tuple[str, ...]  # names of the tokens in front of the patches
    source: str  # what rollout and relevance are of: "class token" or "mean of the patches"
    layers: int
    heads: int
    images: tuple[Shown, ...]
    drawings: tuple[Drawing, ...]
    command: str  # what was typed


def write_page(path: Path, page: Page) -> None:
    """Write the page, whole or not at all."""
    html = render(page)
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def render(page: Page) -> str:
    for shown in page.images:
        _check(shown, page)
    style, script = (files("vitreous.inspection").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    sections = [section for section in _sections(page) if section[3]]
    nav = "".join(f'<a href="#{name}">{title}</a>' for name, title, _, _ in sections)
    main = "".join(
        f'<section id="{name}"{" class=live hidden" if live else ""}><h2>{title}</h2>\n{body}</section>\n'
        for name, title, live, body in sections
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Inside {text(page.title)}</title>
<style>{style}</style></head>
<body><header><p class="kicker">Inside the model</p><h1 class="name">{text(page.title)}</h1>
{_warning(page)}{_facts(page.facts)}{_notes(page.notes)}<nav>{nav}</nav></header>
<noscript><p class="warning">Looking at images here needs JavaScript. The figures below do without it.</p></noscript>
<p class="warning" id="problem" role="alert" hidden></p>
<main>
{main}</main>
<footer>Written by Vitreous. This page is one file and loads nothing.</footer>
{_data(page)}<script>{script}</script></body></html>
"""


def _sections(page: Page) -> list[tuple[str, str, bool, str]]:
    """Name, title, whether it stays hidden until the script has filled it, and body."""
    images = page.images
    attended = any(shown.attention is not None for shown in images)
    rolled = any(shown.rollout is not None or len(shown.relevance) for shown in images)
    tokens = any(shown.similarity.size or shown.components.size for shown in images)
    deep = any(shown.depth.size for shown in images)
    look = (ATTENTION if attended else _instead(page) + NO_ATTENTION) if images else ""
    return [
        ("look", "Attention" if attended else "Image", True, look),
        ("rolled", "Rollout and relevance" if attended else "Relevance", True, ROLLOUT if rolled else ""),
        ("patches", "Patches among themselves", True, (TOKENS if attended else PLACES) if tokens else ""),
        ("depths", "Prediction by depth", True, DEPTH if deep else ""),
        ("figures", "Figures", False, _drawings(page.drawings)),
        ("command", "Command", False, f"<pre><code>{text(page.command)}</code></pre>" if page.command else ""),
    ]


STAGE = """<div id="images" class="group" role="group" aria-label="Image"></div>
<div class="look">
<figure class="stage"><canvas id="picture" tabindex="0" role="application" aria-describedby="keys"></canvas>
<figcaption><p id="says" aria-live="polite"></p>CAPTION</figcaption></figure>
SIDE</div>
<p class="quiet" id="keys">HELP</p>
"""
ATTENTION = (
    STAGE.replace(
        "CAPTION",
        """<div class="knobs"><label>overlay <input id="strength" type="range" min="0" max="100" value="75"></label>
<label><input id="lift" type="checkbox"> lift faint values</label></div>""",
    )
    .replace(
        "SIDE",
        """<div class="side">
<div class="told"><figure><canvas id="attention-map" tabindex="0" role="application"
aria-label="Attention map. Arrow keys read its values."></canvas><div class="scale" id="attention-scale"></div></figure>
<div><p id="reading" role="status"></p><p id="value" aria-live="polite"></p>
<p class="quiet">Point at the map, tap it, or move over it with the arrow keys, to read a value.</p></div></div>
<div class="control"><h3>From</h3><div id="tokens" class="group" role="group" aria-label="Query"></div></div>
<div class="control"><h3><label for="layer">Layer</label> <output id="layer-name" for="layer"></output></h3>
<input id="layer" type="range" min="1" step="1">
<div id="layers" class="strip" role="group" aria-label="All layers of this head"></div></div>
<div class="control"><h3>Head</h3>
<div id="heads" class="strip" role="group" aria-label="All heads of this layer"></div></div>
<p class="quiet">Each small map has its own scale.</p></div>""",
    )
    .replace(
        "HELP",
        "Click on the picture to ask another patch, or move with the arrow keys while it has the focus. "
        "Keys: <kbd>l</kbd> layer, <kbd>h</kbd> head, <kbd>t</kbd> token, <kbd>i</kbd> image, <kbd>c</kbd> class; "
        "with Shift, the one before.",
    )
)
NO_ATTENTION = (
    STAGE.replace("CAPTION", "")
    .replace("SIDE", '<div class="side"><ol id="answers"></ol><p id="reading" role="status"></p></div>')
    .replace(
        "HELP",
        "Click on the picture to choose a patch, or move with the arrow keys while it has the focus. "
        "Keys: <kbd>i</kbd> image; with Shift, the one before.",
    )
)
MAP = """<figure id="{name}-figure" class="map"><figcaption><b id="{name}-title"></b></figcaption>
<canvas id="{name}-map" role="img" aria-labelledby="{name}-title"></canvas><div class="scale" id="{name}-scale"></div>
<p class="quiet" id="{name}-value">{text}</p></figure>
"""
ROLLOUT = (
    '<p class="lead">Rollout follows attention through all layers, with the residual connections, '
    "and knows nothing of classes. Relevance weighs the attention by the gradient of one class: what spoke for it."
    '</p>\n<div id="classes" class="strip wide" role="group" aria-label="Class"></div>\n<div class="maps">'
    + MAP.format(name="source", text="")
    + MAP.format(name="rollout", text="")
    + MAP.format(name="relevance", text="")
    + "</div>"
)
TOKENS = (
    '<p class="lead">Tokens of the last layer. Click on a patch to compare it with all others.</p>\n<div class="maps">'
    + MAP.format(name="plain", text="")
    + MAP.format(name="similarity", text="")
    + MAP.format(name="components", text="The first three principal components of the tokens as red, green and blue: "
                 "patches of one colour are alike.")
    + "</div>"
)  # fmt: skip
PLACES = TOKENS.replace("Tokens of the last layer.", "Places of the last feature map.").replace("tokens", "features")
DEPTH = """<p class="lead">What the head would say if the network ended earlier: probability of the final answers, read
out after every block.</p>
<div class="deep"><figure><figcaption id="depth-key"></figcaption><div id="depth"></div></figure>
<div class="scroll" tabindex="0" role="region" aria-label="Prediction by depth as a table">
<table id="depth-table"></table></div></div>
"""


def _instead(page: Page) -> str:
    """For a network without attention: that it has none, and what there is to see."""
    there = [
        (any(shown.answers for shown in page.images), "what it answers"),
        (any(len(shown.relevance) for shown in page.images), "what spoke for each answer"),
        (any(shown.similarity.size for shown in page.images), "how alike the places of its last feature map are"),
        (any(shown.depth.size for shown in page.images), "how its prediction grows with depth"),
        (bool(page.drawings), "the figures below"),
    ]
    words = ", ".join(text for found, text in there if found) or "the image as it saw it"
    return f'<p class="lead" id="instead">This network has no attention. Shown instead: {words}.</p>\n'


def _warning(page: Page) -> str:
    words = "<b>These weights are random.</b> The model was never trained: what the maps show is chance, not learning."
    return f'<p class="warning" id="random">{words}</p>\n' if page.random else ""


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{items}</dl>\n' if items else ""


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>\n' if items else ""


def _drawings(drawings: Sequence[Drawing]) -> str:
    figures = "".join(
        f"<figure{_span(one.png)}><figcaption><h3>{text(one.title)}</h3>"
        f'<p class="quiet">{text(one.text)}</p></figcaption>'
        f'<img alt="{text(one.title)}: {text(one.text)}" src="{_address(one.png, "png")}"></figure>\n'
        for one in drawings
    )
    return f'<div class="drawings">{figures}</div>' if figures else ""


def _span(png: bytes) -> str:
    """A drawing of several panels side by side takes the whole width, so that its words can be read."""
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))  # where a PNG tells them
    return ' class="wide"' if width > 1.8 * height else ""


def _data(page: Page) -> str:
    """The numbers: one table of words and sizes, and for each array of each image its bytes."""
    table: dict[str, Any] = {
        "layers": page.layers,
        "heads": page.heads,
        "prefix": [clean(name) for name in page.prefix],
        "source": page.source,
        "images": [_image(shown) for shown in page.images],
    }
    words = json.dumps(table, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    arrays = "".join(
        f'<script type="text/plain" id="{name}-{number}">{_base64(zlib.compress(data))}</script>\n'
        for number, shown in enumerate(page.images)
        for name, data in _arrays(shown)
    )
    return f'<script type="application/json" id="data">{words}</script>\n{arrays}'


def _image(shown: Shown) -> dict[str, Any]:
    height, width = shown.pixels.shape[:2]
    return {
        "name": clean(shown.name),
        "source": _picture(shown.pixels),
        "size": (width, height),
        "tiny": max(width, height) <= TINY_SIDE,
        "grid": shown.grid,
        "coarse": shown.coarse,
        "answers": [(clean(name), round(float(value), 6)) for name, value in shown.answers],
        "classes": len(shown.relevance),
        "depth": [[round(float(value), 6) for value in row] for row in shown.depth],
        "top": [(clean(name), round(float(value), 6)) for name, value in shown.depth_top],
    }


def _arrays(shown: Shown) -> Iterator[tuple[str, bytes]]:
    if shown.attention is not None:
        yield "attention-data", _rows(shown.attention)
    if shown.rollout is not None:
        yield "rollout-data", _rows(shown.rollout)
    if len(shown.relevance):
        yield "relevance-data", _rows(shown.relevance.reshape(len(shown.relevance), -1))
    if shown.similarity.size:  # symmetric: its lower half
        half = shown.similarity[np.tril_indices(len(shown.similarity))]
        yield "similarity-data", np.rint((half.clip(-1, 1) + 1) * 127).astype(np.uint8).tobytes()
    if shown.components.size:
        yield "components-data", np.rint(shown.components.clip(0, 1) * 255).astype(np.uint8).tobytes()


def _rows(values: Floats) -> bytes:
    """The maximum of each row as 32-bit floats, then 255 * sqrt(value / maximum) of every value as bytes."""
    values = np.asarray(values, np.float32)
    largest: Floats = values.max(-1, keepdims=True)
    codes: NDArray[np.uint8] = np.rint(np.sqrt(values.clip(0) / np.where(largest > 0, largest, 1)) * 255).astype(
        np.uint8
    )
    return largest.astype("<f4").tobytes() + codes.tobytes()


def _check(shown: Shown, page: Page) -> None:
    """What does not fit together, or is not a number, would be drawn as something that it is not."""
    (rows, cols), prefix = shown.grid, len(page.prefix)
    seen, few = prefix + rows * cols, prefix + int(np.prod(shown.coarse or shown.grid))
    expected: list[tuple[str, NDArray[Any] | None, tuple[int, ...], float]] = [
        ("pixels", shown.pixels, (*shown.pixels.shape[:2], 3), 0),
        ("attention", shown.attention, (page.layers, page.heads, few, few), 0),
        ("rollout", shown.rollout, (seen, seen), 0),
        ("relevance", shown.relevance, (min(len(shown.relevance), len(shown.answers)), rows, cols), 0),
        ("similarity", shown.similarity, (rows * cols, rows * cols), -1),
        ("components", shown.components, (rows, cols, 3), 0),
        ("depth", shown.depth, (len(shown.depth_top), len(shown.answers)), 0),
    ]
    for name, found, shape, least in expected:
        if found is None or (not found.size and name != "pixels"):
            continue
        if found.shape != shape or not found.size:
            raise VitreousError(f"{shown.name}: {name} of shape {found.shape} cannot be shown; expected {shape}")
        if not (found >= least - 1e-3).all() or not np.isfinite(found).all():
            raise VitreousError(
                f"{shown.name}: {name} cannot be shown: it has values that are not numbers, or are below {least}"
            )


def _picture(pixels: NDArray[np.uint8]) -> str:
    """As an address that holds it: exact where pixels can be seen one by one, otherwise small."""
    file, image = io.BytesIO(), Image.fromarray(np.ascontiguousarray(pixels))
    if max(image.size) <= TINY_SIDE:
        image.save(file, "PNG", optimize=True)
        return _address(file.getvalue(), "png")
    image.save(file, "JPEG", quality=90, subsampling=0)
    return _address(file.getvalue(), "jpeg")


def _address(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{_base64(data)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
