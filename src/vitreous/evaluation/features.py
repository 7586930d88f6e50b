"""Features of a model: the representation before its head, or the pooled tokens after one of its blocks."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vitreous.data.loading import EvalLoader
from vitreous.errors import VitreousError
from vitreous.models.custom import AnyModel
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer

HEAD = -1  # the layer number of the representation before the head


@torch.no_grad()
def extract_features(
    model: AnyModel,
    loader: EvalLoader,
    tick: Callable[[int], None] = lambda images: None,
    layer: int = HEAD,
) -> tuple[Tensor, Tensor]:
    """Return features (N, D) in float32 and labels of the loader's images, in their order, both on the CPU.

    The model is put into eval mode and runs on its own device and in its own precision. Besides the result, only one
    batch of pixels is in memory.
    """
    count = len(loader.indices)
    features = torch.empty(0, 0)
    labels = torch.empty(count, *loader.source.labels.shape[1:], dtype=loader.source.labels.dtype)
    start = 0
    for batch, truths, _ in feature_batches(model, loader, layer):
        if not start:
            features = torch.empty(count, batch.shape[1])
        stop = start + len(batch)
        features[start:stop], labels[start:stop] = batch, truths
        start = stop
        tick(len(batch))
    return features[:start], labels[:start]


@torch.inference_mode()
def feature_batches(model: AnyModel, loader: EvalLoader, layer: int = HEAD) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield features, labels and image indices, batch by batch, on the model's device.

    `layer` is the index of a block of a ViT. Its output tokens are pooled as the model pools its last ones (a mean of
    the patches if the model uses attention pooling), without the final norm. -1: the representation before the head.
    """
    model.eval()
    parameter = next(model.parameters())
    normalise = loader.transform.preprocessing.normalise
    features = _feature_function(model, layer)
    for pixels, truths, indices in loader:
        yield features(normalise(pixels.to(parameter.device)).to(parameter.dtype)).float(), truths, indices


def check_layer(model: AnyModel, layer: int) -> None:
    """Raise an error if the model does not have this block, or no single vector per image there."""
    if not isinstance(model, VisionTransformer):
        if layer != HEAD:
            kind = "this is a BiT" if isinstance(model, BiT) else "this is a model of your own"
            raise VitreousError(f"layer = {layer}: {kind}; only the features before its head (-1) are available")
        return
    if not HEAD <= layer < model.config.depth:
        raise VitreousError(
            f"layer = {layer}: use 0 to {model.config.depth - 1}, or -1 for the representation before the head"
        )
    if layer == HEAD and model.config.pool == "none":
        raise VitreousError("the model has features for every token, not for the image (pool='none')")


def _feature_function(model: AnyModel, layer: int) -> Callable[[Tensor], Tensor]:
    check_layer(model, layer)
    if layer == HEAD or not isinstance(model, VisionTransformer):
        return model.features

    def pooled_tokens(images: Tensor) -> Tensor:
        x, _ = model.encode(images, last=layer)
        return x[:, 0] if model.config.pool == "token" else x[:, model.config.prefix :].mean(1)

    return pooled_tokens
