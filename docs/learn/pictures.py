"""Draw the pictures of the course: `python docs/learn/pictures.py [CHAPTER ...] [--deit CHECKPOINT]`

The Python blocks of a chapter are run as a reader would run them, and its pictures are drawn from their variables, so
that they show the numbers of the text. --deit draws only the picture of the last layer of DeiT-Ti.
"""

import argparse
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.patheffects import withStroke
from PIL import Image

import vitreous
from vitreous import inspection
from vitreous.data.builtin import photographs
from vitreous.inspection.figures import COLOURS, frame_patch, image_array, overlay, resize_map
from vitreous.utils.atomic import atomic_file
from vitreous.utils.figures import new_figure, render_figure

HERE = Path(__file__).parent
DPI = 90
MOST_BYTES = 100_000  # of a picture, so that the pages load fast
SIDE = 240  # pixels of an image in a picture
Names = dict[str, Any]  # the variables of a chapter


def pixels_of(images: Any) -> Any:
    """Return the first of a batch of images with values in -1..1 as an array (H, W, 3) in 0..1."""
    return image_array((images[0] + 1) * 127.5)


def image_row(count: int, width: float = 2.6, height: float = 2.9) -> tuple[Any, Any]:
    figure = new_figure(width * count, height)
    axes = figure.subplots(1, count)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    return figure, axes


def show(axis: Any, image: Any, title: str, below: str = "") -> None:
    axis.imshow(np.clip(image, 0, 1), interpolation="nearest")
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(below, fontsize=9)


def show_map(figure: Any, axis: Any, values: Any, title: str, **scale: Any) -> None:
    """Draw a map of patches with its scale, rows and columns counted from 1."""
    drawn = axis.imshow(values.numpy(), **scale)
    axis.set_title(title, fontsize=10)
    figure.colorbar(drawn, ax=axis, shrink=0.75, pad=0.02).ax.tick_params(labelsize=8)


# ---------------------------------------------------------------- chapter 1


def draw_patches(names: Names) -> Any:
    """The image, and its numbered patches with gaps."""
    image, patch, rows, cols = pixels_of(names["x"]), names["P"], names["rows"], names["cols"]
    figure = new_figure(9.6, 5.2)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    left.imshow(image, interpolation="nearest")
    left.set_title(f"one image: {rows * patch} × {cols * patch} pixels", fontsize=10)
    outline = withStroke(linewidth=2, foreground="white")
    right.set_title(f"{rows * cols} patches of {patch} × {patch} pixels: a sequence", fontsize=10)
    for number in range(rows * cols):
        row, col = divmod(number, cols)
        tile = image[row * patch : (row + 1) * patch, col * patch : (col + 1) * patch]
        x, y = 1.25 * col, 1.25 * row
        right.imshow(tile, extent=(x, x + 1, y + 1, y), interpolation="nearest")
        right.text(x + 0.5, y + 0.52, str(number + 1), fontsize=7.5, ha="center", va="center", path_effects=[outline])
    right.set(xlim=(-0.2, 1.25 * cols), ylim=(1.25 * rows, -0.2))
    for axis in (left, right):
        axis.set_axis_off()
    return figure


def draw_directions(names: Names) -> Any:
    """The image, and what the strong and the weak directions of E keep of it."""
    figure, axes = image_row(3)
    weak = names["patches"] - names["strong"]
    images = {"all 192 directions": names["x"], "the 128 strongest": names["strong"], "the 64 weakest": weak}
    for axis, (title, one) in zip(axes, images.items(), strict=True):
        show(axis, pixels_of(one if one.ndim == 4 else names["join"](one)), title)
    return figure


# ---------------------------------------------------------------- chapter 2


def draw_shuffled(names: Names) -> Any:
    figure, axes = image_row(2)
    for axis, title in zip(axes, ("x", "shuffled"), strict=True):
        show(axis, pixels_of(names[title]), title, names["top"](names["mini"](names[title])))
    return figure


def draw_positions(names: Names) -> Any:
    """Similarity of three positions with all others."""
    figure, axes = image_row(3, 3.0, 2.7)
    similarity = names["similarity"]
    for axis, (row, col) in zip(axes, ((4, 3), (0, 11), (11, 6)), strict=True):
        drawn = axis.imshow(similarity[row, col].numpy(), cmap="viridis", vmin=0.6, vmax=1)
        axis.plot([col], [row], marker="s", markersize=13, markerfacecolor="none", color=COLOURS[1], markeredgewidth=2)
        axis.set_title(f"row {row}, column {col}", fontsize=10)
    figure.colorbar(drawn, ax=axes, shrink=0.8, pad=0.02).set_label("cosine similarity", fontsize=9)
    return figure


# ---------------------------------------------------------------- chapter 3


def draw_attention(names: Names) -> Any:
    """Attention of one patch in several layers."""
    model, x, cell, layers = names["model"], names["x"], (3, 3), (0, 2, 4, 6)
    maps = inspection.attention(model, x, list(layers)).seen_from(cell).mean(2)[:, 0]
    figure, axes = image_row(5, 2.1, 2.5)
    image, size = pixels_of(x), (SIDE, SIDE)
    show(axes[0], frame_patch(resize_map(image, size, "nearest"), cell, names["grid"]), "patch in row 4, column 4")
    for axis, layer, one in zip(axes[1:], layers, maps, strict=True):
        drawn = frame_patch(overlay(one, image, size), cell, names["grid"])
        show(axis, drawn, f"layer {layer + 1}", f"largest weight {one.max():.2f}")
    return figure


def draw_sinks(names: Names) -> Any:
    """Attention received by each patch, next to the effect of covering it."""
    model, x = names["model"], names["x"]
    figure, axes = image_row(4, 2.7, 2.5)
    show(axes[0], pixels_of(x), "x")
    for axis, (layer, head) in zip(axes[1:3], ((6, 1), (7, 3)), strict=True):
        received = model.attention(x, [layer - 1])[0][0, head - 1].mean(0).unflatten(0, names["grid"]) * 144
        show_map(figure, axis, received, f"received, layer {layer}, head {head}", cmap="viridis", vmin=0)
    change = 100 * (names["probability"] - model(x).softmax(-1)[0, names["church"]])
    most = float(change.abs().max())
    show_map(figure, axes[3], change, "change of P(church), points", cmap="PuOr", vmin=-most, vmax=most)
    return figure


def draw_last_layer(model: Any) -> Any:
    """Attention of the class token in the last layer of a model, token lengths, and relevance."""
    photo = photographs()[0][1]
    x = model.preprocessing(photo)[None]
    image = image_array(model.preprocessing.pixels(photo))
    attention = inspection.attention(model, x, [-1])
    with torch.no_grad():
        z, grid = model.embed(x)
        for block in model.blocks[:-1]:
            z = block(z)
        length = z[0, -grid[0] * grid[1] :].norm(dim=-1).unflatten(0, grid)
    relevance = inspection.relevance(model, x, top=1).maps[0, 0].detach().clamp(min=0)
    figure, axes = image_row(4, 2.7, 2.5)
    show(axes[0], image, "image")
    seen = 100 * attention.seen_from("class").mean(2)[0, 0]
    panels = {
        f"attention, layer {len(model.blocks)} (%)": seen,
        "token length / median": length / length.median(),
        "relevance (% of the sum)": 100 * relevance / relevance.sum(),
    }
    for axis, (title, values) in zip(axes[1:], panels.items(), strict=True):
        show_map(figure, axis, values, title, cmap="viridis", vmin=0)
    return figure


# ---------------------------------------------------------------- chapter 4


def draw_training(names: Names) -> Any:
    """Loss and learning rate by step."""
    losses = names["plain"].losses
    steps, warmup = len(losses), 40
    rate = [
        5e-3 * min((step + 1) / warmup, (1 + np.cos(np.pi * step / steps)) / 2) for step in range(steps)
    ]  # of `fit`
    figure = new_figure(7.2, 2.7)
    left, right = figure.subplots(1, 2)
    left.plot(range(1, steps + 1), losses, color=COLOURS[0], linewidth=1.2)
    left.set(xlabel="step", ylabel="loss of the batch", ylim=(0, None))
    right.plot(range(1, steps + 1), rate, color=COLOURS[1])
    right.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    for axis in (left, right):
        axis.grid(alpha=0.3)
    return figure


def draw_digits(names: Names) -> Any:
    """Five test images, as puzzles and moved."""
    images, labels = names["test"]
    chosen = [int((labels == digit).nonzero()[0]) for digit in range(5)]
    versions = {"as they are": images, "as puzzles": names["puzzle"](images), "moved right": names["right"]}
    figure = new_figure(5.4, 3.4)
    for row, (axes, (title, version)) in enumerate(zip(figure.subplots(3, 5), versions.items(), strict=True)):
        for col, axis in enumerate(axes):
            axis.imshow(version[chosen[col], 0].numpy(), cmap="gray", vmin=-1, vmax=1)
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(f"a {col}", fontsize=10)
        axes[0].set_ylabel(title, fontsize=9)
    return figure


# ---------------------------------------------------------------- chapter 5


def draw_transfer(names: Names) -> Any:
    """Few-shot accuracy, and four ways to use 10 images per class or the features."""
    accuracy, test = names["accuracy"], names["test"]
    figure = new_figure(8.6, 3.2)
    left, right = figure.subplots(1, 2)
    for name, title, colour, marker in (
        ("pretrained", "pre-trained", COLOURS[0], "o"),
        ("random_weights", "random weights", COLOURS[1], "s"),
    ):
        points = {shots: value for (make, shots), value in names["few_shot"].items() if make == name}
        left.plot([*points], [*points.values()], color=colour, marker=marker, label=title)
    left.set(xlabel="images per class", ylabel="accuracy (%)", ylim=(0, 100), xscale="log", title="linear classifier")
    left.set_xticks([1, 5, 25], ["1", "5", "25"])
    left.minorticks_off()
    bars = {
        "pre-trained,\nall weights": accuracy(names["tuned"], *test),
        "pre-trained,\nhead only": accuracy(names["head"], *test),
        "random,\nall weights": accuracy(names["scratch"], *test),
    }
    drawn = right.bar(range(len(bars)), [*bars.values()], color=[COLOURS[0], COLOURS[5], COLOURS[1]], width=0.6)
    right.bar_label(drawn, [f"{value:.0f}" for value in bars.values()], fontsize=9)
    right.set_xticks(range(len(bars)), [*bars], fontsize=9)
    right.set(ylim=(0, 100), title="25 training steps, 10 images per class")
    for axis in (left, right):
        axis.axhline(10, color="0.4", linestyle="--", linewidth=1, label="chance")
        axis.grid(alpha=0.3, axis="y")
        axis.set_axisbelow(True)
    left.legend(fontsize=9, loc="upper left")
    return figure


# ---------------------------------------------------------------- all

PICTURES: dict[str, dict[str, Callable[[Names], Any]]] = {
    "1-patches": {"patches": draw_patches, "directions": draw_directions},
    "2-positions": {"shuffled": draw_shuffled, "positions": draw_positions},
    "3-attention": {"attention": draw_attention, "sinks": draw_sinks},
    "4-training": {"training": draw_training, "digits": draw_digits},
    "5-transfer": {"transfer": draw_transfer},
}


def run_chapter(chapter: str) -> Names:
    """Run the Python blocks of a chapter. Returns its variables."""
    names: Names = {"__name__": chapter}
    text = (HERE / f"{chapter}.md").read_text()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(block, names)
    return names


def render(draw: Callable[[Any], Any], source: Any) -> bytes:
    """Return a picture as PNG: with 256 colours if it would be large."""
    content = render_figure(draw(source), "png", DPI)
    if len(content) > MOST_BYTES:
        small = io.BytesIO()
        Image.open(io.BytesIO(content)).convert("RGB").quantize().save(small, "PNG", optimize=True)
        content = small.getvalue()
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapters", nargs="*", help=f"any of {', '.join(PICTURES)} (default: all)")
    parser.add_argument("--deit", help="checkpoint of DeiT-Ti")
    arguments = parser.parse_args()
    pictures: dict[str, bytes] = {}
    for chapter in arguments.chapters or ([] if arguments.deit else PICTURES):
        if chapter not in PICTURES:
            parser.error(f"no chapter {chapter}")
        with torch.enable_grad():  # restores the mode if a chapter turns gradients off
            names = run_chapter(chapter)
            pictures |= {name: render(draw, names) for name, draw in PICTURES[chapter].items()}
    if arguments.deit:
        pictures["deit"] = render(draw_last_layer, vitreous.load(arguments.deit, preprocessing="deit").eval())
    for name, content in pictures.items():
        with atomic_file(HERE / f"{name}.png") as path:
            path.write_bytes(content)
        print(f"{name}.png: {len(content) / 1000:.0f} KB")


if __name__ == "__main__":
    main()
