"""Triton kernels for the operations between the matmuls of a block, and the functions that launch them.

The matmuls of a ViT run near the peak of a GPU. The operations between them are bound by memory bandwidth, and separate
operators would read and write the same data several times. Each kernel here makes one pass over memory. Inputs are
bf16, arithmetic is fp32, outputs are bf16, or fp8 multiplied by a scale. Rows are tokens: M = B x T of them.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitreous.fast.guards import on_tensor_device

FP8 = torch.float8_e4m3fn
FP8_MAX: tl.constexpr = tl.constexpr(448.0)  # largest number of that format
PROGRAMS_PER_SM = 8  # for kernels that accumulate sums over rows in registers


class KeptImages(NamedTuple):
    """The images of a batch that keep a residual branch under stochastic depth. The branch is computed for them only:
    its tensors have no rows for the other images ("packed")."""

    image_index: Tensor  # of each image among the kept ones, (B,) int32; -1: dropped
    image_count: int  # number of kept images, at least 1
    scale: float  # factor of the branch


@triton.jit
def _tile(first, rows, width: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return row indices, column indices, offsets and the mask of a tile of whole rows."""
    row = first + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    return row, col, row.to(tl.int64) * width + col, (row < rows) & (col < width)


@triton.jit
def _packed_offset(index, row, col, rows, per_image, width: tl.constexpr):
    """Return the offsets of rows in a packed tensor (see `KeptImages`), and whether their images are kept."""
    kept = tl.load(index + row // per_image, mask=row < rows, other=-1)
    return (kept.to(tl.int64) * per_image + row % per_image) * width + col, kept >= 0


def _row_tile(width: int, elements: int, per_thread: int = 16) -> dict[str, Any]:
    """Return the launch options of a tile of whole rows with about `elements` elements, `per_thread` of them each."""
    block = triton.next_power_of_2(width)
    rows = max(1, elements // block)
    warps = max(1, min(16, rows * block // (32 * per_thread)))
    return {"width": width, "BLOCK": block, "ROWS": rows, "num_warps": warps}


@lru_cache(maxsize=8)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


# ---------------------------------------------------------------- residual and LayerNorm


@triton.jit
def _add_norm_kernel(
    x, branch, branch_images, y_images, weight, bias, out, y, mean, rstd, rows, per_image, eps, branch_scale, fp8_scale,
    width: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr, SCALE_BRANCH: tl.constexpr,
    PACKED_BRANCH: tl.constexpr, PACKED_Y: tl.constexpr, STATISTICS: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    row, col, offset, mask = _tile(tl.program_id(0) * ROWS, rows, width, ROWS, BLOCK)
    v = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        if PACKED_BRANCH:
            packed, kept = _packed_offset(branch_images, row, col, rows, per_image, width)
            added = tl.load(branch + packed, mask=mask & kept, other=0.0).to(tl.float32) * branch_scale
        else:
            added = tl.load(branch + offset, mask=mask, other=0.0).to(tl.float32)
        if SCALE_BRANCH:
            added *= tl.load(branch_images + row // per_image, mask=row < rows, other=0.0)
        total = (v + added).to(out.dtype.element_ty)
        tl.store(out + offset, total, mask=mask)
        v = total.to(tl.float32)  # normalise the stored, rounded value: the backward pass reads the same
    row_mean = tl.sum(v, 1)[:, None] / width
    centred = tl.where(mask, v - row_mean, 0.0)
    row_rstd = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / width + eps)
    w = tl.load(weight + col, mask=col < width, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=col < width, other=0.0).to(tl.float32)
    normed = centred * row_rstd * w + b
    if FP8:
        normed = tl.clamp(normed * fp8_scale, -FP8_MAX, FP8_MAX)
    if PACKED_Y:
        packed, kept = _packed_offset(y_images, row, col, rows, per_image, width)
        tl.store(y + packed, normed.to(y.dtype.element_ty), mask=mask & kept)
    else:
        tl.store(y + offset, normed.to(y.dtype.element_ty), mask=mask)
    if STATISTICS:
        tl.store(mean + row, row_mean, mask=row < rows)
        tl.store(rstd + row, row_rstd, mask=row < rows)


@on_tensor_device
def add_norm(
    x: Tensor,
    branch: Tensor | None,
    branch_images: Tensor | KeptImages | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    per_image: int = 1,
    fp8_scale: float | None = None,
    statistics: bool = False,
    y_images: KeptImages | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Add a residual branch and apply LayerNorm. Return the sum, its LayerNorm, and the norm's mean and 1 / standard
    deviation of each row (None without `statistics`).

    `branch_images`: a factor per image (B,); or the images that a packed branch has rows for. `y_images`: pack the
    output of the norm for these images. `fp8_scale`: return that output in fp8, multiplied by this scale. `per_image`:
    rows per image.
    """
    rows, width = x.shape
    out = x if branch is None else torch.empty_like(x)
    y_rows = rows if y_images is None else y_images.image_count * per_image
    y = x.new_empty(y_rows, width, dtype=x.dtype if fp8_scale is None else FP8)
    mean, rstd = x.new_empty(2, rows, dtype=torch.float32).unbind() if statistics else (None, None)
    tile = _row_tile(width, 2048, per_thread=64)  # a warp per row or two: no reduction across warps
    _add_norm_kernel[(triton.cdiv(rows, tile["ROWS"]),)](
        x, branch, _pointer(branch_images), _pointer(y_images), weight, bias, out, y, mean, rstd, rows, per_image, eps,
        _scale(branch_images), fp8_scale or 1.0, ADD=branch is not None,
        SCALE_BRANCH=isinstance(branch_images, Tensor), PACKED_BRANCH=isinstance(branch_images, KeptImages),
        PACKED_Y=y_images is not None, STATISTICS=statistics, FP8=fp8_scale is not None, **tile,
    )  # fmt: skip
    return out, y, mean, rstd


@triton.jit
def _norm_backward_kernel(
    dy, x, mean, rstd, weight, bias, residual, branch_images, y_images, dx, dz, y, sums, rows, per_image, branch_scale,
    width: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    SCALE_BRANCH: tl.constexpr, PACKED_BRANCH: tl.constexpr, PACKED_Y: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BLOCK)[None, :]
    w = tl.load(weight + cols, mask=cols < width, other=0.0).to(tl.float32)
    b = tl.load(bias + cols, mask=cols < width, other=0.0).to(tl.float32)
    weight_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    bias_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    branch_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row, col, offset, mask = _tile(first, rows, width, ROWS, BLOCK)
        y_offset, y_mask = offset, mask
        if PACKED_Y:
            y_offset, y_kept = _packed_offset(y_images, row, col, rows, per_image, width)
            y_mask = mask & y_kept
        g = tl.load(dy + y_offset, mask=y_mask, other=0.0).to(tl.float32)
        v = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        skip = tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
        row_rstd = tl.load(rstd + row, mask=row < rows, other=0.0)
        normed = tl.where(mask, (v - tl.load(mean + row, mask=row < rows, other=0.0)) * row_rstd, 0.0)
        tl.store(y + y_offset, (normed * w + b).to(y.dtype.element_ty), mask=y_mask)
        weight_sum += g * normed
        bias_sum += g
        g *= w
        projection = tl.sum(g * normed, 1)[:, None] / width
        g_mean = tl.sum(g, 1)[:, None] / width
        total = tl.where(mask, skip + (g - normed * projection - g_mean) * row_rstd, 0.0).to(dx.dtype.element_ty)
        tl.store(dx + offset, total, mask=mask)
        branch_grad = total.to(tl.float32)
        if SCALE_BRANCH:
            branch_grad *= tl.load(branch_images + row // per_image, mask=row < rows, other=0.0)
            tl.store(dz + offset, branch_grad.to(dz.dtype.element_ty), mask=mask)
        if PACKED_BRANCH:
            z_offset, z_kept = _packed_offset(branch_images, row, col, rows, per_image, width)
            branch_grad = tl.where(z_kept, branch_grad * branch_scale, 0.0)
            tl.store(dz + z_offset, branch_grad.to(dz.dtype.element_ty), mask=mask & z_kept)
        branch_sum += branch_grad
    flat = tl.arange(0, BLOCK)
    out = sums + tl.program_id(0) * 3 * width + flat
    tl.store(out, tl.sum(weight_sum, 0), mask=flat < width)
    tl.store(out + width, tl.sum(bias_sum, 0), mask=flat < width)
    tl.store(out + 2 * width, tl.sum(branch_sum, 0), mask=flat < width)


@on_tensor_device
def norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor,
    branch_images: Tensor | KeptImages | None = None,
    per_image: int = 1,
    y_images: KeptImages | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Backward pass of `add_norm`, from the gradients of the norm's output (`dy`) and of the sum x (`residual`).

    Return the gradient of x; the gradient of the branch that was added to x; the norm's output, recomputed; and partial
    sums over rows (parts, 3, D) of the gradients of the norm's weight, its bias, and the branch. `branch_images` and
    `y_images` are those of `add_norm`; dy and the recomputed output are packed for `y_images`.
    """
    rows, width = x.shape
    dx, y, dz = torch.empty_like(x), torch.empty_like(dy), None
    if branch_images is not None:
        dz_rows = branch_images.image_count * per_image if isinstance(branch_images, KeptImages) else rows
        dz = x.new_empty(dz_rows, width)
    tile = _row_tile(width, 1024)
    programs = min(triton.cdiv(rows, tile["ROWS"]), _multiprocessors(x.device) * PROGRAMS_PER_SM // 2)
    sums = x.new_empty(programs, 3, width, dtype=torch.float32)
    _norm_backward_kernel[(programs,)](
        dy, x, mean, rstd, weight, bias, residual, _pointer(branch_images), _pointer(y_images), dx, dz, y, sums, rows,
        per_image, _scale(branch_images), SCALE_BRANCH=isinstance(branch_images, Tensor),
        PACKED_BRANCH=isinstance(branch_images, KeptImages), PACKED_Y=y_images is not None, STAGES=3, **tile,
    )  # fmt: skip
    return dx, dx if dz is None else dz, y, sums


def _pointer(images: Tensor | KeptImages | None) -> Tensor | None:
    return images.image_index if isinstance(images, KeptImages) else images


def _scale(images: Tensor | KeptImages | None) -> float:
    return images.scale if isinstance(images, KeptImages) else 1.0


# ---------------------------------------------------------------- GELU


@triton.jit
def _gelu(x, TANH: tl.constexpr):
    """Return s with GELU(x) = x s, and x ds/dx. The derivative of GELU is the sum of both.

    With TANH, s is the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3), which equals the tanh form. Otherwise s
    is the normal distribution function by Abramowitz and Stegun 26.2.17, to 1e-7; its exponential is reused for the
    density.
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
def _gelu_kernel(h, g, count, fp8_scale, TANH: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(h + offset, mask=offset < count, other=0.0).to(tl.float32)
    s, _ = _gelu(x, TANH)
    value = x * s
    if FP8:
        value = tl.clamp(value * fp8_scale, -FP8_MAX, FP8_MAX)
    tl.store(g + offset, value.to(g.dtype.element_ty), mask=offset < count)


@on_tensor_device
def gelu(h: Tensor, tanh: bool, fp8_scale: float | None = None) -> Tensor:
    """Return GELU(h). `fp8_scale`: return it in fp8, multiplied by this scale."""
    g, block = torch.empty_like(h, dtype=h.dtype if fp8_scale is None else FP8), 2048
    _gelu_kernel[(triton.cdiv(h.numel(), block),)](
        h, g, h.numel(), fp8_scale or 1.0, TANH=tanh, BLOCK=block, FP8=fp8_scale is not None, num_warps=4
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
        offset = row.to(tl.int64) * width + col
        mask = (row < rows) & (col < width)
        d = tl.load(dg + offset, mask=mask, other=0.0)
        if GELU:
            s, x_ds = _gelu(tl.load(h + offset, mask=mask, other=0.0).to(tl.float32), TANH)
            d = (d.to(tl.float32) * (s + x_ds)).to(dg.dtype.element_ty)
            tl.store(dg + offset, d, mask=mask)
        total += d.to(tl.float32)
    flat = tl.program_id(0) * COLS + tl.arange(0, COLS)
    tl.store(sums + tl.program_id(1) * width + flat, tl.sum(total, 0), mask=flat < width)


@on_tensor_device
def gelu_backward_(h: Tensor | None, dg: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Overwrite the gradient of GELU(h) with the gradient of h. Return it and its partial sums over rows, (parts,
    width).

    h = None: dg already is the gradient of h, and only the sums are computed.
    """
    rows, width = dg.shape
    cols = min(1024, triton.next_power_of_2(width))
    grid = _launch_grid(rows, width, dg.device, 4, cols)
    sums = dg.new_empty(grid[1], width, dtype=torch.float32)
    sizes = {"STAGES": 3, "num_warps": 4} if h is None else {"STAGES": 2, "num_warps": 8}
    _gelu_backward_kernel[grid](h, dg, sums, rows, width, TANH=tanh, GELU=h is not None, ROWS=4, COLS=cols, **sizes)
    return dg, sums


def _launch_grid(rows: int, width: int, device: torch.device, ROWS: int, COLS: int) -> tuple[int, int]:
    """Return the launch grid (columns, strips of rows): enough programs to fill the GPU, and few enough that each sums
    many rows in registers."""
    columns = triton.cdiv(width, COLS)
    return columns, max(1, min(triton.cdiv(rows, ROWS), _multiprocessors(device) * PROGRAMS_PER_SM // columns))


# ---------------------------------------------------------------- attention


@triton.jit
def _merge_qkv_kernel(
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
        mask = (row < rows) & (col < width)
        image = (row // tokens).to(tl.int64)
        offset = image * stride_b + (row % tokens) * stride_t + (col // head) * stride_h + col % head
        value = tl.load(source + offset, mask=mask, other=0.0)
        tl.store(out + row.to(tl.int64) * 3 * width + part * width + col, value, mask=mask)
        total += value.to(tl.float32)
    flat = tl.program_id(0) * COLS + tl.arange(0, COLS)
    tl.store(sums + (tl.program_id(1) * 3 + part) * width + flat, tl.sum(total, 0), mask=flat < width)


@on_tensor_device
def merge_qkv_gradients(dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the gradients of queries, keys and values, (B, heads, T, d) each with any strides, into the gradient of
    qkv (B x T, 3 D). Return it and its partial sums over rows, (parts, 3 D)."""
    if not dq.stride() == dk.stride() == dv.stride() or dq.stride(3) != 1:
        dq, dk, dv = dq.contiguous(), dk.contiguous(), dv.contiguous()
    batch, heads, tokens, head = dq.shape
    rows, width = batch * tokens, heads * head
    cols = min(1024, triton.next_power_of_2(width))
    grid = (triton.cdiv(width, cols), _launch_grid(rows, 3 * width, dq.device, 4, cols)[1], 3)
    out = dq.new_empty(rows, 3 * width)
    sums = dq.new_empty(grid[1], 3 * width, dtype=torch.float32)
    _merge_qkv_kernel[grid](
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
    mask = (line < lines) & (x < cols * width)
    y = strip % rows * height + line % height
    offset = (strip // rows).to(tl.int64) * stride_b + line // height * stride_c + y * stride_y + x * stride_x
    value = tl.load(images + offset, mask=mask, other=0).to(tl.float32) - shift
    patch = strip.to(tl.int64) * cols + x // width
    tl.store(out + patch * lines * width + line * width + x % width, value.to(out.dtype.element_ty), mask=mask)


@on_tensor_device
def extract_patches(images: Tensor, patch: tuple[int, int], dtype: torch.dtype, shift: float = 0.0) -> Tensor:
    """Return the patches of images (B, C, H, W) of any dtype as rows (B x rows x cols, C x h x w), minus `shift`."""
    batch, channels, height, width = images.shape
    rows, cols, lines = height // patch[0], width // patch[1], channels * patch[0]
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
    z, prefix, positions, out, rows, tokens, prefix_tokens, width: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    row, col, offset, mask = _tile(tl.program_id(0) * ROWS, rows, width, ROWS, BLOCK)
    token, image = row % tokens, (row // tokens).to(tl.int64)
    is_patch = mask & (token >= prefix_tokens)
    patch = image * (tokens - prefix_tokens) + token - prefix_tokens
    value = tl.load(z + patch * width + col, mask=is_patch, other=0.0).to(tl.float32)
    value += tl.load(prefix + token * width + col, mask=mask & (token < prefix_tokens), other=0.0).to(tl.float32)
    if POSITIONS:
        value += tl.load(positions + token * width + col, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=mask)


@on_tensor_device
def assemble_tokens(z: Tensor, prefix: Tensor, positions: Tensor | None, batch: int) -> Tensor:
    """Return tokens (B, T, D): the prefix tokens (P, D), then the embedded patches z (B x N, D), plus the positions (T,
    D) of all."""
    width, tokens = z.shape[1], len(prefix) + len(z) // batch
    out = z.new_empty(batch, tokens, width)
    tile = _row_tile(width, 2048)
    _assemble_kernel[(triton.cdiv(batch * tokens, tile["ROWS"]),)](
        z, prefix, positions, out, batch * tokens, tokens, len(prefix), POSITIONS=positions is not None, **tile
    )
    return out
