"""Inference of a ViT on a CPU in fp32: the results of `vitreous.models.vit` in less time, without a compiler.

- Matmuls are oneDNN's, called by the operators that torch's own compiler uses: weights packed once, bias and activation
  as a fused epilogue.
- With pool="token" the last block computes the class token only, without keys and values.
- Patches, class token, registers and positions are embedded by one matmul and one addition.
- Images are processed in groups small enough for the CPU caches, and freed memory is kept between calls.
- LayerScale is folded into the linear layer before it. The weights of LayerNorm are not folded into the layer after it:
  torch's kernel takes twice as long without them.
"""

from collections.abc import Callable
from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.fast.attention import ClassTokenAttention
from vitreous.fast.eligibility import CPU, ineligibility_reason
from vitreous.fast.weight_copies import copy_without_blocks, fold_layer_scale, weight_and_bias
from vitreous.models.checks import Grid, ceil_div, check_images
from vitreous.models.vit import Attention, Block, Mlp, VisionTransformer
from vitreous.utils.sizes import pair

GROUP_BYTES = 10 * 2**20  # of a group's largest activation; between half and twice this the time hardly changes
KEPT_BYTES = 32 * 2**20 - 2**16  # just below the largest block that glibc can be made to keep
CACHED_GRIDS = 64  # image sizes whose embedding offsets are cached
PACKING_BATCH = 256  # rows that weights are packed for; the packing is the same for any number above one


class CpuViT:
    """`CpuViT(model)(images)` returns the logits of `model.eval()(images)`, `features` the input of the head. It has a
    copy of the weights."""

    def __init__(self, model: VisionTransformer):
        if (reason := ineligibility_reason(model, CPU)) is not None:
            raise VitreousError(f"the CPU fast path does not support this model: {reason}; call the model itself")
        _keep_freed_memory()
        self.config = model.config
        with torch.no_grad():
            self.rest = copy_without_blocks(model)
            self.patches = PackedLinear(model.patch_embed.proj.weight.flatten(1), None)
            *blocks, last = [cast(Block, block) for block in model.blocks]
            self.blocks = [*map(PackedBlock, blocks), PackedBlock(last, class_token_only=model.config.pool == "token")]
            is_linear = isinstance(model.head, nn.Linear)
            self.head = PackedLinear(*weight_and_bias(model.head)) if is_linear else self.rest.head
        self.offsets: dict[Grid, tuple[Tensor, Tensor | None]] = {}

    def __call__(self, images: Tensor) -> Tensor:
        return self._run(images, self.head)

    def features(self, images: Tensor) -> Tensor:
        return self._run(images, nn.Identity())

    def _run(self, images: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        check_images(images, self.config.channels)
        if images.dtype != torch.float32 or images.device.type != "cpu":
            raise VitreousError(f"images: expected float32 on the CPU, got {images.dtype} on {images.device}")
        if not len(images):
            return self._run(images.new_zeros(1, *images.shape[1:]), head)[:0]
        grid = self.config.grid_at((images.shape[2], images.shape[3]))
        largest = 4 * (self.config.prefix + grid[0] * grid[1]) * self.config.mlp_dim
        groups = ceil_div(len(images), max(1, GROUP_BYTES // largest))
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            outputs = torch.cat([head(self._features(group, grid)) for group in images.tensor_split(groups)])
        return outputs.clone()  # outside of inference mode, so that autograd can use it

    def _features(self, images: Tensor, grid: Grid) -> Tensor:
        offset, positions = self._embedding_offsets(grid)
        x = self.patches(self._extract_patches(images, grid).flatten(0, 1))  # (B x T, D), and so on to the end
        x.view(len(images), *offset.shape).add_(offset)
        for layer, block in enumerate(self.blocks):
            if positions is not None:
                x.view(len(images), *offset.shape).add_(positions[layer % len(positions)])
            x = block(x, len(images))
        return self.rest.representation(self.rest.norm(x.view(len(images), -1, x.shape[1])))

    def _extract_patches(self, images: Tensor, grid: Grid) -> Tensor:
        """Patches as rows, (B, T, C x h x w), after a row of zeros for each prefix token."""
        c, (rows, cols), (h, w) = self.config, grid, pair(self.config.patch_size)
        x = images.new_empty(len(images), c.prefix + rows * cols, c.channels * h * w)
        x[:, : c.prefix] = 0
        patches = x[:, c.prefix :].unflatten(1, grid).unflatten(3, (c.channels, h, w))  # (B, rows, cols, C, h, w)
        images = images[:, :, : rows * h, : cols * w].unflatten(2, (rows, h)).unflatten(4, (cols, w))
        patches.copy_(images.permute(0, 2, 4, 1, 3, 5))
        return x

    def _embedding_offsets(self, grid: Grid) -> tuple[Tensor, Tensor | None]:
        """Return what is added to the projected patches (T, D): class token, registers, bias, positions of the stem;
        and the positions that are added before every block, (1 or depth, T, D)."""
        if grid not in self.offsets:
            rest, bias = self.rest, self.rest.patch_embed.proj.bias
            assert bias is not None
            prefix = [token[0] for token in (rest.cls_token, rest.reg_token) if token is not None]
            offset = torch.cat([*prefix, bias.expand(grid[0] * grid[1], -1)])
            positions = rest.positions(grid)
            if self.config.position_at == "stem" and positions is not None:
                offset, positions = offset + positions[0], None
            if len(self.offsets) >= CACHED_GRIDS:
                self.offsets.clear()
            self.offsets[grid] = offset, positions
        return self.offsets[grid]


class PackedBlock:
    """Equations 2 and 3. `class_token_only`: return the class token only."""

    def __init__(self, block: Block, class_token_only: bool = False):
        self.class_token_only = class_token_only
        self.norm1, self.norm2 = LayerNormCopy(block.norm1), LayerNormCopy(block.norm2)
        self.attend = _class_token_attention(block.attn) if class_token_only else PackedAttention(block.attn)
        self.fc1 = _swiglu(block.mlp) if block.mlp.swiglu else _gelu(block.mlp)
        self.proj = PackedLinear(*fold_layer_scale(block.attn.proj, block.ls1))
        self.fc2 = PackedLinear(*fold_layer_scale(block.mlp.fc2, block.ls2))

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        """(B x T, D) -> (B x T, D), or (B, D) with `class_token_only`. Overwrites x."""
        o = self.attend(self.norm1(x), batch)
        x = x.view(batch, -1, x.shape[1])[:, 0] if self.class_token_only else x
        x = x.add_(self.proj(o))
        x = x.add_(self.fc2(self.fc1(self.norm2(x))))
        return x


class PackedAttention:
    """Self-attention without its output projection: (B x T, D) -> (B x T, D)."""

    def __init__(self, attn: Attention):
        self.heads, self.qkv = attn.heads, PackedLinear(*weight_and_bias(attn.qkv))

    def __call__(self, x: Tensor, batch: int) -> Tensor:
        qkv = self.qkv(x).view(batch, x.shape[0] // batch, 3, self.heads, x.shape[1] // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # (B, heads, T, d)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


def _class_token_attention(attn: Attention) -> Callable[[Tensor, int], Tensor]:
    """The same for the first token of each image only: (B x T, D) -> (B, D)."""
    attend = ClassTokenAttention.from_linear(attn.qkv, attn.heads, torch.float32).copied()

    def call(x: Tensor, batch: int) -> Tensor:
        x = x.view(batch, -1, x.shape[1])
        return attend(x[:, 0], x)

    return call


class LayerNormCopy:
    """LayerNorm with a copy of the weights."""

    def __init__(self, norm: nn.LayerNorm):
        self.weight, self.bias, self.eps = norm.weight.clone(), norm.bias.clone(), norm.eps

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


# ---------------------------------------------------------------- linear layers


class PackedLinear:
    """x W' + b and an activation: "none", "gelu" (with the algorithm "tanh" or "none") or "swish"."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none", algorithm: str = ""):
        self.packed = has_packed_linear()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_BATCH) if self.packed else weight.clone()
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
def has_packed_linear() -> bool:
    """Return whether this torch has oneDNN's operators for packed weights. Without them F.linear is used."""
    operators = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in operators)


def _gelu(mlp: Mlp) -> PackedLinear:
    return PackedLinear(*weight_and_bias(mlp.fc1), activation="gelu", algorithm=mlp.approximate)


def _swiglu(mlp: Mlp) -> Callable[[Tensor], Tensor]:
    hidden = mlp.fc2.in_features
    (gate_weight, value_weight), (gate_bias, value_bias) = (t.split(hidden) for t in (mlp.fc1.weight, mlp.fc1.bias))
    gate, value = PackedLinear(gate_weight, gate_bias, activation="swish"), PackedLinear(value_weight, value_bias)
    return lambda x: gate(x).mul_(value(x))


# ---------------------------------------------------------------- memory


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory blocks.

    By default glibc returns large freed blocks to the system, and every call faults them in again page by page: up to a
    tenth of its time. After a block was freed once, glibc keeps blocks up to that size. This block is never written to,
    so it takes no memory. Other allocators are not affected.
    """
    torch.empty(KEPT_BYTES, dtype=torch.uint8)
