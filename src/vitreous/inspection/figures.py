"""Figures of inspection results, with colours that are safe for colour blindness and grey prints.

Maps are combined into one image before drawing, so that a figure of a thousand maps takes no longer than one of ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.utils.figures import add_legend, label_text, literal_text, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP, SIGNED = "inferno", "cividis"  # colormaps of monotonically increasing lightness
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osD^vPX"
OPACITY = 0.8  # of the overlay at the maximum of the map
GAP = 6  # pixels between maps
LETTER_WIDTH = 6  # pixels, approximately
MAX_POSITIONS = 32  # maps per row and column of `draw_position_maps`; of more positions, every second, third...

Pixels = NDArray[np.float32]


# ---------------------------------------------------------------- pixels


def image_array(pixels: Any) -> Pixels:
    """Convert a PIL image, an array (H, W[, 3]) or a tensor (1 or 3, H, W) in 0..255 to an array (H, W, 3) in 0..1."""
    if isinstance(pixels, Tensor):
        pixels = pixels.permute(1, 2, 0).cpu().numpy()
    array = np.asarray(pixels, dtype=np.float32) / 255
    array = array[..., None] if array.ndim == 2 else array
    return np.ascontiguousarray(np.broadcast_to(array[..., :3], (*array.shape[:2], 3)))


def filter_pixels(component: Tensor) -> Pixels:
    """Convert a filter (channels, height, width) to an image (height, width, 3) with its own scale, 0..1."""
    one = component.cpu().numpy()
    values = one.transpose(1, 2, 0) if len(one) in (1, 3) else one.mean(0)[..., None]
    scaled = (values - values.min()) / max(float(values.max() - values.min()), 1e-30)
    return np.ascontiguousarray(np.broadcast_to(scaled, (*scaled.shape[:2], 3)))


def resize_map(array: Any, size: tuple[int, int], mode: str = "bilinear") -> Pixels:
    """Resize an array (rows, cols[, 3])."""
    x = torch.from_numpy(np.array(array, dtype=np.float32))
    x = x[None, None] if x.ndim == 2 else x.permute(2, 0, 1)[None]
    smooth: dict[str, Any] = {} if mode == "nearest" else {"align_corners": False}
    x = F.interpolate(x, size, mode=mode, **smooth)[0]
    result: Pixels = (x[0] if len(x) == 1 else x.permute(1, 2, 0)).numpy()
    return result


def apply_colormap(values: Any, name: str = MAP) -> Pixels:
    """Return RGB colours (..., 3) of values in 0..1."""
    from matplotlib import colormaps

    colours: Pixels = colormaps[name](np.clip(values, 0, 1), bytes=True)[..., :3] / np.float32(255)
    return colours


def overlay(values: Any, image: Pixels | None, size: tuple[int, int], signed: bool = False) -> Pixels:
    """Draw a map (rows, cols) over a grey image, more opaque where it is larger. Without an image: the colours only."""
    array = np.asarray(values, dtype=np.float32)
    if array.ndim == 3:  # already colours
        return resize_map(array, size, "nearest")
    smooth = resize_map(array, size, "nearest" if image is None else "bilinear")
    if signed:
        return apply_colormap((smooth + 1) / 2, SIGNED)
    scaled = smooth / max(float(array.max()), 1e-30)
    colours = apply_colormap(scaled)
    if image is None:
        return colours
    grey = 0.35 + 0.65 * resize_map(image, size).mean(-1, keepdims=True)
    alpha = OPACITY * np.sqrt(np.clip(scaled, 0, 1))[..., None]
    return (1 - alpha) * grey + alpha * colours  # type: ignore[no-any-return]


def frame_patch(cell: Pixels, patch: tuple[int, int] | None, grid: tuple[int, int]) -> Pixels:
    """Draw a frame around a patch."""
    if patch is None:
        return cell
    cell, (height, width) = cell.copy(), cell.shape[:2]
    top, bottom = (round(height * (patch[0] + i) / grid[0]) for i in (0, 1))
    left, right = (round(width * (patch[1] + i) / grid[1]) for i in (0, 1))
    for colour, inset in ((0.0, 0), (1.0, 1)):
        frame = cell[top + inset : bottom - inset, left + inset : right - inset]
        frame[:1], frame[-1:], frame[:, :1], frame[:, -1:] = colour, colour, colour, colour
    return cell


def mosaic(cells: Sequence[Sequence[Pixels]], gap: int = GAP) -> Pixels:
    """Combine rows of equally large images into one image, with white gaps."""
    height, width = cells[0][0].shape[:2]
    down, across = len(cells), max(map(len, cells))
    whole = np.ones((down * (height + gap) - gap, across * (width + gap) - gap, 3), dtype=np.float32)
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            top, left = y * (height + gap), x * (width + gap)
            whole[top : top + height, left : left + width] = cell
    return whole


def map_size(grid: tuple[int, int], image: Pixels | None, side: int) -> tuple[int, int]:
    """Return the size of a map in pixels: its long side is `side`, its aspect ratio that of the image or the grid."""
    height, width = image.shape[:2] if image is not None else grid
    scale = side / max(height, width)
    return max(4, round(height * scale)), max(4, round(width * scale))


# ---------------------------------------------------------------- figures


@dataclass(frozen=True)
class MapLayout:
    title: str = ""
    mark: tuple[int, int] | None = None  # a patch to frame
    single_row: bool = False  # one row of larger maps, after the image


@literal_text
def draw_map_table(
    maps: Any, rows: Sequence[str], cols: Sequence[str], unit: str, pixels: Any = None, layout: MapLayout | None = None
) -> Figure:
    """Draw maps (rows, cols, h, w), each with its own scale."""
    layout = layout or MapLayout()
    values = torch.as_tensor(maps).detach().float().cpu().numpy()
    image, grid = None if pixels is None else image_array(pixels), values.shape[2:]
    side = 224 if layout.single_row else 112
    size = map_size(grid, image, side)
    cells = [[frame_patch(overlay(one, image, size), layout.mark, grid) for one in row] for row in values]
    titles = list(cols)
    if layout.single_row and image is not None:
        cells, titles = [[resize_map(image, size), *row] for row in cells], ["", *titles]
    figure, axis = _image_figure(mosaic(cells), 100)
    _add_mosaic_labels(axis, size, titles if any(titles) else [], rows if any(rows) else [])
    figure.suptitle(layout.title, fontsize=10)
    _add_colorbar(figure, axis, MAP, (0, 1), f"{unit},\nrelative to each map's maximum")
    return figure


@literal_text
def draw_image_maps(
    maps: Any,
    title: str,
    pixels: Sequence[Any] | None = None,
    signed: bool = False,
    mark: tuple[int, int] | None = None,
) -> Figure:
    """Draw a row per image: the image, and its map (h, w) or colours (h, w, 3)."""
    values = torch.as_tensor(maps).detach().float().cpu().numpy()
    several = isinstance(pixels, list | tuple)
    images: list[Any] = [None] * len(values)
    if pixels is not None:
        images = [image_array(one) for one in (pixels if several else [pixels])]
    if len(images) != len(values):
        raise VitreousError(f"pixels: {len(images)} images for {len(values)} maps")
    grid = values.shape[1:3]
    size = map_size(grid, images[0], 280)
    cells = []
    if values.ndim == 3 and not signed:  # constant offsets carry no information
        low, high = (reduce(values, axis=(1, 2), keepdims=True) for reduce in (np.min, np.max))
        values = (values - low) / np.maximum(high - low, 1e-30)
    for one, image in zip(values, images, strict=True):
        drawn = frame_patch(overlay(one, None if signed else image, size, signed), mark, grid)
        cells.append([drawn] if image is None else [frame_patch(resize_map(image, size), mark, grid), drawn])
    figure, axis = _image_figure(mosaic(cells), 90)
    axis.set_title(title, fontsize=10)
    if values.ndim == 3:
        scale: Any = (SIGNED, (-1, 1), "cosine") if signed else (MAP, (0, 1), "from each map's\nminimum to its maximum")
        _add_colorbar(figure, axis, *scale)
    return figure


@literal_text
def draw_filters(components: Tensor, share: Tensor, title: str) -> Figure:
    """Draw each component as an image, with its own scale."""
    count, across = len(components), min(7, len(components))
    images = []
    for one in components:
        scaled = filter_pixels(one)
        images.append(resize_map(scaled, map_size(scaled.shape[:2], None, 64), "nearest"))
    cells = [images[i : i + across] for i in range(0, count, across)]
    figure, axis = _image_figure(mosaic(cells), 90)
    axis.set_axis_off()
    axis.set_title(f"{title}\nthe first {count}: {100 * float(share.sum()):.0f}% of the variance", fontsize=10)
    return figure


@literal_text
def draw_position_maps(similarity: Tensor, title: str) -> Figure:
    """Draw a map over all positions for each position, from (rows, cols, rows, cols)."""
    step = -(-max(similarity.shape[:2]) // MAX_POSITIONS)
    similarity = similarity[::step, ::step]
    title += "" if step == 1 else f"\n1 of {step} rows and columns"
    rows, cols, (height, width) = *similarity.shape[:2], similarity.shape[2:]
    low = min(0.0, float(similarity.min()))
    shorter = min(rows * (height + 1), cols * (width + 1))
    scale = max(1, min(420 // shorter, 3000 // max(rows * (height + 1), cols * (width + 1))))  # pixels per value
    maps = (
        apply_colormap((similarity.float().cpu().numpy() - low) / (1 - low), "viridis")
        .repeat(scale, 2)
        .repeat(scale, 3)
    )
    figure, axis = _image_figure(mosaic([list(row) for row in maps], gap=scale), 110)
    for n, side, set_ticks in ((cols, width, axis.set_xticks), (rows, height, axis.set_yticks)):
        ticks = range(0, n, max(1, -(-n // 14)))
        set_ticks([(side + 1) * scale * i + side * scale / 2 - 0.5 for i in ticks], [str(i * step + 1) for i in ticks])
    axis.set(xlabel="column of the patch", ylabel="row of the patch")
    axis.set_title(title, fontsize=10)
    _add_colorbar(figure, axis, "viridis", (low, 1), "cosine similarity")
    return figure


@literal_text
def draw_offsets(maps: Tensor, titles: Sequence[str], title: str) -> Figure:
    """Draw a map of biases per head by offset from query to key, with the query in the centre."""
    maps, largest = maps.cpu(), max(float(maps.abs().max()), 1e-30)
    size = map_size((maps.shape[1], maps.shape[2]), None, 130)
    across = min(6, len(maps))
    middle, grid = (maps.shape[1] // 2, maps.shape[2] // 2), (maps.shape[1], maps.shape[2])
    images = [resize_map(apply_colormap((one.numpy() / largest + 1) / 2, SIGNED), size, "nearest") for one in maps]
    images = [frame_patch(one, middle, grid) for one in images]
    cells = [images[i : i + across] for i in range(0, len(images), across)]
    figure, axis = _image_figure(mosaic(cells), 100)
    starts = [f"from {titles[i]}" for i in range(0, len(titles), across)]
    _add_mosaic_labels(axis, size, titles[:across], starts if len(cells) > 1 else [])
    extent = f"up to {maps.shape[1] // 2} rows and {maps.shape[2] // 2} columns from the query (framed)"
    axis.set_xlabel(f"{title}:\n{extent}", fontsize=9)
    _add_colorbar(figure, axis, SIGNED, (-largest, largest), "bias of the attention logit")
    return figure


@literal_text
def draw_by_layer(panels: Sequence[tuple[Tensor, str, tuple[float, str]]], title: str) -> Figure:
    """Draw values (layers, heads) by layer: a dot per head, a line through the means, and a dashed limit."""
    figure = new_figure(5.2 * len(panels), 3.8)
    for number, (values, ylabel, (limit, name)) in enumerate(panels):
        axis = figure.add_subplot(1, len(panels), number + 1)
        layers = np.arange(1, len(values) + 1)
        axis.scatter(
            layers.repeat(values.shape[1]), values.flatten(), s=18, color=COLOURS[0], alpha=0.75, label="one head"
        )
        axis.plot(layers, values.mean(1), color=COLOURS[1], linewidth=1.5, label="mean of the heads")
        axis.axhline(limit, color="0.45", linestyle="--", linewidth=1, label=name)
        axis.set(xlabel="layer", ylabel=ylabel, ylim=(0, 1.12 * max(limit, float(values.max()))))
        step = max(1, -(-len(values) // 12))
        axis.set_xticks(layers[::step])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, framealpha=0.85, loc="lower right")
    figure.suptitle(title, fontsize=10)
    return figure


@literal_text
def draw_lines(values: Sequence[tuple[str, Any]], xlabel: str, ylabel: str) -> Figure:
    """Draw a line per name, in percent by layer; 0 is before the first layer."""
    figure = new_figure(6.4, 3.8)
    axis = figure.add_subplot()
    drawn = []
    for number, (_, line) in enumerate(values):
        style: Any = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 4,
        }
        drawn += axis.plot(range(len(line)), [100 * float(v) for v in line], **style)
    count = max(len(line) for _, line in values)
    axis.set(xlabel=xlabel, ylabel=ylabel, ylim=(-2, 102))
    axis.set_xticks(range(0, count, max(1, -(-count // 14))))
    axis.grid(alpha=0.3)
    add_legend(axis, drawn, [name for name, _ in values], fontsize=8, framealpha=0.85)
    return figure


def _image_figure(pixels: Pixels, dpi: int) -> tuple[Figure, Any]:
    """Return a figure of an image at its own resolution, with margins for labels, and its axis."""
    height, width = pixels.shape[:2]
    scale = min(1.0, 14 * dpi / max(height, width))
    figure = new_figure(max(3.2, width * scale / dpi + 1.9), max(2.4, height * scale / dpi + 1.1))
    axis = figure.add_subplot()
    axis.imshow(np.clip(pixels, 0, 1), interpolation="antialiased")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    axis.set_xticks([])
    axis.set_yticks([])
    return figure, axis


def _add_mosaic_labels(axis: Any, size: tuple[int, int], cols: Sequence[str], rows: Sequence[str]) -> None:
    """Add titles above the columns and labels next to the rows of a mosaic."""
    fontsize = 8 if max(len(cols), len(rows)) <= 16 else 6
    axis.xaxis.tick_top()
    short = [label_text(name, 30) for name in cols]
    crowded = max(map(len, short), default=0) * LETTER_WIDTH > size[1] + GAP
    centres = [i * (size[1] + GAP) + size[1] / 2 for i in range(len(cols))]
    axis.set_xticks(centres, short, fontsize=fontsize, rotation=90 if crowded else 0)
    axis.set_yticks(
        [i * (size[0] + GAP) + size[0] / 2 for i in range(len(rows))],
        [label_text(name, 30) for name in rows],
        fontsize=fontsize,
    )


def _add_colorbar(figure: Any, axis: Any, name: str, limits: tuple[float, float], unit: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    shrink = min(0.8, 2.6 / figure.get_figheight())
    bar = figure.colorbar(ScalarMappable(Normalize(*limits), name), ax=axis, shrink=shrink, aspect=22, pad=0.02)
    bar.set_label(unit, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if math.isclose(limits[1], 1) and limits[0] == 0:
        bar.set_ticks([0, 0.5, 1])
