"""How what was found is drawn: titles and units as a paper prints them, colours that survive any eye and a grey print.

Maps are put together as one picture of pixels and drawn at once: a figure of a thousand maps takes no longer than one
of ten.
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
from vitreous.utils.figures import blank, label, legend, literal_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP, SIGNED = "inferno", "cividis"  # both rise in lightness from end to end
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = "osD^vPX"
STRENGTH = 0.8  # of the colour over the picture, where the map is highest
GAP = 6  # pixels between maps
LETTER = 6  # pixels of the width of one, about
MOST_PLACES = 32  # in a row or column of places that are shown; of more, every second, third...

Pixels = NDArray[np.float32]


# ---------------------------------------------------------------- pixels


def picture_of(pixels: Any) -> Pixels:
    """(H, W, 3) in 0..1, from what a PIL image, an array (H, W[, 3]) or a tensor (1 or 3, H, W) holds in 0..255."""
    if isinstance(pixels, Tensor):
        pixels = pixels.permute(1, 2, 0).cpu().numpy()
    array = np.asarray(pixels, dtype=np.float32) / 255
    array = array[..., None] if array.ndim == 2 else array
    return np.ascontiguousarray(np.broadcast_to(array[..., :3], (*array.shape[:2], 3)))


def resized(array: Any, size: tuple[int, int], mode: str = "bilinear") -> Pixels:
    """(rows, cols[, 3]) at another size."""
    x = torch.from_numpy(np.array(array, dtype=np.float32))
    x = x[None, None] if x.ndim == 2 else x.permute(2, 0, 1)[None]
    smooth: dict[str, Any] = {} if mode == "nearest" else {"align_corners": False}
    x = F.interpolate(x, size, mode=mode, **smooth)[0]
    found: Pixels = (x[0] if len(x) == 1 else x.permute(1, 2, 0)).numpy()
    return found


def coloured(values: Any, name: str = MAP) -> Pixels:
    """(..., 3) of values in 0..1."""
    from matplotlib import colormaps

    found: Pixels = colormaps[name](np.clip(values, 0, 1), bytes=True)[..., :3] / np.float32(255)
    return found


def overlay(values: Any, picture: Pixels | None, size: tuple[int, int], signed: bool = False) -> Pixels:
    """A map (rows, cols) over a picture in grey: the stronger it is, the more of its colour; else the colours alone."""
    array = np.asarray(values, dtype=np.float32)
    if array.ndim == 3:  # is colour already
        return resized(array, size, "nearest")
    smooth = resized(array, size, "nearest" if picture is None else "bilinear")
    if signed:
        return coloured((smooth + 1) / 2, SIGNED)
    scaled = smooth / max(float(array.max()), 1e-30)
    colours = coloured(scaled)
    if picture is None:
        return colours
    grey = 0.35 + 0.65 * resized(picture, size).mean(-1, keepdims=True)
    alpha = STRENGTH * np.sqrt(np.clip(scaled, 0, 1))[..., None]
    return (1 - alpha) * grey + alpha * colours  # type: ignore[no-any-return]


def outlined(cell: Pixels, patch: tuple[int, int] | None, grid: tuple[int, int]) -> Pixels:
    """With a frame around one patch."""
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
    """Rows of cells of one size, white between them."""
    height, width = cells[0][0].shape[:2]
    down, across = len(cells), max(map(len, cells))
    whole = np.ones((down * (height + gap) - gap, across * (width + gap) - gap, 3), dtype=np.float32)
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            top, left = y * (height + gap), x * (width + gap)
            whole[top : top + height, left : left + width] = cell
    return whole


def cell_size(grid: tuple[int, int], picture: Pixels | None, side: int) -> tuple[int, int]:
    """Of a map in pixels: its long side about `side`, in the shape of the picture or the grid."""
    height, width = picture.shape[:2] if picture is not None else grid
    scale = side / max(height, width)
    return max(4, round(height * scale)), max(4, round(width * scale))


# ---------------------------------------------------------------- figures


@dataclass(frozen=True)
class Look:
    """How maps are laid out."""

    title: str = ""
    mark: tuple[int, int] | None = None  # a patch with a frame around it
    alone: bool = False  # a single row, larger, with the picture before it


@literal_text
def table(
    maps: Any, rows: Sequence[str], cols: Sequence[str], unit: str, pixels: Any = None, look: Look | None = None
) -> Figure:
    """Maps (rows, cols, h, w), each on a scale of its own."""
    look = look or Look()
    values = torch.as_tensor(maps).detach().float().cpu().numpy()
    picture, grid = None if pixels is None else picture_of(pixels), values.shape[2:]
    side = 224 if look.alone else 112
    size = cell_size(grid, picture, side)
    cells = [[outlined(overlay(one, picture, size), look.mark, grid) for one in row] for row in values]
    titles = list(cols)
    if look.alone and picture is not None:
        cells, titles = [[resized(picture, size), *row] for row in cells], ["", *titles]
    figure, axis = _canvas(mosaic(cells), 100)
    _ticks(axis, size, titles if any(titles) else [], rows if any(rows) else [])
    figure.suptitle(look.title, fontsize=10)
    _bar(figure, axis, MAP, (0, 1), f"{unit},\nas a share of each map's highest")
    return figure


@literal_text
def beside(
    maps: Any,
    title: str,
    pixels: Sequence[Any] | None = None,
    signed: bool = False,
    mark: tuple[int, int] | None = None,
) -> Figure:
    """A row for each image: the picture, and its map (h, w) or colours (h, w, 3)."""
    values = torch.as_tensor(maps).detach().float().cpu().numpy()
    several = isinstance(pixels, list | tuple)
    pictures: list[Any] = [None] * len(values)
    if pixels is not None:
        pictures = [picture_of(one) for one in (pixels if several else [pixels])]
    if len(pictures) != len(values):
        raise VitreousError(f"pixels: {len(pictures)} pictures for {len(values)} maps")
    grid = values.shape[1:3]
    size = cell_size(grid, pictures[0], 280)
    cells = []
    if values.ndim == 3 and not signed:  # what is the same everywhere says nothing
        low, high = (reduce(values, axis=(1, 2), keepdims=True) for reduce in (np.min, np.max))
        values = (values - low) / np.maximum(high - low, 1e-30)
    for one, picture in zip(values, pictures, strict=True):
        drawn = outlined(overlay(one, None if signed else picture, size, signed), mark, grid)
        cells.append([drawn] if picture is None else [outlined(resized(picture, size), mark, grid), drawn])
    figure, axis = _canvas(mosaic(cells), 90)
    axis.set_title(title, fontsize=10)
    if values.ndim == 3:
        scale: Any = (SIGNED, (-1, 1), "cosine") if signed else (MAP, (0, 1), "from each map's\nlowest to its highest")
        _bar(figure, axis, *scale)
    return figure


@literal_text
def filters(components: Tensor, share: Tensor, title: str) -> Figure:
    """Each component as a patch of pixels, on a scale of its own."""
    count, across = len(components), min(7, len(components))
    lifted = []
    for one in components.cpu().numpy():
        values = one.transpose(1, 2, 0) if len(one) in (1, 3) else one.mean(0)[..., None]
        scaled = (values - values.min()) / max(float(values.max() - values.min()), 1e-30)
        size = cell_size(scaled.shape[:2], None, 64)
        lifted.append(resized(np.broadcast_to(scaled, (*scaled.shape[:2], 3)), size, "nearest"))
    cells = [lifted[i : i + across] for i in range(0, count, across)]
    figure, axis = _canvas(mosaic(cells), 90)
    axis.set_axis_off()
    axis.set_title(f"{title}\nthe first {count}: {100 * float(share.sum()):.0f}% of the variance", fontsize=10)
    return figure


@literal_text
def grid_of_grids(similarity: Tensor, title: str) -> Figure:
    """(rows, cols, rows, cols): for each place, a map of all places."""
    step = -(-max(similarity.shape[:2]) // MOST_PLACES)
    similarity = similarity[::step, ::step]
    title += "" if step == 1 else f"\nof one place in {step}, along rows and columns"
    rows, cols, (height, width) = *similarity.shape[:2], similarity.shape[2:]
    low = min(0.0, float(similarity.min()))
    least = min(rows * (height + 1), cols * (width + 1))
    scale = max(1, min(420 // least, 3000 // max(rows * (height + 1), cols * (width + 1))))  # pixels for a cell
    maps = coloured((similarity.float().cpu().numpy() - low) / (1 - low), "viridis").repeat(scale, 2).repeat(scale, 3)
    figure, axis = _canvas(mosaic([list(row) for row in maps], gap=scale), 110)
    for n, side, place in ((cols, width, axis.set_xticks), (rows, height, axis.set_yticks)):
        shown = range(0, n, max(1, -(-n // 14)))
        place([(side + 1) * scale * i + side * scale / 2 - 0.5 for i in shown], [str(i * step + 1) for i in shown])
    axis.set(xlabel="column of the patch", ylabel="row of the patch")
    axis.set_title(title, fontsize=10)
    _bar(figure, axis, "viridis", (low, 1), "cosine similarity")
    return figure


@literal_text
def offsets(maps: Tensor, titles: Sequence[str], title: str) -> Figure:
    """A map for each head of what is added by where a key lies, the query in the middle."""
    maps, most = maps.cpu(), max(float(maps.abs().max()), 1e-30)
    size = cell_size((maps.shape[1], maps.shape[2]), None, 130)
    across = min(6, len(maps))
    middle, grid = (maps.shape[1] // 2, maps.shape[2] // 2), (maps.shape[1], maps.shape[2])
    lifted = [resized(coloured((one.numpy() / most + 1) / 2, SIGNED), size, "nearest") for one in maps]
    lifted = [outlined(one, middle, grid) for one in lifted]
    cells = [lifted[i : i + across] for i in range(0, len(lifted), across)]
    figure, axis = _canvas(mosaic(cells), 100)
    starts = [f"from {titles[i]}" for i in range(0, len(titles), across)]
    _ticks(axis, size, titles[:across], starts if len(cells) > 1 else [])
    reach = f"up to {maps.shape[1] // 2} rows and {maps.shape[2] // 2} columns away from the query, which is framed"
    axis.set_xlabel(f"{title}:\n{reach}", fontsize=9)
    _bar(figure, axis, SIGNED, (-most, most), "added to the logit")
    return figure


@literal_text
def dots(panels: Sequence[tuple[Tensor, str, tuple[float, str]]], title: str) -> Figure:
    """(layers, heads) against depth, a dot for each head and a line through their means; a limit, dashed."""
    figure = blank(5.2 * len(panels), 3.8)
    for number, (values, ylabel, (limit, name)) in enumerate(panels):
        axis = figure.add_subplot(1, len(panels), number + 1)
        layers = np.arange(1, len(values) + 1)
        axis.scatter(
            layers.repeat(values.shape[1]), values.flatten(), s=18, color=COLOURS[0], alpha=0.75, label="a head"
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
def lines(values: Sequence[tuple[str, Any]], xlabel: str, ylabel: str) -> Figure:
    """Names and their shares, in percent, along the depth: 0 is before the first layer."""
    figure = blank(6.4, 3.8)
    axis = figure.add_subplot()
    drawn = []
    for number, (_, line) in enumerate(values):
        style: Any = {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)], "markersize": 4}
        drawn += axis.plot(range(len(line)), [100 * float(v) for v in line], **style)
    count = max(len(line) for _, line in values)
    axis.set(xlabel=xlabel, ylabel=ylabel, ylim=(-2, 102))
    axis.set_xticks(range(0, count, max(1, -(-count // 14))))
    axis.grid(alpha=0.3)
    legend(axis, drawn, [name for name, _ in values], fontsize=8, framealpha=0.85)
    return figure


def _canvas(pixels: Pixels, dpi: int) -> tuple[Figure, Any]:
    """A figure as large as these pixels want to be, with room for what is written around them."""
    height, width = pixels.shape[:2]
    scale = min(1.0, 14 * dpi / max(height, width))
    figure = blank(max(3.2, width * scale / dpi + 1.9), max(2.4, height * scale / dpi + 1.1))
    axis = figure.add_subplot()
    axis.imshow(np.clip(pixels, 0, 1), interpolation="antialiased")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    axis.set_xticks([])
    axis.set_yticks([])
    return figure, axis


def _ticks(axis: Any, size: tuple[int, int], cols: Sequence[str], rows: Sequence[str]) -> None:
    """Names above columns and beside rows of a mosaic."""
    small = 8 if max(len(cols), len(rows)) <= 16 else 6
    axis.xaxis.tick_top()
    short = [label(name, 30) for name in cols]
    crowded = max(map(len, short), default=0) * LETTER > size[1] + GAP
    places = [i * (size[1] + GAP) + size[1] / 2 for i in range(len(cols))]
    axis.set_xticks(places, short, fontsize=small, rotation=90 if crowded else 0)
    axis.set_yticks(
        [i * (size[0] + GAP) + size[0] / 2 for i in range(len(rows))],
        [label(name, 30) for name in rows],
        fontsize=small,
    )


def _bar(figure: Any, axis: Any, name: str, limits: tuple[float, float], unit: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    part = min(0.8, 2.6 / figure.get_figheight())
    bar = figure.colorbar(ScalarMappable(Normalize(*limits), name), ax=axis, shrink=part, aspect=22, pad=0.02)
    bar.set_label(unit, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if math.isclose(limits[1], 1) and limits[0] == 0:
        bar.set_ticks([0, 0.5, 1])
