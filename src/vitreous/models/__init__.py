"""The maths: tensors in, tensors out."""

from vitreous.models.resnet import BiT, BiTConfig, ResNet, ResNetConfig
from vitreous.models.vit import VisionTransformer, ViTConfig

__all__ = ["BiT", "BiTConfig", "ResNet", "ResNetConfig", "ViTConfig", "VisionTransformer"]
