"""How many filters are smooth, and how many respond to colour."""

from __future__ import annotations

from torch import Tensor

SMOOTH = 0.5  # correlation of neighbouring pixels
COLOUR = 0.5  # largest share of grey


def neighbour_correlation(components: Tensor) -> Tensor | None:
    """Return the correlation of horizontally and vertically neighbouring pixels of each filter, for filters (count,
    channels, height, width): 1 for a constant one, negative if the sign changes from pixel to pixel. None for filters
    of one pixel."""
    x = components.double()
    if x.shape[2] * x.shape[3] == 1:
        return None
    pairs = ((x[..., 1:, :], x[..., :-1, :]), (x[..., 1:], x[..., :-1]))
    product = sum((a * b).flatten(1).sum(1) for a, b in pairs)
    first, second = (sum(pair[i].square().flatten(1).sum(1) for pair in pairs) for i in (0, 1))
    assert isinstance(product, Tensor)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    return product / (first * second).sqrt().clamp(min=1e-30)


def grey_share(components: Tensor) -> Tensor | None:
    """Return the share of each filter (count, 3, height, width) that is equal in all channels; None unless there are
    three channels."""
    x = components.double()
    if x.shape[1] != 3:
        return None
    grey = 3 * x.mean(1).square().flatten(1).sum(1)
    return grey / x.square().flatten(1).sum(1).clamp(min=1e-30)
