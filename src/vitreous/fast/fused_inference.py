"""Inference on a GPU in bf16 or fp8: matmuls by cuBLASLt, fused Triton kernels between them.

The weights are copied in the requested precision. Only a few small kernels are compiled.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.fast.accelerate import NO_PREPROCESSING
from vitreous.fast.attention import ClassTokenAttention, merge_heads, sdpa, split_heads
from vitreous.fast.cublaslt import Fp8Scales, linear, linear_fp8, linear_gelu, linear_gelu_fp8
from vitreous.fast.kernels import FP8, add_norm, assemble_tokens, extract_patches, gelu
from vitreous.fast.short_attention import short_attention, short_attention_supports, short_forward_is_faster
from vitreous.fast.weight_copies import copy_without_blocks, fold_layer_scale, weight_and_bias
from vitreous.models.checks import Grid, check_images
from vitreous.models.embed import position_shapes, position_table
from vitreous.models.vit import Block, VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.utils.sizes import pair

HALF = torch.bfloat16
FP8_MAX = torch.finfo(FP8).max
EPSILON = 1e-12
PIXEL_OFFSET = 128.0  # subtracted from 8-bit pixels: the differences are small and exact in bf16


class LinearBf16:
    """x weight' + bias in bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = _copied(weight, HALF), None if bias is None else _copied(bias, HALF)

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        return linear(x, self.weight, self.bias, add)


class LinearFp8:
    """x weight' + bias with x and weight in fp8. `input_scale`: the factor that x was multiplied by."""

    def __init__(self, weight: Tensor, bias: Tensor | None, input_scale: float):
        weight_scale = FP8_MAX / max(weight.abs().max().item(), EPSILON)
        self.weight = (weight.float() * weight_scale).to(FP8).contiguous()
        self.bias = None if bias is None else _copied(bias, HALF)
        self.scales = Fp8Scales(*(torch.tensor(1 / s, device=weight.device) for s in (weight_scale, input_scale)))

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        return linear_fp8(x, self.weight, self.scales, self.bias, add)


LinearFunction = Callable[..., Tensor]


class FusedLayerNorm(NamedTuple):
    """LayerNorm with fp32 weights, and scales for its output in fp8."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def from_module(cls, norm: nn.Module) -> "FusedLayerNorm":
        assert isinstance(norm, nn.LayerNorm)
        return cls(norm.weight.detach().float().clone(), norm.bias.detach().float().clone(), norm.eps)

    def __call__(self, x: Tensor, fp8_scale: float | None = None) -> Tensor:
        return add_norm(x, None, None, self.weight, self.bias, self.eps, fp8_scale=fp8_scale)[1]

    def output_scale(self) -> float:
        """Return a scale for the output in fp8 that cannot overflow: a normalised number is at most sqrt(D)."""
        bound = self.weight.abs() * len(self.weight) ** 0.5 + self.bias.abs()
        return FP8_MAX / max(float(bound.max()), EPSILON)

    def hidden_scale(self, weight: Tensor, bias: Tensor | None) -> float:
        """Return the same for the GELU of a linear layer after the norm: a normalised row has the length sqrt(D)."""
        weight, bias = weight.float(), torch.zeros(len(weight), device=weight.device) if bias is None else bias.float()
        centre = weight @ self.bias + bias
        bound = (weight * self.weight).norm(dim=1) * len(self.weight) ** 0.5 + centre.abs()
        return FP8_MAX / max(float(bound.max()), EPSILON)


class BlockBf16:
    """Equations 2 and 3 on tokens (B x T, D), in bf16."""

    def __init__(self, block: Block):
        self.heads, self.tanh = block.attn.heads, block.mlp.approximate == "tanh"
        self.norm1, self.norm2 = FusedLayerNorm.from_module(block.norm1), FusedLayerNorm.from_module(block.norm2)
        self.qkv: LinearFunction = LinearBf16(*weight_and_bias(block.attn.qkv))
        self.proj = LinearBf16(*fold_layer_scale(block.attn.proj, block.ls1))
        self.fc1: LinearBf16 | LinearFp8 = LinearBf16(*weight_and_bias(block.mlp.fc1))
        self.fc2: LinearFunction = LinearBf16(*fold_layer_scale(block.mlp.fc2, block.ls2))

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        return self.mlp(self.attend(x, self.qkv(self.norm1(x)), batch))

    def attend(self, x: Tensor, qkv: Tensor, batch: int) -> Tensor:
        tokens = len(qkv) // batch
        supported = short_attention_supports(tokens, qkv.shape[1] // (3 * self.heads))
        if qkv.is_cuda and supported and short_forward_is_faster(tokens):
            o, _ = short_attention(qkv, batch, self.heads)
        else:
            o = merge_heads(sdpa(*split_heads(qkv, batch, self.heads)))
        return self.proj(o, add=x)

    def mlp(self, x: Tensor) -> Tensor:
        y = self.norm2(x)
        fused = linear_gelu(y, self.fc1.weight, self.fc1.bias) if self.tanh else None
        return self.fc2(gelu(self.fc1(y), self.tanh) if fused is None else fused[0], add=x)


class BlockFp8(BlockBf16):
    """A block with three of its four linear layers in fp8. Attention's output projection stays in bf16: it is small,
    and its input would need an extra pass over memory.

    fp8 numbers have a wide range and few digits. One scale per matrix is therefore as accurate as one per row, and it
    is known beforehand: `FusedLayerNorm.output_scale` and `hidden_scale` bound all values.
    """

    def __init__(self, block: Block):
        super().__init__(block)
        weight, bias = weight_and_bias(block.mlp.fc1)
        self.qkv_scale, self.fc1_scale = self.norm1.output_scale(), self.norm2.output_scale()
        self.fc2_scale = self.norm2.hidden_scale(weight, bias)
        self.qkv = LinearFp8(*weight_and_bias(block.attn.qkv), self.qkv_scale)
        self.fc1 = self.fc1_fp8 = LinearFp8(weight, bias, self.fc1_scale)
        self.fc2 = LinearFp8(*fold_layer_scale(block.mlp.fc2, block.ls2), self.fc2_scale)
        self.fc2_scale_tensor = torch.tensor(self.fc2_scale, device=weight.device)

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        return self.mlp(self.attend(x, self.qkv(self.norm1(x, self.qkv_scale)), batch))

    def mlp(self, x: Tensor) -> Tensor:
        y, g = self.norm2(x, self.fc1_scale), None
        if self.tanh:
            g = linear_gelu_fp8(y, self.fc1.weight, self.fc1_fp8.scales, self.fc1.bias, self.fc2_scale_tensor)
        return self.fc2(gelu(self.fc1(y), self.tanh, self.fc2_scale) if g is None else g, add=x)


class ClassTokenBlock(BlockBf16):
    """The last block of a model with pool="token": it computes the class token only."""

    def __init__(self, block: Block):
        super().__init__(block)
        self.class_attention = ClassTokenAttention.from_linear(block.attn.qkv, self.heads, HALF).copied()

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        y = self.norm1(x).unflatten(0, (batch, -1))
        return self.mlp(self.proj(self.class_attention(y[:, 0], y), add=x.view_as(y)[:, 0].contiguous()))


class FusedEmbedding:
    """Equation 1, from normalised images, or from 8-bit pixels with the normalisation folded into the weights."""

    def __init__(self, model: VisionTransformer):
        self.config, self.patch_size = model.config, pair(model.config.patch_size)
        weight, bias = weight_and_bias(model.patch_embed.proj)
        self.weight = _copied(weight, torch.float64)
        self.bias = torch.zeros_like(self.weight[:, 0, 0, 0]) if bias is None else _copied(bias, torch.float64)
        self.tables = {name: model.get_parameter(name).detach().clone() for name in position_shapes(model.config)}
        prefix = [t.detach()[0] for t in (model.cls_token, model.reg_token) if t is not None]
        self.prefix = torch.cat([weight.new_empty(0, model.config.width), *prefix]).float()
        self.positions: dict[Grid, Tensor | None] = {}
        self.from_normalised = LinearBf16(self.weight.flatten(1), self.bias)
        self.from_pixels = None if model.preprocessing is None else self._fold_normalisation(model.preprocessing)

    def _fold_normalisation(self, preprocessing: Preprocessing) -> LinearBf16:
        """Rewrite W (p / 255 - mean) / std + b as W' (p - 128) + b'."""
        mean, std = (self.weight.new_tensor(v).view(1, -1, 1, 1) for v in (preprocessing.mean, preprocessing.std))
        weight = self.weight / (255 * std)
        return LinearBf16(weight.flatten(1), self.bias + (weight * (PIXEL_OFFSET - 255 * mean)).sum((1, 2, 3)))

    def __call__(self, images: Tensor) -> Tensor:
        """Return tokens (B x T, D)."""
        check_images(images, self.config.channels, integer=torch.uint8)
        grid = self.config.grid_at((images.shape[2], images.shape[3]))
        is_pixels = images.dtype == torch.uint8
        project = self.from_pixels if is_pixels else self.from_normalised
        if project is None:
            raise VitreousError(NO_PREPROCESSING)
        z = project(extract_patches(images, self.patch_size, HALF, PIXEL_OFFSET if is_pixels else 0.0))
        if grid not in self.positions:
            table = position_table(self.config, self.tables, grid, like=self.weight)
            self.positions[grid] = None if table is None else table[0].float()
        return assemble_tokens(z, self.prefix, self.positions[grid], len(images)).flatten(0, 1)


class Fp32Head:
    """Pooling, pre-logits and head in fp32 by a copy of the model: with few rows, fp32 costs little."""

    def __init__(self, model: VisionTransformer):
        self.model = copy_without_blocks(model).float()

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return logits from the tokens after the final norm (B, T, D) in bf16."""
        logits: Tensor = self.model.head(self.features(tokens))
        return logits

    def features(self, tokens: Tensor) -> Tensor:
        """Return the input of the head from the same tokens."""
        c = self.model.config
        if c.pool == "token":
            tokens = tokens[:, :1]
        elif c.pool == "gap":
            # Average in one pass over the bf16 tokens, without an fp32 copy of all of them. The model then averages a
            # single patch, which does not change it.
            mean = tokens[:, c.prefix :].mean(1, keepdim=True, dtype=torch.float32)
            tokens = F.pad(mean, (0, 0, c.prefix, 0))
        return self.model.representation(tokens.float())


class FusedViT:
    """Return logits in fp32 for normalised images (B, C, H, W) or 8-bit pixels; `features` returns the input of the
    head."""

    def __init__(self, model: VisionTransformer, precision: str, first_fp8_block: int | None = None):
        """`first_fp8_block`: default `bf16_block_count`."""
        c = model.config
        self.embed, self.head = FusedEmbedding(model), Fp32Head(model)
        blocks = [cast(Block, block) for block in model.blocks]
        if precision != "fp8":
            first_fp8_block = c.depth
        elif first_fp8_block is None:
            first_fp8_block = bf16_block_count(c)
        self.blocks = [BlockBf16(block) if i < first_fp8_block else BlockFp8(block) for i, block in enumerate(blocks)]
        if c.pool == "token":
            self.blocks[-1] = ClassTokenBlock(blocks[-1])
        self.norm = FusedLayerNorm.from_module(model.norm) if c.final_norm == "before-pool" else None

    def __call__(self, images: Tensor) -> Tensor:
        return self._run(images, self.head)

    def features(self, images: Tensor) -> Tensor:
        return self._run(images, self.head.features)

    @torch.no_grad()
    def _run(self, images: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        if isinstance(images, Tensor) and images.ndim == 4 and not len(images):
            # A kernel cannot be launched for an empty batch.
            return self._run(images.new_zeros(1, *images.shape[1:]), head)[:0]
        x = self.embed(images)
        for block in self.blocks:
            x = block(x, len(images))
        x = x if self.norm is None else self.norm(x)
        return head(x.unflatten(0, (len(images), -1)))


def bf16_block_count(c: ViTConfig) -> int:
    """Return how many of the first blocks stay in bf16 with precision="fp8". Their errors propagate through all other
    blocks. Narrow models have larger errors in fp8 and gain less speed, so more of their blocks stay in bf16."""
    return c.depth * 3 // 4 if c.width < 768 else c.depth // 12


def _copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy a tensor. `to` without `copy` would return the model's own tensor if it already has the dtype."""
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
