"""What lies between the matrix products of a block, each in one pass over memory: Triton kernels and their callers.

A matrix product of a ViT runs near the peak of a GPU; what is between two of them is bound by memory, and by single
operators it is read and written several times. Everything here takes bf16, computes in fp32 and gives bf16, or fp8
multiplied by a factor. Rows are tokens, M = B x T of them, one after the other.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitreous.fast.guards import on_its_device

FP8 = torch.float8_e4m3fn
LARGEST: tl.constexpr = tl.constexpr(448.0)  # number of that format
STRIPS = 8  # programs for each multiprocessor, where sums over rows stay in registers from row to row


class Places(NamedTuple):
    """Which images of a batch a branch is computed for: the others lose it, and their rows are not there."""

    place: Tensor  # of each image among those, (B,) int32; -1: it is not one of them
    images: int  # how many those are, at least 1
    scale: float  # what the branch is multiplied by


@triton.jit
def _tile(first, rows, width: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows, columns, offsets and what of them exists, of a tile of whole rows."""
    row = first + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    return row, col, row.to(tl.int64) * width + col, (row < rows) & (col < width)


@triton.jit
def _packed(places, row, col, rows, per_image, width: tl.constexpr):
    """Where a row is among those of the images that have a place, and whether it is."""
    place = tl.load(places + row // per_image, mask=row < rows, other=-1)
    return (place.to(tl.int64) * per_image + row % per_image) * width + col, place >= 0


def _whole_rows(width: int, numbers: int, each: int = 16) -> dict[str, Any]:
    """A tile of whole rows, of about so many numbers, about so many of them `each` for a thread."""
    block = triton.next_power_of_2(width)
    rows = max(1, numbers // block)
    return {"width": width, "BLOCK": block, "ROWS": rows, "num_warps": max(1, min(16, rows * block // (32 * each)))}


@lru_cache(maxsize=8)
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


# ---------------------------------------------------------------- residual and LayerNorm


@triton.jit
def _add_norm_kernel(
    x, branch, kept, places, weight, bias, out, y, mean, rstd, rows, per_image, eps, scale, factor,
    width: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ADDS: tl.constexpr, KEPT: tl.constexpr,
    PACKED: tl.constexpr, PACKS: tl.constexpr, STATISTICS: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    row, col, at, inside = _tile(tl.program_id(0) * ROWS, rows, width, ROWS, BLOCK)
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        if PACKED:
            there, has = _packed(kept, row, col, rows, per_image, width)
            more = tl.load(branch + there, mask=inside & has, other=0.0).to(tl.float32) * scale
        else:
            more = tl.load(branch + at, mask=inside, other=0.0).to(tl.float32)
        if KEPT:
            more *= tl.load(kept + row // per_image, mask=row < rows, other=0.0)
        whole = (v + more).to(out.dtype.element_ty)
        tl.store(out + at, whole, mask=inside)
        v = whole.to(tl.float32)  # the norm is of what is stored: backward sees nothing else
    average = tl.sum(v, 1)[:, None] / width
    centred = tl.where(inside, v - average, 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / width + eps)
    w = tl.load(weight + col, mask=col < width, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=col < width, other=0.0).to(tl.float32)
    normed = centred * spread * w + b
    if FP8:
        normed = tl.clamp(normed * factor, -LARGEST, LARGEST)
    if PACKS:
        there, has = _packed(places, row, col, rows, per_image, width)
        tl.store(y + there, normed.to(y.dtype.element_ty), mask=inside & has)
    else:
        tl.store(y + at, normed.to(y.dtype.element_ty), mask=inside)
    if STATISTICS:
        tl.store(mean + row, average, mask=row < rows)
        tl.store(rstd + row, spread, mask=row < rows)


@on_its_device
def add_norm(
    x: Tensor,
    branch: Tensor | None,
    kept: Tensor | Places | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    per_image: int = 1,
    factor: float | None = None,
    statistics: bool = False,
    places: Places | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x + branch x kept (of its image), its LayerNorm, and the norm's means and 1 / deviations.

    With Places for `kept` the branch has the rows of those images alone; with `places` the norm's output has. `factor`:
    that comes in fp8, multiplied by it.
    """
    rows, width = x.shape
    out = x if branch is None else torch.empty_like(x)
    count = rows if places is None else places.images * per_image
    y = x.new_empty(count, width, dtype=x.dtype if factor is None else FP8)
    mean, rstd = x.new_empty(2, rows, dtype=torch.float32).unbind() if statistics else (None, None)
    tile = _whole_rows(width, 2048, each=64)  # a warp for a row or two: its sums need no other warp
    _add_norm_kernel[(triton.cdiv(rows, tile["ROWS"]),)](
        x, branch, _pointer(kept), _pointer(places), weight, bias, out, y, mean, rstd, rows, per_image, eps,
        _scale(kept), factor or 1.0, ADDS=branch is not None, KEPT=isinstance(kept, Tensor),
        PACKED=isinstance(kept, Places), PACKS=places is not None, STATISTICS=statistics, FP8=factor is not None,
        **tile,
    )  # fmt: skip
    return out, y, mean, rstd


@triton.jit
def _norm_backward_kernel(
    dy, x, mean, rstd, weight, bias, residual, kept, places, dx, dz, y, sums, rows, per_image, scale,
    width: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    KEPT: tl.constexpr, PACKED: tl.constexpr, PACKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BLOCK)[None, :]
    w = tl.load(weight + cols, mask=cols < width, other=0.0).to(tl.float32)
    b = tl.load(bias + cols, mask=cols < width, other=0.0).to(tl.float32)
    weight_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    bias_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    branch_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row, col, at, inside = _tile(first, rows, width, ROWS, BLOCK)
        behind, seen = at, inside
        if PACKS:
            behind, has = _packed(places, row, col, rows, per_image, width)
            seen = inside & has
        g = tl.load(dy + behind, mask=seen, other=0.0).to(tl.float32)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        passed = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        spread = tl.load(rstd + row, mask=row < rows, other=0.0)
        normed = tl.where(inside, (v - tl.load(mean + row, mask=row < rows, other=0.0)) * spread, 0.0)
        tl.store(y + behind, (normed * w + b).to(y.dtype.element_ty), mask=seen)
        weight_sum += g * normed
        bias_sum += g
        g *= w
        share = tl.sum(g * normed, 1)[:, None] / width
        average = tl.sum(g, 1)[:, None] / width
        whole = tl.where(inside, passed + (g - normed * share - average) * spread, 0.0).to(dx.dtype.element_ty)
        tl.store(dx + at, whole, mask=inside)
        of_branch = whole.to(tl.float32)
        if KEPT:
            of_branch *= tl.load(kept + row // per_image, mask=row < rows, other=0.0)
            tl.store(dz + at, of_branch.to(dz.dtype.element_ty), mask=inside)
        if PACKED:
            before, has = _packed(kept, row, col, rows, per_image, width)
            of_branch = tl.where(has, of_branch * scale, 0.0)
            tl.store(dz + before, of_branch.to(dz.dtype.element_ty), mask=inside & has)
        branch_sum += of_branch
    flat = tl.arange(0, BLOCK)
    out = sums + tl.program_id(0) * 3 * width + flat
    tl.store(out, tl.sum(weight_sum, 0), mask=flat < width)
    tl.store(out + width, tl.sum(bias_sum, 0), mask=flat < width)
    tl.store(out + 2 * width, tl.sum(branch_sum, 0), mask=flat < width)


@on_its_device
def norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor,
    kept: Tensor | Places | None = None,
    per_image: int = 1,
    places: Places | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Through a LayerNorm of x and the residual beside it.

    Gives the gradient of x; that of the branch which was added to make x, where `kept` says how much of each image, or
    which images; the norm's output again; and parts of sums over rows, (parts, 3, D): of the gradients of weight, of
    bias, and of the branch. `places`: dy, and that output, have the rows of those images alone.
    """
    rows, width = x.shape
    dx, y, dz = torch.empty_like(x), torch.empty_like(dy), None
    if kept is not None:
        dz = x.new_empty(kept.images * per_image if isinstance(kept, Places) else rows, width)
    tile = _whole_rows(width, 1024)
    programs = min(triton.cdiv(rows, tile["ROWS"]), _processors(x.device) * STRIPS // 2)
    sums = x.new_empty(programs, 3, width, dtype=torch.float32)
    _norm_backward_kernel[(programs,)](
        dy, x, mean, rstd, weight, bias, residual, _pointer(kept), _pointer(places), dx, dz, y, sums, rows,
        per_image, _scale(kept), KEPT=isinstance(kept, Tensor), PACKED=isinstance(kept, Places),
        PACKS=places is not None, STAGES=3, **tile,
    )  # fmt: skip
    return dx, dx if dz is None else dz, y, sums


def _pointer(kept: Tensor | Places | None) -> Tensor | None:
    return kept.place if isinstance(kept, Places) else kept


def _scale(kept: Tensor | Places | None) -> float:
    return kept.scale if isinstance(kept, Places) else 1.0


# ---------------------------------------------------------------- GELU


@triton.jit
def _gelu(x, TANH: tl.constexpr):
    """s, with GELU(x) = x s; and x ds/dx, so that its derivative is the sum of both.

    With TANH, s is the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3), which is the same. Otherwise s is the
    normal distribution's, to 1e-7 by Abramowitz and Stegun's 26.2.17, whose exponential is also that of the density.
    """
    if TANH:
        square = x * x
        s = 1 / (1 + tl.exp2(x * (-2.302208198 - 0.1029432397 * square)))
        return s, x * s * (1 - s) * (1.5957691216 + 0.2140644488 * square)
    t = 1 / (1 + 0.2316419 * tl.abs(x))
    e = tl.exp2(-0.7213475204 * x * x)
    tail = e * t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    return tl.where(x > 0, 1 - tail, tail), x * e * 0.3989422804


@triton.jit
def _gelu_kernel(h, g, count, factor, TANH: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(h + at, mask=at < count, other=0.0).to(tl.float32)
    s, _ = _gelu(x, TANH)
    value = x * s
    if FP8:
        value = tl.clamp(value * factor, -LARGEST, LARGEST)
    tl.store(g + at, value.to(g.dtype.element_ty), mask=at < count)


@on_its_device
def gelu(h: Tensor, tanh: bool, factor: float | None = None) -> Tensor:
    """`factor`: it comes in fp8, multiplied by it."""
    g, block = torch.empty_like(h, dtype=h.dtype if factor is None else FP8), 2048
    _gelu_kernel[(triton.cdiv(h.numel(), block),)](
        h, g, h.numel(), factor or 1.0, TANH=tanh, BLOCK=block, FP8=factor is not None, num_warps=4
    )
    return g


@triton.jit
def _gelu_backward_kernel(
    h, dg, sums, rows, width, TANH: tl.constexpr, GELU: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in tl.range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        at = row.to(tl.int64) * width + col
        inside = (row < rows) & (col < width)
        d = tl.load(dg + at, mask=inside, other=0.0)
        if GELU:
            s, more = _gelu(tl.load(h + at, mask=inside, other=0.0).to(tl.float32), TANH)
            d = (d.to(tl.float32) * (s + more)).to(dg.dtype.element_ty)
            tl.store(dg + at, d, mask=inside)
        total += d.to(tl.float32)
    flat = tl.program_id(0) * COLS + tl.arange(0, COLS)
    tl.store(sums + tl.program_id(1) * width + flat, tl.sum(total, 0), mask=flat < width)


@on_its_device
def gelu_backward_(h: Tensor | None, dg: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """The gradient of h, in the place of that of its GELU; and parts of its sum over rows, (parts, width).

    h = None: dg is that gradient already, and only summed up.
    """
    rows, width = dg.shape
    cols = min(1024, triton.next_power_of_2(width))
    grid = _grid(rows, width, dg.device, 4, cols)
    sums = dg.new_empty(grid[1], width, dtype=torch.float32)
    sizes = {"STAGES": 3, "num_warps": 4} if h is None else {"STAGES": 2, "num_warps": 8}
    _gelu_backward_kernel[grid](h, dg, sums, rows, width, TANH=tanh, GELU=h is not None, ROWS=4, COLS=cols, **sizes)
    return dg, sums


def _grid(rows: int, width: int, device: torch.device, ROWS: int, COLS: int) -> tuple[int, int]:
    """Columns by strips of rows: enough for the whole GPU, and few enough that sums stay long in registers."""
    across = triton.cdiv(width, COLS)
    return across, max(1, min(triton.cdiv(rows, ROWS), _processors(device) * STRIPS // across))


# ---------------------------------------------------------------- attention


@triton.jit
def _merge_kernel(
    dq, dk, dv, out, sums, rows, tokens, stride_b, stride_h, stride_t, width, head: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(2)
    source = dq
    if part == 1:
        source = dk
    if part == 2:
        source = dv
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in tl.range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (col < width)
        image = (row // tokens).to(tl.int64)
        there = image * stride_b + (row % tokens) * stride_t + (col // head) * stride_h + col % head
        value = tl.load(source + there, mask=inside, other=0.0)
        tl.store(out + row.to(tl.int64) * 3 * width + part * width + col, value, mask=inside)
        total += value.to(tl.float32)
    flat = tl.program_id(0) * COLS + tl.arange(0, COLS)
    tl.store(sums + (tl.program_id(1) * 3 + part) * width + flat, tl.sum(total, 0), mask=flat < width)


@on_its_device
def merge(dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of queries, keys and values, (B, heads, T, d) each in any order in memory, as that of the product they
    were cut from, (B x T, 3 D); and parts of its sum over rows, (parts, 3 D)."""
    if not dq.stride() == dk.stride() == dv.stride() or dq.stride(3) != 1:
        dq, dk, dv = dq.contiguous(), dk.contiguous(), dv.contiguous()
    batch, heads, tokens, head = dq.shape
    rows, width = batch * tokens, heads * head
    cols = min(1024, triton.next_power_of_2(width))
    grid = (triton.cdiv(width, cols), _grid(rows, 3 * width, dq.device, 4, cols)[1], 3)
    out = dq.new_empty(rows, 3 * width)
    sums = dq.new_empty(grid[1], 3 * width, dtype=torch.float32)
    _merge_kernel[grid](
        dq, dk, dv, out, sums, rows, tokens, *dq.stride()[:3], width,
        head=head, ROWS=4, COLS=cols, STAGES=2, num_warps=8,
    )  # fmt: skip
    return out, sums


# ---------------------------------------------------------------- patches


@triton.jit
def _patches_kernel(
    images, out, stride_b, stride_c, stride_y, stride_x, rows, cols, lines, shift,
    height: tl.constexpr, width: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    strip = tl.program_id(0)  # a row of patches of an image
    line = tl.program_id(1) * LINES + tl.arange(0, LINES)[:, None]  # a row of pixels of a channel
    x = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (line < lines) & (x < cols * width)
    down = strip % rows * height + line % height
    there = (strip // rows).to(tl.int64) * stride_b + line // height * stride_c + down * stride_y + x * stride_x
    value = tl.load(images + there, mask=inside, other=0).to(tl.float32) - shift
    patch = strip.to(tl.int64) * cols + x // width
    tl.store(out + patch * lines * width + line * width + x % width, value.to(out.dtype.element_ty), mask=inside)


@on_its_device
def patches(images: Tensor, patch: tuple[int, int], dtype: torch.dtype, shift: float = 0.0) -> Tensor:
    """Images (B, C, H, W) of any kind of number, less `shift`, as rows of patches (B x rows x cols, C x h x w)."""
    batch, channels, tall, wide = images.shape
    rows, cols, lines = tall // patch[0], wide // patch[1], channels * patch[0]
    out = torch.empty(batch * rows * cols, lines * patch[1], dtype=dtype, device=images.device)
    block = min(1024, triton.next_power_of_2(cols * patch[1]))
    grid = (batch * rows, triton.cdiv(lines, 8), triton.cdiv(cols * patch[1], block))
    _patches_kernel[grid](
        images, out, *images.stride(), rows, cols, lines, shift,
        height=patch[0], width=patch[1], LINES=8, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _assemble_kernel(
    z, front, places, out, rows, tokens, prefix, width: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    row, col, at, inside = _tile(tl.program_id(0) * ROWS, rows, width, ROWS, BLOCK)
    token, image = row % tokens, (row // tokens).to(tl.int64)
    patch = inside & (token >= prefix)
    value = tl.load(z + (image * (tokens - prefix) + token - prefix) * width + col, mask=patch, other=0.0).to(
        tl.float32
    )
    value += tl.load(front + token * width + col, mask=inside & (token < prefix), other=0.0).to(tl.float32)
    if PLACES:
        value += tl.load(places + token * width + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@on_its_device
def assemble(z: Tensor, front: Tensor, places: Tensor | None, batch: int) -> Tensor:
    """Tokens (B, T, D): those in `front` (P, D), then the patches z (B x N, D), and on all of them their places."""
    width, prefix = z.shape[1], len(front)
    tokens = prefix + len(z) // batch
    out = z.new_empty(batch, tokens, width)
    tile = _whole_rows(width, 2048)
    _assemble_kernel[(triton.cdiv(batch * tokens, tile["ROWS"]),)](
        z, front, places, out, batch * tokens, tokens, prefix, PLACES=places is not None, **tile
    )
    return out
