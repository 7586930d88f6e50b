"""What a model makes of images, under its head: one pass, in the order of the images."""

from collections.abc import Callable

import torch
from torch import Tensor

from vitreous.data.loading import EvalLoader
from vitreous.errors import VitreousError
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer


@torch.inference_mode()
def features(
    model: VisionTransformer | BiT, loader: EvalLoader, tick: Callable[[int], None] = lambda images: None
) -> tuple[Tensor, Tensor]:
    """Features (N, D) in float32 and labels of the loader's images, both on the CPU.

    The model is put into evaluation mode and runs where it is, in its own precision; at any time there is one batch of
    pixels beside the result.
    """
    model.eval()
    parameter = next(model.parameters())
    normalise = loader.prepare.preprocessing.normalise
    numbers = loader.indices
    found = torch.empty(0, 0)
    labels = torch.empty(len(numbers), *loader.source.labels.shape[1:], dtype=loader.source.labels.dtype)
    start = 0
    for pixels, truths, _ in loader:
        batch = model.features(normalise(pixels.to(parameter.device)).to(parameter.dtype))
        if batch.ndim != 2:
            raise VitreousError("the model has features for every token, not for the image (pool='none')")
        if not start:
            found = torch.empty(len(numbers), batch.shape[1])
        stop = start + len(batch)
        found[start:stop], labels[start:stop] = batch, truths
        start = stop
        tick(len(batch))
    return found, labels
