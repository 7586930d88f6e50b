"""What is inspected in the weights of a cell: attention rollout, attention distance, filters and positions.

Values hold everything that a figure needs, in a form that JSON can store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.dataset import DataSet, Source
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import SystemFaultError, VitreousError
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.experiments.grid.cell_measures import CellMeasure, TrainedCell
from vitreous.experiments.grid.experiment import Cell, Scale
from vitreous.experiments.grid.packed_values import pack_array, png_text
from vitreous.experiments.grid.permutation_tests import mantel_test, spearman_test, weighted_sum_test
from vitreous.inspection.attention_maps import rollout
from vitreous.inspection.distance import attention_distance
from vitreous.inspection.embeddings import FILTERS, embedding_filters, position_similarity
from vitreous.inspection.figures import filter_pixels, image_array
from vitreous.inspection.internals import describe_pooling, require_vit

if TYPE_CHECKING:
    from vitreous.experiments.grid.settings import Setting

BATCH = 16  # images
IMAGE_SIDE = 96  # px: longer side of an image in a result.json
FILTER_SIDE = 32
ONE_SEED: dict[Scale, int] = {"tiny": 1, "small": 1, "paper": 1}  # these experiments inspect one model
LEARNED = ("learned-1d", "learned-2d")  # kinds of position embeddings


def inspected_cell(setting: Setting, measures: Sequence[CellMeasure]) -> Cell:
    """Return the cell of the model that was given, or of the pre-trained one."""
    if setting.model is not None:
        return Cell({"model": "given"}, measures, model=setting.model)
    return Cell({"model": "pre-trained"}, measures, config=setting.pretraining())


# ---------------------------------------------------------------- images


@dataclass(frozen=True)
class PreparedImage:
    name: str
    label: str  # its class; "" with several labels
    pixels: Tensor  # (channels, height, width) in 0..255, resized for the model


def images_to_inspect(data: DataSet, count: int, opened: EvaluatedModel) -> list[PreparedImage]:
    """Return images of the test split, or of the validation split if there is none: the first of every class, then the
    second, and so on. Images that cannot be read are left out."""
    split = data.test or data.val or data.train
    preprocessing = opened.preprocessing()

    def readable() -> Iterator[PreparedImage]:
        for index in spread_over_classes(split):
            try:
                pixels = preprocessing.pixels(split.image(index))
            except SystemFaultError:
                raise
            except VitreousError:
                continue
            label = "" if data.multi_label else data.classes[int(split.labels[index])]
            yield PreparedImage(split.name(index).replace("\\", "/").rsplit("/", 1)[-1], label, pixels)

    chosen = [image for image, _ in zip(readable(), range(count), strict=False)]
    if not chosen:
        raise VitreousError(f"{data.name}: none of the images can be read")
    return chosen


def spread_over_classes(source: Source) -> list[int]:
    """Return the indices of all images: the first of every class in the order of the data, then the second ones..."""
    if source.labels.ndim == 2:
        return list(range(len(source)))
    seen: dict[int, int] = {}
    order = []
    for index, label in enumerate(source.labels.tolist()):
        seen[label] = seen.get(label, -1) + 1
        order.append((seen[label], index))
    return [index for _, index in sorted(order)]


def model_input(opened: EvaluatedModel, images: list[PreparedImage]) -> Tensor:
    """Return images as a normalised batch, on the model's device."""
    device = next(opened.model.parameters()).device
    return opened.preprocessing().normalise(torch.stack([image.pixels for image in images]).to(device))


# ---------------------------------------------------------------- measures


@dataclass(frozen=True)
class ImageMeasure(CellMeasure):
    """A measure on a few images."""

    source: str
    classes: tuple[str, ...] = ()  # (): all
    hold_out: bool = True  # of data with training images only, the images held out from training; otherwise all images
    count: int = 6

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @classmethod
    def of(cls, setting: Setting, count: int) -> Self:
        """Return the measure for the model of `inspected_cell`. What a given model was trained on is not known."""
        return cls(setting.data, setting.classes, setting.model is None, count)

    def choose(self, opened: EvaluatedModel) -> list[PreparedImage]:
        reading = Reading(val_fraction=None if self.hold_out else 0.0, only_classes=self.classes)
        return images_to_inspect(open_data(self.source, reading), self.count, opened)


@dataclass(frozen=True)
class RolloutMaps(ImageMeasure):
    """Attention rollout from the class token to the patches of a few images. Without a class token: from the pooled
    representation."""

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        model: Any = require_vit(cell.opened.model, "rollout")
        images = self.choose(cell.opened)
        found = rollout(model, model_input(cell.opened, images))
        token = "class" if "class" in found.names else None
        maps = found.seen_from(token).cpu().numpy()
        return {
            "rollout": {
                "source": "class token" if token else describe_pooling(model.config),
                "images": [
                    {
                        "name": image.name,
                        "class": image.label,
                        "png": png_text(image_array(image.pixels), IMAGE_SIDE),
                        "map": pack_array(one, 6),
                    }
                    for image, one in zip(images, maps, strict=True)
                ],
            }
        }


@dataclass(frozen=True)
class HeadDistances(ImageMeasure):
    """Mean attention distance of every head, and its correlation with depth."""

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        require_vit(cell.opened.model, "attention_distance")
        images = self.choose(cell.opened)
        batches = (model_input(cell.opened, images[i : i + BATCH]) for i in range(0, len(images), BATCH))
        found = attention_distance(cell.opened.model, batches)
        distance = found.distance.numpy()
        return {
            "distances": {
                "distance": pack_array(distance, 2),
                "uniform": round(found.largest, 2),
                "images": found.images,
                "depth_test": asdict(depth_test(distance)),
            }
        }


def depth_test(distance: NDArray[np.float64]) -> Any:
    """Spearman's correlation of layer and attention distance over all heads (layers, heads), with a permutation test:
    under the null hypothesis, every head could be in any layer."""
    layers = np.arange(len(distance)).repeat(distance.shape[1])
    return spearman_test(layers, distance.ravel())


@dataclass(frozen=True)
class FilterComponents(CellMeasure):
    """The principal components of the filters of the patch embedding, each as an image with its own scale."""

    count: int = FILTERS

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        found = embedding_filters(cell.opened.model, self.count)
        images = [png_text(filter_pixels(one), FILTER_SIDE) for one in found.components]
        return {"filters": {"png": images, "share": round(float(found.share.sum()), 4), "of": found.of}}


@dataclass(frozen=True)
class PositionMaps(CellMeasure):
    """Cosine similarity of position embeddings, and its correlation with the distance of patches.

    Of a grid with more than `most` rows or columns, only every second, third ... is kept for the figure.
    """

    most: int = 16

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        model: Any = require_vit(cell.opened.model, "position_similarity")
        kind = model.config.position
        if kind in ("none", "relative"):
            return {"positions": {"kind": kind}}
        found = position_similarity(model)
        similarity, grid = found.similarity.cpu().numpy(), found.grid
        step = -(-max(grid) // self.most)
        kept = similarity[::step, ::step, ::step, ::step]
        values = {"kind": kind, "grid": list(grid), "step": step, "similarity": pack_array(kept, 3)}
        matrix = similarity.reshape(grid[0] * grid[1], -1)
        tests = {
            "distance_test": asdict(mantel_test(matrix, patch_distances(grid))),
            "axis_test": asdict(weighted_sum_test(matrix, axis_weights(grid))),
        }
        return {"positions": {**values, **tests}}


def patch_distances(grid: tuple[int, int]) -> NDArray[np.float64]:
    """Return the distances (N, N) of all patches, in patches."""
    rows, columns = np.indices(grid).reshape(2, -1)
    distances: NDArray[np.float64] = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    return distances


def axis_weights(grid: tuple[int, int]) -> NDArray[np.float64]:
    """Return weights (N, N) whose product with a similarity, summed, is: how much more similar two patches in one row
    or column are than other patches that are nearer, on average.

    A pair in one row or column, d patches apart, is compared with the mean of all other pairs that are between d - 1
    and d apart. They are nearer, so the result is below zero if the similarity only depends on the distance.
    """
    rows, columns = np.indices(grid).reshape(2, -1)
    same = (rows[:, None] == rows) | (columns[:, None] == columns)
    bins = np.ceil(patch_distances(grid) - 1e-9).astype(np.int64)
    np.fill_diagonal(same, False)
    others = ~same & (bins > 0)
    size = int(bins.max()) + 1
    pairs = np.bincount(bins[same], minlength=size) * (np.bincount(bins[others], minlength=size) > 0)
    compared = np.maximum(np.bincount(bins[others], minlength=size), 1)
    weights = np.where(same & (pairs[bins] > 0), 1.0, np.where(others, -(pairs / compared)[bins], 0.0))
    result: NDArray[np.float64] = weights / max(1, int(pairs.sum()))
    return result
