"""What speaks for a class: attention weighted by its gradient, so that two classes in one picture have two maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.inspection import figures
from vitreous.inspection.internals import (
    IN_BLOCKS,
    NORMS,
    STEM,
    answers,
    check_room,
    picked,
    pooled,
    probabilities,
    ready,
    still,
    with_attention,
)
from vitreous.models.base import Model
from vitreous.models.checks import Grid
from vitreous.models.vit import Attention, VisionTransformer
from vitreous.utils.figures import label
from vitreous.weights.model_info import labels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Relevance:
    """Maps of classes, each on a scale of its own."""

    maps: Tensor  # (B, classes, rows, cols), float32, 0 or more
    classes: Tensor  # (B, classes): which ones
    probabilities: Tensor  # (B, classes)
    grid: Grid
    labels: tuple[str, ...] | None

    def name(self, image: int, place: int) -> str:
        number = int(self.classes[image, place])
        return self.labels[number] if self.labels else f"class {number}"

    def figure(self, pixels: Any = None, image: int = 0) -> Figure:
        """The picture, and the map of each class."""
        count = self.classes.shape[1]
        names = [label(self.name(image, k), 22) for k in range(count)]
        titles = [f"{names[k]}, {100 * float(self.probabilities[image, k]):.1f}%" for k in range(count)]
        look = figures.Look("what speaks for a class", alone=True)
        return figures.table(self.maps[image][None], [""], titles, "relevance", pixels, look)


def relevance(model: Model, images: Tensor, classes: Sequence[int] | None = None, *, top: int = 1) -> Relevance:
    """For each of `classes`, or for the `top` most probable ones of each image, what in the image speaks for it.

    In every layer the attention is multiplied by the gradient of the class's logit; what is positive of that is
    averaged over heads, and rolled out: R + E R, layer after layer, beginning with the identity (Chefer et al., 2021).
    Gradients of the weights are not touched.
    """
    model = with_attention(model, "relevance", STEM, IN_BLOCKS, NORMS)
    images, config = ready(model, images), model.config
    if config.num_classes == 0 or config.pool == "none":
        raise VitreousError("relevance: the model has no classes to ask about; rollout needs none")
    if classes is not None:
        classes = picked(classes, config.num_classes, "classes")
    if not isinstance(top, int) or not 1 <= top <= config.num_classes:
        raise VitreousError(f"top = {brief(top)}: expected 1 to {config.num_classes}")
    if model.patch_embed.proj.weight.is_inference():
        raise VitreousError("relevance needs gradients, and this model was made within torch.inference_mode")
    check_room(model, images, config.depth * config.heads, 3 * config.depth * config.heads)
    kept: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad(), still(model), explicit(model, kept):
        tokens, grid = model.encode(images.clone())
        logits = answers(model, tokens)
        asked = logits.topk(top).indices if classes is None else torch.tensor(classes).expand(len(images), -1)
        asked = asked.to(logits.device)
        columns = logits.gather(1, asked).sum(0)  # images do not know each other, so all of them can be asked at once
        found = [_rolled(kept, column, again=k + 1 < len(columns)) for k, column in enumerate(columns)]
    with torch.no_grad(), still(model):
        taken = pooled(model, tokens.detach())
    maps = torch.stack([torch.einsum("bt,btk->bk", taken, one) for one in found], 1)
    maps = maps[..., config.prefix :].unflatten(-1, grid).clamp(min=0)
    if len(empty := (~maps.flatten(2).any(-1)).nonzero()):
        which = int(asked[empty[0, 0], empty[0, 1]])
        raise VitreousError(f"relevance: class {which} does not depend on the image at all; is the head still at zero?")
    scores = probabilities(model, logits.detach()).gather(1, asked)
    return Relevance(maps, asked, scores, grid, labels_of(model))


def _rolled(kept: Sequence[Tensor], logit: Tensor, again: bool) -> Tensor:
    """(B, T, T), without the identity it began with."""
    gradients = torch.autograd.grad(logit, kept, retain_graph=again, allow_unused=True)
    rolled = torch.zeros_like(kept[0][:, 0], dtype=torch.float32)
    for weights, gradient in zip(kept, gradients, strict=True):
        if gradient is not None:
            step = (weights.detach() * gradient).float().clamp(min=0).mean(1)
            rolled = rolled + step @ rolled + step
    return rolled


@contextmanager
def explicit(model: VisionTransformer, kept: list[Tensor]) -> Iterator[None]:
    """Attention in two products instead of one fused kernel, its weights kept for a gradient to reach them."""

    def spelled_out(attn: Attention) -> Any:
        def forward(x: Tensor, bias: Any = None) -> Tensor:
            weights = attn.weights(x, bias)
            if not weights.requires_grad:
                weights.requires_grad_()
            kept.append(weights)
            out: Tensor = attn.proj((weights @ attn.split(x)[2]).transpose(1, 2).flatten(2))
            return out

        return forward

    layers: list[Any] = list(dict.fromkeys(block.attn for block in model.blocks))  # blocks may share one
    for layer in layers:
        layer.forward = spelled_out(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
