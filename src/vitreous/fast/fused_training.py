"""The encoder in training, forward and backward written out: bf16 products with fused kernels between them.

Equations 2 and 3 as `vitreous.models.vit.Block` has them, on the same fp32 parameters; a test holds every gradient
against it. What differs is what is read, written and kept:

- a residual, the LayerNorm behind it and the factor of stochastic depth are one pass, forward and backward;
- the norms' outputs are not kept for backward, which makes them again while it is there; nor are the GELUs, but for
  those of the last few blocks, which are needed again soon;
- gradients of biases are summed up where their numbers are in registers already;
- gradients of weights come out of their products in fp32; the bf16 copies of weights are made once a step;
- where the head reads the class token alone, the last block computes that token alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.fast.attention import Asking, attend, attend_with_sums, joined, split
from vitreous.fast.cublaslt import linear, linear_gelu, product_gelu_backward
from vitreous.fast.guards import first_derivative_only
from vitreous.fast.kernels import Places, add_norm, assemble, gelu, merge, norm_backward, patches
from vitreous.fast.short_attention import ahead, attention, attention_backward, fits
from vitreous.models.checks import check_images
from vitreous.models.drop import Drop, check_keys
from vitreous.models.vit import Block, VisionTransformer

HALF = torch.bfloat16
GELUS = 10  # so many blocks at the end keep theirs: one takes a third of what a block keeps, and is quickly made again


class Weights(NamedTuple):
    """Of one block. Norms stay in fp32; the others are copies in bf16."""

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


PRODUCTS = tuple(i for i, name in enumerate(Weights._fields) if not name.startswith("norm"))


def parameters_of(block: Block) -> tuple[Tensor | None, ...]:
    """In the order of `Weights`."""
    parts = (block.norm1, block.attn.qkv, block.attn.proj, block.norm2, block.mlp.fc1, block.mlp.fc2)
    return tuple(parameter for part in parts for parameter in (part.weight, part.bias))


Factor = Tensor | Places | None  # of a branch: what each image's is multiplied by, (B,); or which images have it


class Branch(NamedTuple):
    """What is still to be added to tokens, by the norm that reads them next: both are one pass."""

    z: Tensor | None = None
    factor: Factor = None


class Normed(NamedTuple):
    """A LayerNorm's input, and what its backward needs beside it."""

    x: Tensor
    mean: Tensor
    rstd: Tensor


@dataclass
class Attended:
    """Attention's inputs and its output, (B x T, 3 D) and (B x T, D), with what its backward needs beside them: the
    logarithms of its sums for our own kernels, or autograd's graph from `parts` to `output`."""

    qkv: Tensor
    o: Tensor
    batch: int
    lse: Tensor | None = None
    parts: tuple[Tensor, ...] = ()
    output: Tensor | None = None

    def backward(self, do: Tensor, s: "Shape") -> tuple[Tensor, Tensor]:
        """The gradient of qkv, and parts of its sum over rows."""
        if self.lse is not None:
            return attention_backward(self.qkv, self.o, do, self.lse, self.batch, s.heads)
        assert self.output is not None
        (gradient,) = split(do, self.batch, s.heads, parts=1)
        return merge(*torch.autograd.grad(self.output, self.parts, gradient))


def attended(qkv: Tensor, s: "Shape") -> Attended:
    """With the backward that is fastest for this many tokens."""
    batch = len(qkv) // s.tokens
    parts = split(qkv, batch, s.heads)
    if qkv.is_cuda and fits(s.tokens, parts[0].shape[-1]):
        if ahead(s.tokens) or (found := attend_with_sums(*parts)) is None:
            o, lse = attention(qkv, batch, s.heads)
        else:
            o, lse = joined(found[0]), found[1]
        return Attended(qkv, o, batch, lse)
    with torch.enable_grad():  # its own backward is called by ours
        leaves = tuple(part.detach().requires_grad_() for part in parts)
        output = attend(*leaves)
    return Attended(qkv, joined(output.detach()), batch, None, leaves, output)


@dataclass
class Kept:
    """Of one block, what backward needs."""

    first: Normed
    attention: Attended
    second: Normed
    h: Tensor
    g: Tensor | None


@dataclass(frozen=True)
class Shape:
    batch: int
    tokens: int
    heads: int
    tanh: bool
    eps: float

    def norm(
        self, x: Tensor, branch: Branch, weight: Tensor, bias: Tensor, factor: Factor = None
    ) -> tuple[Normed, Tensor]:
        """Add the branch; then LayerNorm, of the images that the next branch, with this factor, is for."""
        x, y, mean, rstd = add_norm(
            x, *branch, weight, bias, self.eps, self.tokens, statistics=True, places=places(factor)
        )
        assert mean is not None
        assert rstd is not None
        return Normed(x, mean, rstd), y

    def norm_backward(
        self, dy: Tensor, at: Normed, weight: Tensor, bias: Tensor, dx: Tensor, before: Factor, behind: Factor = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`before`, `behind`: factors of the branch that made the norm's input, and of that which reads its output."""
        return norm_backward(dy, *at, weight, bias, dx, before, self.tokens, places(behind))


def places(factor: Factor) -> Places | None:
    return factor if isinstance(factor, Places) else None


def residual(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor, factor: Factor) -> tuple[Tensor, Branch]:
    """x + (a weight' + bias) x factor: at the end of the product itself, or left to the norm that comes next."""
    if factor is None:
        return linear(a, weight, bias, add=x), Branch()
    return x, Branch(F.linear(a, weight, bias), factor)


def hidden(y: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """What GELU is taken of, and its GELU."""
    if tanh and (found := linear_gelu(y, weight, bias, keep=True)) is not None:
        g, h = found
        assert h is not None
        return h, g
    h = F.linear(y, weight, bias)
    return h, gelu(h, tanh)


def block_forward(
    s: Shape, w: Weights, x: Tensor, branch: Branch, factors: Sequence[Factor]
) -> tuple[Tensor, Branch, Kept]:
    """Tokens (B x T, D) and what is still to be added to them, before the block -> the same behind it, and what
    backward needs."""
    first, y = s.norm(x, branch, w.norm1_weight, w.norm1_bias, factors[0])
    attention = attended(F.linear(y, w.qkv_weight, w.qkv_bias), s)
    x, branch = residual(first.x, attention.o, w.proj_weight, w.proj_bias, factors[0])
    second, y = s.norm(x, branch, w.norm2_weight, w.norm2_bias, factors[1])
    h, g = hidden(y, w.fc1_weight, w.fc1_bias, s.tanh)
    x, branch = residual(second.x, g, w.fc2_weight, w.fc2_bias, factors[1])
    return x, branch, Kept(first, attention, second, h, g)


class Found(NamedTuple):
    """The gradients of a block: of its matrices; and, for its vectors, parts of sums over rows, added up later."""

    qkv: Tensor
    proj: Tensor
    fc1: Tensor
    fc2: Tensor
    qkv_sums: Tensor  # (parts, 3 D)
    fc1_sums: Tensor  # (parts, mlp_dim)
    first_sums: Tensor  # (parts, 3, D): of the norm's weight, of its bias, of the branch that made its input
    second_sums: Tensor


def block_backward(
    s: Shape, w: Weights, kept: Kept, dx: Tensor, dz: Tensor, factors: Sequence[Factor]
) -> tuple[Tensor, Tensor, Found]:
    """From the gradients of tokens behind the block, and of the branch that was added to make them, to those before it.

    `factors`: of the branch that made the block's input, of its attention, of its MLP. What was read is let go of at
    once.
    """
    dh, fc1_sums = product_gelu_backward(dz, w.fc2_weight, kept.h, s.tanh)
    g, kept.g = kept.g, None
    dfc2 = outer(dz, gelu(kept.h, s.tanh) if g is None else g)
    del g, kept.h
    dx, dz, y, second_sums = s.norm_backward(
        dh @ w.fc1_weight, kept.second, w.norm2_weight, w.norm2_bias, dx, *factors[1:]
    )
    dfc1 = outer(dh, y)
    del dh, y, kept.second
    dproj = outer(dz, kept.attention.o)
    dqkv, qkv_sums = kept.attention.backward(dz @ w.proj_weight, s)
    del kept.attention, dz
    dx, dz, y, first_sums = s.norm_backward(
        dqkv @ w.qkv_weight, kept.first, w.norm1_weight, w.norm1_bias, dx, *factors[:2]
    )
    return dx, dz, Found(outer(dqkv, y), dproj, dfc1, dfc2, qkv_sums, fc1_sums, first_sums, second_sums)


def outer(d: Tensor, x: Tensor) -> Tensor:
    """The gradient of a weight, in fp32 as it is added up."""
    return torch.mm(d.t(), x, out_dtype=torch.float32) if d.is_cuda else d.t().float() @ x.float()


class Encoder(torch.autograd.Function):
    """Blocks and the LayerNorm behind them: gives the tokens after that norm, (B, T, D) in bf16; and the first token of
    each image before and after it, (B, D).

    `factors`: for each block, those of its two branches. `parameters`: weight and bias of the norm behind, then those
    of each block in the order of `Weights`.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, s: Shape, factors: Sequence[Factor], *parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        behind, weights = parameters[:2], halved(parameters[2:])
        x, branch, kept = tokens.flatten(0, 1), Branch(), []
        for layer, w in enumerate(weights):
            x, branch, keep = block_forward(s, w, x, branch, factors[2 * layer : 2 * layer + 2])
            if layer < len(weights) - GELUS:  # these wait longest for backward, which makes it again
                keep.g = None
            kept.append(keep)
        last, y = s.norm(x, branch, *behind)
        ctx.s, ctx.factors, ctx.behind, ctx.weights, ctx.kept, ctx.last = s, factors, behind, weights, kept, last
        ctx.set_materialize_grads(False)
        y = y.view_as(tokens)
        return y, last.x.view_as(tokens)[:, 0].clone(), y[:, 0].clone()

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *outputs: Tensor | None) -> tuple[Any, ...]:
        s: Shape = ctx.s
        dx = torch.zeros_like(ctx.last.x)
        dy, first_dx, first_dy = outputs
        dy = torch.zeros_like(dx) if dy is None else dy.flatten(0, 1).contiguous()
        for whole, first in ((dx, first_dx), (dy, first_dy)):
            if first is not None:
                whole.unflatten(0, (s.batch, -1))[:, 0] += first
        before = [None, *ctx.factors]  # of the branch that made the tokens of a place
        weight, bias = ctx.behind
        dx, dz, _, last_sums = s.norm_backward(dy, ctx.last, weight, bias, dx, before[-1])
        del dy, ctx.last
        found: list[Found] = []
        for layer in reversed(range(len(ctx.weights))):
            keep = ctx.kept.pop()
            dx, dz, some = block_backward(s, ctx.weights[layer], keep, dx, dz, before[2 * layer : 2 * layer + 3])
            found.insert(0, some)
        behind, gradients = _added_up(found, last_sums, [w.qkv_bias is not None for w in ctx.weights])
        return dx.unflatten(0, (s.batch, -1)), None, None, *behind, *gradients


def _added_up(found: list[Found], last: Tensor, biased: list[bool]) -> tuple[Tensor, list[Tensor | None]]:
    """The gradients of the norm behind, and of all blocks in the order of `Weights`."""
    norms = _totals([sums for one in found for sums in (one.first_sums, one.second_sums)] + [last])
    qkvs, fc1s = _totals([one.qkv_sums for one in found]), _totals([one.fc1_sums for one in found])
    gradients: list[Tensor | None] = []
    for layer, one in enumerate(found):
        first, second, third = norms[2 * layer : 2 * layer + 3]
        gradients += [first[0], first[1], one.qkv, qkvs[layer] if biased[layer] else None, one.proj, second[2]]
        gradients += [second[0], second[1], one.fc1, fc1s[layer], one.fc2, third[2]]
    return norms[-1, :2], gradients


def _totals(sums: list[Tensor]) -> Tensor:
    """Each of (parts, ...), summed: in one go where they have as many parts."""
    if all(one.shape == sums[0].shape for one in sums):
        return torch.stack(sums).sum(1)
    return torch.stack([one.sum(0) for one in sums])


def halved(parameters: Sequence[Tensor]) -> list[Weights]:
    """The blocks' weights with those of products copied in bf16, all in one go."""
    size = len(Weights._fields)
    chosen = [i for i, p in enumerate(parameters) if i % size in PRODUCTS and p is not None]
    copies = [torch.empty_like(parameters[i], dtype=HALF) for i in chosen]
    torch._foreach_copy_(copies, [parameters[i] for i in chosen])
    ready = list(parameters)
    for i, copy in zip(chosen, copies, strict=True):
        ready[i] = copy
    return [Weights(*ready[first : first + size]) for first in range(0, len(ready), size)]


class Embed(torch.autograd.Function):
    """Equation 1: tokens (B, T, D) in bf16, from images, the product's weight and bias, the tokens in front and the
    places of all. Images get no gradient."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, front: Tensor, places: Tensor | None) -> Tensor:
        rows = patches(images, (weight.shape[2], weight.shape[3]), HALF)
        z = F.linear(rows, weight.flatten(1).to(HALF), bias.to(HALF))
        ctx.rows, ctx.prefix, ctx.shape, ctx.placed = rows, len(front), weight.shape, places is not None
        return assemble(z, front, places, len(images))

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Any, ...]:
        (dx,) = outputs
        places = dx.sum(0, dtype=torch.float32)
        weight = outer(dx[:, ctx.prefix :].reshape(-1, dx.shape[-1]), ctx.rows).view(ctx.shape)
        del ctx.rows
        bias, front = places[ctx.prefix :].sum(0), places[: ctx.prefix]
        return None, weight, bias, front, places if ctx.placed else None


# ---------------------------------------------------------------- the model around it


class TrainingViT:
    """A ViT's forward for training: the model's own parameters, and first derivatives to them. It computes what the
    model does if `vitreous.fast.eligibility.why_not(model, TRAINING)` is None."""

    def __init__(self, model: VisionTransformer, skips: bool = False):
        """`skips`: a branch that stochastic depth takes from an image is not computed for it. For that the host has to
        know which they are, and waits for them once a pass."""
        self.model, self.skips = model, skips
        blocks: list[Any] = list(model.blocks)
        self.alone = blocks.pop() if model.config.pool == "token" else None  # the block that asks for one token alone
        self.blocks: list[Block] = blocks

    def __call__(self, images: Tensor) -> Tensor:
        model, c = self.model, self.model.config
        with torch.autocast(images.device.type, HALF):
            if not len(images):  # kernels have no empty batches
                nothing: Tensor = model(images)
                return nothing
            x = self.embed(images)
            behind = model.norm if self.alone is None else self.alone.norm1
            shape = Shape(x.shape[0], x.shape[1], c.heads, c.gelu == "tanh", c.norm_eps)
            drawn = [factor_of(d, x) for block in self.blocks for d in (block.drop1, block.drop2)]
            factors = located(drawn) if self.skips else drawn
            parameters = [p for block in self.blocks for p in parameters_of(block)]
            y, *first = Encoder.apply(x, shape, factors, behind.weight, behind.bias, *parameters)  # type: ignore
            if self.alone is not None:
                y = model.norm(class_token_alone(self.alone, y, *first))
            x = model.fc_norm(model.pool(y))
            x = x if model.pre_logits is None else torch.tanh(model.pre_logits(x))
            logits: Tensor = model.head(x)
            return logits

    def embed(self, images: Tensor) -> Tensor:
        """Equation 1: by the model's own code where there is a backbone."""
        model, c = self.model, self.model.config
        if model.backbone is not None or images.requires_grad:
            tokens: Tensor = model.embed(images)[0].to(HALF)
            return tokens
        check_images(images, c.channels)
        positions = model.positions(c.grid_at((images.shape[2], images.shape[3])))
        front = [token[0] for token in (model.cls_token, model.reg_token) if token is not None]
        proj = model.patch_embed.proj
        assert proj.bias is not None
        none = proj.weight.new_empty(0, c.width)
        return Embed.apply(  # type: ignore[no-any-return, no-untyped-call]
            images,
            proj.weight,
            proj.bias,
            torch.cat(front) if front else none,
            None if positions is None else positions[0],
        )


def class_token_alone(block: Block, y: Tensor, first_x: Tensor, first_y: Tensor) -> Tensor:
    """The first token behind a block, (B, 1, D), from the norm of the block's input, and that token (B, D) before and
    after this norm. It asks all the others, and nobody reads what they would have asked."""
    o = Asking.of(block.attn.qkv, block.attn.heads, y.dtype)(first_y, y)
    x: Tensor = block.drop1(block.ls1(block.attn.proj(o[:, None]))) + first_x[:, None]
    x = block.drop2(block.ls2(block.mlp(block.norm2(x)))) + x
    return x


def factor_of(drop: Drop, x: Tensor) -> Tensor | None:
    """What a branch of each image is multiplied by, (B,); None: 1."""
    if not drop.training:
        return None
    if drop.kept is not None:
        check_keys(drop.kept, x)
        return drop.kept.flatten().float().contiguous()
    if not drop.depth:
        return None
    return (torch.rand(len(x), device=x.device) >= drop.depth) / (1 - drop.depth)


def located(factors: Sequence[Tensor | None]) -> list[Factor]:
    """The same as which images have each branch."""
    drawn = [factor for factor in factors if factor is not None]
    if not drawn:
        return list(factors)
    host = torch.stack(drawn).cpu()  # the one time the host waits
    kept = host > 0
    lost = ~kept.any(1)
    kept[lost, 0] = True  # somebody has to have it: times nothing
    scales = host.amax(1).tolist()
    counts, whole = kept.sum(1).tolist(), (host == 1).all(1).tolist()
    places = torch.where(kept, kept.cumsum(1) - 1, -1).to(torch.int32).to(drawn[0].device, non_blocking=True)
    found = iter(
        None if all_of_it else Places(place, count, scale)
        for all_of_it, place, count, scale in zip(whole, places.unbind(), counts, scales, strict=True)
    )
    return [None if factor is None else next(found) for factor in factors]
