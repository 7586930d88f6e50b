"""k-nearest-neighbour classification by cosine similarity, with votes weighted by similarity."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError

TEMPERATURE = 0.07
NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200)
MAX_SIMILARITIES = 2**26  # in memory at a time: 256 MiB


def knn_predictions(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> dict[int, Tensor]:
    """Return the predicted classes for each k. The k nearest training rows vote with exp(cosine / temperature)."""
    if not neighbours or min(neighbours) < 1 or max(neighbours) > len(train_features):
        raise VitreousError(
            f"k = {list(neighbours)}: expected numbers from 1 to the {len(train_features)} training images"
        )
    bank, queries = F.normalize(train_features, dim=1), F.normalize(test_features, dim=1)
    classes = int(train_labels.max()) + 1
    rows = max(1, MAX_SIMILARITIES // max(len(bank), classes))
    parts: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    for part in queries.split(rows):
        nearest = (part @ bank.T).topk(max(neighbours), dim=1)
        # Relative to the nearest neighbour, so that exp cannot overflow.
        votes = ((nearest.values - nearest.values[:, :1]) / temperature).exp()
        labels = train_labels[nearest.indices]
        for k in neighbours:
            tally = votes.new_zeros(len(part), classes).scatter_add_(1, labels[:, :k], votes[:, :k])
            parts[k].append(tally.argmax(1))
    return {k: torch.cat(predictions) for k, predictions in parts.items()}
