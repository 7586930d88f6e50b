"""Relevance maps of single classes: attention weighted by its gradient (Chefer et al., 2021)."""

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
    check_attention_memory,
    class_probabilities,
    eval_mode,
    head_logits,
    pick_indices,
    pooling_weights,
    prepare_batch,
    require_vit,
)
from vitreous.models.base import Model
from vitreous.models.checks import Grid
from vitreous.models.vit import Attention, VisionTransformer
from vitreous.utils.figures import label_text
from vitreous.weights.model_info import labels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Relevance:
    """Relevance maps of classes. The scales of different maps are not comparable."""

    maps: Tensor  # (B, classes, rows, cols), float32, 0 or more
    classes: Tensor  # (B, classes): class indices
    probabilities: Tensor  # (B, classes)
    grid: Grid
    labels: tuple[str, ...] | None

    def name(self, image: int, place: int) -> str:
        """Return the name of a class of an image. `place`: its position in `classes`."""
        number = int(self.classes[image, place])
        return self.labels[number] if self.labels else f"class {number}"

    def figure(self, pixels: Any = None, image: int = 0) -> Figure:
        """Draw the image and the map of each class."""
        count = self.classes.shape[1]
        names = [label_text(self.name(image, k), 22) for k in range(count)]
        titles = [f"{names[k]}, {100 * float(self.probabilities[image, k]):.1f}%" for k in range(count)]
        layout = figures.MapLayout("relevance for each class", single_row=True)
        return figures.draw_map_table(self.maps[image][None], [""], titles, "relevance", pixels, layout)


def relevance(model: Model, images: Tensor, classes: Sequence[int] | None = None, *, top: int = 1) -> Relevance:
    """Return relevance maps for `classes`, or for the `top` most probable classes of each image.

    In every layer, attention weights are multiplied by the gradient of the class's logit. Positive values are averaged
    over heads to E, and rolled out: R becomes R + E R, layer by layer, starting with the identity (Chefer et al.,
    2021). Gradients of parameters are not changed.
    """
    model = require_vit(model, "relevance", STEM, IN_BLOCKS, NORMS)
    images, config = prepare_batch(model, images), model.config
    if config.num_classes == 0 or config.pool == "none":
        raise VitreousError("relevance: the model does not classify images; rollout does not need classes")
    if classes is not None:
        classes = pick_indices(classes, config.num_classes, "classes")
    if not isinstance(top, int) or not 1 <= top <= config.num_classes:
        raise VitreousError(f"top = {brief(top)}: expected 1 to {config.num_classes}")
    if model.patch_embed.proj.weight.is_inference():
        raise VitreousError("relevance needs gradients, but this model was created in torch.inference_mode")
    check_attention_memory(model, images, config.depth * config.heads, 3 * config.depth * config.heads)
    recorded: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(model), record_attention(model, recorded):
        tokens, grid = model.encode(images.clone())
        logits = head_logits(model, tokens)
        chosen = logits.topk(top).indices if classes is None else torch.tensor(classes).expand(len(images), -1)
        chosen = chosen.to(logits.device)
        columns = logits.gather(1, chosen).sum(0)  # images are independent, so one backward serves the whole batch
        rolled = [_roll_out(recorded, column, k + 1 < len(columns)) for k, column in enumerate(columns)]
    with torch.no_grad(), eval_mode(model):
        pooling = pooling_weights(model, tokens.detach())
    maps = torch.stack([torch.einsum("bt,btk->bk", pooling, one) for one in rolled], 1)
    maps = maps[..., config.prefix :].unflatten(-1, grid).clamp(min=0)
    if len(empty := (~maps.flatten(2).any(-1)).nonzero()):
        number = int(chosen[empty[0, 0], empty[0, 1]])
        raise VitreousError(f"relevance: class {number} does not depend on the image; are the head's weights all zero?")
    scores = class_probabilities(model, logits.detach()).gather(1, chosen)
    return Relevance(maps, chosen, scores, grid, labels_of(model))


def _roll_out(recorded: Sequence[Tensor], logit: Tensor, retain_graph: bool) -> Tensor:
    """Return the relevance matrix (B, T, T) of a logit, without the initial identity."""
    gradients = torch.autograd.grad(logit, recorded, retain_graph=retain_graph, allow_unused=True)
    rolled = torch.zeros_like(recorded[0][:, 0], dtype=torch.float32)
    for weights, gradient in zip(recorded, gradients, strict=True):
        if gradient is not None:
            step = (weights.detach() * gradient).float().clamp(min=0).mean(1)
            rolled = rolled + step @ rolled + step
    return rolled


@contextmanager
def record_attention(model: VisionTransformer, recorded: list[Tensor]) -> Iterator[None]:
    """Run attention unfused, and append its weights to `recorded`, so that gradients with respect to them exist."""

    def unfused(attn: Attention) -> Any:
        def forward(x: Tensor, *rest: Any) -> Tensor:
            weights = attn.weights(x, *rest)
            if not weights.requires_grad:
                weights.requires_grad_()
            recorded.append(weights)
            out: Tensor = attn.proj((weights @ attn.split(x)[2]).transpose(1, 2).flatten(2))
            return out

        return forward

    layers: list[Any] = list(dict.fromkeys(block.attn for block in model.blocks))  # blocks may share one
    for layer in layers:
        layer.forward = unfused(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
