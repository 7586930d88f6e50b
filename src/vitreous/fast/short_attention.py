"""Attention kernels for short sequences. They read qkv as the matmul wrote it, and write the gradient of qkv directly.

A program handles 64 tokens of one head and loops over the other tokens in steps of 32. The scores stay in the registers
that the next matmul reads, so no data moves between threads inside the loop. The last few tokens (the 197 tokens of a
ViT are 6 x 32 + 5) are a smaller step. The backward pass has two kernels, and each recomputes the probabilities: dq for
a block of queries, then dk and dv for a block of keys. No sum depends on the order of the programs, so the same inputs
give bit-identical results. benchmarks/attention.py compares it with cuDNN attention.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitreous.fast.guards import on_tensor_device

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
PAD: tl.constexpr = tl.constexpr(64)  # `terms` of a head are padded to a multiple of this, to stay aligned
BLOCK, STEP, REST = 64, 32, 16  # tokens of a program, of a step of its loop, and of the smaller last step
TAIL = 64  # tokens of a step in the program that has only the last few tokens
MAX_REGISTERS = 128  # per thread, for heads up to 64: four programs then fit on a multiprocessor
LAUNCH = {"M": BLOCK, "N": STEP, "TAIL": TAIL, "REST": REST, "STAGES": 3, "num_warps": 4}
MAX_TOKENS = 256  # with more, cuDNN attention is as fast
HEAD_WIDTHS = (32, 64, 128)


def short_attention_supports(tokens: int, head: int) -> bool:
    """Return whether the kernels support this number of tokens and this head width, and are faster than cuDNN in the
    backward pass."""
    return tokens <= MAX_TOKENS and head in HEAD_WIDTHS


def short_forward_is_faster(tokens: int) -> bool:
    """Return whether the forward pass is faster than cuDNN too: a large part of cuDNN's tiles would be padding."""
    return tokens <= BLOCK or 0 < tokens % BLOCK <= REST


@triton.jit
def _read(source, image, column, start, tokens, stride, head: tl.constexpr, N: tl.constexpr, MASK: tl.constexpr):
    """Load `head` columns of N tokens of an image, from the token `start` on."""
    row = start + tl.arange(0, N)
    pointers = (
        source + image.to(tl.int64) * tokens * stride + column + row[:, None] * stride + tl.arange(0, head)[None, :]
    )
    return tl.load(pointers, mask=(row < tokens)[:, None], other=0.0) if MASK else tl.load(pointers)


@triton.jit
def _write(target, value, image, column, start, tokens, stride, head: tl.constexpr, N: tl.constexpr):
    """Store `head` columns of N tokens of an image, from the token `start` on."""
    row = start + tl.arange(0, N)
    pointers = (
        target + image.to(tl.int64) * tokens * stride + column + row[:, None] * stride + tl.arange(0, head)[None, :]
    )
    tl.store(pointers, value.to(target.dtype.element_ty), mask=(row < tokens)[:, None])


# ---------------------------------------------------------------- forward


@triton.jit
def _forward_step(acc, row_max, row_sum, q, k, v, scale2, start, tokens, N: tl.constexpr, MASK: tl.constexpr):
    """Online softmax over N more keys. `acc`: values weighted by exp2(score - row_max); `row_sum`: sum of the weights;
    `scale2`: softmax scale x log2(e)."""
    s = tl.dot(q, tl.trans(k))
    if MASK:
        s = tl.where((start + tl.arange(0, N) < tokens)[None, :], s, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(s, 1) * scale2)
    p = tl.exp2(s * scale2 - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    return tl.dot(p.to(v.dtype), v, acc * rescale[:, None]), new_max, row_sum * rescale + tl.sum(p, 1)


@triton.jit
def _forward_block(
    qkv, o, lse, image, column, start, tokens, width, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attention output and log-sum-exp of M queries."""
    stride, scale2 = 3 * width, scale * LOG2E
    q = _read(qkv, image, column, start, tokens, stride, head, M, True)
    acc, row_sum = tl.zeros([M, head], tl.float32), tl.zeros([M], tl.float32)
    row_max = tl.full([M], float("-inf"), tl.float32)
    full = tokens // N * N
    last_k = _read(qkv, image, column + width, full, tokens, stride, head, REST, True)  # loaded early, used late
    last_v = _read(qkv, image, column + 2 * width, full, tokens, stride, head, REST, True)
    for at in tl.range(0, full, N, num_stages=STAGES):
        k = _read(qkv, image, column + width, at, tokens, stride, head, N, False)
        v = _read(qkv, image, column + 2 * width, at, tokens, stride, head, N, False)
        acc, row_max, row_sum = _forward_step(acc, row_max, row_sum, q, k, v, scale2, at, tokens, N, False)
    if tokens - full > REST:
        k = _read(qkv, image, column + width, full, tokens, stride, head, N, True)
        v = _read(qkv, image, column + 2 * width, full, tokens, stride, head, N, True)
        acc, row_max, row_sum = _forward_step(acc, row_max, row_sum, q, k, v, scale2, full, tokens, N, True)
    elif tokens > full:
        acc, row_max, row_sum = _forward_step(
            acc, row_max, row_sum, q, last_k, last_v, scale2, full, tokens, REST, True
        )
    _write(o, acc / row_sum[:, None], image, column, start, tokens, width, head, M)
    row = start + tl.arange(0, M)
    tl.store(lse + row, (row_max + tl.log2(row_sum)) / LOG2E, mask=row < tokens)


@triton.jit
def _forward_kernel(
    qkv, o, lse, tokens, heads, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TAIL: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, head_index, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width, column, start = heads * head, head_index * head, block * M
    lse += (image * heads + head_index).to(tl.int64) * tokens
    if tokens - start <= REST:
        _forward_block(qkv, o, lse, image, column, start, tokens, width, scale, head, REST, TAIL, REST, STAGES)
    else:
        _forward_block(qkv, o, lse, image, column, start, tokens, width, scale, head, M, N, REST, STAGES)


@on_tensor_device
def short_attention(qkv: Tensor, batch: int, heads: int) -> tuple[Tensor, Tensor]:
    """Return attention's output (B x T, D) and its log-sum-exp (B, heads, T) for qkv (B x T, 3 D)."""
    rows, columns = qkv.shape
    tokens, head = rows // batch, columns // (3 * heads)
    o, lse = qkv.new_empty(rows, columns // 3), qkv.new_empty(batch, heads, tokens, dtype=torch.float32)
    grid = (triton.cdiv(tokens, BLOCK), heads, batch)
    _forward_kernel[grid](qkv, o, lse, tokens, heads, head**-0.5, head=head, **LAUNCH)
    return o, lse


# ---------------------------------------------------------------- backward


@triton.jit
def _dq_step(dq, q, g, k, v, lse2, delta, scale2, start, tokens, N: tl.constexpr, MASK: tl.constexpr):
    """Add the contribution of N keys to dq. `lse2`: log-sum-exp x log2(e); `delta`: row sums of output x gradient."""
    s = tl.dot(q, tl.trans(k))
    dp = tl.dot(g, tl.trans(v))
    p = tl.exp2(s * scale2 - lse2[:, None])
    if MASK:
        p = tl.where((start + tl.arange(0, N) < tokens)[None, :], p, 0.0)
    ds = p * (dp - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq)


@triton.jit
def _dq_block(
    qkv, do, o, lse, dqkv, terms, image, column, start, tokens, width, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store dq of M queries and return its sum over them. Store `lse2` and `delta` of each query in `terms`, for the
    kernel of dk and dv."""
    row, stride = start + tl.arange(0, M), 3 * width
    mask = row < tokens
    q = _read(qkv, image, column, start, tokens, stride, head, M, True)
    g = _read(do, image, column, start, tokens, width, head, M, True)
    out = _read(o, image, column, start, tokens, width, head, M, True)
    lse2 = tl.load(lse + row, mask=mask, other=float("inf")) * LOG2E
    delta = tl.sum(g.to(tl.float32) * out.to(tl.float32), 1)
    padded = tl.cdiv(tokens, PAD) * PAD
    tl.store(terms + row, lse2, mask=row < padded)  # infinite past the last token: p = 0 there
    tl.store(terms + padded + row, delta, mask=row < padded)
    scale2, dq = scale * LOG2E, tl.zeros([M, head], tl.float32)
    full = tokens // N * N
    last_k = _read(qkv, image, column + width, full, tokens, stride, head, REST, True)  # loaded early, used late
    last_v = _read(qkv, image, column + 2 * width, full, tokens, stride, head, REST, True)
    for at in tl.range(0, full, N, num_stages=STAGES):
        k = _read(qkv, image, column + width, at, tokens, stride, head, N, False)
        v = _read(qkv, image, column + 2 * width, at, tokens, stride, head, N, False)
        dq = _dq_step(dq, q, g, k, v, lse2, delta, scale2, at, tokens, N, False)
    if tokens - full > REST:
        k = _read(qkv, image, column + width, full, tokens, stride, head, N, True)
        v = _read(qkv, image, column + 2 * width, full, tokens, stride, head, N, True)
        dq = _dq_step(dq, q, g, k, v, lse2, delta, scale2, full, tokens, N, True)
    elif tokens > full:
        dq = _dq_step(dq, q, g, last_k, last_v, lse2, delta, scale2, full, tokens, REST, True)
    dq *= scale
    _write(dqkv, dq, image, column, start, tokens, stride, head, M)
    return tl.sum(tl.where(mask[:, None], dq, 0.0), 0)


@triton.jit
def _dkv_step(dk, dv, k, v, q, g, lse2, delta, scale2):
    """Add the contribution of a step of queries to dk and dv."""
    s = tl.dot(k, tl.trans(q))
    p = tl.exp2(s * scale2 - lse2[None, :])
    dv = tl.dot(p.to(g.dtype), g, dv)
    ds = p * tl.dot(v, tl.trans(g), tl.zeros_like(s) - delta[None, :])
    return tl.dot(ds.to(q.dtype), q, dk), dv


@triton.jit
def _load_terms(terms, start, tokens, N: tl.constexpr, MASK: tl.constexpr):
    """Load `lse2` and `delta` of N queries."""
    padded, query = tl.cdiv(tokens, PAD) * PAD, start + tl.arange(0, N)
    if MASK:
        lse2 = tl.load(terms + query, mask=query < tokens, other=float("inf"))
        delta = tl.load(terms + padded + query, mask=query < tokens, other=0.0)
    else:
        lse2 = tl.load(terms + query)
        delta = tl.load(terms + padded + query)
    return lse2, delta


@triton.jit
def _dkv_block(
    qkv, do, dqkv, terms, image, column, start, tokens, width, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store dk and dv of M keys and return their sums over them. Rows past the last token are not stored."""
    stride, scale2 = 3 * width, scale * LOG2E
    k = _read(qkv, image, column + width, start, tokens, stride, head, M, True)
    v = _read(qkv, image, column + 2 * width, start, tokens, stride, head, M, True)
    dk, dv = tl.zeros([M, head], tl.float32), tl.zeros([M, head], tl.float32)
    full = tokens // N * N
    last_q = _read(qkv, image, column, full, tokens, stride, head, REST, True)  # loaded early, used late
    last_g = _read(do, image, column, full, tokens, width, head, REST, True)
    for at in tl.range(0, full, N, num_stages=STAGES):
        q = _read(qkv, image, column, at, tokens, stride, head, N, False)
        g = _read(do, image, column, at, tokens, width, head, N, False)
        lse2, delta = _load_terms(terms, at, tokens, N, False)
        dk, dv = _dkv_step(dk, dv, k, v, q, g, lse2, delta, scale2)
    if tokens - full > REST:
        q = _read(qkv, image, column, full, tokens, stride, head, N, True)
        g = _read(do, image, column, full, tokens, width, head, N, True)
        lse2, delta = _load_terms(terms, full, tokens, N, True)
        dk, dv = _dkv_step(dk, dv, k, v, q, g, lse2, delta, scale2)
    elif tokens > full:
        lse2, delta = _load_terms(terms, full, tokens, REST, True)
        dk, dv = _dkv_step(dk, dv, k, v, last_q, last_g, lse2, delta, scale2)
    dk *= scale
    _write(dqkv, dk, image, column + width, start, tokens, stride, head, M)
    _write(dqkv, dv, image, column + 2 * width, start, tokens, stride, head, M)
    mask = (start + tl.arange(0, M) < tokens)[:, None]
    return tl.sum(tl.where(mask, dk, 0.0), 0), tl.sum(tl.where(mask, dv, 0.0), 0)


@triton.jit
def _dq_kernel(
    qkv, do, o, lse, dqkv, terms, sums, tokens, heads, scale,
    head: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TAIL: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, head_index, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width, column, start = heads * head, head_index * head, block * M
    lse += (image * heads + head_index).to(tl.int64) * tokens
    terms += (image * heads + head_index).to(tl.int64) * (2 * (tl.cdiv(tokens, PAD) * PAD))
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
    block, head_index, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width, column, start = heads * head, head_index * head, block * M
    terms += (image * heads + head_index).to(tl.int64) * (2 * (tl.cdiv(tokens, PAD) * PAD))
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


@on_tensor_device
def short_attention_backward(
    qkv: Tensor, o: Tensor, do: Tensor, lse: Tensor, batch: int, heads: int
) -> tuple[Tensor, Tensor]:
    """Return the gradient of qkv (B x T, 3 D) and its partial sums over rows (parts, 3 D), from attention's output o
    (B x T, D), the gradient `do` of that output, and the log-sum-exp (B, heads, T)."""
    rows, columns = qkv.shape
    tokens, head = rows // batch, columns // (3 * heads)
    blocks, padded = triton.cdiv(tokens, BLOCK), triton.cdiv(tokens, PAD.value) * PAD.value
    dqkv = torch.empty_like(qkv)
    terms = qkv.new_empty(batch * heads * 2 * padded, dtype=torch.float32)
    sums = qkv.new_empty(batch * blocks, columns, dtype=torch.float32)
    launch = {"head": head, **LAUNCH, **({"maxnreg": MAX_REGISTERS} if head <= 64 else {})}
    grid = (blocks, heads, batch)
    _dq_kernel[grid](qkv, do, o, lse, dqkv, terms, sums, tokens, heads, head**-0.5, **launch)
    _dkv_kernel[grid](qkv, do, dqkv, terms, sums, tokens, heads, head**-0.5, **launch)
    return dqkv, sums
