"""The section of a training report that shows predictions of masked patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.reports.pictures import patch_picture
from vitreous.utils.html import text

COLUMNS = ("input", "masked input", "prediction", "truth")
CAPTION = (
    "Masked input: grey patches have the mask token, some corrupted patches have the embedding of another patch, and"
    " some are kept. Prediction and truth: the corrupted patches show what is predicted of them, and their target."
)


@dataclass(frozen=True)
class MaskedPicture:
    """One image of a validation or test split. All arrays are (height, width, channels)."""

    name: str
    image: NDArray[np.uint8]
    masked: NDArray[np.uint8]
    prediction: NDArray[np.uint8]
    truth: NDArray[np.uint8]


def masked_section(pictures: Sequence[MaskedPicture], split: str) -> str:
    """HTML; empty without pictures."""
    if not pictures:
        return ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    rows = "".join(_row(picture) for picture in pictures)
    words = f'<p class="quiet">{len(pictures)} {text(split)} images. {CAPTION}</p>'
    return (
        f'{words}<div class="scroll"><table class="masked"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(picture: MaskedPicture) -> str:
    arrays = (picture.image, picture.masked, picture.prediction, picture.truth)
    name = text(picture.name)
    cells = "".join(
        f'<td><img alt="{column} of {name}" title="{name}" src="{patch_picture(_rgb(pixels))}"></td>'
        for column, pixels in zip(COLUMNS, arrays, strict=True)
    )
    return f"<tr>{cells}</tr>\n"


def _rgb(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels.repeat(3, 2) if pixels.shape[2] == 1 else pixels
