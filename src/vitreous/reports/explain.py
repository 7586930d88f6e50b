"""`explain`: a page that follows one image through equations 1 to 4 of the ViT paper with a model's own numbers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.evaluation.evaluated_model import RANDOM_PREFIX, EvaluatedModel
from vitreous.evaluation.model_argument import ModelSource, model_argument
from vitreous.inspection.forward_steps import forward_steps, require_tokens
from vitreous.inspection.internals import patch_pixels
from vitreous.models.checks import Grid
from vitreous.preprocessing import ImageLike, Preprocessing
from vitreous.reports.explain_page import ExplainedImage, render_explain_page
from vitreous.reports.html_page import write_html
from vitreous.utils.atomic import check_output
from vitreous.weights.model_info import labels_of

PAGE = "explanation.html"


def explain(  # noqa: PLR0913 (each is an option of the command)
    image: ImageLike,
    model: ModelSource = "vitreous-mini",
    *,
    out: str | os.PathLike[str] = PAGE,
    overwrite: bool = False,
    patch: tuple[int, int] | None = None,
    layer: int | None = None,
    head: int | None = None,
    size: int | tuple[int, int] | None = None,
    device: str = "auto",
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
) -> Path:
    """Write a page that follows one image through the equations of the ViT paper, with the numbers of a model.

    - `image`: a path, the bytes of a file, a PIL image, an array or a tensor
    - `model`: a model, or what `vitreous.load` accepts
    - `out`: the .html file to write, or a folder for it
    - `overwrite`: replace an existing file
    - `patch`: row and column of the patch to follow, counted from 1; default: the one with the highest contrast
    - `layer`: the block to show in detail, counted from 1; default: the middle one
    - `head`: the attention head to show, counted from 1; default: the one with the largest attention weight for the
      patch
    - `size`: input size in pixels, one number or (height, width); default: that of the model
    - `device`: where a model that is loaded runs: cpu, cuda ...; auto: a GPU if there is one
    - `heads`, `preprocessing`: as in `vitreous.load`, for files that do not contain them

    Returns the path of the page. A model without patches (BiT) or an unreadable image raises a `VitreousError`, and so
    do `heads`, `preprocessing` and another `device` together with a model in memory, which has its own.

    >>> from sklearn.datasets import load_sample_image
    >>> page = vitreous.explain(load_sample_image("flower.jpg"), patch=(6, 7))
    >>> print(page)
    explanation.html
    """
    target = page_path(out)
    check_output(target, overwrite)
    opened = model_argument(model, "explain", device=device, heads=heads, preprocessing=preprocessing)
    return explain_evaluated(image, opened, target, patch=patch, layer=layer, head=head, size=size)


def explain_evaluated(
    image: ImageLike,
    evaluated: EvaluatedModel,
    target: Path,
    *,
    patch: tuple[int, int] | None = None,
    layer: int | None = None,
    head: int | None = None,
    size: int | tuple[int, int] | None = None,
    command: str = "",
) -> Path:
    """Write the page of a model that is already open. The arguments are those of `explain`."""
    model = require_tokens(evaluated.model)
    preprocessing = evaluated.preprocessing(size)
    pixels = preprocessing.pixels(image)
    if pixels.ndim != 3:
        raise VitreousError("explain: expected one image, not a list")
    parameter = next(model.parameters())
    batch = preprocessing.normalise(pixels.to(parameter.device)).to(parameter.dtype)[None]
    grid = model.config.grid_at((pixels.shape[1], pixels.shape[2]))
    contrast = patch_contrast(pixels, grid, patch_pixels(model.config))
    place = divmod(int(contrast.argmax()), grid[1]) if patch is None else _place(patch, grid)
    block, head = _from_zero(layer, model.config.depth, "layer"), _from_zero(head, model.config.heads, "head")
    steps = forward_steps(model, batch, place, block, head)
    name = Path(os.fsdecode(image)).name if isinstance(image, str | os.PathLike) else "image"
    explained = ExplainedImage(
        name=name,
        model_name=evaluated.name,
        config=model.config,
        preprocessing=preprocessing,
        pixels=np.ascontiguousarray(pixels.expand(3, -1, -1).clamp(0, 255).byte().permute(1, 2, 0).numpy()),
        normalised=batch[0].float().cpu(),
        steps=steps,
        labels=labels_of(model),
        chosen_by_contrast=patch is None,
        contrast=float(contrast[place]),
        random=evaluated.name.startswith(RANDOM_PREFIX),
        notes=tuple(evaluated.notes),
        command=command,
    )
    page = render_explain_page(explained)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)  # not before the page is complete
    except OSError as error:
        raise VitreousError(f"{target} cannot be written ({error.strerror})") from error
    write_html(target, page)
    return target


def page_path(out: str | os.PathLike[str]) -> Path:
    """Return the file to write: `out` itself if its name ends in .html, otherwise a file in the folder `out`."""
    path = Path(out)
    if path.suffix.lower() in (".html", ".htm") and not path.is_dir():
        return path
    if path.exists() and not path.is_dir():
        raise VitreousError(f"{path} is neither a folder nor an .html file")
    return path / PAGE


def patch_contrast(pixels: Tensor, grid: Grid, patch: tuple[int, int]) -> Tensor:
    """Return the standard deviation of the pixels (0..255) of each patch, (rows, cols)."""
    result = torch.zeros(grid)
    for row in range(grid[0]):
        for col in range(grid[1]):
            cut = pixels[:, row * patch[0] : (row + 1) * patch[0], col * patch[1] : (col + 1) * patch[1]].float()
            result[row, col] = cut.std(unbiased=False)
    return result


def _place(patch: tuple[int, int], grid: Grid) -> tuple[int, int]:
    if not isinstance(patch, list | tuple) or len(patch) != 2:
        raise VitreousError(f"patch = {brief(patch)}: expected a row and a column, counted from 1")
    row, col = (_from_zero(*one) for one in zip(patch, grid, ("row", "column"), strict=True))
    assert row is not None
    assert col is not None
    return row, col


def _from_zero(number: int | None, count: int, name: str) -> int | None:
    """Convert a number that counts from 1, as on the page."""
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= count:
        raise VitreousError(f"{name} {brief(number)}: expected 1 to {count}")
    return number - 1
