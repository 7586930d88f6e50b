"""A ViT's inference on the CPU in fp32: the numbers of `vitreous.models.vit`, in less time, without a compiler.

- Products are oneDNN's, on weights that were packed once; activations are part of them.
- The last block computes the tokens that somebody reads: of the class token alone, where the head reads nothing else.
- Patches, class token, registers and positions are one product and one addition.
- Images go through in groups small enough for the caches.
- LayerScale is folded into the products before it. LayerNorm's weights are not: torch's kernel without them takes
  twice as long.
"""

import copy
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models.checks import Grid, ceil_div, check_images, pair
from vitreous.models.vit import Block, LayerScale, Mlp, VisionTransformer, ViTConfig

GROUP_BYTES = 10 * 2**20  # of the widest activation: more and they leave the caches
KEPT_BYTES = 32 * 2**20 - 2**16  # just below glibc's upper limit
PACKED_ROWS = 256  # oneDNN's packing is the same for all but one row
KEPT_TABLES = 64


def supports(config: ViTConfig) -> str | None:
    """What keeps a config from being run this way, in words; None: nothing."""
    for ok, reason in (
        (config.backbone is None, "it has a backbone"),
        (config.position != "relative", "its positions are relative"),
        (not config.qk_norm, "its queries and keys are normed"),
    ):
        if not ok:
            return reason
    return None


class CpuViT:
    """`CpuViT(model)(images)` gives the logits of `model.eval()(images)`, with the weights as they are now."""

    def __init__(self, model: VisionTransformer):
        self.config = c = model.config
        if reason := supports(c) or _unlike(model):
            raise VitreousError(f"the CPU's fast path does not fit this model: {reason}. Call the model itself.")
        _keep_freed_memory()
        with torch.no_grad():
            self.rest = _without_blocks(model)
            self.patches = Product(model.patch_embed.proj.weight.flatten(1), None)
            *others, last = [block for block in model.blocks if isinstance(block, Block)]
            self.layers = [*(Layer(c, block) for block in others), Layer(c, last, _read(c))]
        self.tables: dict[Grid, tuple[Tensor, Tensor | None]] = {}

    def __call__(self, images: Tensor) -> Tensor:
        check_images(images, self.config.channels)
        if images.dtype != torch.float32 or images.device.type != "cpu":
            raise VitreousError(f"images: expected float32 on the CPU, got {images.dtype} on {images.device}")
        grid = self.config.grid_at((images.shape[2], images.shape[3]))
        widest = 4 * (self.config.prefix + grid[0] * grid[1]) * (self.config.mlp_dim or 0)
        groups = ceil_div(len(images), max(1, GROUP_BYTES // widest))
        with torch.inference_mode():
            logits = [self._forward(group, grid) for group in images.tensor_split(max(1, groups))]
            found = logits[0] if len(logits) == 1 else torch.cat(logits)
        return found.clone()  # outside: a tensor like any other

    def _forward(self, images: Tensor, grid: Grid) -> Tensor:
        first, every = self._added(grid)
        x = self.patches(self._cut(images, grid).flatten(0, 1))
        x.view(len(images), *first.shape).add_(first)
        for number, layer in enumerate(self.layers):
            if every is not None:
                x.view(len(images), *first.shape).add_(every[number % len(every)])
            x = layer(x, len(images))
        return self._head(x.view(len(images), -1, self.config.width))

    def _cut(self, images: Tensor, grid: Grid) -> Tensor:
        """Patches as rows, (B, T, C x h x w), behind a row of zeros for each token in front of them."""
        c, (h, w) = self.config, pair(self.config.patch_size)
        rows, cols = grid
        images = images[:, :, : rows * h, : cols * w].unflatten(2, (rows, h)).unflatten(4, (cols, w))
        x = images.new_empty(len(images), c.prefix + rows * cols, c.channels * h * w)
        x[:, : c.prefix] = 0
        places = x[:, c.prefix :].unflatten(1, grid).unflatten(3, (c.channels, h, w))
        places.copy_(images.permute(0, 2, 4, 1, 3, 5))  # (B, rows, cols, C, h, w)
        return x

    def _added(self, grid: Grid) -> tuple[Tensor, Tensor | None]:
        """What is added to the products of patches, (T, D), and what to the tokens before every layer, (1 or depth,
        T, D): class token, registers, the patches' bias, and positions in the one or in the other."""
        if grid not in self.tables:
            rest, bias = self.rest, self.rest.patch_embed.proj.bias
            assert bias is not None
            prefix = [token[0] for token in (rest.cls_token, rest.reg_token) if token is not None]
            first = torch.cat([*prefix, bias.expand(grid[0] * grid[1], -1)])
            positions = rest.positions(grid)
            if self.config.position_at == "stem" and positions is not None:
                first, positions = first + positions[0], None
            if len(self.tables) >= KEPT_TABLES:
                self.tables.clear()
            self.tables[grid] = first, positions
        return self.tables[grid]

    def _head(self, x: Tensor) -> Tensor:
        """From the tokens that are read to logits: what is left of `VisionTransformer.forward`."""
        rest, pool = self.rest, self.config.pool
        x = rest.norm(x)
        if pool != "none":
            x = rest.attn_pool(x) if rest.attn_pool is not None else x.mean(1) if pool == "gap" else x[:, 0]
        x = rest.fc_norm(x)
        x = x if rest.pre_logits is None else torch.tanh(rest.pre_logits(x))
        logits: Tensor = rest.head(x)
        return logits


class Layer:
    """Equations 2 and 3. `read`: which of its tokens the head reads; None: all of them, or another layer does."""

    def __init__(self, config: ViTConfig, block: Block, read: slice | None = None):
        attn, width = block.attn, config.width
        self.heads, self.read = config.heads, read
        self.norm1, self.norm2 = copy.deepcopy((block.norm1, block.norm2))
        if read is None:
            self.qkv = _product(attn.qkv)
        else:
            self.q, self.kv = _product(attn.qkv, slice(width)), _product(attn.qkv, slice(width, None))
        self.proj = _product(attn.proj, scale=block.ls1)
        self.mlp = _swiglu(block.mlp) if block.mlp.swiglu else _gelu(block.mlp)
        self.fc2 = _product(block.mlp.fc2, scale=block.ls2)

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        """(B x T, D) -> (B x the tokens read, D). What it is given, it may overwrite."""
        y = _normed(self.norm1, x)
        if self.read is None:
            q, k, v = self._split(self.qkv(y), batch, 3)
        else:
            (q,) = self._split(self.q(self._pick(y, batch)), batch, 1)
            k, v = self._split(self.kv(y), batch, 2)
            x = self._pick(x, batch)
        o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x.add_(self.proj(o))
        x.add_(self.fc2(self.mlp(_normed(self.norm2, x))))
        return x

    def _split(self, x: Tensor, batch: int, parts: int) -> tuple[Tensor, ...]:
        """(B, heads, T, d) each."""
        width = x.shape[1] // parts
        views: tuple[Tensor, ...] = (
            x.view(batch, -1, parts, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind()
        )
        return views

    def _pick(self, x: Tensor, batch: int) -> Tensor:
        return x.view(batch, -1, x.shape[1])[:, self.read].reshape(-1, x.shape[1])


# ---------------------------------------------------------------- products


class Product:
    """x W' + b of rows x, and an activation on it: "none", "gelu" (whose algorithm is "tanh" or "none") or "swish"."""

    def __init__(self, weight: Tensor, bias: Tensor | None, after: str = "none", algorithm: str = ""):
        self.packed = packs()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS) if self.packed else weight.clone()
        self.bias = None if bias is None else bias.clone()
        self.after, self.algorithm = after, algorithm

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise.default(
                x, self.weight, self.bias, self.after, [], self.algorithm
            )
            return y
        y = F.linear(x, self.weight, self.bias)
        if self.after == "gelu":
            return F.gelu(y, approximate=self.algorithm)
        return F.silu(y, inplace=True) if self.after == "swish" else y


@cache
def packs() -> bool:
    """Whether torch was built with oneDNN, and has the operators by which its own compiler calls it."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def _product(
    part: nn.Linear, rows: slice = slice(None), scale: nn.Module | None = None, after: str = "none", algorithm: str = ""
) -> Product:
    """Some outputs of a linear layer, with the LayerScale behind it."""
    weight, bias = part.weight[rows], None if part.bias is None else part.bias[rows]
    if isinstance(scale, LayerScale):
        weight, bias = weight * scale.gamma[:, None], None if bias is None else bias * scale.gamma
    return Product(weight, bias, after, algorithm)


def _gelu(mlp: Mlp) -> Product:
    return _product(mlp.fc1, after="gelu", algorithm=mlp.approximate)


def _swiglu(mlp: Mlp) -> Callable[[Tensor], Tensor]:
    half = mlp.fc1.out_features // 2
    gate, value = _product(mlp.fc1, slice(half), after="swish"), _product(mlp.fc1, slice(half, None))
    return lambda x: gate(x).mul_(value(x))


# ---------------------------------------------------------------- a model's parts


def _read(c: ViTConfig) -> slice | None:
    """The tokens that the head reads; None: all of them."""
    if c.pool == "token":
        return slice(1)
    return slice(c.prefix, None) if c.prefix and c.pool != "none" else None


def _unlike(model: VisionTransformer) -> str | None:
    """What makes a model another one than its config says, in words."""
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in model.parameters()):
        return "its weights are not all float32 on the CPU"
    for block in model.blocks:
        assert isinstance(block, Block)
        parts = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
        if any(type(part) is not nn.Linear for part in parts):
            return "its layers have adapters"
    return None


def _without_blocks(model: VisionTransformer) -> VisionTransformer:
    """A copy of everything else."""
    shell = copy.copy(model)
    shell._modules = {**model._modules, "blocks": nn.ModuleList()}
    return copy.deepcopy(shell).eval()


def _normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _keep_freed_memory() -> None:
    """glibc gives large freed blocks back to the system, and every forward would fault them in again page by page: up
    to a tenth of its time. After a block has been freed it keeps blocks of that size. This one is never touched, so it
    costs no memory; other allocators do not mind."""
    torch.empty(KEPT_BYTES, dtype=torch.uint8)
