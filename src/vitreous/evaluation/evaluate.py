"""Show a model every image once, and add up what it says."""

from collections.abc import Callable

import torch
from torch import Tensor

from vitreous.data.loading import EvalLoader
from vitreous.evaluation.extremes import Extremes
from vitreous.evaluation.metrics import Scores


@torch.no_grad()
def score(
    model: Callable[[Tensor], Tensor],
    loader: EvalLoader,
    loss: Callable[[Tensor, Tensor], Tensor],
    scores: Scores,
    extremes: Extremes | None = None,
    tick: Callable[[int], None] = lambda images: None,
) -> None:
    """Add the loader's images to the scores. `model` is in evaluation mode; `loss` gives one number for each image."""
    normalise = loader.prepare.preprocessing.normalise
    for pixels, labels, indices in loader:
        logits = model(normalise(pixels)).float()
        losses = loss(logits, labels)
        scores.add(logits, labels, losses)
        if extremes is not None:
            extremes.add(logits, labels, losses, indices)
        tick(len(pixels))
