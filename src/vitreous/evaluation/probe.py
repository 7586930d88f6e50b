"""Linear probe: logistic regression on features, for many learning rates and weight decays at once.

Each pair of a learning rate and a weight decay is a head. All heads are columns of one matrix, so that one matmul per
batch serves all of them. The objective is mean cross-entropy plus decay / 2 times the squared weights (not the
biases); in terms of scikit-learn's C and N images, decay = 1 / (C N).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from vitreous.errors import VitreousError

RATES = (0.003, 0.01, 0.03)
DECAYS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6)
BATCH, MIN_STEPS, MIN_EPOCHS = 512, 1000, 10
MAX_LOGITS = 2**24  # per batch, over all heads
BETAS, EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class ProbeHead:
    """Hyperparameters of one head."""

    rate: float
    decay: float


HEADS = tuple(ProbeHead(rate, decay) for rate, decay in product(RATES, DECAYS))


@dataclass(frozen=True)
class LinearProbe:
    """Linear classifiers on standardised features, one per head."""

    mean: Tensor
    std: Tensor
    weights: Tensor  # (D, heads, classes)
    biases: Tensor  # (heads, classes)

    def logits(self, features: Tensor) -> Tensor:
        """Return logits (N, heads, classes)."""
        x = (features - self.mean) / self.std
        logits: Tensor = (x @ self.weights.flatten(1)).unflatten(1, self.biases.shape) + self.biases
        return logits

    def scores(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return accuracy and mean loss of each head, (heads,) each."""
        right, loss = torch.zeros(2, len(self.biases), dtype=torch.float64, device=features.device)
        rows = max(1, MAX_LOGITS // self.biases.numel())
        for x, y in zip(features.split(rows), labels.split(rows), strict=True):
            logits = self.logits(x)
            right += (logits.argmax(2) == y[:, None]).double().sum(0)
            own = logits.gather(2, y[:, None, None].expand(-1, logits.shape[1], 1))[..., 0]
            loss += (logits.logsumexp(2) - own).double().sum(0)
        return right / len(labels), loss / len(labels)


def fit_schedule(images: int, columns: int) -> tuple[int, int]:
    """Return the batch size and the number of steps of `fit_heads`. `columns`: heads x classes."""
    batch = min(BATCH, max(64, images // 4), max(64, MAX_LOGITS // columns))
    return batch, max(MIN_STEPS, math.ceil(MIN_EPOCHS * images / batch))


@torch.no_grad()
def fit_heads(
    features: Tensor,
    labels: Tensor,
    heads: Sequence[ProbeHead],
    classes: int,
    seed: int = 0,
    *,
    masks: Tensor | None = None,
    tick: Callable[[int], None] = lambda images: None,
) -> LinearProbe:
    """Train all heads on the same batches with Adam, from zero, with a cosine schedule to zero.

    `masks` (images, heads) bool: which images each head is fitted to; default: all. The features are standardised with
    all images in either case. `tick` is called with the number of images of each step.
    """
    device, (images, width) = features.device, features.shape
    mean, std = features.mean(0), features.std(0, correction=0) + 1e-5
    x = (features - mean) / std
    rates = torch.tensor([head.rate for head in heads], device=device).repeat_interleave(classes)
    decays = torch.tensor([head.decay for head in heads], device=device).repeat_interleave(classes)
    columns = len(heads) * classes
    weights = torch.zeros(width + 1, columns, device=device)  # the last row contains the biases
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    batch, steps = fit_schedule(images, columns)
    gradient = torch.empty_like(weights)
    batches = _batch_indices(images, batch, steps, seed)
    for step in range(steps):
        chosen = next(batches).to(device)
        rows, truths = x[chosen], labels[chosen]
        slopes = torch.addmm(weights[-1], rows, weights[:-1]).view(len(rows), len(heads), classes).softmax(2)
        slopes[torch.arange(len(rows), device=device), :, truths] -= 1
        if masks is None:
            slopes = slopes.div_(len(rows)).view(len(rows), columns)
        else:
            used = masks[chosen].to(slopes.dtype)
            slopes = slopes.mul_((used / used.sum(0).clamp(min=1))[:, :, None]).view(len(rows), columns)
        torch.mm(rows.T, slopes, out=gradient[:-1])
        gradient[:-1].addcmul_(weights[:-1], decays.expand(width, -1))
        torch.sum(slopes, 0, out=gradient[-1])
        _adam(weights, gradient, first, second, rates * (0.5 + 0.5 * math.cos(math.pi * step / steps)), step + 1)
        tick(batch)
    shape = (len(heads), classes)
    return LinearProbe(mean, std, weights[:-1].unflatten(1, shape).clone(), weights[-1].view(shape).clone())


def _adam(weights: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Tensor, step: int) -> None:
    first.lerp_(gradient, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    spread = (second / (1 - BETAS[1] ** step)).sqrt_().add_(EPS)
    weights.sub_(first / spread * (rates / (1 - BETAS[0] ** step)))


def _batch_indices(images: int, batch: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Yield image indices of each batch: one random permutation after the other; batches may straddle epochs."""
    generator = torch.Generator().manual_seed(seed)
    remaining = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        while len(remaining) < batch:
            remaining = torch.cat((remaining, torch.randperm(images, generator=generator)))
        yield remaining[:batch]
        remaining = remaining[batch:]


def choose_head(
    features: Tensor,
    labels: Tensor,
    fit: Tensor,
    dev: Tensor,
    classes: int,
    seed: int = 0,
    heads: Sequence[ProbeHead] = HEADS,
    tick: Callable[[int], None] = lambda images: None,
) -> ProbeHead:
    """Return the head with the smallest loss on the rows `dev` after training on the rows `fit`.

    The accuracy on a few hundred images would be too noisy for the selection.
    """
    if not len(dev):
        raise VitreousError("no development images to select the probe with: there are too few images per class")
    probes = fit_heads(features[fit], labels[fit], heads, classes, seed, tick=tick)
    _, loss = probes.scores(features[dev], labels[dev])
    return heads[int(loss.argmin())]
