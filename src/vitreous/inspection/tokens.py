"""Tokens of any layer: patch similarity, principal components, and the prediction of the head at each depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.inspection import figures
from vitreous.inspection.internals import (
    BLOCKS,
    HEAD,
    NORMS,
    POOL,
    STEM,
    UNITS,
    class_probabilities,
    eval_mode,
    head_logits,
    prepare_batch,
    require_unmodified,
    require_vit,
)
from vitreous.models.base import Model
from vitreous.models.resnet import BiT
from vitreous.models.standard import vitreous_model
from vitreous.utils.device import float64_device
from vitreous.weights.model_info import labels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@torch.no_grad()
def patch_tokens(model: Model, images: Tensor, layer: int, what: str = "patch_tokens") -> Tensor:
    """Return the patch tokens (B, rows, cols, D) after a layer, or the feature map after a stage of a BiT."""
    parts = (UNITS, HEAD) if isinstance(vitreous_model(model, what), BiT) else (STEM, BLOCKS, NORMS, POOL, HEAD)
    unmodified: Any = require_unmodified(model, what, *parts)
    images = prepare_batch(unmodified, images)
    with eval_mode(unmodified):
        (tokens,) = unmodified.intermediates(images, [layer])
    return tokens.float().permute(0, 2, 3, 1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Similarity:
    """The cosine similarity of one patch token with all others."""

    cosines: Tensor  # (B, rows, cols)
    patch: tuple[int, int]
    layer: int

    def figure(self, pixels: Sequence[Any] | None = None) -> Figure:
        title = f"cosine similarity with the patch at row {self.patch[0] + 1}, column {self.patch[1] + 1}"
        return figures.draw_image_maps(self.cosines, title, pixels, signed=True, mark=self.patch)


def patch_similarity(model: Model, images: Tensor, patch: tuple[int, int], layer: int = -1) -> Similarity:
    """Return the cosine similarity of one patch, (row, column) from (0, 0), with all others after a layer."""
    tokens = F.normalize(patch_tokens(model, images, layer, "patch_similarity"), dim=-1)
    rows, cols = tokens.shape[1:3]
    if not isinstance(patch, Sequence) or len(patch) != 2 or not (0 <= patch[0] < rows and 0 <= patch[1] < cols):
        raise VitreousError(f"patch = {patch}: expected (row, column) of {rows} x {cols} patches, from (0, 0)")
    cosines = torch.einsum("brcd,bd->brc", tokens, tokens[:, patch[0], patch[1]])
    return Similarity(cosines, (patch[0], patch[1]), layer)


@dataclass(frozen=True)
class Components:
    """The first three principal components of patch tokens."""

    colours: Tensor  # (B, rows, cols, 3) in 0..1: the components as red, green and blue
    share: Tensor  # (3,): fraction of the variance of all tokens
    layer: int

    def figure(self, pixels: Sequence[Any] | None = None) -> Figure:
        shares = " + ".join(f"{100 * float(s):.0f}" for s in self.share)
        return figures.draw_image_maps(self.colours, f"components: {shares}% of the variance", pixels)


def token_pca(model: Model, images: Tensor, layer: int = -1) -> Components:
    """Return the first three principal components of the patches of all images, so that colours are comparable.

    The range from the 2nd to the 98th percentile is scaled to 0..1.
    """
    tokens = patch_tokens(model, images, layer, "token_pca")
    rows = tokens.flatten(0, 2).to(float64_device(tokens.device)).double()
    rows = rows - rows.mean(0)
    u, strength, _ = torch.linalg.svd(rows, full_matrices=False)
    power = strength.square()
    if not power.sum() > 0:
        raise VitreousError("token_pca: all tokens are equal, so there are no components")
    three = F.pad(u[:, :3] * strength[:3], (0, max(0, 3 - u.shape[1])))
    three = three * _normalised_signs(three)
    low, high = (torch.quantile(three, q, dim=0) for q in (0.02, 0.98))
    colours = ((three - low) / (high - low).clamp(min=1e-12)).clamp(0, 1).float()
    share = F.pad((power / power.sum())[:3], (0, max(0, 3 - len(power)))).float()
    return Components(colours.unflatten(0, tokens.shape[:3]), share, layer)


def _normalised_signs(columns: Tensor) -> Tensor:
    """Return signs that make the largest entry of each column positive, since the sign of a component is arbitrary."""
    return torch.where(columns.gather(0, columns.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)


@dataclass(frozen=True)
class Readout:
    """Class probabilities of the head applied before the first layer and after each layer."""

    probabilities: Tensor  # (depth + 1, B, classes)
    labels: tuple[str, ...] | None

    def name(self, number: int) -> str:
        return self.labels[number] if self.labels else f"class {number}"

    def figure(self, image: int = 0, top: int = 5) -> Figure:
        """Draw the probabilities of the top classes by layer."""
        values = self.probabilities[:, image]
        order = values[-1].topk(min(top, values.shape[-1])).indices.tolist()
        lines = [(self.name(k), values[:, k]) for k in order]
        return figures.draw_lines(lines, "head applied after layer", "probability (%)")


def depth_readout(model: Model, images: Tensor) -> Readout:
    """Apply final norm, pooling and head to the tokens at every depth. The last row is the prediction of the model."""
    model = require_vit(model, "depth_readout", STEM, BLOCKS, NORMS, POOL)
    images = prepare_batch(model, images)
    if model.config.num_classes == 0 or model.config.pool == "none":
        raise VitreousError("depth_readout: the model has no head that classifies images")
    result: list[Tensor] = []

    def apply_head(tokens: Tensor) -> None:
        result.append(class_probabilities(model, head_logits(model, tokens)))

    def visit(layer: int, block: Any, before: Tensor, after: Tensor, *rest: Any) -> None:
        if layer == 0:
            apply_head(before)
        apply_head(after)

    with eval_mode(model), torch.no_grad():
        model.encode(images, visit)
    return Readout(torch.stack(result), labels_of(model))
