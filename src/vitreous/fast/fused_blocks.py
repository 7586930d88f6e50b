"""Forward and backward pass of one encoder block for training: bf16 matmuls with fused kernels between them.

Equations 2 and 3 as in `vitreous.models.vit.Block`, on tokens (B x T, D). `vitreous.fast.fused_training` runs them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.fast.attention import cudnn_attention_with_lse, merge_heads, sdpa, split_heads
from vitreous.fast.cublaslt import linear, linear_gelu, matmul_gelu_backward
from vitreous.fast.kernels import KeptImages, add_norm, gelu, merge_qkv_gradients, norm_backward
from vitreous.fast.short_attention import (
    short_attention,
    short_attention_backward,
    short_attention_supports,
    short_forward_is_faster,
)
from vitreous.models.vit import Block

HALF = torch.bfloat16
# Stochastic depth of a residual branch: a factor per image (B,), the images that keep the branch, or None: no change.
BranchImages = Tensor | KeptImages | None


class BlockWeights(NamedTuple):
    """The parameters of one block. LayerNorm's are in fp32, the others are copies in bf16."""

    norm1_weight: Tensor
    norm1_bias: Tensor
    qkv_weight: Tensor
    qkv_bias: Tensor | None
    proj_weight: Tensor
    proj_bias: Tensor
    norm2_weight: Tensor
    norm2_bias: Tensor
    fc1_weight: Tensor
    fc1_bias: Tensor
    fc2_weight: Tensor
    fc2_bias: Tensor


BF16_PARAMETERS = tuple(i for i, name in enumerate(BlockWeights._fields) if not name.startswith("norm"))


def block_parameters(block: Block) -> tuple[Tensor | None, ...]:
    """Return the parameters of a block in the order of `BlockWeights`."""
    layers = (block.norm1, block.attn.qkv, block.attn.proj, block.norm2, block.mlp.fc1, block.mlp.fc2)
    return tuple(parameter for layer in layers for parameter in (layer.weight, layer.bias))


def copy_to_bf16(parameters: Sequence[Tensor]) -> list[BlockWeights]:
    """Return the weights of all blocks, those of the matmuls copied to bf16 by one call."""
    size = len(BlockWeights._fields)
    chosen = [i for i, p in enumerate(parameters) if i % size in BF16_PARAMETERS and p is not None]
    copies = [torch.empty_like(parameters[i], dtype=HALF) for i in chosen]
    torch._foreach_copy_(copies, [parameters[i] for i in chosen])
    result = list(parameters)
    for i, copy in zip(chosen, copies, strict=True):
        result[i] = copy
    return [BlockWeights(*result[first : first + size]) for first in range(0, len(result), size)]


class PendingBranch(NamedTuple):
    """A residual branch that the next norm adds to the tokens, in the same pass over memory."""

    z: Tensor | None = None
    images: BranchImages = None


class NormInput(NamedTuple):
    """The input of a LayerNorm, and its statistics for the backward pass."""

    x: Tensor
    mean: Tensor
    rstd: Tensor


@dataclass(frozen=True)
class EncoderShape:
    """The sizes and settings that all blocks share."""

    batch: int
    tokens: int
    heads: int
    tanh: bool
    eps: float

    def norm(
        self, x: Tensor, branch: PendingBranch, weight: Tensor, bias: Tensor, images: BranchImages = None
    ) -> tuple[NormInput, Tensor]:
        """Add the pending branch and apply LayerNorm. `images`: those of the branch that reads the output."""
        x, y, mean, rstd = add_norm(
            x, *branch, weight, bias, self.eps, self.tokens, statistics=True, y_images=_packed(images)
        )
        assert mean is not None
        assert rstd is not None
        return NormInput(x, mean, rstd), y

    def norm_backward(
        self,
        dy: Tensor,
        saved: NormInput,
        weight: Tensor,
        bias: Tensor,
        dx: Tensor,
        added: BranchImages,
        reads: BranchImages = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`added`, `reads`: images of the branch that the norm added, and of the branch that reads its output."""
        return norm_backward(dy, *saved, weight, bias, dx, added, self.tokens, _packed(reads))


def _packed(images: BranchImages) -> KeptImages | None:
    return images if isinstance(images, KeptImages) else None


@dataclass
class SavedAttention:
    """qkv (B x T, 3 D) and attention's output (B x T, D), with what the backward pass needs: the log-sum-exp for our
    own kernel, or autograd's graph from `parts` to `output`."""

    qkv: Tensor
    o: Tensor
    batch: int
    lse: Tensor | None = None
    parts: tuple[Tensor, ...] = ()
    output: Tensor | None = None

    def backward(self, do: Tensor, s: EncoderShape) -> tuple[Tensor, Tensor]:
        """Return the gradient of qkv, and its partial sums over rows."""
        if self.lse is not None:
            return short_attention_backward(self.qkv, self.o, do, self.lse, self.batch, s.heads)
        assert self.output is not None
        (gradient,) = split_heads(do, self.batch, s.heads, parts=1)
        return merge_qkv_gradients(*torch.autograd.grad(self.output, self.parts, gradient))


def attention_forward(qkv: Tensor, s: EncoderShape) -> SavedAttention:
    """Self-attention without its output projection, by the kernels that are fastest for this number of tokens."""
    batch = len(qkv) // s.tokens
    parts = split_heads(qkv, batch, s.heads)
    if qkv.is_cuda and short_attention_supports(s.tokens, parts[0].shape[-1]):
        if short_forward_is_faster(s.tokens) or (cudnn := cudnn_attention_with_lse(*parts)) is None:
            o, lse = short_attention(qkv, batch, s.heads)
        else:
            o, lse = merge_heads(cudnn[0]), cudnn[1]
        return SavedAttention(qkv, o, batch, lse)
    with torch.enable_grad():  # our backward pass calls the one of this graph
        leaves = tuple(part.detach().requires_grad_() for part in parts)
        output = sdpa(*leaves)
    return SavedAttention(qkv, merge_heads(output.detach()), batch, None, leaves, output)


@dataclass
class SavedBlock:
    """The activations of one block that the backward pass needs."""

    norm1: NormInput
    attention: SavedAttention
    norm2: NormInput
    h: Tensor  # input of the GELU
    g: Tensor | None  # its output; None: the backward pass computes it again


def add_branch(
    x: Tensor, a: Tensor, weight: Tensor, bias: Tensor, images: BranchImages
) -> tuple[Tensor, PendingBranch]:
    """Add the branch a weight' + bias to x in the matmul's epilogue. With stochastic depth the next norm adds it."""
    if images is None:
        return linear(a, weight, bias, add=x), PendingBranch()
    return x, PendingBranch(F.linear(a, weight, bias), images)


def linear_then_gelu(y: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Return h = y weight' + bias, and GELU(h)."""
    if tanh and (fused := linear_gelu(y, weight, bias, keep_input=True)) is not None:
        g, h = fused
        assert h is not None
        return h, g
    h = F.linear(y, weight, bias)
    return h, gelu(h, tanh)


def block_forward(
    s: EncoderShape, w: BlockWeights, x: Tensor, branch: PendingBranch, images: Sequence[BranchImages]
) -> tuple[Tensor, PendingBranch, SavedBlock]:
    """Apply a block to tokens (B x T, D) with a pending branch. Return the same after the block, and the activations
    for the backward pass. `images`: of the attention branch and of the MLP branch."""
    norm1, y = s.norm(x, branch, w.norm1_weight, w.norm1_bias, images[0])
    attention = attention_forward(F.linear(y, w.qkv_weight, w.qkv_bias), s)
    x, branch = add_branch(norm1.x, attention.o, w.proj_weight, w.proj_bias, images[0])
    norm2, y = s.norm(x, branch, w.norm2_weight, w.norm2_bias, images[1])
    h, g = linear_then_gelu(y, w.fc1_weight, w.fc1_bias, s.tanh)
    x, branch = add_branch(norm2.x, g, w.fc2_weight, w.fc2_bias, images[1])
    return x, branch, SavedBlock(norm1, attention, norm2, h, g)


class BlockGradients(NamedTuple):
    """The gradients of a block: those of its matrices (None: frozen), and partial sums over rows for its vectors."""

    qkv: Tensor | None
    proj: Tensor | None
    fc1: Tensor | None
    fc2: Tensor | None
    qkv_sums: Tensor  # (parts, 3 D)
    fc1_sums: Tensor  # (parts, mlp_dim)
    norm1_sums: Tensor  # (parts, 3, D): of the norm's weight, of its bias, of the branch that it added
    norm2_sums: Tensor


def block_backward(
    s: EncoderShape,
    w: BlockWeights,
    saved: SavedBlock,
    dx: Tensor,
    dz: Tensor,
    images: Sequence[BranchImages],
    trained: Mapping[str, bool],
) -> tuple[Tensor, Tensor, BlockGradients]:
    """Return the gradients of the tokens before the block and of the branch that was added to make them, from the same
    gradients after the block; and those of the parameters.

    `images`: of the branch before the block, of its attention, of its MLP. `trained`: for each name of `BlockWeights`
    whether its gradient is needed; the matmul for the gradient of a frozen matrix is skipped. Activations are freed as
    soon as they were used.
    """
    dh, fc1_sums = matmul_gelu_backward(dz, w.fc2_weight, saved.h, s.tanh)
    dfc2 = None
    if trained["fc2_weight"]:
        dfc2 = weight_gradient(dz, gelu(saved.h, s.tanh) if saved.g is None else saved.g)
    del saved.g, saved.h
    dx, dz, y, norm2_sums = s.norm_backward(
        dh @ w.fc1_weight, saved.norm2, w.norm2_weight, w.norm2_bias, dx, *images[1:]
    )
    dfc1 = weight_gradient(dh, y) if trained["fc1_weight"] else None
    del dh, y, saved.norm2
    dproj = weight_gradient(dz, saved.attention.o) if trained["proj_weight"] else None
    dqkv, qkv_sums = saved.attention.backward(dz @ w.proj_weight, s)
    del saved.attention, dz
    dx, dz, y, norm1_sums = s.norm_backward(
        dqkv @ w.qkv_weight, saved.norm1, w.norm1_weight, w.norm1_bias, dx, *images[:2]
    )
    dqkv_weight = weight_gradient(dqkv, y) if trained["qkv_weight"] else None
    return dx, dz, BlockGradients(dqkv_weight, dproj, dfc1, dfc2, qkv_sums, fc1_sums, norm1_sums, norm2_sums)


def weight_gradient(d: Tensor, x: Tensor) -> Tensor:
    """Return d' x in fp32, the precision of its accumulation."""
    return torch.mm(d.t(), x, out_dtype=torch.float32) if d.is_cuda else d.t().float() @ x.float()


def collect_gradients(
    blocks: Sequence[BlockGradients], final_norm_sums: Tensor, qkv_bias: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the gradients of the norm after the blocks (2, D), and those of the blocks in the order of
    `BlockWeights`."""
    norms = _total([sums for block in blocks for sums in (block.norm1_sums, block.norm2_sums)] + [final_norm_sums])
    qkv_biases = _total([block.qkv_sums for block in blocks])
    fc1_biases = _total([block.fc1_sums for block in blocks])
    gradients: list[Tensor | None] = []
    for i, block in enumerate(blocks):
        norm1, norm2, next_norm = norms[2 * i : 2 * i + 3]
        gradients += [norm1[0], norm1[1], block.qkv, qkv_biases[i] if qkv_bias else None, block.proj, norm2[2]]
        gradients += [norm2[0], norm2[1], block.fc1, fc1_biases[i], block.fc2, next_norm[2]]
    return norms[-1][:2], gradients


def _total(partial_sums: list[Tensor]) -> Sequence[Tensor]:
    """Sum each tensor (parts, ...) over its parts, by one call if the shapes are equal."""
    if not partial_sums:
        return ()
    if all(sums.shape == partial_sums[0].shape for sums in partial_sums):
        return torch.stack(partial_sums).sum(1).unbind()
    return [sums.sum(0) for sums in partial_sums]
