"""Matrix products with more at their end than torch asks cuBLASLt for: a residual, a GELU, or a GELU's derivative.

What a product adds while its numbers are in registers is not read and written a second time. torch offers some of these
ends and cuBLASLt has more, so it is called directly, through ctypes: nothing is to be compiled. Where it is missing, or
cannot do a shape, the same is done in steps. The library proposes several algorithms for a product; the first time one
is asked for they are timed, for the first proposal can be a sixth slower than the best. Not where torch is told to be
deterministic.
"""

import ctypes
import math
import threading
import weakref
from collections import Counter, OrderedDict
from contextlib import suppress
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p, sizeof
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.fast.guards import on_its_device
from vitreous.fast.kernels import FP8, gelu_backward_

HALF = torch.bfloat16
TYPES = {torch.float32: 0, torch.bfloat16: 14, FP8: 28}  # of cudaDataType
IN_FP32 = 68  # cublasComputeType: sums in fp32
# Attributes of a product.
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS, AUXILIARY, AUXILIARY_STRIDE = 3, 4, 7, 8, 11, 12
SCALE_A, SCALE_B, SCALE_D, AUXILIARY_TYPE, FAST_SUMS, BIAS_TYPE = 17, 18, 20, 22, 25, 26
# What it does at its end.
NOTHING, ADD_BIAS, GELU, KEEP_INPUT, GELU_BACKWARD = 1, 4, 32, 128, 64 | 128
WORKSPACE = 32 << 20
PROPOSALS = 8
PLANS = 512  # that a thread keeps, those used last
TRIALS = 4  # of the sizes of one product that differ in their rows alone; where they change all the time it never pays


class _Choice(ctypes.Structure):
    """An algorithm, as the library's heuristic describes it."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@cache
def _library() -> Any:
    """cuBLASLt of the CUDA that torch was built with, which has loaded it already; None: not to be had."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return None
    try:
        library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
        library.cublasLtMatmul.argtypes = [c_void_p] * 14 + [c_size_t, c_void_p]
        library.cublasLtMatrixLayoutCreate.argtypes = [POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64]
        library.cublasLtMatmulDescCreate.argtypes = [POINTER(c_void_p), c_int, c_int]
        library.cublasLtMatmulDescSetAttribute.argtypes = [c_void_p, c_int, c_void_p, c_size_t]
        library.cublasLtMatmulPreferenceSetAttribute.argtypes = [c_void_p, c_int, c_void_p, c_size_t]
        library.cublasLtMatmulAlgoGetHeuristic.argtypes = [c_void_p] * 7 + [c_int, c_void_p, c_void_p]
        for name in ("MatmulDesc", "MatrixLayout", "MatmulPreference"):
            getattr(library, f"cublasLt{name}Destroy").argtypes = [c_void_p]
    except (OSError, AttributeError):
        return None
    return library


class UnsupportedError(RuntimeError):
    """The library cannot do this product."""


def _ask(function: str, *arguments: Any) -> None:
    if status := getattr(_library(), function)(*arguments):
        raise UnsupportedError(f"{function}: status {status}")


def _make(owner: object, name: str, *arguments: Any) -> c_void_p:
    """Something of the library's, freed when its owner is gone. Not when the process ends: all of it goes then."""
    made = c_void_p()
    _ask(f"cublasLt{name}Create", byref(made), *arguments)
    weakref.finalize(owner, getattr(_library(), f"cublasLt{name}Destroy"), made).atexit = False
    return made


class Key(NamedTuple):
    """What decides how a product is done. Sizes as the library counts them: D (m, n) = A (m, k) B (k, n), each stored
    column after column."""

    device: int
    m: int
    n: int
    k: int
    transpose_a: bool
    inputs: torch.dtype
    output: torch.dtype
    epilogue: int
    adds: bool
    free: bool  # to take the fastest algorithm; otherwise always the same


class _Plan:
    def __init__(self, key: Key, pointers: dict[int, int]):
        self.device = key.device
        self.description = _make(self, "MatmulDesc", IN_FP32, TYPES[torch.float32])
        self.set(TRANSPOSE_A, c_int(key.transpose_a))
        self.set(EPILOGUE, c_int(key.epilogue))
        if key.epilogue & KEEP_INPUT:
            self.set(AUXILIARY_STRIDE, c_int64(key.m))
            self.set(AUXILIARY_TYPE, c_int(TYPES[HALF]))
        if key.epilogue & ADD_BIAS:
            self.set(BIAS_TYPE, c_int(TYPES[HALF]))
        if key.inputs == FP8:
            self.set(FAST_SUMS, ctypes.c_int8(1))
        self.point(pointers)  # alignment decides what the heuristic may choose
        a = (key.k, key.m) if key.transpose_a else (key.m, key.k)
        self.a = self._layout(key.inputs, *a)
        self.b = self._layout(key.inputs, key.k, key.n)
        self.d = self._layout(key.output, key.m, key.n)
        self.c = self._layout(HALF if key.output == FP8 else key.output, key.m, key.n)
        self.one, self.beta = c_float(1), c_float(key.adds)
        self.proposals = self._proposed()
        self.choice = self.proposals[0]

    def set(self, attribute: int, value: Any) -> None:
        _ask("cublasLtMatmulDescSetAttribute", self.description, attribute, byref(value), sizeof(value))

    def point(self, pointers: dict[int, int]) -> None:
        for attribute, address in pointers.items():
            self.set(attribute, c_void_p(address))

    def _layout(self, dtype: torch.dtype, rows: int, cols: int) -> c_void_p:
        return _make(self, "MatrixLayout", TYPES[dtype], rows, cols, rows)

    def _proposed(self) -> list[_Choice]:
        preference, most, found = _make(self, "MatmulPreference"), c_size_t(WORKSPACE), c_int()
        _ask("cublasLtMatmulPreferenceSetAttribute", preference, 1, byref(most), sizeof(most))
        choices, layouts = (_Choice * PROPOSALS)(), (self.a, self.b, self.c, self.d)
        _ask(
            "cublasLtMatmulAlgoGetHeuristic",
            _handle(self.device), self.description, *layouts, preference, PROPOSALS, byref(choices), byref(found),
        )  # fmt: skip
        usable = [choice for choice in list(choices)[: found.value] if choice.state == 0]
        if not usable:
            raise UnsupportedError("no algorithm")
        return usable

    def try_out(self, *arguments: Any) -> None:
        """Keep the proposal that takes the least time. Another one than the first has to be clearly faster."""
        times = [math.inf] * len(self.proposals)
        for _ in range(3):
            for i, proposal in enumerate(self.proposals):
                self.choice = proposal
                with suppress(UnsupportedError):
                    times[i] = min(times[i], self._timed(arguments))
        best = min(range(len(times)), key=times.__getitem__)
        self.choice = self.proposals[best if times[best] < 0.98 * times[0] else 0]

    def _timed(self, arguments: Any) -> float:
        self(*arguments)  # which may have to load its code
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        for _ in range(3):
            self(*arguments)
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended))

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, pointers: dict[int, int]) -> None:
        self.point(pointers)
        stream = torch.cuda.current_stream(d.device)
        added = None if c is None else c.data_ptr()
        workspace = _workspace(d.device, stream.cuda_stream)
        _ask(
            "cublasLtMatmul", _handle(self.device), self.description, byref(self.one), a.data_ptr(), self.a,
            b.data_ptr(), self.b, byref(self.beta), added, self.c, d.data_ptr(), self.d, byref(self.choice.algorithm),
            workspace.data_ptr(), WORKSPACE, stream.cuda_stream,
        )  # fmt: skip


class _Own(threading.local):
    """What threads must not share: a plan is pointed at its tensors before each product."""

    def __init__(self) -> None:
        self.plans: OrderedDict[Key, _Plan | None] = OrderedDict()
        self.trials: Counter[Key] = Counter()
        self.handles: dict[int, c_void_p] = {}  # by device


_own = _Own()
# By device and stream, on which products follow each other. A CUDA graph goes on using its workspace when the thread
# that recorded it is gone.
_workspaces: dict[tuple[torch.device, int], Tensor] = {}


def _handle(device: int) -> c_void_p:
    """Made while that device is torch's current one. Never destroyed, for that waits for the whole device."""
    if device not in _own.handles:
        handle = c_void_p()
        _ask("cublasLtCreate", byref(handle))
        _own.handles[device] = handle
    return _own.handles[device]


def _workspace(device: torch.device, stream: int) -> Tensor:
    key = (device, stream)
    if key not in _workspaces:
        _workspaces.setdefault(key, torch.empty(WORKSPACE, dtype=torch.uint8, device=device))
    return _workspaces[key]


@on_its_device
def _product(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    transpose_a: bool,
    epilogue: int = NOTHING,
    add: Tensor | None = None,
    **pointers: Tensor | None,
) -> bool:
    """out = b a' (or b a) and what is at its end, in row-major terms; False: it cannot be done here."""
    if _library() is None or not all(t.is_contiguous() for t in (a, b, out)):
        return False
    rows, k = b.shape
    free = not torch.are_deterministic_algorithms_enabled()
    types = (a.dtype, out.dtype)
    key = Key(out.get_device(), out.shape[1], rows, k, transpose_a, *types, epilogue, add is not None, free)
    at = {globals()[name]: tensor.data_ptr() for name, tensor in pointers.items() if tensor is not None}
    if key not in _own.plans:
        try:
            _own.plans[key] = made = _Plan(key, at)
            if _may_try(key):
                made.try_out(a, b, add, out, at)
        except UnsupportedError:
            _own.plans[key] = None
        while len(_own.plans) > PLANS:
            _own.plans.popitem(last=False)
    _own.plans.move_to_end(key)
    if (plan := _own.plans[key]) is None:
        return False
    try:
        plan(a, b, add, out, at)
    except UnsupportedError:  # a plan can be refused for these tensors: where they lie decides too
        return False
    return True


def _may_try(key: Key) -> bool:
    """Whether there is time for it: not while a CUDA graph is recorded."""
    if not key.free or torch.cuda.is_current_stream_capturing():
        return False
    alike = key._replace(n=0)
    _own.trials[alike] += 1
    return _own.trials[alike] <= TRIALS


# ---------------------------------------------------------------- what a block asks for


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
    """x weight' + bias, and `add` if there is something to add."""
    if add is None:
        return F.linear(x, weight, bias)
    out = torch.empty_like(add)
    epilogue = NOTHING if bias is None else ADD_BIAS
    if x.is_cuda and add.is_contiguous() and _product(weight, x, out, True, epilogue, add, BIAS=bias):
        return out
    return torch.add(F.linear(x, weight, bias), add)


def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None, keep: bool = False
) -> tuple[Tensor, Tensor | None] | None:
    """GELU (its tanh form) of x weight' + bias; with `keep`, also what it was taken of. None: not here."""
    if not x.is_cuda or bias is None:
        return None
    out = x.new_empty(len(x), len(weight))
    h = torch.empty_like(out) if keep else None
    epilogue = GELU | ADD_BIAS | (KEEP_INPUT if keep else 0)
    return (out, h) if _product(weight, x, out, True, epilogue, BIAS=bias, AUXILIARY=h) else None


def product_gelu_backward(dz: Tensor, weight: Tensor, h: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """(dz weight) x GELU'(h), and parts of its sum over rows."""
    if tanh and dz.is_cuda:
        out = torch.empty_like(h)
        if _product(weight, dz, out, False, GELU_BACKWARD, AUXILIARY=h):
            return gelu_backward_(None, out, tanh)
    return gelu_backward_(h, dz @ weight, tanh)


class Scales(NamedTuple):
    """On the device, each a tensor of its own (the library wants them aligned): what a number of the weight, and one of
    the input, is to be multiplied by to be itself again."""

    weight: Tensor
    input: Tensor


def linear_fp8(x: Tensor, weight: Tensor, scales: Scales, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
    """x weight' + bias + add, of x and weight (N, K) in fp8; in bf16."""
    if add is not None:
        out, epilogue = torch.empty_like(add), NOTHING if bias is None else ADD_BIAS
        given = {"BIAS": bias, "SCALE_A": scales.weight, "SCALE_B": scales.input}
        if x.is_cuda and add.is_contiguous() and _product(weight, x, out, True, epilogue, add, **given):
            return out
    out = torch._scaled_mm(x, weight.t(), scales.input, scales.weight, bias=bias, out_dtype=HALF, use_fast_accum=True)
    return out if add is None else out.add_(add)


def linear_gelu_fp8(x: Tensor, weight: Tensor, scales: Scales, bias: Tensor | None, factor: Tensor) -> Tensor | None:
    """GELU (its tanh form) of x weight' + bias, multiplied by `factor`, in fp8 again. None: not here."""
    if not x.is_cuda or bias is None:
        return None
    out = torch.empty(len(x), len(weight), dtype=FP8, device=x.device)
    given = {"BIAS": bias, "SCALE_A": scales.weight, "SCALE_B": scales.input, "SCALE_D": factor}
    return out if _product(weight, x, out, True, GELU | ADD_BIAS, **given) else None
