"""Attention of short sequences, from the product that made q, k and v, and straight into the gradient of that product.

A program has 64 tokens of a head, goes through the others in steps of 32, and has scores in the very registers that
the next product reads, so that nothing crosses between threads inside the loops; the last few tokens (a ViT's 197 are
6 x 32 + 5) go in a small step of their own. The backward is two passes, with the probabilities made anew in each: dq
for a block of queries, then dk and dv for a block of keys. No sum depends on the order of programs: the same inputs
give the same bits. benchmarks/attention.py has it beside cuDNN's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitreous.fast.guards import on_its_device

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
PAD: tl.constexpr = tl.constexpr(64)  # row terms of a head take a multiple of so many places, so that they stay aligned
BLOCK, STEP, REST = 64, 32, 16  # tokens of a program, of a step of its loop, and of the small step at the end
TAIL = 64  # tokens of a step where a program has only the last few
REGISTERS = 128  # for each thread, where heads are narrow enough: four programs then share a multiprocessor
SHAPE = {"M": BLOCK, "N": STEP, "TAIL": TAIL, "REST": REST, "STAGES": 3, "num_warps": 4}
LONGEST = 256  # tokens: from there on others are as fast
HEADS = (32, 64, 128)  # their widths


def fits(tokens: int, head: int) -> bool:
    return tokens <= LONGEST and head in HEADS


def ahead(tokens: int) -> bool:
    """Whether our forward is the faster one too: where a good part of cuDNN's tiles would be filled up with nothing."""
    return tokens <= BLOCK or 0 < tokens % BLOCK <= REST


@triton.jit
def _read(source, image, column, start, tokens, stride, head: tl.constexpr, N: tl.constexpr, MASK: tl.constexpr):
    """N tokens of an image from `start` on, and of them `head` columns."""
    row = start + tl.arange(0, N)
    at = source + image.to(tl.int64) * tokens * stride + column + row[:, None] * stride + tl.arange(0, head)[None, :]
    return tl.load(at, mask=(row < tokens)[:, None], other=0.0) if MASK else tl.load(at)


@triton.jit
def _write(target, value, image, column, start, tokens, stride, head: tl.constexpr, N: tl.constexpr):
    row = start + tl.arange(0, N)
    at = target + image.to(tl.int64) * tokens * stride + column + row[:, None] * stride + tl.arange(0, head)[None, :]
    tl.store(at, value.to(target.dtype.element_ty), mask=(row < tokens)[:, None])


# ---------------------------------------------------------------- forward


@triton.jit
def _step(total, top, sums, q, k, v, warmth, start, tokens, N: tl.constexpr, MASK: tl.constexpr):
    """N keys more. `total`: values so far, by exp(score - top); `sums`: of these weights."""
    s = tl.dot(q, tl.trans(k))
    if MASK:
        s = tl.where((start + tl.arange(0, N) < tokens)[None, :], s, float("-inf"))
    highest = tl.maximum(top, tl.max(s, 1) * warmth)
    p = tl.exp2(s * warmth - highest[:, None])
    less = tl.exp2(top - highest)
    return tl.dot(p.to(v.dtype), v, total * less[:, None]), highest, sums * less + tl.sum(p, 1)


@triton.jit
def _forward_block(
    qkv, o, lse, image, column, start, tokens, width, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    wide, warmth = 3 * width, scale * LOG2E
    q = _read(qkv, image, column, start, tokens, wide, head, M, True)
    total, sums = tl.zeros([M, head], tl.float32), tl.zeros([M], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    full = tokens // N * N
    last_k = _read(qkv, image, column + width, full, tokens, wide, head, REST, True)  # asked for early, used late
    last_v = _read(qkv, image, column + 2 * width, full, tokens, wide, head, REST, True)
    for at in tl.range(0, full, N, num_stages=STAGES):
        k = _read(qkv, image, column + width, at, tokens, wide, head, N, False)
        v = _read(qkv, image, column + 2 * width, at, tokens, wide, head, N, False)
        total, top, sums = _step(total, top, sums, q, k, v, warmth, at, tokens, N, False)
    if tokens - full > REST:
        k = _read(qkv, image, column + width, full, tokens, wide, head, N, True)
        v = _read(qkv, image, column + 2 * width, full, tokens, wide, head, N, True)
        total, top, sums = _step(total, top, sums, q, k, v, warmth, full, tokens, N, True)
    elif tokens > full:
        total, top, sums = _step(total, top, sums, q, last_k, last_v, warmth, full, tokens, REST, True)
    _write(o, total / sums[:, None], image, column, start, tokens, width, head, M)
    row = start + tl.arange(0, M)
    tl.store(lse + row, (top + tl.log2(sums)) / LOG2E, mask=row < tokens)


@triton.jit
def _forward_kernel(
    qkv, o, lse, tokens, heads, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TAIL: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, which, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width, column, start = heads * head, which * head, block * M
    lse += (image * heads + which).to(tl.int64) * tokens
    if tokens - start <= REST:
        _forward_block(qkv, o, lse, image, column, start, tokens, width, scale, head, REST, TAIL, REST, STAGES)
    else:
        _forward_block(qkv, o, lse, image, column, start, tokens, width, scale, head, M, N, REST, STAGES)


@on_its_device
def attention(qkv: Tensor, batch: int, heads: int) -> tuple[Tensor, Tensor]:
    """From qkv (B x T, 3 D): attention's output (B x T, D), and the logarithms of its sums (B, heads, T)."""
    rows, wide = qkv.shape
    tokens, head = rows // batch, wide // (3 * heads)
    o, lse = qkv.new_empty(rows, wide // 3), qkv.new_empty(batch, heads, tokens, dtype=torch.float32)
    grid = (triton.cdiv(tokens, BLOCK), heads, batch)
    _forward_kernel[grid](qkv, o, lse, tokens, heads, head**-0.5, head=head, **SHAPE)
    return o, lse


# ---------------------------------------------------------------- backward


@triton.jit
def _dq_step(dq, q, g, k, v, level, delta, warmth, start, tokens, N: tl.constexpr, MASK: tl.constexpr):
    s = tl.dot(q, tl.trans(k))
    dp = tl.dot(g, tl.trans(v))
    p = tl.exp2(s * warmth - level[:, None])
    if MASK:
        p = tl.where((start + tl.arange(0, N) < tokens)[None, :], p, 0.0)
    ds = p * (dp - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq)


@triton.jit
def _dq_block(
    qkv, do, o, lse, dqkv, terms, image, column, start, tokens, width, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dq of M queries; gives its sum over them. What belongs to each query alone is left in `terms` for the keys."""
    row, wide = start + tl.arange(0, M), 3 * width
    inside = row < tokens
    q = _read(qkv, image, column, start, tokens, wide, head, M, True)
    g = _read(do, image, column, start, tokens, width, head, M, True)
    out = _read(o, image, column, start, tokens, width, head, M, True)
    level = tl.load(lse + row, mask=inside, other=float("inf")) * LOG2E
    delta = tl.sum(g.to(tl.float32) * out.to(tl.float32), 1)
    padded = tl.cdiv(tokens, PAD) * PAD
    tl.store(terms + row, level, mask=row < padded)  # infinite beyond the end: p = 0 there
    tl.store(terms + padded + row, delta, mask=row < padded)
    warmth, dq = scale * LOG2E, tl.zeros([M, head], tl.float32)
    full = tokens // N * N
    last_k = _read(qkv, image, column + width, full, tokens, wide, head, REST, True)  # asked for early, used late
    last_v = _read(qkv, image, column + 2 * width, full, tokens, wide, head, REST, True)
    for at in tl.range(0, full, N, num_stages=STAGES):
        k = _read(qkv, image, column + width, at, tokens, wide, head, N, False)
        v = _read(qkv, image, column + 2 * width, at, tokens, wide, head, N, False)
        dq = _dq_step(dq, q, g, k, v, level, delta, warmth, at, tokens, N, False)
    if tokens - full > REST:
        k = _read(qkv, image, column + width, full, tokens, wide, head, N, True)
        v = _read(qkv, image, column + 2 * width, full, tokens, wide, head, N, True)
        dq = _dq_step(dq, q, g, k, v, level, delta, warmth, full, tokens, N, True)
    elif tokens > full:
        dq = _dq_step(dq, q, g, last_k, last_v, level, delta, warmth, full, tokens, REST, True)
    dq *= scale
    _write(dqkv, dq, image, column, start, tokens, wide, head, M)
    return tl.sum(tl.where(inside[:, None], dq, 0.0), 0)


@triton.jit
def _dkv_step(dk, dv, k, v, q, g, level, delta, warmth):
    s = tl.dot(k, tl.trans(q))
    p = tl.exp2(s * warmth - level[None, :])
    dv = tl.dot(p.to(g.dtype), g, dv)
    ds = p * tl.dot(v, tl.trans(g), tl.zeros_like(s) - delta[None, :])
    return tl.dot(ds.to(q.dtype), q, dk), dv


@triton.jit
def _terms(terms, start, tokens, N: tl.constexpr, MASK: tl.constexpr):
    padded, query = tl.cdiv(tokens, PAD) * PAD, start + tl.arange(0, N)
    if MASK:
        level = tl.load(terms + query, mask=query < tokens, other=float("inf"))
        delta = tl.load(terms + padded + query, mask=query < tokens, other=0.0)
    else:
        level = tl.load(terms + query)
        delta = tl.load(terms + padded + query)
    return level, delta


@triton.jit
def _dkv_block(
    qkv, do, dqkv, terms, image, column, start, tokens, width, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dk and dv of M keys; gives their sums over them. Keys beyond the end make rows that are not stored."""
    wide, warmth = 3 * width, scale * LOG2E
    k = _read(qkv, image, column + width, start, tokens, wide, head, M, True)
    v = _read(qkv, image, column + 2 * width, start, tokens, wide, head, M, True)
    dk, dv = tl.zeros([M, head], tl.float32), tl.zeros([M, head], tl.float32)
    full = tokens // N * N
    last_q = _read(qkv, image, column, full, tokens, wide, head, REST, True)  # asked for early, used late
    last_g = _read(do, image, column, full, tokens, width, head, REST, True)
    for at in tl.range(0, full, N, num_stages=STAGES):
        q = _read(qkv, image, column, at, tokens, wide, head, N, False)
        g = _read(do, image, column, at, tokens, width, head, N, False)
        level, delta = _terms(terms, at, tokens, N, False)
        dk, dv = _dkv_step(dk, dv, k, v, q, g, level, delta, warmth)
    if tokens - full > REST:
        q = _read(qkv, image, column, full, tokens, wide, head, N, True)
        g = _read(do, image, column, full, tokens, width, head, N, True)
        level, delta = _terms(terms, full, tokens, N, True)
        dk, dv = _dkv_step(dk, dv, k, v, q, g, level, delta, warmth)
    elif tokens > full:
        level, delta = _terms(terms, full, tokens, REST, True)
        dk, dv = _dkv_step(dk, dv, k, v, last_q, last_g, level, delta, warmth)
    dk *= scale
    _write(dqkv, dk, image, column + width, start, tokens, wide, head, M)
    _write(dqkv, dv, image, column + 2 * width, start, tokens, wide, head, M)
    inside = (start + tl.arange(0, M) < tokens)[:, None]
    return tl.sum(tl.where(inside, dk, 0.0), 0), tl.sum(tl.where(inside, dv, 0.0), 0)


@triton.jit
def _dq_kernel(
    qkv, do, o, lse, dqkv, terms, sums, tokens, heads, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TAIL: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, which, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width, column, start = heads * head, which * head, block * M
    lse += (image * heads + which).to(tl.int64) * tokens
    terms += (image * heads + which).to(tl.int64) * (2 * (tl.cdiv(tokens, PAD) * PAD))
    sums += (image * tl.num_programs(0) + block) * (3 * width) + column + tl.arange(0, head)
    if tokens - start <= REST:
        total = _dq_block(
            qkv, do, o, lse, dqkv, terms, image, column, start, tokens, width, scale, head, REST, TAIL, REST, STAGES
        )  # fmt: skip
        tl.store(sums, total)
    else:
        total = _dq_block(
            qkv, do, o, lse, dqkv, terms, image, column, start, tokens, width, scale, head, M, N, REST, STAGES
        )  # fmt: skip
        tl.store(sums, total)


@triton.jit
def _dkv_kernel(
    qkv, do, dqkv, terms, sums, tokens, heads, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TAIL: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, which, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width, column, start = heads * head, which * head, block * M
    terms += (image * heads + which).to(tl.int64) * (2 * (tl.cdiv(tokens, PAD) * PAD))
    sums += (image * tl.num_programs(0) + block) * (3 * width) + column + tl.arange(0, head)
    if tokens - start <= REST:
        total_k, total_v = _dkv_block(
            qkv, do, dqkv, terms, image, column, start, tokens, width, scale, head, REST, TAIL, REST, STAGES
        )  # fmt: skip
        tl.store(sums + width, total_k)
        tl.store(sums + 2 * width, total_v)
    else:
        total_k, total_v = _dkv_block(
            qkv, do, dqkv, terms, image, column, start, tokens, width, scale, head, M, N, REST, STAGES
        )  # fmt: skip
        tl.store(sums + width, total_k)
        tl.store(sums + 2 * width, total_v)


@on_its_device
def attention_backward(
    qkv: Tensor, o: Tensor, do: Tensor, lse: Tensor, batch: int, heads: int
) -> tuple[Tensor, Tensor]:
    """From qkv (B x T, 3 D), attention's output and its gradient (B x T, D), and the logarithms of its sums (B, heads,
    T): the gradient of qkv, and parts of its sum over rows, (parts, 3 D)."""
    rows, wide = qkv.shape
    tokens, head = rows // batch, wide // (3 * heads)
    blocks, padded = triton.cdiv(tokens, BLOCK), triton.cdiv(tokens, PAD.value) * PAD.value
    dqkv = torch.empty_like(qkv)
    terms = qkv.new_empty(batch * heads * 2 * padded, dtype=torch.float32)
    sums = qkv.new_empty(batch * blocks, wide, dtype=torch.float32)
    shape = {"head": head, **SHAPE, **({"maxnreg": REGISTERS} if head <= 64 else {})}
    grid = (blocks, heads, batch)
    _dq_kernel[grid](qkv, do, o, lse, dqkv, terms, sums, tokens, heads, head**-0.5, **shape)
    _dkv_kernel[grid](qkv, do, dqkv, terms, sums, tokens, heads, head**-0.5, **shape)
    return dqkv, sums
