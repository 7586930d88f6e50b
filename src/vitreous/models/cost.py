"""Cost of a model at an image size: parameters, FLOPs and activation memory. The model need not be built.

FLOPs count matrix products and convolutions of one forward pass of one image, 2 per multiply-add, as torch's
FlopCounterMode does. A training step takes three times as many.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import nn

from vitreous.errors import VitreousError
from vitreous.models.axial import axis_of
from vitreous.models.checks import Grid, ceil_div
from vitreous.models.resnet import BiT, BiTConfig, ResNetConfig
from vitreous.models.standard import difference, vitreous_model
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.models.zoo import build_model
from vitreous.models.zoo import config as named_config
from vitreous.utils.sizes import Size, pair


@dataclass(frozen=True)
class Flops:
    """FLOPs of one forward pass of one image, by part of the model."""

    backbone: int  # convolutions of a hybrid or a BiT
    patches: int  # the projection E of equation 1
    attention: int  # equation 2
    mlp: int  # equation 3
    head: int  # attention pooling, pre-logits, head

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.backbone + self.patches + self.attention + self.mlp + self.head


@dataclass(frozen=True, repr=False)
class Cost:
    """What a model costs for images of one size: the result of `vitreous.cost`.

    >>> cost = vitreous.cost("B/16", 384)
    >>> cost.grid, cost.tokens, cost.pairs
    ((24, 24), 576, 165600)
    >>> f"{cost.training_flops / 1e9:.1f} GFLOPs, {cost.activation_bytes / 2**20:.0f} MiB per image in training"
    '332.9 GFLOPs, 330 MiB per image in training'
    """

    config: ViTConfig | BiTConfig  # config of the model
    size: tuple[int, int]  # (height, width) of the images
    flops: Flops  # FLOPs of a forward pass of one image, by part of the model; `flops.total`: all parts
    grid: tuple[int, int]  # (rows, cols) of patches; for BiT, of the last feature map

    def __repr__(self) -> str:
        height, width = self.size
        tokens = f", {self.tokens:,} patches" if self.tokens else ""
        flops = f"{self.flops.total / 1e9:,.3g} GFLOPs at {height} x {width} px{tokens}"
        return f"Cost({self.parameters:,} parameters; {flops})"

    @property
    def training_flops(self) -> int:
        """FLOPs per image of a training step: the backward pass takes twice as many as the forward pass."""
        return 3 * self.flops.total

    @property
    def tokens(self) -> int:
        """Number of patches, N in the paper. 0 for a BiT."""
        return math.prod(self.grid) if isinstance(self.config, ViTConfig) else 0

    @property
    def pairs(self) -> int:
        """Number of pairs of patches, which full attention compares."""
        return math.comb(self.tokens, 2)

    @property
    def pixel_pairs(self) -> int:
        """Number of pairs of pixels, which attention would compare without patches."""
        return math.comb(math.prod(self.size), 2)

    @cached_property
    def parameters(self) -> int:
        """Number of parameters, counted on the meta device. The blocks of a ViT all have the same number of parameters,
        so models of depth 1 and 2 are enough."""
        if not isinstance(self.config, ViTConfig):
            return _count_parameters(self.config)
        one, two = (_count_parameters(replace(self.config, depth=depth)) for depth in (1, 2))
        return one + (self.config.depth - 1) * (two - one)

    @property
    def activation_bytes(self) -> int:
        """Bytes per image that a forward pass in fp32 stores for the backward pass, with fused attention and without
        activation checkpointing."""
        if isinstance(self.config, ViTConfig):
            return _vit_activations(self.config, self.size)
        return _resnet_activations(self.config, self.config.channels, self.size)


def cost(model: VisionTransformer | BiT | ViTConfig | BiTConfig | str, size: Size | None = None) -> Cost:
    """Count the parameters, FLOPs and activation memory of a model, without running it.

    - `model`: a model, a config, or a model name. A model must agree with its config; hooks and compiled modules are
      allowed and not counted
    - `size`: of the images in pixels, one number or (height, width); default: that of the config

    Returns a `Cost`. FLOPs are 2 per multiply-add. A modified model raises a `VitreousError`.

    >>> cost = vitreous.cost("B/16", 384)
    >>> f"{cost.parameters:,} parameters, {cost.flops.total / 1e9:.1f} GFLOPs per image"
    '86,567,656 parameters, 111.0 GFLOPs per image'
    """
    if isinstance(model, str):
        model = named_config(model)
    config = model if isinstance(model, ViTConfig | BiTConfig) else _config_of(model)
    height, width = pair(config.image_size if size is None else size)
    if isinstance(config, ViTConfig):
        return Cost(config, (height, width), _vit_flops(config, (height, width)), config.grid_at((height, width)))
    head = 2 * config.out_width * config.num_classes
    convolutions = _resnet_flops(config, config.channels, (height, width))
    return Cost(config, (height, width), Flops(convolutions, 0, 0, 0, head), config.grid_at((height, width)))


def _config_of(model: nn.Module) -> ViTConfig | BiTConfig:
    known = vitreous_model(model, "cost")
    if (reason := difference(known, allowed=("hook", "compiled"))) is not None:
        raise VitreousError(
            f"cost: the model differs from its config: {reason}. cost(model.config) gives the cost of the unchanged"
            " model"
        )
    return cast(VisionTransformer | BiT, known).config


def _count_parameters(config: ViTConfig | BiTConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build_model(config).parameters())


def _vit_flops(c: ViTConfig, size: tuple[int, int]) -> Flops:
    rows, cols = c.grid_at(size)
    D, M, N = c.width, c.mlp_dim, rows * cols
    T = c.prefix + N
    inputs = c.channels if c.backbone is None else c.backbone.out_width
    products = c.depth * 4 * T * D * D + 2 * _compared_pairs(c, (rows, cols)) * D  # qkv and proj; q k, product with v
    if c.position == "relative":
        products += c.depth * N * (2 * rows - 1) * (2 * cols - 1) * D
    mlp = (3 if c.mlp == "swiglu" else 2) * T * D * M
    vectors = T if c.pool == "none" else 1
    head = vectors * (c.representation_size or D) * c.num_classes + vectors * D * (c.representation_size or 0)
    if c.pool == "map":
        head += 2 * D * D + 2 * N * D * D + 2 * N * D + 2 * D * M  # q and output projection; k, v; attention; MLP
    return Flops(
        backbone=0 if c.backbone is None else _resnet_flops(c.backbone, c.channels, size),
        patches=2 * N * D * inputs * math.prod(pair(c.patch_size)),
        attention=2 * products,
        mlp=2 * c.depth * mlp,
        head=2 * head,
    )


def _compared_pairs(c: ViTConfig, grid: Grid) -> int:
    """Pairs of a query and a key in all layers. In axial attention, a patch is compared with its row or column and with
    the prefix tokens, and those with all tokens."""
    N, P = math.prod(grid), c.prefix
    if c.attention == "full":
        return c.depth * (P + N) ** 2
    in_lines = N * sum(grid[1] if axis_of(layer) == "row" else grid[0] for layer in range(c.depth))
    return in_lines + c.depth * (N * P + P * (P + N))


def _axial_copies(c: ViTConfig, grid: Grid) -> int:
    """Elements that axial attention stores in all layers and full attention does not. Without prefix tokens: the
    reordered outputs of columns. With prefix tokens: queries, keys and values by line, with the keys and values of the
    prefix tokens in every line, and the outputs of patches and of prefix tokens before they are joined."""
    N, P, D = math.prod(grid), c.prefix, c.width
    if not P:
        return c.depth // 2 * N * D
    lines = sum(grid[0] if axis_of(layer) == "row" else grid[1] for layer in range(c.depth))
    return c.depth * (4 * N + P) * D + 2 * lines * P * D


def _units(c: ResNetConfig, size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """For each bottleneck unit: cells of its input, cells of its output, input channels, inner channels."""
    grid = ResNetConfig((), stem=c.stem).grid_at(size)
    width = c.stem_width
    for stage, units in enumerate(c.blocks):
        mid = c.stem_width * 2**stage
        for unit in range(units):
            entry, stride = grid, 2 if stage and not unit else 1
            grid = (ceil_div(grid[0], stride), ceil_div(grid[1], stride))
            yield math.prod(entry), math.prod(grid), width, mid
            width = 4 * mid


def _stem_cells(c: ResNetConfig, size: tuple[int, int]) -> int:
    return math.prod(size if c.stem == "small" else (ceil_div(n, 2) for n in size))


def _resnet_flops(c: ResNetConfig, channels: int, size: tuple[int, int]) -> int:
    total = _stem_cells(c, size) * (9 if c.stem == "small" else 49) * channels * c.stem_width
    for entry, cells, inputs, mid in _units(c, size):
        projected = inputs != 4 * mid or entry != cells
        total += entry * inputs * mid + cells * (9 * mid * mid + mid * 4 * mid + projected * inputs * 4 * mid)
    return 2 * total


def _vit_activations(c: ViTConfig, size: tuple[int, int]) -> int:
    """Bytes that the operations store. Per token and layer, in units of D: inputs (2) and outputs (2) of both norms, q,
    k and v (3), output of attention (1); then the hidden layer of the MLP before and after its activation."""
    rows, cols = c.grid_at(size)
    D, M, N = c.width, c.mlp_dim, rows * cols
    T = c.prefix + N
    layer = 8 * D + (4 if c.mlp == "swiglu" else 2) * M + 4 + c.heads  # statistics of the norms, sums of the softmax
    if c.layer_scale is not None:
        layer += 2 * D
    if c.qk_norm:
        layer += 3 * D + 4 * c.heads
    if c.position == "relative":  # attention with a trained bias is not fused
        layer += 4 * D + 5 * c.heads * T
    elements = c.depth * T * layer + T * D * (2 if c.pool == "token" else 1)  # input of the final norm, and its view
    if c.attention == "axial":
        elements += _axial_copies(c, (rows, cols))
    if c.pool == "map":
        elements += N * (D + 2 * D) + 4 * D + 2 * M
    masks = T * D + c.depth * T * (2 * D + M) if c.dropout else 0  # one byte each, as on CUDA
    image = 4 * c.channels * math.prod(size)
    stem = image if c.backbone is None else _resnet_activations(c.backbone, c.channels, size)
    return stem + 4 * elements + masks


def _resnet_activations(c: ResNetConfig, channels: int, size: tuple[int, int]) -> int:
    """Bytes: inputs of convolutions and norms, outputs of ReLUs, indices of the max-pooling."""
    post, stem = c.activation == "post", _stem_cells(c, size) * c.stem_width
    elements = channels * math.prod(size) + stem * (2 if post else 1)
    if c.stem == "imagenet":
        pooled = math.prod(ResNetConfig(()).grid_at(size)) * c.stem_width
        elements += 2 * pooled + (stem if post else 0)  # 8-byte indices; the padded copy
    for entry, cells, inputs, mid in _units(c, size):
        inside = 2 * mid * entry + 2 * mid * cells
        if post:
            projected = inputs != 4 * mid or entry != cells
            elements += entry * inputs + inside + 4 * mid * cells * (2 if projected else 1)
            elements += mid * entry if entry != cells else 0  # the padded copy
        else:
            elements += 2 * entry * inputs + inside
    last = math.prod(c.grid_at(size)) * c.out_width
    return 4 * (elements + last * (1 if post else 2))
