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
        # The last batch is filled up: a compiled model takes one size of batch.
        missing = loader.batch_size - len(pixels) if len(loader.indices) > loader.batch_size else 0
        filled = torch.cat([pixels, pixels[:1].expand(missing, -1, -1, -1)]) if missing else pixels
        logits = model(normalise(filled))[: len(pixels)].float()
        losses = loss(logits, labels)
        scores.add(logits, labels, losses)
        if extremes is not None:
            extremes.add(logits, labels, losses, indices)
        tick(len(pixels))
