"""Small pictures of the explanation page, as data URLs: photographs with patches, maps over patches, vectors."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitreous.utils.html import image_url

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Cell = tuple[int, int]

SIDE = 480  # pixels of the longer side of a picture
HEAT = "000004 140e36 3b0f70 641a80 8c2981 b73779 de4968 f7705c fe9f6d fecf92 fcfdbf"  # magma, as in inspection_page.js
SIGNED = "12308f 33509f 566a9f 737a93 8a8a88 aaa278 c8bb66 e4d452 fdec3e"  # blue, grey at zero, yellow


def photo(pixels: Bytes, cell: tuple[int, int] | None = None, chosen: Cell | None = None) -> str:
    """An image (H, W, 3), with the lines of the grid of patches if the size of a patch is given."""
    image, scale = _enlarge(pixels)
    if cell is None:
        return _jpeg(image)
    height, width = (side * scale for side in cell)
    draw = ImageDraw.Draw(image, "RGBA")
    rows, cols = pixels.shape[0] // cell[0], pixels.shape[1] // cell[1]
    for row in range(rows + 1):
        draw.line([(0, row * height), (cols * width, row * height)], fill=(255, 255, 255, 150))
    for col in range(cols + 1):
        draw.line([(col * width, 0), (col * width, rows * height)], fill=(255, 255, 255, 150))
    if chosen is not None:
        _frame(draw, chosen, (height, width))
    return _jpeg(image)


def heat_map(values: Floats, aspect: float, chosen: Cell) -> str:
    """Values (rows, cols) from black (zero) to light yellow (the maximum), with a frame around the chosen patch.

    `aspect`: width of a cell divided by its height."""
    high = float(values.max()) or 1.0
    size = SIDE / max(values.shape[0], values.shape[1] * aspect)
    height, width = max(1, round(size)), max(1, round(size * aspect))
    coloured = _colours(values / high, HEAT)
    image = Image.fromarray(coloured.repeat(height, 0).repeat(width, 1))
    _frame(ImageDraw.Draw(image, "RGBA"), chosen, (height, width))
    return _png(image)


def vector_strip(values: Floats, columns: int = 32) -> str:
    """Values of a vector as coloured cells, row by row: blue is negative, yellow is positive."""
    high = float(np.abs(values).max()) or 1.0
    padded = np.full(-(-len(values) // columns) * columns, np.nan, np.float32)
    padded[: len(values)] = values
    cells = _colours((np.nan_to_num(padded) / high + 1) / 2, SIGNED).reshape(-1, columns, 3)
    alpha = np.where(np.isnan(padded), 0, 255).astype(np.uint8).reshape(-1, columns, 1)
    image = Image.fromarray(np.concatenate([cells, alpha], -1).repeat(10, 0).repeat(10, 1))
    return _png(image)


def patch_picture(pixels: Bytes) -> str:
    """A patch (h, w, 3), enlarged so that its pixels are visible."""
    factor = max(1, SIDE // 2 // max(pixels.shape[:2]))
    return _png(Image.fromarray(pixels.repeat(factor, 0).repeat(factor, 1)))


def _frame(draw: ImageDraw.ImageDraw, cell: Cell, size: tuple[float, float]) -> None:
    """A white frame inside a black one, visible on any background."""
    top, left = cell[0] * size[0], cell[1] * size[1]
    box = (left, top, left + size[1] - 1, top + size[0] - 1)
    draw.rectangle(box, outline=(0, 0, 0, 255), width=4)
    draw.rectangle(box, outline=(255, 255, 255, 255), width=2)


def _enlarge(pixels: Bytes) -> tuple[Image.Image, float]:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    scale = SIDE / max(image.size)
    smooth = Image.Resampling.NEAREST if max(image.size) <= 64 else Image.Resampling.LANCZOS
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, smooth), scale


def _colours(shares: NDArray[np.floating[Any]], ramp: str) -> Bytes:
    stops = np.array([[int(hex_[at : at + 2], 16) for at in (0, 2, 4)] for hex_ in ramp.split()], np.float64)
    place = np.asarray(shares, np.float64).clip(0, 1) * (len(stops) - 1)
    channels = [np.interp(place, np.arange(len(stops)), stops[:, c]) for c in range(3)]
    coloured: Bytes = np.rint(np.stack(channels, -1)).astype(np.uint8)
    return coloured


def _png(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return image_url(file.getvalue(), "png")


def _jpeg(image: Image.Image) -> str:
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=88, subsampling=0)
    return image_url(file.getvalue(), "jpeg")
