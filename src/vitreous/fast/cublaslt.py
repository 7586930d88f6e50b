"""Matmuls with a fused epilogue by cuBLASLt: a residual, a GELU, or the derivative of a GELU.

An epilogue works on the result while it is in registers, which saves a pass over memory. torch offers some epilogues
and cuBLASLt has more, so it is called directly, through ctypes: no compilation is needed. Where the library is missing
or does not support a shape, separate operators compute the same. The heuristic of the library returns several
algorithms for a matmul. They are timed at the first call, because the first one can be a sixth slower than the best. In
torch's deterministic mode the first one is used.
"""

import ctypes
import math
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p, sizeof
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.fast.guards import on_tensor_device
from vitreous.fast.kernels import FP8, gelu_backward_

HALF = torch.bfloat16
DATA_TYPES = {torch.float32: 0, torch.bfloat16: 14, FP8: 28}  # cudaDataType
COMPUTE_32F = 68  # cublasComputeType: accumulate in fp32
# cublasLtMatmulDescAttributes_t
TRANSPOSE_A, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_STRIDE = 3, 7, 8, 11, 12
SCALE_A_POINTER, SCALE_B_POINTER, SCALE_D_POINTER, AUX_TYPE, FAST_ACCUMULATION, BIAS_TYPE = 17, 18, 20, 22, 25, 26
# cublasLtEpilogue_t, as flags: GELU | SAVE_INPUT stores the input of the GELU in the auxiliary tensor.
NO_EPILOGUE, ADD_BIAS, GELU, SAVE_INPUT, GELU_BACKWARD = 1, 4, 32, 128, 64 | 128
WORKSPACE_BYTES = 32 << 20
MAX_ALGORITHMS = 8  # requested from the heuristic
MAX_PLANS = 512  # cached per thread; the least recently used is dropped
MAX_AUTOTUNED = 4  # matmuls that differ only in their number of rows: if that always changes, timing never pays off


class _HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@cache
def _library() -> Any:
    """Return the cuBLASLt of torch's CUDA version, which torch has already loaded, or None if there is none."""
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
    """cuBLASLt does not support this matmul."""


def _call(function: str, *arguments: Any) -> None:
    if status := getattr(_library(), function)(*arguments):
        raise UnsupportedError(f"{function}: status {status}")


def _create(owner: object, name: str, *arguments: Any) -> c_void_p:
    """Create an object of the library. It is destroyed when its owner is collected, but not at exit of the process."""
    created = c_void_p()
    _call(f"cublasLt{name}Create", byref(created), *arguments)
    weakref.finalize(owner, getattr(_library(), f"cublasLt{name}Destroy"), created).atexit = False
    return created


class MatmulKey(NamedTuple):
    """The properties of a matmul that determine its plan. Sizes in column-major order, as the library counts them:
    D (m, n) = A (m, k) B (k, n)."""

    device: int
    m: int
    n: int
    k: int
    transpose_a: bool
    inputs: torch.dtype
    output: torch.dtype
    epilogue: int
    adds: bool
    autotune: bool  # use the fastest algorithm; otherwise the first one


class _MatmulPlan:
    """Descriptors and algorithm of a matmul."""

    def __init__(self, key: MatmulKey, pointers: dict[int, int]):
        self.device = key.device
        self.description = _create(self, "MatmulDesc", COMPUTE_32F, DATA_TYPES[torch.float32])
        self.set(TRANSPOSE_A, c_int(key.transpose_a))
        self.set(EPILOGUE, c_int(key.epilogue))
        if key.epilogue & SAVE_INPUT:
            self.set(AUX_STRIDE, c_int64(key.m))
            self.set(AUX_TYPE, c_int(DATA_TYPES[HALF]))
        if key.epilogue & ADD_BIAS:
            self.set(BIAS_TYPE, c_int(DATA_TYPES[HALF]))
        if key.inputs == FP8:
            self.set(FAST_ACCUMULATION, ctypes.c_int8(1))
        self.set_pointers(pointers)  # the heuristic depends on their alignment
        a = (key.k, key.m) if key.transpose_a else (key.m, key.k)
        self.a = self._layout(key.inputs, *a)
        self.b = self._layout(key.inputs, key.k, key.n)
        self.d = self._layout(key.output, key.m, key.n)
        self.c = self._layout(HALF if key.output == FP8 else key.output, key.m, key.n)
        self.one, self.beta = c_float(1), c_float(key.adds)
        self.algorithms = self._heuristic()
        self.selected = self.algorithms[0]

    def set(self, attribute: int, value: Any) -> None:
        _call("cublasLtMatmulDescSetAttribute", self.description, attribute, byref(value), sizeof(value))

    def set_pointers(self, pointers: dict[int, int]) -> None:
        for attribute, address in pointers.items():
            self.set(attribute, c_void_p(address))

    def _layout(self, dtype: torch.dtype, rows: int, cols: int) -> c_void_p:
        return _create(self, "MatrixLayout", DATA_TYPES[dtype], rows, cols, rows)

    def _heuristic(self) -> list[_HeuristicResult]:
        """Return the algorithms that the library suggests."""
        preference, limit, count = _create(self, "MatmulPreference"), c_size_t(WORKSPACE_BYTES), c_int()
        _call("cublasLtMatmulPreferenceSetAttribute", preference, 1, byref(limit), sizeof(limit))
        results, layouts = (_HeuristicResult * MAX_ALGORITHMS)(), (self.a, self.b, self.c, self.d)
        _call(
            "cublasLtMatmulAlgoGetHeuristic",
            _handle(self.device), self.description, *layouts, preference, MAX_ALGORITHMS, byref(results), byref(count),
        )  # fmt: skip
        usable = [result for result in list(results)[: count.value] if result.state == 0]
        if not usable:
            raise UnsupportedError("no algorithm")
        return usable

    def autotune(self, *arguments: Any) -> None:
        """Time the algorithms and select the fastest. It must be 2% faster than the first one to replace it."""
        times = [math.inf] * len(self.algorithms)
        for _ in range(3):
            for i, algorithm in enumerate(self.algorithms):
                self.selected = algorithm
                with suppress(UnsupportedError):
                    times[i] = min(times[i], self._time(arguments))
        best = min(range(len(times)), key=times.__getitem__)
        self.selected = self.algorithms[best if times[best] < 0.98 * times[0] else 0]

    def _time(self, arguments: Any) -> float:
        self(*arguments)  # the first call may load code
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(3):
            self(*arguments)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, pointers: dict[int, int]) -> None:
        self.set_pointers(pointers)
        stream = torch.cuda.current_stream(d.device)
        c_pointer = None if c is None else c.data_ptr()
        workspace = _workspace(d.device, stream.cuda_stream)
        _call(
            "cublasLtMatmul", _handle(self.device), self.description, byref(self.one), a.data_ptr(), self.a,
            b.data_ptr(), self.b, byref(self.beta), c_pointer, self.c, d.data_ptr(), self.d,
            byref(self.selected.algorithm), workspace.data_ptr(), WORKSPACE_BYTES, stream.cuda_stream,
        )  # fmt: skip


class _ThreadState(threading.local):
    """Plans and handles of one thread. Threads cannot share a plan: its pointers are set before each matmul."""

    def __init__(self) -> None:
        self.plans: OrderedDict[MatmulKey, _MatmulPlan | None] = OrderedDict()
        self.autotuned: Counter[MatmulKey] = Counter()
        self.handles: dict[int, c_void_p] = {}  # by device


_state = _ThreadState()
# By device and stream: the matmuls of a stream run one after the other. Shared by all threads, because a CUDA graph
# still uses its workspace after the thread that captured it has ended.
_workspaces: dict[tuple[torch.device, int], Tensor] = {}


def _handle(device: int) -> c_void_p:
    """Return the handle of a device, which must be torch's current one. Handles are never destroyed, because that would
    synchronise the device."""
    if device not in _state.handles:
        handle = c_void_p()
        _call("cublasLtCreate", byref(handle))
        _state.handles[device] = handle
    return _state.handles[device]


def _workspace(device: torch.device, stream: int) -> Tensor:
    key = (device, stream)
    if key not in _workspaces:
        _workspaces.setdefault(key, torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device))
    return _workspaces[key]


@on_tensor_device
def _matmul(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    transpose_a: bool,
    epilogue: int = NO_EPILOGUE,
    add: Tensor | None = None,
    tensors: Mapping[int, Tensor | None] | None = None,
) -> bool:
    """Compute out = b a' (or b a) and the epilogue, in row-major terms. `tensors`: bias, auxiliary tensor and scales.
    Return False if the library does not support this matmul."""
    if _library() is None or not all(t.is_contiguous() for t in (a, b, out)):
        return False
    rows, k = b.shape
    autotune = not torch.are_deterministic_algorithms_enabled()
    dtypes = (a.dtype, out.dtype)
    key = MatmulKey(out.get_device(), out.shape[1], rows, k, transpose_a, *dtypes, epilogue, add is not None, autotune)
    pointers = {name: tensor.data_ptr() for name, tensor in (tensors or {}).items() if tensor is not None}
    if key not in _state.plans:
        try:
            _state.plans[key] = new_plan = _MatmulPlan(key, pointers)
            if _may_autotune(key):
                new_plan.autotune(a, b, add, out, pointers)
        except UnsupportedError:
            _state.plans[key] = None
        while len(_state.plans) > MAX_PLANS:
            _state.plans.popitem(last=False)
    _state.plans.move_to_end(key)
    if (plan := _state.plans[key]) is None:
        return False
    try:
        plan(a, b, add, out, pointers)
    except UnsupportedError:  # a plan may not support the alignment of these tensors
        return False
    return True


def _may_autotune(key: MatmulKey) -> bool:
    """Return whether algorithms may be timed now: not during the capture of a CUDA graph."""
    if not key.autotune or torch.cuda.is_current_stream_capturing():
        return False
    any_rows = key._replace(n=0)
    _state.autotuned[any_rows] += 1
    return _state.autotuned[any_rows] <= MAX_AUTOTUNED


# ---------------------------------------------------------------- linear layers of a block


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
    """Return x weight' + bias + add."""
    if add is None:
        return F.linear(x, weight, bias)
    out = torch.empty_like(add)
    epilogue = NO_EPILOGUE if bias is None else ADD_BIAS
    if x.is_cuda and add.is_contiguous() and _matmul(weight, x, out, True, epilogue, add, {BIAS_POINTER: bias}):
        return out
    return torch.add(F.linear(x, weight, bias), add)


def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None, keep_input: bool = False
) -> tuple[Tensor, Tensor | None] | None:
    """Return GELU (tanh form) of x weight' + bias, and with `keep_input` its input. None: not supported."""
    if not x.is_cuda or bias is None:
        return None
    out = x.new_empty(len(x), len(weight))
    h = torch.empty_like(out) if keep_input else None
    epilogue = GELU | ADD_BIAS | (SAVE_INPUT if keep_input else 0)
    done = _matmul(weight, x, out, True, epilogue, tensors={BIAS_POINTER: bias, AUX_POINTER: h})
    return (out, h) if done else None


def matmul_gelu_backward(dz: Tensor, weight: Tensor, h: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Return (dz weight) x GELU'(h), and its partial sums over rows."""
    if tanh and dz.is_cuda:
        out = torch.empty_like(h)
        if _matmul(weight, dz, out, False, GELU_BACKWARD, tensors={AUX_POINTER: h}):
            return gelu_backward_(None, out, tanh)
    return gelu_backward_(h, dz @ weight, tanh)


class Fp8Scales(NamedTuple):
    """Factors that convert fp8 numbers of the weight and of the input back to their values. Each is a tensor of its own
    on the device, because the library requires alignment."""

    weight: Tensor
    input: Tensor


def linear_fp8(x: Tensor, weight: Tensor, scales: Fp8Scales, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
    """Return x weight' + bias + add in bf16, with x and weight (N, K) in fp8."""
    if add is not None:
        out, epilogue = torch.empty_like(add), NO_EPILOGUE if bias is None else ADD_BIAS
        tensors = {BIAS_POINTER: bias, SCALE_A_POINTER: scales.weight, SCALE_B_POINTER: scales.input}
        if x.is_cuda and add.is_contiguous() and _matmul(weight, x, out, True, epilogue, add, tensors):
            return out
    out = torch._scaled_mm(x, weight.t(), scales.input, scales.weight, bias=bias, out_dtype=HALF, use_fast_accum=True)
    return out if add is None else out.add_(add)


def linear_gelu_fp8(
    x: Tensor, weight: Tensor, scales: Fp8Scales, bias: Tensor | None, out_scale: Tensor
) -> Tensor | None:
    """Return GELU (tanh form) of x weight' + bias in fp8, multiplied by `out_scale`. None: not supported."""
    if not x.is_cuda or bias is None:
        return None
    out = torch.empty(len(x), len(weight), dtype=FP8, device=x.device)
    tensors = {BIAS_POINTER: bias, SCALE_A_POINTER: scales.weight, SCALE_B_POINTER: scales.input}
    done = _matmul(weight, x, out, True, GELU | ADD_BIAS, tensors={**tensors, SCALE_D_POINTER: out_scale})
    return out if done else None
