"""Inference on a GPU, in bf16 or fp8: products by the vendor's library, fused kernels between them.

The weights are a copy in the precision asked for. Nothing is compiled but a handful of small kernels.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.fast.attention import Asking, attend, joined, split
from vitreous.fast.cublaslt import Scales, linear, linear_fp8, linear_gelu, linear_gelu_fp8
from vitreous.fast.kernels import FP8, add_norm, assemble, gelu, patches
from vitreous.fast.short_attention import ahead, attention, fits
from vitreous.models.checks import Grid, check_images, pair
from vitreous.models.embed import position_shapes, position_table
from vitreous.models.vit import Block, LayerScale, VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing

HALF = torch.bfloat16
LARGEST = torch.finfo(FP8).max
TINY = 1e-12
MIDDLE = 128.0  # taken from 8-bit pixels first: what is left is exact in bf16, and small


class HalfProduct:
    """x weight' + bias in bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = _copied(weight, HALF), None if bias is None else _copied(bias, HALF)

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        return linear(x, self.weight, self.bias, add)


class EighthProduct:
    """x weight' + bias of numbers in fp8. `factor`: what x comes multiplied by."""

    def __init__(self, weight: Tensor, bias: Tensor | None, factor: float):
        own = LARGEST / max(weight.abs().max().item(), TINY)
        self.weight = (weight.float() * own).to(FP8).contiguous()
        self.bias = None if bias is None else _copied(bias, HALF)
        self.scales = Scales(*(torch.tensor(1 / f, device=weight.device) for f in (own, factor)))

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        return linear_fp8(x, self.weight, self.scales, self.bias, add)


Product = Callable[..., Tensor]


class Norm(NamedTuple):
    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, norm: nn.Module) -> "Norm":
        assert isinstance(norm, nn.LayerNorm)
        return cls(norm.weight.detach().float().clone(), norm.bias.detach().float().clone(), norm.eps)

    def __call__(self, x: Tensor, factor: float | None = None) -> Tensor:
        return add_norm(x, None, None, self.weight, self.bias, self.eps, factor=factor)[1]

    def factor(self) -> float:
        """What its output can be multiplied by in fp8: no number that was normed lies beyond sqrt(D)."""
        most = self.weight.abs() * len(self.weight) ** 0.5 + self.bias.abs()
        return LARGEST / max(float(most.max()), TINY)

    def factor_behind(self, weight: Tensor, bias: Tensor | None) -> float:
        """The same for the GELU of a product of that output: what was normed is sqrt(D) long, all in all."""
        weight, bias = weight.float(), torch.zeros(len(weight), device=weight.device) if bias is None else bias.float()
        middle = weight @ self.bias + bias
        most = (weight * self.weight).norm(dim=1) * len(self.weight) ** 0.5 + middle.abs()
        return LARGEST / max(float(most.max()), TINY)


class FastBlock:
    """Equations 2 and 3, on tokens (B x T, D), in bf16."""

    def __init__(self, block: Block):
        self.heads, self.tanh = block.attn.heads, block.mlp.approximate == "tanh"
        self.norm1, self.norm2 = Norm.of(block.norm1), Norm.of(block.norm2)
        self.qkv: Product = HalfProduct(*_weight_and_bias(block.attn.qkv))
        self.proj = HalfProduct(*_scaled(block.attn.proj, block.ls1))
        self.fc1: HalfProduct | EighthProduct = HalfProduct(*_weight_and_bias(block.mlp.fc1))
        self.fc2: Product = HalfProduct(*_scaled(block.mlp.fc2, block.ls2))

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        return self.mlp(self.attend(x, self.qkv(self.norm1(x)), batch))

    def attend(self, x: Tensor, qkv: Tensor, batch: int) -> Tensor:
        tokens = len(qkv) // batch
        if qkv.is_cuda and ahead(tokens) and fits(tokens, qkv.shape[1] // (3 * self.heads)):
            o, _ = attention(qkv, batch, self.heads)
        else:
            o = joined(attend(*split(qkv, batch, self.heads)))
        return self.proj(o, add=x)

    def mlp(self, x: Tensor) -> Tensor:
        y = self.norm2(x)
        found = linear_gelu(y, self.fc1.weight, self.fc1.bias) if self.tanh else None
        return self.fc2(gelu(self.fc1(y), self.tanh) if found is None else found[0], add=x)


class EighthBlock(FastBlock):
    """With three of its products in fp8: not attention's last, which is small, and would need a pass for its own
    input's sake.

    The numbers of this format have a wide range and few digits. So one factor for a whole matrix is as good as one for
    each row, and it need not be looked for: by `Norm.factor` and `Norm.factor_behind` nothing can lie beyond it.
    """

    def __init__(self, block: Block):
        super().__init__(block)
        weight, bias = _weight_and_bias(block.mlp.fc1)
        self.to_qkv, self.to_fc1 = self.norm1.factor(), self.norm2.factor()
        self.to_fc2 = self.norm2.factor_behind(weight, bias)
        self.qkv = EighthProduct(*_weight_and_bias(block.attn.qkv), self.to_qkv)
        self.fc1 = self.fc1_fp8 = EighthProduct(weight, bias, self.to_fc1)
        self.fc2 = EighthProduct(*_scaled(block.mlp.fc2, block.ls2), self.to_fc2)
        self.factor = torch.tensor(self.to_fc2, device=weight.device)

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        return self.mlp(self.attend(x, self.qkv(self.norm1(x, self.to_qkv)), batch))

    def mlp(self, x: Tensor) -> Tensor:
        y, g = self.norm2(x, self.to_fc1), None
        if self.tanh:
            g = linear_gelu_fp8(y, self.fc1.weight, self.fc1_fp8.scales, self.fc1.bias, self.factor)
        return self.fc2(gelu(self.fc1(y), self.tanh, self.to_fc2) if g is None else g, add=x)


class LastBlock(FastBlock):
    """For a head that reads the class token alone: it asks all the others, and nobody reads what they would have."""

    def __init__(self, block: Block):
        super().__init__(block)
        self.ask = Asking.of(block.attn.qkv, self.heads, HALF).copied()

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        y = self.norm1(x).unflatten(0, (batch, -1))
        return self.mlp(self.proj(self.ask(y[:, 0], y), add=x.view_as(y)[:, 0].contiguous()))


class Embedding:
    """Equation 1, from normalised images, or from 8-bit pixels by a product that normalisation is folded into."""

    def __init__(self, model: VisionTransformer):
        self.config, self.patch = model.config, pair(model.config.patch_size)
        weight, bias = _weight_and_bias(model.patch_embed.proj)
        self.weight = _copied(weight, torch.float64)
        self.bias = torch.zeros_like(self.weight[:, 0, 0, 0]) if bias is None else _copied(bias, torch.float64)
        self.tables = {name: model.get_parameter(name).detach().clone() for name in position_shapes(model.config)}
        front = [t.detach()[0] for t in (model.cls_token, model.reg_token) if t is not None]
        self.front = torch.cat([weight.new_empty(0, model.config.width), *front]).float()
        self.places: dict[Grid, Tensor | None] = {}
        self.normalised = HalfProduct(self.weight.flatten(1), self.bias)
        self.pixels = None if model.preprocessing is None else self._folded(model.preprocessing)

    def _folded(self, how: Preprocessing) -> HalfProduct:
        """W (p / 255 - mean) / std + b, as W' (p - 128) + b'."""
        mean, std = (self.weight.new_tensor(v).view(1, -1, 1, 1) for v in (how.mean, how.std))
        weight = self.weight / (255 * std)
        return HalfProduct(weight.flatten(1), self.bias + (weight * (MIDDLE - 255 * mean)).sum((1, 2, 3)))

    def __call__(self, images: Tensor) -> Tensor:
        """Tokens (B x T, D)."""
        check_images(images, self.config.channels, whole=torch.uint8)
        grid = self.config.grid_at((images.shape[2], images.shape[3]))
        raw = images.dtype == torch.uint8
        product = self.pixels if raw else self.normalised
        if product is None:
            raise VitreousError("8-bit pixels: the model does not say how they are normalised (model.preprocessing)")
        z = product(patches(images, self.patch, HALF, MIDDLE if raw else 0.0))
        if grid not in self.places:
            table = position_table(self.config, self.tables, grid, like=self.weight)
            self.places[grid] = None if table is None else table[0].float()
        return assemble(z, self.front, self.places[grid], len(images)).flatten(0, 1)


class Head(nn.Module):
    """From tokens to logits: few rows, so in fp32."""

    def __init__(self, model: VisionTransformer):
        super().__init__()
        self.prefix, self.how = model.config.prefix, model.config.pool
        self.attn_pool, self.fc_norm = deepcopy(model.attn_pool), deepcopy(model.fc_norm)
        self.pre_logits, self.head = deepcopy(model.pre_logits), deepcopy(model.head)
        self.eval().requires_grad_(False).float()

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "token":
            x = x[:, 0]
        elif self.how != "none":
            x = x[:, self.prefix :]
            x = x.mean(1, dtype=torch.float32) if self.attn_pool is None else self.attn_pool(x.float())
        x = self.fc_norm(x.float())
        x = x if self.pre_logits is None else torch.tanh(self.pre_logits(x))
        logits: Tensor = self.head(x)
        return logits


class FastViT:
    """Logits in fp32: of normalised images (B, C, H, W), or of 8-bit pixels as they were decoded."""

    def __init__(self, model: VisionTransformer, precision: str, first: int | None = None):
        """`first`: the first block in fp8; None: as `in_bf16` says."""
        c = model.config
        self.embed, self.head = Embedding(model), Head(model)
        blocks = [cast(Block, block) for block in model.blocks]
        first = c.depth if precision != "fp8" else in_bf16(c) if first is None else first
        self.blocks = [FastBlock(block) if i < first else EighthBlock(block) for i, block in enumerate(blocks)]
        if c.pool == "token":
            self.blocks[-1] = LastBlock(blocks[-1])
        self.norm = Norm.of(model.norm) if c.final_norm == "before-pool" else None

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        if isinstance(images, Tensor) and images.ndim == 4 and not len(images):
            return self(images.new_zeros(1, *images.shape[1:]))[:0]  # kernels have no empty batches
        x = self.embed(images)
        for block in self.blocks:
            x = block(x, len(images))
        x = x if self.norm is None else self.norm(x)
        logits: Tensor = self.head(x.unflatten(0, (len(images), -1)))
        return logits


def in_bf16(c: ViTConfig) -> int:
    """How many blocks fp8 leaves in bf16: the first, whose errors all others carry on. Narrow models err more, and gain
    less."""
    return c.depth * 3 // 4 if c.width < 768 else c.depth // 12


def _copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in any case: `to` alone would give the model's own tensor where it has this dtype already."""
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _weight_and_bias(part: nn.Module) -> tuple[Tensor, Tensor | None]:
    assert isinstance(part, nn.Linear | nn.Conv2d)
    return part.weight.detach(), None if part.bias is None else part.bias.detach()


def _scaled(part: nn.Linear, scale: nn.Module) -> tuple[Tensor, Tensor | None]:
    """A product and the LayerScale behind it, as one."""
    weight, bias = _weight_and_bias(part)
    if not isinstance(scale, LayerScale):
        return weight, bias
    gamma = scale.gamma.detach()
    return weight * gamma[:, None], None if bias is None else bias * gamma
