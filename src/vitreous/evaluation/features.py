"""What a model makes of images, under its head or behind one of its layers: one pass, in the order of the images."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vitreous.data.loading import EvalLoader
from vitreous.errors import VitreousError
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer

HEAD = -1  # the layer that stands for what is under the head


@torch.no_grad()
def features(
    model: VisionTransformer | BiT,
    loader: EvalLoader,
    tick: Callable[[int], None] = lambda images: None,
    layer: int = HEAD,
) -> tuple[Tensor, Tensor]:
    """Features (N, D) in float32 and labels of the loader's images, both on the CPU.

    The model is put into evaluation mode and runs where it is, in its own precision; at any time there is one batch of
    pixels beside the result.
    """
    numbers = loader.indices
    found = torch.empty(0, 0)
    labels = torch.empty(len(numbers), *loader.source.labels.shape[1:], dtype=loader.source.labels.dtype)
    start = 0
    for batch, truths, _ in feature_batches(model, loader, layer):
        if not start:
            found = torch.empty(len(numbers), batch.shape[1])
        stop = start + len(batch)
        found[start:stop], labels[start:stop] = batch, truths
        start = stop
        tick(len(batch))
    return found[:start], labels[:start]


@torch.inference_mode()
def feature_batches(
    model: VisionTransformer | BiT, loader: EvalLoader, layer: int = HEAD
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Features, labels and numbers of images, batch by batch, where the model is.

    `layer` is a block of a ViT, counted from 0: the tokens behind it are pooled as the model pools its last ones (where
    it attends to pool, by their mean), without the norm that is meant for those. -1 is what is under the head.
    """
    model.eval()
    parameter = next(model.parameters())
    normalise = loader.transform.preprocessing.normalise
    look = _look(model, layer)
    for pixels, truths, indices in loader:
        yield look(normalise(pixels.to(parameter.device)).to(parameter.dtype)).float(), truths, indices


def check_layer(model: VisionTransformer | BiT, layer: int) -> None:
    """Whether the model has such a block, and one vector for each image."""
    if isinstance(model, BiT):
        if layer != HEAD:
            raise VitreousError(f"layer = {layer}: this is a BiT, whose features are those under its head (-1)")
        return
    if not HEAD <= layer < model.config.depth:
        raise VitreousError(f"layer = {layer}: use 0 to {model.config.depth - 1}, or -1 for what is under the head")
    if layer == HEAD and model.config.pool == "none":
        raise VitreousError("the model has features for every token, not for the image (pool='none')")


def _look(model: VisionTransformer | BiT, layer: int) -> Callable[[Tensor], Tensor]:
    check_layer(model, layer)
    if layer == HEAD or isinstance(model, BiT):
        return model.features

    def behind(images: Tensor) -> Tensor:
        x, _ = model.encode(images, last=layer)
        return x[:, 0] if model.config.pool == "token" else x[:, model.config.prefix :].mean(1)

    return behind
