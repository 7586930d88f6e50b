"""Arrays and images as short JSON values, so that a figure can be drawn again from a result.json alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import VitreousError

MAX_SIDE = 1024  # of an image in a result.json, in pixels


def pack_array(values: Any, decimals: int) -> dict[str, Any]:
    """Return an array as its shape and one text of rounded numbers: indented JSON would need a line per number."""
    array = np.asarray(values, dtype=np.float64).round(decimals) + 0.0  # no negative zeros
    return {"shape": list(array.shape), "values": " ".join(f"{value:.{decimals}f}" for value in array.ravel())}


def unpack_array(packed: Mapping[str, Any]) -> NDArray[np.float64]:
    try:
        numbers = [float(text) for text in packed["values"].split()]
        return np.array(numbers, dtype=np.float64).reshape(packed["shape"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise VitreousError(f"an array in the result is damaged ({error})") from error


def png_text(pixels: NDArray[Any], longest: int | None = None) -> str:
    """Return an image (height, width[, 3]) in 0..1 as a PNG in base64. Its longer side is at most `longest` pixels."""
    image = Image.fromarray((np.clip(pixels, 0, 1) * 255).round().astype(np.uint8))
    if longest is not None and max(image.size) > longest:
        scale = longest / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def read_png_text(text: str) -> NDArray[np.float32]:
    """Return the image (height, width, 3) in 0..1 of a PNG in base64."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=["PNG"]) as image:
            if max(image.size) > MAX_SIDE:
                raise VitreousError(f"an image in the result has a side of more than {MAX_SIDE} pixels")
            return np.asarray(image.convert("RGB"), dtype=np.float32) / np.float32(255)
    except (OSError, SyntaxError, TypeError, ValueError) as error:
        raise VitreousError(f"an image in the result is damaged ({error})") from error
