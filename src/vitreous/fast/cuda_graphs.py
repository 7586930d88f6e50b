"""CUDA graphs: capture a function of tensors once and replay it.

With small batches the host needs longer to launch a kernel than the GPU needs to run it. A graph is one launch.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

Outputs = TypeVar("Outputs")

MAX_GRAPHS = 8  # input shapes per function; the least recently used graph is dropped
WARM_UP_CALLS = 2  # before the capture, to compile kernels and select algorithms, which cannot be captured
CAPTURE_LOCK = threading.RLock()  # torch captures one graph at a time per process, and the streams below are shared


@cache
def _stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """Return one stream for all captures: libraries allocate memory for every stream they see."""
    return torch.cuda.Stream(device)


@contextmanager
def _warm_up_stream(device: torch.device) -> Iterator[None]:
    """Run on a side stream, as torch requires for warm-up calls before a capture."""
    current, side = torch.cuda.current_stream(device), _stream(device, "warm-up")
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


class CapturedGraph(Generic[Outputs]):
    """`run(*inputs)` captured for inputs of one shape.

    Every call writes to the same output tensors. They are valid until the next call.
    """

    def __init__(
        self,
        run: Callable[..., Outputs],
        inputs: Sequence[Tensor],
        before: Callable[[], None] = lambda: None,
        error_mode: str = "global",
    ):
        """`before` is called before each warm-up call and before the capture. `error_mode`: torch's
        `capture_error_mode`; "thread_local" allows other threads to allocate memory during the capture."""
        device = inputs[0].device
        with CAPTURE_LOCK, torch.cuda.device_of(inputs[0]):
            self.inputs = [tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs]
            with _warm_up_stream(device):
                for _ in range(WARM_UP_CALLS):
                    before()
                    run(*self.inputs)
            before()
            self.graph = torch.cuda.CUDAGraph()
            # A stream of this device: torch's default capture stream belongs to the device that was current when the
            # first graph of the process was captured.
            stream = _stream(device, "capture")
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode=error_mode):
                self.outputs = run(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Outputs:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.outputs


class GraphedFunction:
    """`run(x)` with one graph per shape, dtype and device of x, captured at the second call. Safe to use from several
    threads."""

    def __init__(self, run: Callable[[Tensor], Tensor]):
        self.run = run
        self.graphs: OrderedDict[object, _SharedGraph | None] = OrderedDict()
        self.lock = threading.Lock()

    def __call__(self, x: Tensor) -> Tensor:
        if not x.numel():
            return self.run(x)
        key = (x.shape, x.dtype, x.device)
        with self.lock:
            if key in self.graphs:
                self.graphs.move_to_end(key)
                graph = self.graphs[key] or _SharedGraph(self.run, x)
                self.graphs[key] = graph
                return graph(x)
            self.graphs[key] = None
            while len(self.graphs) > MAX_GRAPHS:
                self.graphs.popitem(last=False)
        return self.run(x)


class _SharedGraph:
    """A graph that several streams may call, one thread at a time. Returns a copy of the output."""

    def __init__(self, run: Callable[[Tensor], Tensor], x: Tensor):
        self.graph = CapturedGraph(run, [x], error_mode="thread_local")
        with torch.cuda.device_of(x):
            self.done = torch.cuda.Event()

    def __call__(self, x: Tensor) -> Tensor:
        with torch.cuda.device_of(x):
            torch.cuda.current_stream().wait_event(self.done)  # the last call may have used another stream
            y = self.graph(x).clone()  # the next call overwrites the output
            self.done.record()
        return y
