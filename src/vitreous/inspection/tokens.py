"""What becomes of the tokens: which are alike, what they have in common, and what the head would say of them."""

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
    answers,
    as_described,
    probabilities,
    ready,
    still,
    with_attention,
)
from vitreous.models.base import Model
from vitreous.models.resnet import BiT
from vitreous.models.standard import vitreous_model
from vitreous.weights.model_info import labels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@torch.no_grad()
def patch_tokens(model: Model, images: Tensor, layer: int, what: str = "patch_tokens") -> Tensor:
    """(B, rows, cols, D) behind a layer, or behind a stage of a BiT."""
    parts = (UNITS, HEAD) if isinstance(vitreous_model(model, what), BiT) else (STEM, BLOCKS, NORMS, POOL, HEAD)
    look: Any = as_described(model, what, *parts)
    images, model = ready(look, images), look
    with still(model):
        (found,) = look.intermediates(images, [layer])
    return found.float().permute(0, 2, 3, 1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Similarity:
    cosines: Tensor  # (B, rows, cols)
    patch: tuple[int, int]
    layer: int

    def figure(self, pixels: Sequence[Any] | None = None) -> Figure:
        title = f"cosine with the patch at row {self.patch[0] + 1}, column {self.patch[1] + 1}"
        return figures.beside(self.cosines, title, pixels, signed=True, mark=self.patch)


def patch_similarity(model: Model, images: Tensor, patch: tuple[int, int], layer: int = -1) -> Similarity:
    """How alike the token of one patch, (row, column) from (0, 0), is to all others behind a layer."""
    tokens = F.normalize(patch_tokens(model, images, layer, "patch_similarity"), dim=-1)
    rows, cols = tokens.shape[1:3]
    if not isinstance(patch, Sequence) or len(patch) != 2 or not (0 <= patch[0] < rows and 0 <= patch[1] < cols):
        raise VitreousError(f"patch = {patch}: expected (row, column) of {rows} x {cols} patches, from (0, 0)")
    cosines = torch.einsum("brcd,bd->brc", tokens, tokens[:, patch[0], patch[1]])
    return Similarity(cosines, (patch[0], patch[1]), layer)


@dataclass(frozen=True)
class Components:
    colours: Tensor  # (B, rows, cols, 3) in 0..1: the first three components as red, green and blue
    share: Tensor  # (3,): of the variance of all tokens
    layer: int

    def figure(self, pixels: Sequence[Any] | None = None) -> Figure:
        shares = " + ".join(f"{100 * float(s):.0f}" for s in self.share)
        return figures.beside(self.colours, f"components: {shares}% of the variance", pixels)


def token_pca(model: Model, images: Tensor, layer: int = -1) -> Components:
    """The first three principal components of the patches of all images together: colours mean the same in each.

    From the 2nd to the 98th of a hundred is stretched over 0..1.
    """
    tokens = patch_tokens(model, images, layer, "token_pca")
    rows = tokens.flatten(0, 2).double()
    rows = rows - rows.mean(0)
    u, strength, _ = torch.linalg.svd(rows, full_matrices=False)
    power = strength.square()
    if not power.sum() > 0:
        raise VitreousError("token_pca: all tokens are the same, so that there is nothing to see")
    three = F.pad(u[:, :3] * strength[:3], (0, max(0, 3 - u.shape[1])))
    three = three * _signs(three)
    low, high = (torch.quantile(three, q, dim=0) for q in (0.02, 0.98))
    colours = ((three - low) / (high - low).clamp(min=1e-12)).clamp(0, 1).float()
    share = F.pad((power / power.sum())[:3], (0, max(0, 3 - len(power)))).float()
    return Components(colours.unflatten(0, tokens.shape[:3]), share, layer)


def _signs(columns: Tensor) -> Tensor:
    """The sign of a component is free: the largest entry shall be positive."""
    return torch.where(columns.gather(0, columns.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)


@dataclass(frozen=True)
class Readout:
    """What the head would say if the model ended before its first layer, and behind each."""

    probabilities: Tensor  # (depth + 1, B, classes)
    labels: tuple[str, ...] | None

    def name(self, number: int) -> str:
        return self.labels[number] if self.labels else f"class {number}"

    def figure(self, image: int = 0, top: int = 5) -> Figure:
        """The classes that win, from layer to layer."""
        found = self.probabilities[:, image]
        order = found[-1].topk(min(top, found.shape[-1])).indices.tolist()
        return figures.lines([(self.name(k), found[:, k]) for k in order], "read out behind layer", "probability (%)")


def depth_readout(model: Model, images: Tensor) -> Readout:
    """Final norm, pooling and head applied to the tokens at every depth. The last row is the model's own answer."""
    model = with_attention(model, "depth_readout", STEM, BLOCKS, NORMS, POOL)
    images = ready(model, images)
    if model.config.num_classes == 0 or model.config.pool == "none":
        raise VitreousError("depth_readout: the model has no head to read with")
    found: list[Tensor] = []

    def read(tokens: Tensor) -> None:
        found.append(probabilities(model, answers(model, tokens)))

    def visit(layer: int, block: Any, before: Tensor, after: Tensor, bias: Any) -> None:
        if layer == 0:
            read(before)
        read(after)

    with still(model), torch.no_grad():
        model.encode(images, visit)
    return Readout(torch.stack(found), labels_of(model))
