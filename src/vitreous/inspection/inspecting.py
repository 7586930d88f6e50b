"""Everything there is to see of a model, in one folder: figures, numbers, and a page to click through."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL.Image import Image
from torch import Tensor

from vitreous.data.decoding import decode
from vitreous.drawing import check_drawing, rendered
from vitreous.errors import VitreousError
from vitreous.inspection.distances import Distances, attention_distance
from vitreous.inspection.embeddings import embedding_filters, position_similarity
from vitreous.inspection.figures import Look, table
from vitreous.inspection.looking import check_room, names_of, pooling, probabilities, still, walk
from vitreous.inspection.maps import Attention, rollout
from vitreous.inspection.page import Drawing, Page, Shown, write_page
from vitreous.inspection.relevances import relevance
from vitreous.inspection.tokens import Readout, Similarity, depth_readout, patch_tokens, token_pca
from vitreous.models.base import Model
from vitreous.models.checks import Grid
from vitreous.models.cost import cost
from vitreous.models.vit import VisionTransformer
from vitreous.preprocessing import Preprocessing
from vitreous.weights.files import dump_json, replacing
from vitreous.weights.known import content_hash, labels_of, preprocessing_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 8  # images on the page; distances are of all of them
FIGURES = 6  # of an image, at most
CLASSES = 5  # that are named, and whose relevance is shown
MOST_NUMBERS = 500_000  # of one kind for an image in numbers.json
MOST = 24_000_000  # weights of attention for an image on the page; more are pooled to fewer cells
BATCH = 8  # images at a time, for distances

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Picture:
    """An image, and what it is called."""

    name: str
    image: Image | Path  # a path is opened when its turn comes

    def opened(self) -> Image:
        return decode(self.image) if isinstance(self.image, Path) else self.image


@dataclass(frozen=True)
class About:
    """What the page says of the model beside what it finds out itself."""

    name: str
    notes: tuple[str, ...] = ()
    random: bool = False  # never trained
    command: str = ""  # that was typed


@dataclass(frozen=True)
class Inspected:
    """What was written."""

    page: Path
    files: tuple[Path, ...]
    skipped: tuple[str, ...]  # images that could not be read, and why
    notes: tuple[str, ...]


def inspect(
    model: Model,
    pictures: Sequence[Picture],
    out: Path,
    about: About,
    size: int | tuple[int, int] | None = None,
    tell: Tell = lambda text: None,
) -> Inspected:
    """Look into a model with all there is, and write it to a folder: index.html last."""
    check_drawing()
    shown = preprocessing_of(model)
    shown = shown if size is None else shown.at(size)
    skipped: list[str] = []
    read = _read(pictures, shown, skipped)
    look = _Look(model, shown, about, tell)
    first = list(islice(read, SHOWN))
    if pictures and not first:
        raise VitreousError(f"none of the {len(pictures):,} images can be read; the last one: {skipped[-1]}")
    for label, pixels in first:
        look.at(label, pixels)
    look.overall(pixels for _, pixels in chain(first, read))
    if (count := len(pictures) - len(skipped)) > SHOWN:
        look.notes.append(f"the first {SHOWN} of {count:,} images are shown; distances are of all of them")
    if about.random:
        look.notes.append("these weights were never trained")
    elif _empty_head(model) and not any("zero" in note for note in about.notes):
        look.notes.append("the head is all zeros: it was never trained to tell classes apart")
    return look.written(out, tuple(skipped))


def _read(pictures: Sequence[Picture], shown: Preprocessing, skipped: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Names and pixels (C, H, W) in 0..255, one at a time; what cannot be read is noted."""
    for picture in pictures:
        try:
            pixels = shown.pixels(picture.opened())
        except VitreousError as error:
            skipped.append(str(error))
            continue
        yield picture.name, pixels


def _empty_head(model: Any) -> bool:
    return bool(model.config.num_classes) and not model.head.weight.any().item()


class _Look:
    """One model being looked at: what was found so far."""

    def __init__(self, model: Model, shown: Preprocessing, about: About, tell: Tell):
        self.model, self.shown, self.about, self.tell = model, shown, about, tell
        self.notes = list(about.notes)
        self.vit = model if isinstance(model, VisionTransformer) else None
        self.images: list[Shown] = []
        self.figures: dict[str, tuple[Figure, str, str]] = {}  # by file name, with title and text
        self.numbers: dict[str, Any] = {}
        config: Any = model.config
        self.answers = config.num_classes > 0 and getattr(config, "pool", "") != "none"

    def prepared(self, pixels: Tensor) -> Tensor:
        parameter = next(self.model.parameters())
        return self.shown.normalise(pixels.to(parameter.device)).to(parameter.dtype)

    # ------------------------------------------------------------ one image

    def at(self, label: str, pixels: Tensor) -> None:
        self.tell(label)
        batch = self.prepared(pixels)[None]
        if self.vit is not None:
            check_room(self.vit, batch, 2, 4 * self.vit.config.heads)
        stem = _distinct(Path(label).stem or "image", {name.rsplit("-", 1)[0] for name in self.figures})
        picture = np.ascontiguousarray(pixels.expand(3, -1, -1).clamp(0, 255).byte().permute(1, 2, 0).numpy())
        tokens = patch_tokens(self.model, batch, -1)[0]
        grid = (tokens.shape[0], tokens.shape[1])
        unit = F.normalize(tokens.flatten(0, 1), dim=-1)
        colours = self._components(batch, picture, stem, grid)
        answers, depth, tops = self._answers(batch, stem)
        numbers: dict[str, Any] = {"name": label, "grid": grid, "answers": answers, "components": _listed(colours)}
        weights, coarse, rolled = None, None, None
        maps = np.zeros((0, *grid), np.float32)
        if self.vit is not None:
            weights, coarse = self._attention(self.vit, batch, picture, stem, numbers)
            rolls = rollout(self.vit, batch)
            self._draw(f"{stem}-rollout", rolls.figure([picture]), "Attention rollout", f"from the {self.source}")
            rolled, numbers["rollout"] = rolls.weights[0].cpu().numpy(), _listed(rolls.seen_from()[0])
            maps = self._relevance(self.vit, batch, picture, stem, numbers)
        if len(depth):
            numbers["depth"] = [[_rounded(v) for v in row] for row in depth.tolist()]
            numbers["depth_top"] = tops
        self.numbers.setdefault("images", []).append(numbers)
        similarity = unit @ unit.T
        numbers["similarity"] = self._bounded(similarity, "patch similarity")
        self._alike(similarity, grid, numbers, picture, stem)
        self.images.append(
            Shown(
                label, picture, grid, answers, weights, coarse, rolled, maps, similarity.cpu().numpy(),
                colours.cpu().numpy(), depth, tops,
            )
        )  # fmt: skip

    def _components(self, batch: Tensor, picture: Any, stem: str, grid: Grid) -> Tensor:
        try:
            found = token_pca(self.model, batch)
        except VitreousError as error:  # an image without anything in it; others may have something
            self.notes.append(f"{stem}: {error}")
            return torch.full((*grid, 3), 0.5)
        self._draw(f"{stem}-components", found.figure([picture]), "Components", "of the patch tokens, as colours")
        return found.colours[0]

    def _bounded(self, values: Tensor, what: str) -> Any:
        """For numbers.json, unless it would be nothing else."""
        if values.numel() <= MOST_NUMBERS:
            return _listed(values)
        note = f"numbers.json is without {what}, of which there are {values.numel():,} numbers"
        if note not in self.notes:
            self.notes.append(note)
        return None

    def _alike(self, similarity: Tensor, grid: Grid, numbers: dict[str, Any], picture: Any, stem: str) -> None:
        """Of the patch that most is heard from, or else the one in the middle."""
        patch = (grid[0] // 2, grid[1] // 2)
        if "rollout" in numbers:
            place = int(np.argmax(numbers["rollout"]))
            patch = (place // grid[1], place % grid[1])
        cosines = similarity[patch[0] * grid[1] + patch[1]].unflatten(0, grid)
        drawn = Similarity(cosines[None], patch, -1).figure([picture])
        self._draw(f"{stem}-similarity", drawn, "Patch similarity", "of one patch's token with all others")

    def _answers(self, batch: Tensor, stem: str) -> tuple[tuple[tuple[str, float], ...], Any, Any]:
        """The likeliest classes, and how likely each is read out at every depth."""
        if not self.answers:
            return (), np.zeros((0, 0), np.float32), ()
        if self.vit is not None:
            read = depth_readout(self.vit, batch)
            text = "what the head would say behind each layer"
            self._draw(f"{stem}-depth", read.figure(), "Prediction by depth", text)
        else:
            with still(self.model), torch.no_grad():
                scores = probabilities(self.model, self.model(batch).float())
            read = Readout(scores[None], labels_of(self.model))
        found = read.probabilities[:, 0]
        order = found[-1].topk(min(CLASSES, found.shape[-1])).indices
        answers = tuple((read.name(int(k)), _rounded(found[-1, k])) for k in order)
        if self.vit is None:
            return answers, np.zeros((0, 0), np.float32), ()
        tops = tuple((read.name(int(row.argmax())), _rounded(row.max())) for row in found)
        return answers, found[:, order].cpu().numpy(), tops

    def _attention(
        self, vit: VisionTransformer, batch: Tensor, picture: Any, stem: str, numbers: dict[str, Any]
    ) -> tuple[Any, Grid | None]:
        """All layers and heads, pooled to fewer cells where they are too many for a page."""
        config = vit.config
        grid, prefix = config.grid_at((batch.shape[2], batch.shape[3])), config.prefix
        coarse = _fewer(grid, prefix, config.depth * config.heads)
        share = _shares(grid, coarse).to(batch.device) if coarse else None
        kept: list[Tensor] = []
        seen: list[Tensor] = []

        def see(layer: int, weights: Tensor) -> None:  # one layer at a time: all of them may not fit
            one = Attention(weights[None], grid, names_of(config), (layer,), tuple(range(config.heads)))
            seen.append(one.seen_from()[0, 0].cpu())
            kept.append((weights if share is None else _pooled(weights, share, prefix))[0].cpu())

        walk(vit, batch, range(config.depth), see)
        maps = torch.stack(seen)
        rows, cols = [f"layer {n + 1}" for n in range(config.depth)], [f"head {n + 1}" for n in range(config.heads)]
        looking = "class token" if config.class_token else "mean of the patches"  # whatever the head pools
        drawn = table(maps, rows, cols, "share of the attention", picture, Look(f"attention of the {looking}"))
        self._draw(f"{stem}-attention", drawn, "Attention", f"of the {looking}, in every layer and head")
        numbers["attention"] = _listed(maps)
        if coarse and not any("pooled" in note for note in self.notes):
            self.notes.append(f"attention on the page is pooled to {coarse[0]} x {coarse[1]} cells; the files are not")
        return torch.stack(kept).numpy(), coarse

    def _relevance(
        self, vit: VisionTransformer, batch: Tensor, picture: Any, stem: str, numbers: dict[str, Any]
    ) -> Any:
        none = np.zeros((0, *vit.config.grid_at((batch.shape[2], batch.shape[3]))), np.float32)
        if not self.answers or _empty_head(vit):
            return none
        try:
            found = relevance(vit, batch, top=min(CLASSES, vit.config.num_classes))
        except VitreousError as error:  # it takes the most memory of all: the rest is worth having without it
            self.notes.append(f"{stem}: no relevance is shown: {error}")
            return none
        self._draw(f"{stem}-relevance", found.figure(picture), "Relevance", "what speaks for each of the first classes")
        numbers["relevance"] = [
            {"class": int(found.classes[0, k]), "name": found.name(0, k), "map": _listed(one)}
            for k, one in enumerate(found.maps[0])
        ]
        return found.maps[0].cpu().numpy()

    # ------------------------------------------------------------ all of them

    def overall(self, pixels: Iterable[Tensor]) -> None:
        """What is the model's own, and what is an average over images."""
        self.tell("filters, positions, distances")
        filters = embedding_filters(self.model)
        self._draw("filters", filters.figure(), "Filters", f"The principal components of {filters.of}.")
        parts = {"share": _listed(filters.share), "components": _listed(filters.components)}
        self.numbers["filters"] = {"of": filters.of, **parts}
        if self.vit is None:
            return
        batches = self._batches(pixels)
        first = next(batches, None)
        if self.vit.config.position != "none":
            similar = position_similarity(self.vit, self.shown.size, images=first)
            text = "Which places are alike to the model: a map for each patch of all others."
            if similar.relative:
                text = "What is added to attention by where a key lies from its query, in the first layer."
            self._draw("positions", similar.figure(), "Positions", text)
            self.numbers["positions"] = self._bounded(similar.similarity, "position similarity")
        if first is not None:
            far = attention_distance(self.vit, chain([first], batches))
            self._draw("distances", far.figure(), "Attention distance", _far(far))
            self.numbers["distances"] = {
                "images": far.images, "pixels": _listed(far.distance), "entropy_bits": _listed(far.entropy)
            }  # fmt: skip

    def _batches(self, pixels: Iterable[Tensor]) -> Iterator[Tensor]:
        held: list[Tensor] = []
        for one in pixels:
            held.append(self.prepared(one))
            if len(held) == self.together(held[0]):
                yield torch.stack(held)
                held = []
        if held:
            yield torch.stack(held)

    def together(self, image: Tensor) -> int:
        """How many images can be looked at at once."""
        assert self.vit is not None
        for count in (BATCH, 4, 2):
            try:
                check_room(self.vit, image[None].expand(count, -1, -1, -1), 0, 4 * self.vit.config.heads)
            except VitreousError:
                continue
            return count
        return 1

    # ------------------------------------------------------------ the folder

    @property
    def source(self) -> str:
        return pooling(self.vit.config) if self.vit is not None else ""

    def written(self, out: Path, skipped: tuple[str, ...]) -> Inspected:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VitreousError(f"{out}: this folder cannot be made ({error.strerror})") from error
        _clear(out, keep={f"{name}.{kind}" for name in self.figures for kind in ("png", "svg")})
        paths, drawings = [], []
        for name, (figure, title, text) in self.figures.items():
            self.tell(f"drawing {name}")
            for kind in ("png", "svg"):
                data = rendered(figure, kind, 110)
                paths.append(out / f"{name}.{kind}")
                with replacing(paths[-1]) as temporary:
                    temporary.write_bytes(data)
                if kind == "png" and name in ("filters", "positions", "distances"):
                    drawings.append(Drawing(title, text, data))
        facts = self._facts()
        paths.append(out / "numbers.json")
        with replacing(paths[-1]) as temporary:
            told = {"notes": self.notes, "skipped": list(skipped), "files": [path.name for path in paths[:-1]]}
            dump_json(temporary, {"model": dict(facts), **told, **self.numbers})
        config: Any = self.model.config
        layers, heads = (config.depth, config.heads) if self.vit is not None else (0, 0)
        page = Page(
            title=self.about.name,
            facts=facts,
            notes=(*self.notes, *(f"not shown: {why}" for why in skipped)),
            random=self.about.random,
            prefix=names_of(config) if self.vit is not None else (),
            source=self.source,
            layers=layers,
            heads=heads,
            images=tuple(self.images),
            drawings=tuple(drawings),
            command=self.about.command,
        )
        write_page(out / "index.html", page)
        return Inspected(out / "index.html", tuple(paths), skipped, tuple(self.notes))

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
            ("is shown", str(self.shown)),
            ("classes", classes),
            ("content hash", content_hash(self.model)),
        )

    def _draw(self, name: str, figure: Figure, title: str, text: str) -> None:
        self.figures[name] = (figure, title, text)


def _far(found: Distances) -> str:
    low, high = float(found.distance.mean(1)[0]), float(found.distance.mean(1)[-1])
    return f"How far each head looks, from {low:.0f} px in the first layer to {high:.0f} px in the last, in the mean."


def _fewer(grid: Grid, prefix: int, maps: int) -> Grid | None:
    """A coarser grid whose weights fit on a page; None where the grid itself does."""
    rows, cols, step = *grid, 1
    while maps * (prefix + rows * cols) ** 2 > MOST and rows * cols > 1:
        step += 1
        rows, cols = -(-grid[0] // step), -(-grid[1] // step)
    return (rows, cols) if step > 1 else None


def _shares(grid: Grid, coarse: Grid) -> Tensor:
    """(N, n): which coarse cell each patch belongs to."""
    places = [torch.arange(n) * m // n for n, m in zip(grid, coarse, strict=True)]
    cells = (places[0][:, None] * coarse[1] + places[1]).flatten()
    return F.one_hot(cells, coarse[0] * coarse[1]).float()


def _pooled(weights: Tensor, share: Tensor, prefix: int) -> Tensor:
    """Attention between cells: keys add up, queries are averaged, so that every row still sums to one."""
    keys = torch.cat([weights[..., :prefix], weights[..., prefix:] @ share], -1)
    queries = (share / share.sum(0)).T @ keys[..., prefix:, :]
    return torch.cat([keys[..., :prefix, :], queries], -2)


def _clear(folder: Path, keep: set[str]) -> None:
    """Take away the figures of an earlier look into this folder that will not be drawn again."""
    try:
        old = json.loads((folder / "numbers.json").read_text())["files"]
        for name in {str(one) for one in old} - keep:
            if Path(name).name == name and name.endswith((".png", ".svg")):
                (folder / name).unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, TypeError):  # there was none, or it is not ours
        return


def _listed(values: Tensor) -> Any:
    return np.round(values.detach().float().cpu().numpy().astype(np.float64), 6).tolist()


def _rounded(value: Any) -> float:
    return round(float(value), 6)


def _distinct(stem: str, taken: set[str]) -> str:
    safe = "".join(c if c.isalnum() or c in "._" else "_" for c in stem).lstrip(".") or "image"
    safe = safe.encode()[:100].decode(errors="ignore")  # file names are counted in bytes
    number, found = 1, safe
    while found in taken:
        number += 1
        found = f"{safe}_{number}"
    return found
