"""Initialisations of the official code that torch has no function for."""

import math

from torch import nn


def lecun_normal_(layer: nn.Linear | nn.Conv2d) -> None:
    """Flax's default: normal with variance 1 / fan-in, truncated at two standard deviations; zero bias."""
    std = math.sqrt(1 / layer.weight[0].numel()) / 0.87962566103423978  # standard deviation of the truncated normal
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def xavier_(layer: nn.Linear, parts: int = 1, bias_std: float = 0.0) -> None:
    """Xavier-uniform. A fused layer of `parts` layers (q, k, v) is initialised part by part."""
    for weight in layer.weight.chunk(parts):
        nn.init.xavier_uniform_(weight)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=bias_std)


def reset_head_(head: nn.Module, bias: float) -> None:
    """Set the weights of a linear head to zero and its bias to `bias`. For a sigmoid loss with many classes about -10
    is useful: the model then starts by predicting that no class is present."""
    if isinstance(head, nn.Linear):
        nn.init.zeros_(head.weight)
        nn.init.constant_(head.bias, bias)
