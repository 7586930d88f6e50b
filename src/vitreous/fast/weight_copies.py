"""Copies of a model's weights for inference: LayerScale folded into the layer before it, everything but the blocks."""

import copy

from torch import Tensor, nn

from vitreous.models.vit import LayerScale, VisionTransformer


def weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the detached weight and bias of a linear layer or a convolution. They are not copies."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def fold_layer_scale(layer: nn.Linear, scale: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias of a linear layer that includes the LayerScale after it, if `scale` is one."""
    weight, bias = weight_and_bias(layer)
    if not isinstance(scale, LayerScale):
        return weight, bias
    gamma = scale.gamma.detach()
    return weight * gamma[:, None], None if bias is None else bias * gamma


def copy_without_blocks(model: VisionTransformer) -> VisionTransformer:
    """Return a copy of a model in eval mode, with an empty list of blocks and no gradients."""
    shell = copy.copy(model)
    shell._modules = {**model._modules, "blocks": nn.ModuleList()}
    return copy.deepcopy(shell).eval().requires_grad_(False)
