"""All inspections of a model on one image: figures, numbers, sentences and the arrays of the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.inspection.attention_maps import AttentionMaps, rollout
from vitreous.inspection.attention_sinks import LayerAttention, opening_layer, summarise_layer, token_lengths
from vitreous.inspection.figures import MapLayout, draw_map_table
from vitreous.inspection.internals import (
    check_attention_memory,
    class_probabilities,
    describe_pooling,
    describe_query,
    eval_mode,
    prefix_names,
    visit_attention,
)
from vitreous.inspection.pair_similarity import summarise_pairs
from vitreous.inspection.relevance_maps import relevance
from vitreous.inspection.tokens import Readout, Similarity, depth_readout, patch_tokens, token_pca
from vitreous.models.base import Model
from vitreous.models.checks import Grid
from vitreous.models.vit import VisionTransformer
from vitreous.reports import inspection_text
from vitreous.reports.coarse_attention import cell_membership, coarse_grid, pool_attention
from vitreous.reports.inspection_page import ImageText, InspectedImage
from vitreous.reports.inspection_record import InspectionRecord, rounded, rounded_list
from vitreous.reports.percentages import class_percentages
from vitreous.weights.model_info import labels_of

TOP_CLASSES = 5  # predicted classes that are listed, with a relevance map each
MAX_WEIGHTS = 24_000_000  # attention weights per image on the page; more are pooled to a coarser grid


@dataclass(frozen=True)
class _Prediction:
    """The top classes, and their probabilities by depth."""

    answers: tuple[tuple[str, float], ...] = ()
    shares: tuple[str, ...] = ()  # percentages of the answers, and of the other classes if all sum to one
    depth: Any = None  # (depth + 1, answers)
    tops: tuple[tuple[str, float], ...] = ()  # the top class at each depth
    top_numbers: tuple[int, ...] = ()
    depth_shares: tuple[tuple[str, ...], ...] = ()  # as `shares`, at each depth

    @property
    def has_depth(self) -> bool:
        return self.depth is not None


class ImageInspector:
    """Inspects single images and adds figures, numbers and notes to a record."""

    def __init__(self, model: Model, record: InspectionRecord, random: bool):
        self.model, self.record, self.random = model, record, random
        self.vit = model if isinstance(model, VisionTransformer) else None
        config: Any = model.config
        self.classifies = config.num_classes > 0 and getattr(config, "pool", "") != "none"

    def inspect(self, label: str, pixels: Tensor, batch: Tensor, stem: str) -> InspectedImage:
        """Inspect an image: `pixels` (C, H, W) in 0..255 and the input of the model, (1, C, H, W). `stem`: the start of
        the names of its figures."""
        if self.vit is not None:
            check_attention_memory(self.vit, batch, 2, 4 * self.vit.config.heads)
        picture = np.ascontiguousarray(pixels.expand(3, -1, -1).clamp(0, 255).byte().permute(1, 2, 0).numpy())
        tokens = patch_tokens(self.model, batch, -1)[0]
        grid = (tokens.shape[0], tokens.shape[1])
        unit = F.normalize(tokens.flatten(0, 1), dim=-1)
        similarity = unit @ unit.T
        colours, share = self._components(batch, picture, stem, grid)
        found = self._prediction(batch, stem)
        numbers: dict[str, Any] = {"name": label, "grid": grid, "answers": found.answers}
        numbers["components"] = rounded_list(colours)
        weights, coarse, rolled, opening = None, None, None, 0
        maps = torch.zeros(0, *grid)
        words: dict[str, Any] = {}
        what = "features" if self.vit is None else "tokens"
        if self.vit is not None:
            weights, coarse, layers = self._attention(self.vit, batch, picture, stem, numbers)
            rolls = rollout(self.vit, batch)
            self.record.figures[f"{stem}-rollout"] = rolls.figure([picture])
            rolled, numbers["rollout"] = rolls.weights[0].cpu(), rounded_list(rolls.seen_from()[0])
            maps = self._relevance(self.vit, batch, picture, stem, numbers)
            opening = opening_layer(layers).layer
            words = self._sentences(self.vit, layers, rolled, maps, found, grid)
        text = ImageText(
            similarity=inspection_text.describe_similarity(summarise_pairs(similarity, grid), what, self.random),
            components=inspection_text.describe_components(share, what, self.random),
            depth=self._depth_sentences(found),
            **words,
        )
        if found.has_depth:
            numbers["depth"] = [[rounded(v) for v in row] for row in found.depth.tolist()]
            numbers["depth_top"] = found.tops
        numbers["similarity"] = self.record.limited(similarity, "patch similarity")
        numbers["opening_layer"] = opening + 1 if self.vit is not None else None
        numbers["text"] = asdict(text)
        self._similarity(similarity, grid, numbers, picture, stem)
        self.record.numbers.setdefault("images", []).append(numbers)
        return InspectedImage(
            name=label, pixels=picture, grid=grid, answers=found.answers, answer_shares=found.shares, attention=weights,
            coarse=coarse, rollout=None if rolled is None else rolled.numpy(), relevance=maps.cpu().numpy(),
            similarity=similarity.cpu().numpy(), components=colours.cpu().numpy(),
            depth=found.depth.cpu().numpy() if found.has_depth else np.zeros((0, 0), np.float32), depth_top=found.tops,
            depth_shares=found.depth_shares, opening=opening, text=text,
        )  # fmt: skip

    # ------------------------------------------------------------ sentences

    def _sentences(
        self,
        vit: VisionTransformer,
        layers: list[LayerAttention],
        rolled: Tensor,
        maps: Tensor,
        found: _Prediction,
        grid: Grid,
    ) -> dict[str, Any]:
        """Those of attention, rollout and relevance."""
        config, query, opening = vit.config, describe_query(vit.config), opening_layer(layers)
        free = [one for one in layers if not one.has_sinks]
        names = [name for name, _ in found.answers]
        from_query = (rolled[config.prefix :].mean(0) if query != "class token" else rolled[0])[config.prefix :]
        return {
            "opening": inspection_text.describe_opening(layers, opening, query, self.random),
            "attention": tuple(
                inspection_text.describe_attention(
                    one, query, config.heads, opening.layer if free else None, bool(len(maps)), self.random
                )
                for one in layers
            ),
            "rollout": inspection_text.describe_rollout(
                from_query.unflatten(0, grid), query, layers, config.depth, self.random
            ),
            "relevance": tuple(
                inspection_text.describe_relevance(maps, k, names, found.shares[k], layers, self.random)
                for k in range(len(maps))
            ),
        }

    def _depth_sentences(self, found: _Prediction) -> list[str]:
        if not found.has_depth:
            return []
        if has_zero_head(self.model):
            return ["The weights of the head are all zero, so all classes are equally probable at every depth."]
        names, shares = [name for name, _ in found.tops], found.depth_shares
        ends = (shares[0][0], shares[-1][0])
        return inspection_text.describe_depth(found.depth[:, 0], ends, found.top_numbers, names, self.random)

    # ------------------------------------------------------------ inspections

    def _components(self, batch: Tensor, picture: Any, stem: str, grid: Grid) -> tuple[Tensor, Tensor | None]:
        """The colours of the patches, and the components' share of the variance."""
        try:
            found = token_pca(self.model, batch)
        except VitreousError as error:  # for example a constant image
            self.record.notes.append(f"{stem}: {error}")
            return torch.full((*grid, 3), 0.5), None
        self.record.figures[f"{stem}-components"] = found.figure([picture])
        return found.colours[0], found.share

    def _similarity(self, similarity: Tensor, grid: Grid, numbers: dict[str, Any], picture: Any, stem: str) -> None:
        """Draw the similarity of the patch with the largest rollout weight, or of the centre patch, with all others."""
        patch = (grid[0] // 2, grid[1] // 2)
        if "rollout" in numbers:
            patch = divmod(int(np.argmax(numbers["rollout"])), grid[1])
        cosines = similarity[patch[0] * grid[1] + patch[1]].unflatten(0, grid)
        self.record.figures[f"{stem}-similarity"] = Similarity(cosines[None], patch, -1).figure([picture])

    def _prediction(self, batch: Tensor, stem: str) -> _Prediction:
        if not self.classifies:
            return _Prediction()
        if self.vit is not None:
            read = depth_readout(self.vit, batch)
            self.record.figures[f"{stem}-depth"] = read.figure()
        else:
            with eval_mode(self.model), torch.no_grad():
                scores = class_probabilities(self.model, self.model(batch).float())
            read = Readout(scores[None], labels_of(self.model))
        by_depth = read.probabilities[:, 0]
        order = by_depth[-1].topk(min(TOP_CLASSES, by_depth.shape[-1])).indices
        answers = tuple((read.name(int(k)), rounded(by_depth[-1, k])) for k in order)
        shares = tuple(tuple(class_percentages(row, order.tolist())) for row in by_depth)
        if self.vit is None:
            return _Prediction(answers, shares[-1])
        tops = tuple((read.name(int(row.argmax())), rounded(row.max())) for row in by_depth)
        return _Prediction(answers, shares[-1], by_depth[:, order], tops, tuple(by_depth.argmax(-1).tolist()), shares)

    def _attention(
        self, vit: VisionTransformer, batch: Tensor, picture: Any, stem: str, numbers: dict[str, Any]
    ) -> tuple[Any, Grid | None, list[LayerAttention]]:
        """Attention of all layers and heads, pooled to a coarser grid if there are too many weights for the page."""
        config = vit.config
        grid, prefix = config.grid_at((batch.shape[2], batch.shape[3])), config.prefix
        coarse = coarse_grid(grid, prefix, config.depth * config.heads, MAX_WEIGHTS)
        membership = cell_membership(grid, coarse).to(batch.device) if coarse else None
        page_weights: list[Tensor] = []
        class_maps: list[Tensor] = []
        layers: list[LayerAttention] = []
        lengths = token_lengths(vit, batch)
        query = 0 if describe_query(config) == "class token" else None

        def visit(layer: int, weights: Tensor) -> None:  # layer by layer, since all layers may not fit into memory
            one = AttentionMaps(weights[None], grid, prefix_names(config), (layer,), tuple(range(config.heads)))
            class_maps.append(one.seen_from()[0, 0].cpu())
            layers.append(summarise_layer(layer, weights[0].cpu(), lengths[layer, 0].cpu(), prefix, query))
            pooled = weights if membership is None else pool_attention(weights, membership, prefix)
            page_weights.append(pooled[0].cpu())

        visit_attention(vit, batch, range(config.depth), visit)
        maps = torch.stack(class_maps)
        rows, cols = [f"layer {n + 1}" for n in range(config.depth)], [f"head {n + 1}" for n in range(config.heads)]
        shown = "class token" if config.class_token else "mean of the patches"  # independent of what the head pools
        layout = MapLayout(f"attention of the {shown}")
        self.record.figures[f"{stem}-attention"] = draw_map_table(maps, rows, cols, "attention weight", picture, layout)
        numbers["attention"] = rounded_list(maps)
        numbers["layers"] = [
            {"spread": rounded(one.spread), "sinks": one.sinks, "sink_share": rounded(one.sink_share)} for one in layers
        ]
        if coarse and not any("pooled" in note for note in self.record.notes):
            self.record.notes.append(
                f"attention on the page is pooled to {coarse[0]} x {coarse[1]} cells; figures, sentences and "
                "numbers.json are not"
            )
        return torch.stack(page_weights).numpy(), coarse, layers

    def _relevance(
        self, vit: VisionTransformer, batch: Tensor, picture: Any, stem: str, numbers: dict[str, Any]
    ) -> Tensor:
        none = torch.zeros(0, *vit.config.grid_at((batch.shape[2], batch.shape[3])))
        if not self.classifies or has_zero_head(vit):
            return none
        try:
            found = relevance(vit, batch, top=min(TOP_CLASSES, vit.config.num_classes))
        except VitreousError as error:  # relevance needs the most memory; show the rest without it
            self.record.notes.append(f"{stem}: relevance is not shown: {error}")
            return none
        self.record.figures[f"{stem}-relevance"] = found.figure(picture)
        numbers["relevance"] = [
            {"class": int(found.classes[0, k]), "name": found.name(0, k), "map": rounded_list(one)}
            for k, one in enumerate(found.maps[0])
        ]
        return found.maps[0].cpu()


def has_zero_head(model: Any) -> bool:
    return bool(model.config.num_classes) and not model.head.weight.any().item()


def page_source(vit: VisionTransformer | None) -> str:
    """What the head uses, as text."""
    return describe_pooling(vit.config) if vit is not None else ""
