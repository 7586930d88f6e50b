"""Training with fused kernels: the forward and backward pass of the encoder, written out.

It uses the model's own fp32 parameters, and a test compares every gradient with the one of the model. The differences
from autograd are in what is read, written and saved:

- a residual addition, the LayerNorm after it and stochastic depth are one pass over memory, forward and backward;
- the outputs of the norms are not saved: the backward pass computes them again in the same kernel; the same holds for
  the GELUs, except in the last few blocks, where they are needed again soon;
- gradients of biases are summed where their terms are in registers;
- the matmuls for the gradients of weights return fp32; the bf16 copies of the weights are made once per step;
- with pool="token" the last block computes the class token only;
- the backward pass ends at the first block with a trained parameter, earlier blocks save no activations, and the
  gradients of frozen matrices are not computed.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.fast.attention import ClassTokenAttention
from vitreous.fast.fused_blocks import (
    HALF,
    BlockGradients,
    BlockWeights,
    BranchImages,
    EncoderShape,
    PendingBranch,
    block_backward,
    block_forward,
    block_parameters,
    collect_gradients,
    copy_to_bf16,
    weight_gradient,
)
from vitreous.fast.guards import first_derivative_only
from vitreous.fast.kernels import KeptImages, assemble_tokens, extract_patches
from vitreous.models.checks import check_images
from vitreous.models.drop import Drop, check_keys
from vitreous.models.vit import Block, VisionTransformer

SAVED_GELUS = 10  # last blocks that save their GELU: it is a third of a block's activations and cheap to compute again


class EncoderFunction(torch.autograd.Function):
    """Blocks and the LayerNorm after them. Return the tokens after that norm, (B, T, D) in bf16; and the first token of
    each image before and after it, (B, D).

    `images`: stochastic depth of the two branches of each block. `parameters`: weight and bias of the norm after the
    blocks, then those of each block in the order of `BlockWeights`.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, s: EncoderShape, images: Sequence[BranchImages], *parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        norm, weights = parameters[:2], copy_to_bf16(parameters[2:])
        ctx.trained = _trained_parameters(ctx.needs_input_grad[5:])
        ctx.first = 0 if ctx.needs_input_grad[0] else _first_trained(ctx.trained)
        x, branch, ctx.saved = tokens.flatten(0, 1), PendingBranch(), []
        for layer, w in enumerate(weights):
            x, branch, saved = block_forward(s, w, x, branch, images[2 * layer : 2 * layer + 2])
            if layer < len(weights) - SAVED_GELUS:
                saved.g = None
            if layer >= ctx.first:
                ctx.saved.append(saved)
        final, y = s.norm(x, branch, *norm)
        ctx.s, ctx.images, ctx.norm, ctx.weights, ctx.final = s, images, norm, weights, final
        ctx.set_materialize_grads(False)
        y = y.view_as(tokens)
        return y, final.x.view_as(tokens)[:, 0].clone(), y[:, 0].clone()

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *outputs: Tensor | None) -> tuple[Any, ...]:
        s: EncoderShape = ctx.s
        dx = torch.zeros_like(ctx.final.x)
        dy, first_dx, first_dy = outputs
        dy = torch.zeros_like(dx) if dy is None else dy.flatten(0, 1).contiguous()
        for gradient, first in ((dx, first_dx), (dy, first_dy)):
            if first is not None:
                gradient.unflatten(0, (s.batch, -1))[:, 0] += first
        images = [None, *ctx.images]  # of the branches that were added before each norm
        weight, bias = ctx.norm
        dx, dz, _, norm_sums = s.norm_backward(dy, ctx.final, weight, bias, dx, images[-1])
        del dy, ctx.final
        found: list[BlockGradients] = []
        for layer in reversed(range(ctx.first, len(ctx.weights))):
            around, trained = images[2 * layer : 2 * layer + 3], ctx.trained[layer]
            dx, dz, some = block_backward(s, ctx.weights[layer], ctx.saved.pop(), dx, dz, around, trained)
            found.insert(0, some)
        norm_gradients, gradients = collect_gradients(found, norm_sums, ctx.weights[0].qkv_bias is not None)
        skipped = [None] * (ctx.first * len(BlockWeights._fields))
        dtokens = dx.unflatten(0, (s.batch, -1)) if ctx.needs_input_grad[0] else None
        return dtokens, None, None, *norm_gradients, *skipped, *gradients


def _trained_parameters(needed: Sequence[bool]) -> list[dict[str, bool]]:
    """Return for each block which parameters, by their names in `BlockWeights`, need a gradient."""
    names = BlockWeights._fields
    starts = range(0, len(needed), len(names))
    return [dict(zip(names, needed[start : start + len(names)], strict=True)) for start in starts]


def _first_trained(blocks: Sequence[dict[str, bool]]) -> int:
    """Return the index of the first block with a trained parameter, or the number of blocks."""
    return next((layer for layer, trained in enumerate(blocks) if any(trained.values())), len(blocks))


class EmbedFunction(torch.autograd.Function):
    """Equation 1: tokens (B, T, D) in bf16 from images, the weight and bias of the patch projection, the prefix tokens
    and the positions of all tokens. Images get no gradient."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, prefix: Tensor, positions: Tensor | None
    ) -> Tensor:
        rows = extract_patches(images, (weight.shape[2], weight.shape[3]), HALF)
        z = F.linear(rows, weight.flatten(1).to(HALF), bias.to(HALF))
        ctx.rows = rows if ctx.needs_input_grad[1] else None
        ctx.prefix, ctx.shape, ctx.has_positions = len(prefix), weight.shape, positions is not None
        return assemble_tokens(z, prefix, positions, len(images))

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Any, ...]:
        (dx,) = outputs
        positions, weight = dx.sum(0, dtype=torch.float32), None
        if ctx.rows is not None:
            weight = weight_gradient(dx[:, ctx.prefix :].reshape(-1, dx.shape[-1]), ctx.rows).view(ctx.shape)
            del ctx.rows
        bias, prefix = positions[ctx.prefix :].sum(0), positions[: ctx.prefix]
        return None, weight, bias, prefix, positions if ctx.has_positions else None


# ---------------------------------------------------------------- model


class FusedTrainingViT:
    """The forward pass of a ViT for training, with first derivatives for the model's own parameters. The model must be
    eligible: `vitreous.fast.eligibility.ineligibility_reason(model, TRAINING)` is None."""

    def __init__(self, model: VisionTransformer, skip_dropped: bool = False):
        """`skip_dropped`: do not compute residual branches for the images that stochastic depth drops. The host must
        know these images, so it waits for the GPU once per forward pass."""
        self.model, self.skip_dropped = model, skip_dropped
        blocks: list[Any] = list(model.blocks)
        self.class_token_block: Block | None = blocks.pop() if model.config.pool == "token" else None
        self.blocks: list[Block] = blocks

    def __call__(self, images: Tensor) -> Tensor:
        model, c = self.model, self.model.config
        with torch.autocast(images.device.type, HALF):
            if not len(images):  # a kernel cannot be launched for an empty batch, and cuDNN attention returns None
                with sdpa_kernel(SDPBackend.MATH):
                    empty: Tensor = model(images)
                return empty
            x = self.embed(images)
            norm = model.norm if self.class_token_block is None else self.class_token_block.norm1
            shape = EncoderShape(x.shape[0], x.shape[1], c.heads, c.gelu == "tanh", c.norm_eps)
            factors = [branch_factors(drop, x) for block in self.blocks for drop in (block.drop1, block.drop2)]
            branches = find_kept_images(factors) if self.skip_dropped else factors
            parameters = [p for block in self.blocks for p in block_parameters(block)]
            y, *first = EncoderFunction.apply(x, shape, branches, norm.weight, norm.bias, *parameters)  # type: ignore
            if self.class_token_block is not None:
                y = model.norm(class_token_only(self.class_token_block, y, *first))
            logits: Tensor = model.head(model.representation(y))
            return logits

    def embed(self, images: Tensor) -> Tensor:
        """Equation 1. Models with a backbone use their own code."""
        model, c = self.model, self.model.config
        if model.backbone is not None or images.requires_grad:
            tokens: Tensor = model.embed(images)[0].to(HALF)
            return tokens
        check_images(images, c.channels)
        positions = model.positions(c.grid_at((images.shape[2], images.shape[3])))
        prefix = [token[0] for token in (model.cls_token, model.reg_token) if token is not None]
        proj = model.patch_embed.proj
        assert proj.bias is not None
        return EmbedFunction.apply(  # type: ignore[no-any-return, no-untyped-call]
            images,
            proj.weight,
            proj.bias,
            torch.cat(prefix) if prefix else proj.weight.new_empty(0, c.width),
            None if positions is None else positions[0],
        )


def class_token_only(block: Block, y: Tensor, first_x: Tensor, first_y: Tensor) -> Tensor:
    """Return the class token after a block, (B, 1, D), from the tokens y after the block's first norm, and the class
    token (B, D) before and after that norm."""
    o = ClassTokenAttention.from_linear(block.attn.qkv, block.attn.heads, y.dtype)(first_y, y)
    x: Tensor = block.drop1(block.ls1(block.attn.proj(o[:, None]))) + first_x[:, None]
    x = block.drop2(block.ls2(block.mlp(block.norm2(x)))) + x
    return x


def branch_factors(drop: Drop, x: Tensor) -> Tensor | None:
    """Return the factor of a residual branch for each image (B,), or None if it is 1."""
    if not drop.training:
        return None
    if drop.branch_scale is not None:
        check_keys(drop.branch_scale, x)
        return drop.branch_scale.flatten().float().contiguous()
    if not drop.depth:
        return None
    return (torch.rand(len(x), device=x.device) >= drop.depth) / (1 - drop.depth)


def find_kept_images(factors: Sequence[Tensor | None]) -> list[BranchImages]:
    """Return for each branch the images that keep it, from its factors."""
    drawn = [factor for factor in factors if factor is not None]
    if not drawn:
        return list(factors)
    host = torch.stack(drawn).cpu()  # the only synchronisation of the host with the GPU
    kept = host > 0
    all_dropped = ~kept.any(1)
    kept[all_dropped, 0] = True  # kernels need at least one image; its factor is 0
    scales = host.amax(1).tolist()
    counts, unchanged = kept.sum(1).tolist(), (host == 1).all(1).tolist()
    indices = torch.where(kept, kept.cumsum(1) - 1, -1).to(torch.int32).to(drawn[0].device, non_blocking=True)
    branches = iter(
        None if is_unchanged else KeptImages(index, count, scale)
        for is_unchanged, index, count, scale in zip(unchanged, indices.unbind(), counts, scales, strict=True)
    )
    return [None if factor is None else next(branches) for factor in factors]
