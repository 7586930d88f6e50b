"""Panels of inspection figures: image maps, filters, position similarity, attention distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.experiments.compare_figure import COLOURS
from vitreous.experiments.grid.packed_values import read_png_text, unpack_array
from vitreous.inspection.figures import MAP, apply_colormap, map_size, mosaic, overlay, resize_map

SIMILARITY_MAP = "viridis"
MOSAIC_SIDE = 400  # pixels: longer side of a mosaic, at least
FILTERS_PER_ROW = 7
SMALL = 8  # font size
PAIR_SIDE = 288  # pixels of an image with rollout
SMALL_IMAGE = 48  # pixels: smaller images are enlarged without interpolation


def show_pixels(axis: Any, pixels: NDArray[Any]) -> None:
    """Show an image without a frame."""
    axis.imshow(np.clip(pixels, 0, 1), interpolation="antialiased")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def show_text(axis: Any, text: str) -> None:
    """Show a text in an empty panel: why there is nothing to draw."""
    axis.set(xticks=[], yticks=[], box_aspect=1, anchor="N")
    axis.spines[:].set_color("0.7")
    axis.text(0.5, 0.5, text, ha="center", va="center", wrap=True, fontsize=SMALL, transform=axis.transAxes)


def show_filters(axis: Any, filters: Mapping[str, Any]) -> None:
    """Show the principal components of filters, each with its own scale."""
    images = [read_png_text(text) for text in filters["png"]]
    scale = max(1, -(-24 // max(images[0].shape[:2])))  # small filters have visible pixels
    images = [_framed(image.repeat(scale, 0).repeat(scale, 1)) for image in images]
    across = min(FILTERS_PER_ROW, -(-len(images) // 2)) if len(images) <= FILTERS_PER_ROW else FILTERS_PER_ROW
    gap = max(1, images[0].shape[0] // 8)
    show_pixels(axis, mosaic([images[i : i + across] for i in range(0, len(images), across)], gap))
    axis.set_anchor("N")
    share = f"{100 * float(filters['share']):.0f}% of their variance"
    axis.set_xlabel(f"{len(images)} principal components of {filters['of']},\n{share}", fontsize=SMALL)


def _framed(image: NDArray[Any]) -> NDArray[Any]:
    return np.pad(image, ((1, 1), (1, 1), (0, 0)), constant_values=0.45)


def position_limits(panels: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the smallest and the largest similarity of two different positions, over all panels. The similarity of a
    position with itself is 1, which would hide the others."""
    values = []
    for positions in panels:
        similarity = unpack_array(positions["similarity"])
        matrix = similarity.reshape(similarity.shape[0] * similarity.shape[1], -1)
        values.append(matrix[~np.eye(len(matrix), dtype=bool)])
    numbers = np.concatenate(values)
    if not numbers.size:
        return -1.0, 1.0
    low, high = float(numbers.min()), float(numbers.max())
    return (low, high) if high - low > 1e-6 else (low - 0.5, high + 0.5)


def show_positions(axis: Any, positions: Mapping[str, Any], limits: tuple[float, float]) -> None:
    """Show a map over all positions for each position."""
    similarity, step = unpack_array(positions["similarity"]), int(positions["step"])
    rows, columns, height, width = similarity.shape
    scale = max(2, -(-MOSAIC_SIDE // max(rows * (height + 1), columns * (width + 1))))
    low, high = limits
    maps = apply_colormap((similarity - low) / (high - low), SIMILARITY_MAP).repeat(scale, 2).repeat(scale, 3)
    gap = max(2, max(height, width) * scale // 12)
    show_pixels(axis, mosaic([list(row) for row in maps], gap))
    axis.set_anchor("N")
    for count, side, set_ticks in ((columns, width, axis.set_xticks), (rows, height, axis.set_yticks)):
        ticks = range(0, count, max(1, -(-count // 8)))
        places = [(side * scale + gap) * i + side * scale / 2 - 0.5 for i in ticks]
        set_ticks(places, [str(i * step + 1) for i in ticks], fontsize=SMALL)
    axis.tick_params(length=0)


def add_similarity_bar(figure: Any, axes: Any, limits: tuple[float, float], **options: Any) -> None:
    """Add the colour bar of position similarities. Its upper end is open: a position with itself has 1."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colours = ScalarMappable(Normalize(*limits), SIMILARITY_MAP)
    bar = figure.colorbar(colours, ax=axes, extend="max" if limits[1] < 1 else "neither", **options)
    bar.set_label("cosine similarity", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)


def show_distances(axis: Any, distances: Mapping[str, Any]) -> None:
    """Show the attention distance by layer, with a dot per head."""
    values, uniform = unpack_array(distances["distance"]), float(distances["uniform"])
    layers = np.arange(1, len(values) + 1)
    axis.scatter(
        layers.repeat(values.shape[1]), values.ravel(), s=16, color=COLOURS[0], alpha=0.75, linewidths=0, label="head"
    )
    axis.plot(layers, values.mean(1), color=COLOURS[1], linewidth=1.5, label="mean of the heads")
    axis.axhline(uniform, color="0.4", linestyle="--", linewidth=1, label="uniform attention")
    axis.set_xlabel("network depth (layer)", fontsize=9)
    axis.set_ylabel("mean attention distance (px)", fontsize=9)
    axis.set_ylim(0, 1.12 * max(uniform, float(values.max())))
    axis.set_xticks(layers[:: max(1, -(-len(values) // 12))])
    axis.tick_params(labelsize=SMALL)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=SMALL, framealpha=0.85, loc="lower right")


def rollout_pair(image: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return an image, and the same image in grey with the rollout as colours, from its minimum to its maximum."""
    pixels, values = read_png_text(image["png"]), unpack_array(image["map"])
    size = map_size((pixels.shape[0], pixels.shape[1]), pixels, PAIR_SIDE)
    shown = resize_map(pixels, size, "nearest" if max(pixels.shape[:2]) < SMALL_IMAGE else "bilinear")
    low, high = float(values.min()), float(values.max())
    return shown, overlay((values - low) / max(high - low, 1e-30), shown, size)


def add_rollout_bar(figure: Any) -> None:
    """Add the colour bar of `rollout_pair`, to the right of all panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), MAP), ax=figure.axes, shrink=0.8, aspect=30, pad=0.02)
    bar.set_ticks([0, 1], labels=["min", "max"], fontsize=SMALL)
    bar.set_label("attention rollout\n(scale of each image)", fontsize=SMALL, labelpad=2)
