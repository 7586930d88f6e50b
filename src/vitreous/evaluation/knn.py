"""The k nearest training images by cosine, each with a vote that weighs more the nearer it is."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError

TEMPERATURE = 0.07
NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200)
AT_ONCE = 2**26  # similarities in memory together: 256 MiB


def nearest_classes(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> dict[int, Tensor]:
    """For each k the class of each test row, from votes exp(cosine / temperature) of its k nearest training rows."""
    if not neighbours or min(neighbours) < 1 or max(neighbours) > len(train_features):
        raise VitreousError(
            f"k = {list(neighbours)}: expected numbers from 1 to the {len(train_features)} training images"
        )
    bank, queries = F.normalize(train_features, dim=1), F.normalize(test_features, dim=1)
    classes = int(train_labels.max()) + 1
    rows = max(1, AT_ONCE // max(len(bank), classes))
    parts: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    for part in queries.split(rows):
        near = (part @ bank.T).topk(max(neighbours), dim=1)
        votes = ((near.values - near.values[:, :1]) / temperature).exp()  # relative to the nearest: none overflows
        labels = train_labels[near.indices]
        for k in neighbours:
            tally = votes.new_zeros(len(part), classes).scatter_add_(1, labels[:, :k], votes[:, :k])
            parts[k].append(tally.argmax(1))
    return {k: torch.cat(found) for k, found in parts.items()}
