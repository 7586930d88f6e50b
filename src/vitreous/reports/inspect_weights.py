"""Inspections of the model itself, and averages over all images: filters, positions and attention distance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.inspection.distance import attention_distance
from vitreous.inspection.embeddings import embedding_filters, position_similarity
from vitreous.inspection.internals import check_attention_memory
from vitreous.models.base import Model
from vitreous.models.vit import VisionTransformer
from vitreous.preprocessing import Preprocessing
from vitreous.reports.inspection_model_text import describe_distances, describe_filters, describe_positions
from vitreous.reports.inspection_record import InspectionRecord, rounded_list
from vitreous.utils.sizes import pair

BATCH = 8  # images per batch for attention distances


@dataclass(frozen=True)
class FigureText:
    """Title and sentences of a figure of the model, and where the course explains it."""

    title: str
    sentences: tuple[str, ...]
    chapter: int
    section: str


def inspect_weights(
    model: Model, images: Iterable[Tensor], preprocessing: Preprocessing, record: InspectionRecord, random: bool
) -> dict[str, FigureText]:
    """Add figures and numbers to the record. `images`: inputs of the model, (C, H, W) each. Returns the text of each
    figure by its name."""
    found = _inspect_weights(model, images, preprocessing, record, random)
    record.numbers["text"] = {name: one.sentences for name, one in found.items()}
    return found


def _inspect_weights(
    model: Model, images: Iterable[Tensor], preprocessing: Preprocessing, record: InspectionRecord, random: bool
) -> dict[str, FigureText]:
    found: dict[str, FigureText] = {}
    filters = embedding_filters(model)
    record.figures["filters"] = filters.figure()
    sentences = tuple(describe_filters(filters, random))
    found["filters"] = FigureText("Filters", sentences, 1, "The embedding is one matrix product")
    parts = {"share": rounded_list(filters.share), "components": rounded_list(filters.components)}
    record.numbers["filters"] = {"of": filters.of, **parts}
    if not isinstance(model, VisionTransformer):
        return found
    batches = _batches(model, images)
    first = next(batches, None)
    if model.config.position != "none":
        similar = position_similarity(model, preprocessing.size, images=first)
        own_size = pair(preprocessing.size) == pair(model.config.image_size)
        sentences = tuple(describe_positions(similar, own_size, random))
        record.figures["positions"] = similar.figure()
        record.numbers["positions"] = record.limited(similar.similarity, "position similarity")
        found["positions"] = FigureText("Positions", sentences, 2, "What a position embedding looks like")
    if first is not None:
        far = attention_distance(model, chain([first], batches))
        sentences = tuple(describe_distances(far, random))
        record.figures["distances"] = far.figure()
        record.numbers["distances"] = {
            "images": far.images, "pixels": rounded_list(far.distance), "entropy_bits": rounded_list(far.entropy)
        }  # fmt: skip
        section = "How far, and how widely, does a token attend"
        found["distances"] = FigureText("Attention distance", sentences, 3, section)
    return found


def _batches(model: VisionTransformer, images: Iterable[Tensor]) -> Iterator[Tensor]:
    batch: list[Tensor] = []
    for image in images:
        batch.append(image)
        if len(batch) == _batch_size(model, batch[0]):
            yield torch.stack(batch)
            batch = []
    if batch:
        yield torch.stack(batch)


def _batch_size(model: VisionTransformer, image: Tensor) -> int:
    """Return the largest batch whose attention fits into memory."""
    for count in (BATCH, 4, 2):
        try:
            check_attention_memory(model, image[None].expand(count, -1, -1, -1), 0, 4 * model.config.heads)
        except VitreousError:
            continue
        return count
    return 1
