"""`inspect_model`: all inspections of a model, written to a folder as figures, numbers.json and an HTML page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import SystemFaultError, VitreousError
from vitreous.inspection.attention_maps import AttentionMaps, rollout
from vitreous.inspection.distance import Distances, attention_distance
from vitreous.inspection.embeddings import embedding_filters, position_similarity
from vitreous.inspection.figures import MapLayout, draw_map_table
from vitreous.inspection.internals import (
    check_attention_memory,
    class_probabilities,
    describe_pooling,
    eval_mode,
    prefix_names,
    require_unmodified,
    visit_attention,
)
from vitreous.inspection.relevance_maps import relevance
from vitreous.inspection.tokens import Readout, Similarity, depth_readout, patch_tokens, token_pca
from vitreous.models.base import Model
from vitreous.models.checks import Grid
from vitreous.models.cost import cost
from vitreous.models.vit import VisionTransformer
from vitreous.preprocessing import ImageLike, Preprocessing
from vitreous.reports.coarse_attention import cell_membership, coarse_grid, pool_attention
from vitreous.reports.inspection_page import InspectedImage, InspectionPage, PageFigure, write_inspection_page
from vitreous.utils.atomic import atomic_folder, check_output
from vitreous.utils.figures import render_figure, require_matplotlib
from vitreous.utils.json_files import dump_json
from vitreous.utils.regular_files import read_text
from vitreous.weights.model_info import content_hash, labels_of, preprocessing_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_IMAGES = 8  # on the page; attention distances use all images
MAX_FIGURES = 6  # per image
TOP_CLASSES = 5  # predicted classes that are listed, with a relevance map each
MAX_NUMBERS = 500_000  # per array and image in numbers.json
MAX_WEIGHTS = 24_000_000  # attention weights per image on the page; more are pooled to a coarser grid
BATCH = 8  # images per batch for attention distances

ReportProgress = Callable[[str], None]


@dataclass(frozen=True)
class InputImage:
    name: str
    image: ImageLike  # a path is opened when the image is needed


@dataclass(frozen=True)
class ModelDescription:
    """What the page shows about the model besides the results."""

    name: str
    notes: tuple[str, ...] = ()
    random: bool = False  # the weights are random
    command: str = ""  # command line


@dataclass(frozen=True)
class InspectionOutput:
    """The files that an inspection has written."""

    page: Path  # index.html
    files: tuple[Path, ...] = field(repr=False)  # figures, numbers.json and the page
    skipped: tuple[str, ...]  # error messages of unreadable images
    notes: tuple[str, ...]  # remarks on the model and the result


def inspect_model(
    model: Model,
    images: Sequence[InputImage],
    out: Path,
    about: ModelDescription,
    size: int | tuple[int, int] | None = None,
    progress: ReportProgress = lambda text: None,
    overwrite: bool = False,
) -> InspectionOutput:
    """Run all inspections of a model and write the results to a folder.

    The folder must be empty or new. With `overwrite`, the folder of an earlier inspection is replaced once the new one
    is complete.
    """
    require_matplotlib()
    model = require_unmodified(model, "inspect")
    check_output(out, overwrite, inspection_files)
    preprocessing = preprocessing_of(model)
    preprocessing = preprocessing if size is None else preprocessing.at(size)
    skipped: list[str] = []
    decoded = _decode(images, preprocessing, skipped)
    inspection = _Inspection(model, preprocessing, about, progress)
    first = list(islice(decoded, MAX_IMAGES))
    if images and not first:
        raise VitreousError(f"none of the {len(images):,} images can be read; the last one: {skipped[-1]}")
    for label, pixels in first:
        inspection.add_image(label, pixels)
    inspection.add_model_figures(pixels for _, pixels in chain(first, decoded))
    if (count := len(images) - len(skipped)) > MAX_IMAGES:
        inspection.notes.append(
            f"the page shows the first {MAX_IMAGES} of {count:,} images; attention distances use all of them"
        )
    if about.random:
        inspection.notes.append("the weights are random: the model was not trained")
    elif _has_zero_head(model) and not any("zero" in note for note in about.notes):
        inspection.notes.append("the weights of the head are all zero: it was not trained to classify")
    return inspection.write(out, tuple(skipped), overwrite)


def inspection_files(folder: Path) -> set[str]:
    """Names of the files that an inspection has written to this folder."""
    names = {"index.html", "numbers.json"}
    try:
        listed = {str(name) for name in json.loads(read_text(folder / "numbers.json"))["files"]}
    except (VitreousError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return names  # missing, or not written by an inspection
    return names | {name for name in listed if name.endswith((".png", ".svg"))}


def _decode(
    images: Sequence[InputImage], preprocessing: Preprocessing, skipped: list[str]
) -> Iterator[tuple[str, Tensor]]:
    """Names and pixels (C, H, W) in 0..255, one image at a time. Errors of unreadable images are added to `skipped`."""
    for image in images:
        try:
            pixels = preprocessing.pixels(image.image)
        except SystemFaultError:
            raise
        except VitreousError as error:
            skipped.append(str(error))
            continue
        yield image.name, pixels


def _has_zero_head(model: Any) -> bool:
    return bool(model.config.num_classes) and not model.head.weight.any().item()


class _Inspection:
    """Collects figures, numbers and maps of one model."""

    def __init__(self, model: Model, preprocessing: Preprocessing, about: ModelDescription, progress: ReportProgress):
        self.model, self.preprocessing, self.about, self.progress = model, preprocessing, about, progress
        self.notes = list(about.notes)
        self.vit = model if isinstance(model, VisionTransformer) else None
        self.images: list[InspectedImage] = []
        self.figures: dict[str, tuple[Figure, str, str]] = {}  # file name without suffix: figure, title, caption
        self.numbers: dict[str, Any] = {}
        config: Any = model.config
        self.classifies = config.num_classes > 0 and getattr(config, "pool", "") != "none"

    def _normalise(self, pixels: Tensor) -> Tensor:
        parameter = next(self.model.parameters())
        return self.preprocessing.normalise(pixels.to(parameter.device)).to(parameter.dtype)

    # ------------------------------------------------------------ one image

    def add_image(self, label: str, pixels: Tensor) -> None:
        self.progress(label)
        batch = self._normalise(pixels)[None]
        if self.vit is not None:
            check_attention_memory(self.vit, batch, 2, 4 * self.vit.config.heads)
        stem = _unique_name(Path(label).stem or "image", {name.rsplit("-", 1)[0] for name in self.figures})
        picture = np.ascontiguousarray(pixels.expand(3, -1, -1).clamp(0, 255).byte().permute(1, 2, 0).numpy())
        tokens = patch_tokens(self.model, batch, -1)[0]
        grid = (tokens.shape[0], tokens.shape[1])
        unit = F.normalize(tokens.flatten(0, 1), dim=-1)
        colours = self._components(batch, picture, stem, grid)
        answers, depth, tops = self._answers(batch, stem)
        numbers: dict[str, Any] = {"name": label, "grid": grid, "answers": answers, "components": _to_list(colours)}
        weights, coarse, rolled = None, None, None
        maps = np.zeros((0, *grid), np.float32)
        if self.vit is not None:
            weights, coarse = self._attention(self.vit, batch, picture, stem, numbers)
            rolls = rollout(self.vit, batch)
            self._draw(f"{stem}-rollout", rolls.figure([picture]), "Attention rollout", f"from the {self.source}")
            rolled, numbers["rollout"] = rolls.weights[0].cpu().numpy(), _to_list(rolls.seen_from()[0])
            maps = self._relevance(self.vit, batch, picture, stem, numbers)
        if len(depth):
            numbers["depth"] = [[_rounded(v) for v in row] for row in depth.tolist()]
            numbers["depth_top"] = tops
        self.numbers.setdefault("images", []).append(numbers)
        similarity = unit @ unit.T
        numbers["similarity"] = self._limited(similarity, "patch similarity")
        self._similarity(similarity, grid, numbers, picture, stem)
        self.images.append(
            InspectedImage(
                label, picture, grid, answers, weights, coarse, rolled, maps, similarity.cpu().numpy(),
                colours.cpu().numpy(), depth, tops,
            )
        )  # fmt: skip

    def _components(self, batch: Tensor, picture: Any, stem: str, grid: Grid) -> Tensor:
        try:
            found = token_pca(self.model, batch)
        except VitreousError as error:  # for example a constant image
            self.notes.append(f"{stem}: {error}")
            return torch.full((*grid, 3), 0.5)
        self._draw(
            f"{stem}-components",
            found.figure([picture]),
            "Components",
            "principal components of the patch tokens as colours",
        )
        return found.colours[0]

    def _limited(self, values: Tensor, what: str) -> Any:
        """Values for numbers.json; None if there are too many."""
        if values.numel() <= MAX_NUMBERS:
            return _to_list(values)
        note = f"numbers.json does not contain {what}: {values.numel():,} numbers are too many"
        if note not in self.notes:
            self.notes.append(note)
        return None

    def _similarity(self, similarity: Tensor, grid: Grid, numbers: dict[str, Any], picture: Any, stem: str) -> None:
        """Draw the similarity of the patch with the largest rollout weight, or of the centre patch, with all others."""
        patch = (grid[0] // 2, grid[1] // 2)
        if "rollout" in numbers:
            patch = divmod(int(np.argmax(numbers["rollout"])), grid[1])
        cosines = similarity[patch[0] * grid[1] + patch[1]].unflatten(0, grid)
        drawn = Similarity(cosines[None], patch, -1).figure([picture])
        self._draw(
            f"{stem}-similarity", drawn, "Patch similarity", "cosine similarity of one patch token with all others"
        )

    def _answers(self, batch: Tensor, stem: str) -> tuple[tuple[tuple[str, float], ...], Any, Any]:
        """Top classes with probabilities, their probabilities by depth, and the top class at each depth."""
        if not self.classifies:
            return (), np.zeros((0, 0), np.float32), ()
        if self.vit is not None:
            read = depth_readout(self.vit, batch)
            text = "the head applied after each layer"
            self._draw(f"{stem}-depth", read.figure(), "Prediction by depth", text)
        else:
            with eval_mode(self.model), torch.no_grad():
                scores = class_probabilities(self.model, self.model(batch).float())
            read = Readout(scores[None], labels_of(self.model))
        found = read.probabilities[:, 0]
        order = found[-1].topk(min(TOP_CLASSES, found.shape[-1])).indices
        answers = tuple((read.name(int(k)), _rounded(found[-1, k])) for k in order)
        if self.vit is None:
            return answers, np.zeros((0, 0), np.float32), ()
        tops = tuple((read.name(int(row.argmax())), _rounded(row.max())) for row in found)
        return answers, found[:, order].cpu().numpy(), tops

    def _attention(
        self, vit: VisionTransformer, batch: Tensor, picture: Any, stem: str, numbers: dict[str, Any]
    ) -> tuple[Any, Grid | None]:
        """Attention of all layers and heads, pooled to a coarser grid if there are too many weights for the page."""
        config = vit.config
        grid, prefix = config.grid_at((batch.shape[2], batch.shape[3])), config.prefix
        coarse = coarse_grid(grid, prefix, config.depth * config.heads, MAX_WEIGHTS)
        membership = cell_membership(grid, coarse).to(batch.device) if coarse else None
        page_weights: list[Tensor] = []
        class_maps: list[Tensor] = []

        def visit(layer: int, weights: Tensor) -> None:  # layer by layer, since all layers may not fit into memory
            one = AttentionMaps(weights[None], grid, prefix_names(config), (layer,), tuple(range(config.heads)))
            class_maps.append(one.seen_from()[0, 0].cpu())
            pooled = weights if membership is None else pool_attention(weights, membership, prefix)
            page_weights.append(pooled[0].cpu())

        visit_attention(vit, batch, range(config.depth), visit)
        maps = torch.stack(class_maps)
        rows, cols = [f"layer {n + 1}" for n in range(config.depth)], [f"head {n + 1}" for n in range(config.heads)]
        query = "class token" if config.class_token else "mean of the patches"  # independent of what the head pools
        layout = MapLayout(f"attention of the {query}")
        drawn = draw_map_table(maps, rows, cols, "attention weight", picture, layout)
        self._draw(f"{stem}-attention", drawn, "Attention", f"of the {query}, in every layer and head")
        numbers["attention"] = _to_list(maps)
        if coarse and not any("pooled" in note for note in self.notes):
            self.notes.append(
                f"attention on the page is pooled to {coarse[0]} x {coarse[1]} cells; figures and numbers.json are not"
            )
        return torch.stack(page_weights).numpy(), coarse

    def _relevance(
        self, vit: VisionTransformer, batch: Tensor, picture: Any, stem: str, numbers: dict[str, Any]
    ) -> Any:
        none = np.zeros((0, *vit.config.grid_at((batch.shape[2], batch.shape[3]))), np.float32)
        if not self.classifies or _has_zero_head(vit):
            return none
        try:
            found = relevance(vit, batch, top=min(TOP_CLASSES, vit.config.num_classes))
        except VitreousError as error:  # relevance needs the most memory; show the rest without it
            self.notes.append(f"{stem}: relevance is not shown: {error}")
            return none
        self._draw(
            f"{stem}-relevance", found.figure(picture), "Relevance", "relevance of each patch for the top classes"
        )
        numbers["relevance"] = [
            {"class": int(found.classes[0, k]), "name": found.name(0, k), "map": _to_list(one)}
            for k, one in enumerate(found.maps[0])
        ]
        return found.maps[0].cpu().numpy()

    # ------------------------------------------------------------ the model

    def add_model_figures(self, pixels: Iterable[Tensor]) -> None:
        """Figures of the model itself, and of averages over all images."""
        self.progress("filters, positions, distances")
        filters = embedding_filters(self.model)
        self._draw("filters", filters.figure(), "Filters", f"Principal components of {filters.of}.")
        parts = {"share": _to_list(filters.share), "components": _to_list(filters.components)}
        self.numbers["filters"] = {"of": filters.of, **parts}
        if self.vit is None:
            return
        batches = self._batches(pixels)
        first = next(batches, None)
        if self.vit.config.position != "none":
            similar = position_similarity(self.vit, self.preprocessing.size, images=first)
            text = "Cosine similarity of position embeddings: for each patch, a map over all patches."
            if similar.relative:
                text = "Relative position bias of the first layer, by the offset from query to key."
            self._draw("positions", similar.figure(), "Positions", text)
            self.numbers["positions"] = self._limited(similar.similarity, "position similarity")
        if first is not None:
            far = attention_distance(self.vit, chain([first], batches))
            self._draw("distances", far.figure(), "Attention distance", _distance_caption(far))
            self.numbers["distances"] = {
                "images": far.images, "pixels": _to_list(far.distance), "entropy_bits": _to_list(far.entropy)
            }  # fmt: skip

    def _batches(self, pixels: Iterable[Tensor]) -> Iterator[Tensor]:
        batch: list[Tensor] = []
        for image in pixels:
            batch.append(self._normalise(image))
            if len(batch) == self._batch_size(batch[0]):
                yield torch.stack(batch)
                batch = []
        if batch:
            yield torch.stack(batch)

    def _batch_size(self, image: Tensor) -> int:
        """The largest batch whose attention fits into memory."""
        assert self.vit is not None
        for count in (BATCH, 4, 2):
            try:
                check_attention_memory(self.vit, image[None].expand(count, -1, -1, -1), 0, 4 * self.vit.config.heads)
            except VitreousError:
                continue
            return count
        return 1

    # ------------------------------------------------------------ the folder

    @property
    def source(self) -> str:
        return describe_pooling(self.vit.config) if self.vit is not None else ""

    def write(self, out: Path, skipped: tuple[str, ...], overwrite: bool) -> InspectionOutput:
        with atomic_folder(out, overwrite, inspection_files) as fresh:
            names = self._write(fresh, skipped)
        return InspectionOutput(out / "index.html", tuple(out / name for name in names), skipped, tuple(self.notes))

    def _write(self, out: Path, skipped: tuple[str, ...]) -> list[str]:
        """Write figures, numbers.json and the page. Returns the file names without that of the page."""
        names, figures = [], []
        for name, (figure, title, text) in self.figures.items():
            self.progress(f"drawing {name}")
            for kind in ("png", "svg"):
                data = render_figure(figure, kind, 110)
                names.append(f"{name}.{kind}")
                (out / names[-1]).write_bytes(data)
                if kind == "png" and name in ("filters", "positions", "distances"):
                    figures.append(PageFigure(title, text, data))
        facts = self._facts()
        report = {"notes": self.notes, "skipped": list(skipped), "files": names}
        dump_json(out / "numbers.json", {"model": dict(facts), **report, **self.numbers})
        config: Any = self.model.config
        layers, heads = (config.depth, config.heads) if self.vit is not None else (0, 0)
        page = InspectionPage(
            title=self.about.name,
            facts=facts,
            notes=(*self.notes, *(f"not shown: {why}" for why in skipped)),
            random=self.about.random,
            prefix=prefix_names(config) if self.vit is not None else (),
            source=self.source,
            layers=layers,
            heads=heads,
            images=tuple(self.images),
            figures=tuple(figures),
            command=self.about.command,
        )
        write_inspection_page(out / "index.html", page)
        return [*names, "numbers.json"]

    def _facts(self) -> tuple[tuple[str, str], ...]:
        config: Any = self.model.config
        found = cost(config)
        shape = f"BiT, {found.parameters:,} parameters"
        if self.vit is not None:
            kind = "ViT" if config.backbone is None else "hybrid ViT"
            shape = f"{kind} of width {config.width}, depth {config.depth}, {config.heads} heads"
            shape += f"; {found.parameters:,} parameters"
        classes = f"{config.num_classes:,}" if config.num_classes else "none: features only"
        return (
            ("model", shape),
            ("preprocessing", str(self.preprocessing)),
            ("classes", classes),
            ("content hash", content_hash(self.model)),
        )

    def _draw(self, name: str, figure: Figure, title: str, text: str) -> None:
        self.figures[name] = (figure, title, text)


def _distance_caption(found: Distances) -> str:
    low, high = float(found.distance.mean(1)[0]), float(found.distance.mean(1)[-1])
    return (
        f"Mean attention distance of each head: on average {low:.0f} px in the first layer, {high:.0f} px in the last."
    )


def _to_list(values: Tensor) -> Any:
    return np.round(values.detach().float().cpu().numpy().astype(np.float64), 6).tolist()


def _rounded(value: Any) -> float:
    return round(float(value), 6)


def _unique_name(stem: str, taken: set[str]) -> str:
    safe = "".join(c if c.isalnum() or c in "._" else "_" for c in stem).lstrip(".") or "image"
    safe = safe.encode()[:100].decode(errors="ignore")  # the length of a file name is limited in bytes
    number, found = 1, safe
    while found in taken:
        number += 1
        found = f"{safe}_{number}"
    return found
