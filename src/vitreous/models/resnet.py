"""BiT: ResNets with group normalisation and weight-standardised convolutions.

There are published weights for two variants of the bottleneck unit:

    activation="pre"   ResNet-v2, the paper's CNN baseline: norm and ReLU before each convolution
    activation="post"  ResNet-v1, the backbone of the hybrids (with a head: big_vision's `bit`)

The variants differ in numerics too, as their published weights require: weight standardisation, epsilon of the norms,
padding of strided convolutions and of the max-pooling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.models.base import Model
from vitreous.models.checks import Grid, ceil_div, check_fields, check_images, pick_layers, require
from vitreous.models.init import lecun_normal_, reset_head_
from vitreous.utils.sizes import Size

GROUPS = 32
BLOCKS = {26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}


@dataclass(frozen=True)
class ResNetConfig:
    """Architecture of a ResNet without a head, the backbone of hybrids: a stem and up to four stages.

    >>> backbone = vitreous.ResNetConfig(blocks=(3, 4, 9), activation="post")
    >>> backbone.out_width, backbone.grid_at((224, 224))
    (1024, (14, 14))
    >>> hybrid = vitreous.create("B/16", backbone=backbone, patch_size=1, device="meta")  # the same as "R50+B/16"
    """

    blocks: tuple[int, ...] = BLOCKS[50]  # bottleneck units per stage; (): the stem only
    width_factor: float = 1.0  # width of all layers; 1: the stem has 64 channels
    activation: Literal["pre", "post"] = "pre"  # pre: ResNet-v2, as in BiT. post: ResNet-v1, as in the hybrids
    stem: Literal["imagenet", "small"] = "imagenet"  # 7x7, stride 2, max-pooling; or 3x3, stride 1, for images < 96 px
    pool_border: Literal["nothing", "zeros"] = "nothing"
    """Padding of the max-pooling in a pre-activation stem: none (big_vision), or zeros, which exceed negative values
    (the original BiT code, timm). After a ReLU both are equal."""

    def __post_init__(self) -> None:
        if isinstance(self.blocks, list):
            object.__setattr__(self, "blocks", tuple(self.blocks))
        check_fields(self)
        require(len(self.blocks) <= 4 and all(n > 0 for n in self.blocks), self, "blocks", "at most 4 positive counts")
        whole = self.width_factor > 0 and 64 * self.width_factor % GROUPS == 0
        require(whole, self, "width_factor", "must be a positive multiple of 0.5, for 32 groups of equal size")
        border_matters = self.activation == "pre" and self.stem == "imagenet"
        require(
            border_matters or self.pool_border == "nothing",
            self,
            "pool_border",
            "only for activation='pre' and stem='imagenet'",
        )

    @property
    def stem_width(self) -> int:
        """Channels of the stem."""
        return int(64 * self.width_factor)

    @property
    def out_width(self) -> int:
        """Channels of the last feature map."""
        return self.stem_width << len(self.blocks) + 1 if self.blocks else self.stem_width

    @property
    def stride(self) -> int:
        """Pixels per cell of the last feature map."""
        return (4 if self.stem == "imagenet" else 1) << max(len(self.blocks) - 1, 0)

    def grid_at(self, size: tuple[int, int]) -> Grid:
        """(rows, cols) of the last feature map. Each stride of 2 rounds up, in both variants."""
        return ceil_div(size[0], self.stride), ceil_div(size[1], self.stride)


@dataclass(frozen=True)
class BiTConfig(ResNetConfig):
    """Architecture of a `BiT`: a ResNet with a head. The default is BiT-R50x1.

    >>> config = vitreous.BiTConfig(blocks=(3, 4, 6, 3), num_classes=10)
    >>> config.head_width, config.grid_at((224, 224))
    (2048, (7, 7))
    """

    image_size: Size = 224  # size that the model is made for; it accepts others
    channels: int = 3  # channels of the images
    num_classes: int = 1000  # number of outputs; 0: no head, the model returns features
    head_bias: float = 0.0  # initial bias of the head; its weights start at zero

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.channels > 0, self, "channels", "must be positive")
        require(self.num_classes >= 0, self, "num_classes", "must be 0 (features) or more")

    @property
    def head_width(self) -> int:
        """Input dimension of the head."""
        return self.out_width


def same_pad(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME padding: the output has ceil(size / stride) cells; an odd pixel is added at the end."""
    total = [max((ceil_div(n, stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:]]
    if not any(total):
        return x
    (top, bottom), (left, right) = [(t // 2, t - t // 2) for t in total]
    return F.pad(x, (left, right, top, bottom), value=value)


class StdConv(nn.Conv2d):
    """Convolution with weight standardisation: the kernel of each output channel is standardised on every call."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, kernel: int, stride: int = 1):
        self.post = config.activation == "post"
        self.asymmetric = self.post and stride > 1
        super().__init__(inputs, outputs, kernel, stride, 0 if self.asymmetric else kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
        deviation = variance.sqrt() + 1e-5 if self.post else (variance + 1e-10).sqrt()
        weight = ((weight - mean) / deviation).to(self.weight.dtype)
        if self.asymmetric:
            x = same_pad(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, weight, stride=self.stride, padding=self.padding)


def group_norm(config: ResNetConfig, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, channels, eps=1e-6 if config.activation == "post" else 1e-5)


class Stem(nn.Module):
    def __init__(self, config: ResNetConfig, channels: int):
        super().__init__()
        self.post = config.activation == "post"
        self.small = config.stem == "small"
        self.zeros = config.pool_border == "zeros"
        kernel, stride = (3, 1) if self.small else (7, 2)
        self.conv = StdConv(config, channels, config.stem_width, kernel, stride)
        self.norm = group_norm(config, config.stem_width) if self.post else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            x = F.relu(self.norm(x))
        if self.small:
            return x
        if self.post:
            return F.max_pool2d(same_pad(x, 3, 2, value=float("-inf")), 3, 2)
        if self.zeros:
            return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
        return F.max_pool2d(x, 3, 2, padding=1)


class Unit(nn.Module):
    """Bottleneck unit: 1x1 to `mid` channels, 3x3, 1x1 to 4 x `mid` channels, plus a shortcut."""

    def __init__(self, config: ResNetConfig, inputs: int, mid: int, stride: int):
        super().__init__()
        self.post = config.activation == "post"
        outputs = 4 * mid
        self.conv1 = StdConv(config, inputs, mid, 1)
        self.conv2 = StdConv(config, mid, mid, 3, stride)
        self.conv3 = StdConv(config, mid, outputs, 1)
        # The norm comes after its convolution in v1, before it in v2.
        widths = (mid, mid, outputs) if self.post else (inputs, mid, mid)
        self.norm1, self.norm2, self.norm3 = (group_norm(config, width) for width in widths)
        project = inputs != outputs or stride != 1
        self.conv_proj = StdConv(config, inputs, outputs, 1, stride) if project else None
        self.norm_proj = group_norm(config, outputs) if project and self.post else None

    def forward(self, x: Tensor) -> Tensor:
        return self._post(x) if self.post else self._pre(x)

    def _pre(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        if self.conv_proj is not None:
            x = self.conv_proj(y)
        y = self.conv1(y)
        y = self.conv2(F.relu(self.norm2(y)))
        x = self.conv3(F.relu(self.norm3(y))) + x
        return x

    def _post(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        if self.conv_proj is not None and self.norm_proj is not None:
            x = self.norm_proj(self.conv_proj(x))
        return F.relu(y + x)


def recompute(module: nn.Module, *inputs: object) -> Tensor:
    """Run a module with activation checkpointing: only its inputs are stored for the backward pass."""
    output: Tensor = checkpoint(module, *inputs, use_reentrant=False)
    return output


class ResNet(nn.Module):
    """From images to the last feature map: the backbone of BiT and of the hybrids."""

    def __init__(self, config: ResNetConfig, channels: int = 3):
        super().__init__()
        self.stem = Stem(config, channels)
        self.stages = nn.ModuleList()
        width = config.stem_width
        for stage, units in enumerate(config.blocks):
            mid = config.stem_width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (units - 1)
            inputs = [width] + [4 * mid] * (units - 1)
            self.stages.append(nn.Sequential(*(Unit(config, i, mid, s) for i, s in zip(inputs, strides, strict=True))))
            width = 4 * mid
        # The last sum of v2 is not normalised yet.
        self.norm = group_norm(config, width) if config.activation == "pre" else None

    def reset_parameters(self) -> None:
        """Initialise the weights. The model that contains the ResNet calls this."""
        for module in self.modules():
            if isinstance(module, StdConv):
                lecun_normal_(module)
            elif isinstance(module, nn.GroupNorm):
                module.reset_parameters()
        for module in self.modules():
            if isinstance(module, Unit) and module.post:
                nn.init.zeros_(module.norm3.weight)  # the unit starts as its shortcut

    def stage_maps(self, images: Tensor, checkpoint_activations: bool = False) -> list[Tensor]:
        """Feature map after each stage (after the stem if there is no stage). The last one is normalised."""
        x = self.stem(images)
        maps = []
        for stage in self.stages:
            for unit in cast(nn.Sequential, stage):
                x = recompute(unit, x) if checkpoint_activations else unit(x)
            maps.append(x)
        maps = maps or [x]
        if self.norm is not None:
            maps[-1] = F.relu(self.norm(maps[-1]))
        return maps

    def forward(self, images: Tensor, checkpoint_activations: bool = False) -> Tensor:
        return self.stage_maps(images, checkpoint_activations)[-1]


class BiT(Model):
    """A BiT: a ResNet with group normalisation and weight-standardised convolutions. `model(images)` returns logits.

    `vitreous.create` and `vitreous.load` return it; `BiT(config)` builds one of a `BiTConfig`.

    >>> import torch
    >>> model = vitreous.create("BiT-R26x1", num_classes=10, width_factor=0.5)
    >>> images = torch.randn(2, 3, 64, 96)  # any size
    >>> model(images).shape
    torch.Size([2, 10])
    >>> [tuple(maps.shape) for maps in model.intermediates(images, [0, -1])]
    [(2, 128, 16, 24), (2, 1024, 2, 3)]
    """

    config: BiTConfig  # architecture

    def __init__(self, config: BiTConfig):
        super().__init__()
        self.config = config
        self.backbone = ResNet(config, config.channels)
        self.head = nn.Linear(config.head_width, config.num_classes) if config.num_classes else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights as the official code does."""
        if self.backbone.stem.conv.weight.is_meta:
            return
        self.backbone.reset_parameters()
        reset_head_(self.head, self.config.head_bias)

    def features(self, images: Tensor) -> Tensor:
        """The input of the head: the mean of the last feature map, (B, D)."""
        check_images(images, self.config.channels, weight=self.backbone.stem.conv.weight)
        x: Tensor = self.backbone(images, self.checkpoint_activations)
        return x.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W); without a head, the features."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def intermediates(self, images: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Feature maps (B, D, rows, cols) after the given stages. -1: the last, which the head pools."""
        check_images(images, self.config.channels, weight=self.backbone.stem.conv.weight)
        wanted = pick_layers(layers, max(len(self.config.blocks), 1))
        maps = self.backbone.stage_maps(images, self.checkpoint_activations)
        return [maps[i] for i in wanted]
