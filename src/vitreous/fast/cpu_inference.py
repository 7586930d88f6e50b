"""A ViT's inference on the CPU in fp32: the numbers of `vitreous.models.vit` in less time, and without a compiler.

- Products are oneDNN's, by the operators through which torch's own compiler calls it: weights packed once, biases and
  activations part of the product.
- Where the head reads the class token alone, the last block computes that token alone, and no keys and values at all.
- Patches, class token, registers and positions are one product and one addition.
- Images go through in groups small enough for the caches, and memory is kept between calls.
- LayerScale is folded into the products before it. LayerNorm's weights are not folded into those behind it: torch's
  kernel takes twice as long without them.
"""

import copy
from collections.abc import Callable
from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.fast.eligibility import CPU, why_not
from vitreous.models.checks import Grid, ceil_div, check_images, pair
from vitreous.models.vit import Attention, Block, LayerScale, Mlp, VisionTransformer

GROUP_BYTES = 10 * 2**20  # of a group's widest activation; from half to twice this the time hardly changes
KEPT_BYTES = 32 * 2**20 - 2**16  # just below the largest block that glibc learns to keep
KEPT_TABLES = 64  # image sizes whose positions are at hand
PACKED_FOR = 256  # rows; the packing is the same for any number above one


class CpuViT:
    """`CpuViT(model)(images)` gives the logits of `model.eval()(images)`, with a copy of the weights."""

    def __init__(self, model: VisionTransformer):
        if (reason := why_not(model, CPU)) is not None:
            raise VitreousError(f"the CPU's fast path is not for this model: {reason}; call the model itself")
        _keep_freed_memory()
        self.config = model.config
        with torch.no_grad():
            self.rest = _without_blocks(model)
            self.patches = Product(model.patch_embed.proj.weight.flatten(1), None)
            *blocks, last = [cast(Block, block) for block in model.blocks]
            self.layers = [*map(Layer, blocks), Layer(last, alone=model.config.pool == "token")]
            self.head = _product(model.head) if isinstance(model.head, nn.Linear) else self.rest.head
        self.tables: dict[Grid, tuple[Tensor, Tensor | None]] = {}

    def __call__(self, images: Tensor) -> Tensor:
        check_images(images, self.config.channels)
        if images.dtype != torch.float32 or images.device.type != "cpu":
            raise VitreousError(f"images: expected float32 on the CPU, got {images.dtype} on {images.device}")
        if not len(images):
            return self(images.new_zeros(1, *images.shape[1:]))[:0]
        grid = self.config.grid_at((images.shape[2], images.shape[3]))
        widest = 4 * (self.config.prefix + grid[0] * grid[1]) * (self.config.mlp_dim or 0)
        groups = ceil_div(len(images), max(1, GROUP_BYTES // widest))
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            logits = torch.cat([self._forward(group, grid) for group in images.tensor_split(groups)])
        return logits.clone()  # outside of inference mode: a tensor like any other

    def _forward(self, images: Tensor, grid: Grid) -> Tensor:
        once, always = self._added(grid)
        x = self.patches(self._cut(images, grid).flatten(0, 1))  # (B x T, D), and so it stays
        x.view(len(images), *once.shape).add_(once)
        for number, layer in enumerate(self.layers):
            if always is not None:
                x.view(len(images), *once.shape).add_(always[number % len(always)])
            x = layer(x, len(images))
        return self._logits(x.view(len(images), -1, x.shape[1]))

    def _cut(self, images: Tensor, grid: Grid) -> Tensor:
        """Patches as rows, (B, T, C x h x w), behind a row of zeros for each token in front of them."""
        c, (rows, cols), (h, w) = self.config, grid, pair(self.config.patch_size)
        x = images.new_empty(len(images), c.prefix + rows * cols, c.channels * h * w)
        x[:, : c.prefix] = 0
        places = x[:, c.prefix :].unflatten(1, grid).unflatten(3, (c.channels, h, w))  # (B, rows, cols, C, h, w)
        images = images[:, :, : rows * h, : cols * w].unflatten(2, (rows, h)).unflatten(4, (cols, w))
        places.copy_(images.permute(0, 2, 4, 1, 3, 5))
        return x

    def _added(self, grid: Grid) -> tuple[Tensor, Tensor | None]:
        """What is added to the products of patches, (T, D): class token, registers, bias, positions of the stem. And
        the positions that are added before every layer, (1 or depth, T, D)."""
        if grid not in self.tables:
            rest, bias = self.rest, self.rest.patch_embed.proj.bias
            assert bias is not None
            prefix = [token[0] for token in (rest.cls_token, rest.reg_token) if token is not None]
            once = torch.cat([*prefix, bias.expand(grid[0] * grid[1], -1)])
            always = rest.positions(grid)
            if self.config.position_at == "stem" and always is not None:
                once, always = once + always[0], None
            if len(self.tables) >= KEPT_TABLES:
                self.tables.clear()
            self.tables[grid] = once, always
        return self.tables[grid]

    def _logits(self, x: Tensor) -> Tensor:
        """What is left of `VisionTransformer.forward`."""
        rest = self.rest
        x = rest.fc_norm(rest.pool(rest.norm(x)))
        x = x if rest.pre_logits is None else torch.tanh(rest.pre_logits(x))
        logits: Tensor = self.head(x)
        return logits


class Layer:
    """Equations 2 and 3. `alone`: of what it gives, nobody reads another token than the first."""

    def __init__(self, block: Block, alone: bool = False):
        self.alone = alone
        self.norm1, self.norm2 = Norm(block.norm1), Norm(block.norm2)
        self.attend = OneToken(block.attn) if alone else AllTokens(block.attn)
        self.fc1 = _swiglu(block.mlp) if block.mlp.swiglu else _gelu(block.mlp)
        self.proj, self.fc2 = _product(block.attn.proj, block.ls1), _product(block.mlp.fc2, block.ls2)

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        """(B x T, D) -> (B x T, D) or, alone, (B, D). What it was given, it overwrites."""
        o = self.attend(self.norm1(x), batch)
        x = x.view(batch, -1, x.shape[1])[:, 0] if self.alone else x
        x = x.add_(self.proj(o))
        x = x.add_(self.fc2(self.fc1(self.norm2(x))))
        return x


class AllTokens:
    """Self-attention up to its last product, of rows (B x T, D)."""

    def __init__(self, attn: Attention):
        self.heads, self.qkv = attn.heads, _product(attn.qkv)

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        qkv = self.qkv(x).view(batch, x.shape[0] // batch, 3, self.heads, x.shape[1] // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # (B, heads, T, d)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


class OneToken:
    """The same of each image's first token alone: (B x T, D) -> (B, D).

    Then the others need no keys and values. A query meets a key in q . (K x) = (K' q) . x, so each head's query goes
    to the tokens instead, and what it gathers there becomes a value once: sum a (V x + b) = V (sum a x) + b, since the
    weights a sum to one. The keys' bias adds the same to all of a query's logits, and nothing to their softmax.
    """

    def __init__(self, attn: Attention):
        self.heads, width = attn.heads, attn.proj.in_features
        self.q = _product(attn.qkv, rows=slice(width))
        k, v = attn.qkv.weight[width:].unflatten(0, (2, self.heads, -1))
        # (heads, d, D), (heads, D, d); `contiguous` would not copy heads of width 1
        self.k, self.v = k.clone(), v.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        bias = k.new_zeros(width) if attn.qkv.bias is None else attn.qkv.bias[2 * width :].clone()
        self.bias = bias.view(self.heads, 1, -1)

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        x = x.view(batch, -1, x.shape[1])
        q = self.q(x[:, 0]).view(batch, self.heads, -1).transpose(0, 1)  # (heads, B, d)
        asked, tokens = torch.bmm(q, self.k).transpose(0, 1), x[:, None]  # (B, heads, D), (B, 1, T, D)
        # A head is a query now: all of them are one head's, and tokens are its keys and its values.
        found = F.scaled_dot_product_attention(asked[:, None], tokens, tokens, scale=q.shape[2] ** -0.5)[:, 0]
        return torch.baddbmm(self.bias, found.transpose(0, 1), self.v).transpose(0, 1).reshape(batch, -1)


class Norm:
    def __init__(self, norm: nn.LayerNorm):
        self.weight, self.bias, self.eps = norm.weight.clone(), norm.bias.clone(), norm.eps

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


# ---------------------------------------------------------------- products


class Product:
    """x W' + b, and an activation on it: "none", "gelu" (with the algorithm "tanh" or "none") or "swish"."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none", algorithm: str = ""):
        self.packed = packs()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR) if self.packed else weight.clone()
        self.bias = None if bias is None else bias.clone()
        self.activation, self.algorithm = activation, algorithm

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor
        if self.packed:
            call = torch.ops.mkldnn._linear_pointwise.default
            y = call(x, self.weight, self.bias, self.activation, [], self.algorithm)
            return y
        y = F.linear(x, self.weight, self.bias)
        if self.activation == "gelu":
            return F.gelu(y, approximate=self.algorithm)
        return F.silu(y) if self.activation == "swish" else y


@cache
def packs() -> bool:
    """Whether this torch has oneDNN and these operators; without them products are torch's own."""
    operators = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in operators)


def _product(
    part: nn.Linear,
    scale: nn.Module | None = None,
    rows: slice = slice(None),
    activation: str = "none",
    algorithm: str = "",
) -> Product:
    """Some outputs of a linear layer, or all; with the LayerScale behind it, if it is one."""
    weight, bias = part.weight[rows], None if part.bias is None else part.bias[rows]
    if isinstance(scale, LayerScale):
        weight, bias = weight * scale.gamma[:, None], None if bias is None else bias * scale.gamma
    return Product(weight, bias, activation, algorithm)


def _gelu(mlp: Mlp) -> Product:
    return _product(mlp.fc1, activation="gelu", algorithm=mlp.approximate)


def _swiglu(mlp: Mlp) -> Callable[[Tensor], Tensor]:
    hidden = mlp.fc2.in_features
    gate = _product(mlp.fc1, rows=slice(hidden), activation="swish")
    value = _product(mlp.fc1, rows=slice(hidden, None))
    return lambda x: gate(x).mul_(value(x))


# ---------------------------------------------------------------- around them


def _without_blocks(model: VisionTransformer) -> VisionTransformer:
    """A copy of everything else."""
    shell = copy.copy(model)
    shell._modules = {**model._modules, "blocks": nn.ModuleList()}
    return copy.deepcopy(shell).eval()


def _keep_freed_memory() -> None:
    """glibc gives large freed blocks back to the system, and every call would fault them in again page by page: up to a
    tenth of its time. Once a block was freed, it keeps blocks up to that size. This one is never written to, so that it
    takes no memory; other allocators do not mind."""
    torch.empty(KEPT_BYTES, dtype=torch.uint8)
