"""The initialisations of the official code that torch does not have under one name."""

import math

from torch import nn


def lecun_normal_(layer: nn.Linear | nn.Conv2d) -> None:
    """Flax's default: normal, truncated at two deviations, variance 1 / fan-in; bias zero."""
    std = math.sqrt(1 / layer.weight[0].numel()) / 0.87962566103423978  # the truncation's own deviation
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def xavier_(layer: nn.Linear, parts: int = 1, bias_std: float = 0.0) -> None:
    """Xavier-uniform; of a fused layer each part by itself, as when q, k and v were layers of their own."""
    for weight in layer.weight.chunk(parts):
        nn.init.xavier_uniform_(weight)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=bias_std)


def reset_head_(head: nn.Module, bias: float) -> None:
    """A classifier starts at zero, so that the first predictions do not depend on the draw; a sigmoid loss wants a
    bias of, say, -10, to start from "none of them"."""
    if isinstance(head, nn.Linear):
        nn.init.zeros_(head.weight)
        nn.init.constant_(head.bias, bias)
