"""`inspect_model`: all inspections of a model, written to a folder as figures, numbers.json and an HTML page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import SystemFaultError, VitreousError
from vitreous.inspection.internals import describe_query, prefix_names, require_unmodified
from vitreous.models.base import Model
from vitreous.models.cost import cost
from vitreous.models.vit import VisionTransformer
from vitreous.preprocessing import ImageLike, Preprocessing
from vitreous.reports.course import course_reference
from vitreous.reports.inspect_image import ImageInspector, has_zero_head, page_source
from vitreous.reports.inspect_weights import FigureText, inspect_weights
from vitreous.reports.inspection_page import InspectedImage, InspectionPage, PageFigure, write_inspection_page
from vitreous.reports.inspection_record import InspectionRecord
from vitreous.utils.atomic import atomic_folder, check_output
from vitreous.utils.figures import render_figure, require_matplotlib
from vitreous.utils.json_files import dump_json
from vitreous.utils.regular_files import read_text
from vitreous.weights.model_info import content_hash, preprocessing_of

MAX_IMAGES = 8  # on the page; attention distances use all images
MAX_FIGURES = 6  # per image

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
    notes = inspection.record.notes
    if (count := len(images) - len(skipped)) > MAX_IMAGES:
        notes.append(f"the page shows the first {MAX_IMAGES} of {count:,} images; attention distances use all of them")
    if about.random:
        notes.append("the weights are random: the model was not trained")
    elif has_zero_head(model) and not any("zero" in note for note in about.notes):
        notes.append("the weights of the head are all zero: it was not trained to classify")
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


class _Inspection:
    """Inspects one model, and writes the folder."""

    def __init__(self, model: Model, preprocessing: Preprocessing, about: ModelDescription, progress: ReportProgress):
        self.model, self.preprocessing, self.about, self.progress = model, preprocessing, about, progress
        self.vit = model if isinstance(model, VisionTransformer) else None
        self.record = InspectionRecord(list(about.notes))
        self.images: list[InspectedImage] = []
        self.texts: dict[str, FigureText] = {}  # of the figures of the model, by name
        self.inspector = ImageInspector(model, self.record, about.random)

    def _normalise(self, pixels: Tensor) -> Tensor:
        parameter = next(self.model.parameters())
        return self.preprocessing.normalise(pixels.to(parameter.device)).to(parameter.dtype)

    def add_image(self, label: str, pixels: Tensor) -> None:
        self.progress(label)
        stem = _unique_name(Path(label).stem or "image", {name.rsplit("-", 1)[0] for name in self.record.figures})
        self.images.append(self.inspector.inspect(label, pixels, self._normalise(pixels)[None], stem))

    def add_model_figures(self, pixels: Iterator[Tensor]) -> None:
        """Figures of the model itself, and of averages over all images."""
        self.progress("filters, positions, distances")
        images = map(self._normalise, pixels)
        self.texts = inspect_weights(self.model, images, self.preprocessing, self.record, self.about.random)

    def write(self, out: Path, skipped: tuple[str, ...], overwrite: bool) -> InspectionOutput:
        with atomic_folder(out, overwrite, inspection_files) as fresh:
            names = self._write(fresh, skipped)
        files = tuple(out / name for name in names)
        return InspectionOutput(out / "index.html", files, skipped, tuple(self.record.notes))

    def _write(self, out: Path, skipped: tuple[str, ...]) -> list[str]:
        """Write figures, numbers.json and the page. Returns the file names without that of the page."""
        names, figures = [], []
        for name, figure in self.record.figures.items():
            self.progress(f"drawing {name}")
            for kind in ("png", "svg"):
                data = render_figure(figure, kind, 110)
                names.append(f"{name}.{kind}")
                (out / names[-1]).write_bytes(data)
                if kind == "png" and (words := self.texts.get(name)):
                    more = course_reference(words.chapter, words.section)
                    figures.append(PageFigure(words.title, words.sentences, data, more))
        facts, notes = self._facts(), self.record.notes
        report = {"notes": notes, "skipped": list(skipped), "files": names}
        dump_json(out / "numbers.json", {"model": dict(facts), **report, **self.record.numbers})
        write_inspection_page(out / "index.html", self._page(facts, tuple(figures), skipped))
        return [*names, "numbers.json"]

    def _page(
        self, facts: tuple[tuple[str, str], ...], figures: tuple[PageFigure, ...], skipped: tuple[str, ...]
    ) -> InspectionPage:
        config: Any = self.model.config
        layers, heads = (config.depth, config.heads) if self.vit is not None else (0, 0)
        return InspectionPage(
            title=self.about.name,
            facts=facts,
            notes=(*self.record.notes, *(f"not shown: {why}" for why in skipped)),
            random=self.about.random,
            prefix=prefix_names(config) if self.vit is not None else (),
            source=page_source(self.vit),
            query=describe_query(config) if self.vit is not None else "",
            layers=layers,
            heads=heads,
            images=tuple(self.images),
            figures=figures,
            command=self.about.command,
        )

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


def _unique_name(stem: str, taken: set[str]) -> str:
    safe = "".join(c if c.isalnum() or c in "._" else "_" for c in stem).lstrip(".") or "image"
    safe = safe.encode()[:100].decode(errors="ignore")  # the length of a file name is limited in bytes
    number, found = 1, safe
    while found in taken:
        number += 1
        found = f"{safe}_{number}"
    return found
