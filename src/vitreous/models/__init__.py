"""The maths: tensors in, tensors out."""

from vitreous.models.cost import Cost, cost
from vitreous.models.resnet import BiT, BiTConfig, ResNet, ResNetConfig
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.models.zoo import config, create, names

__all__ = [
    "BiT",
    "BiTConfig",
    "Cost",
    "ResNet",
    "ResNetConfig",
    "ViTConfig",
    "VisionTransformer",
    "config",
    "cost",
    "create",
    "names",
]
