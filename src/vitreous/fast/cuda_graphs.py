"""A function of one tensor, recorded as a CUDA graph once for each shape and replayed: with small batches the host
needs longer to launch a kernel than the kernel runs."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

MOST = 8  # shapes that are kept, the latest
WARM_UP = 2  # calls that choose algorithms and compile, which cannot be recorded
ONE_AT_A_TIME = threading.RLock()  # torch can record one graph at a time in a process, and they share these streams


@cache
def _stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """One for all recordings: libraries keep memory for every stream they have seen."""
    return torch.cuda.Stream(device)


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """On another stream, as what is going to be recorded has to be warmed up."""
    here, there = torch.cuda.current_stream(device), _stream(device, "warm up")
    there.wait_stream(here)
    with torch.cuda.stream(there):
        yield
    here.wait_stream(there)


@contextmanager
def recording(device: torch.device, graph: torch.cuda.CUDAGraph, threads: bool = False) -> Iterator[None]:
    """What runs within this is recorded, on a stream of this device: torch's own stream for recording is of the device
    that was current when the first graph of the process was made. `threads`: others may allocate memory meanwhile."""
    mode = "thread_local" if threads else "global"
    with torch.cuda.graph(graph, stream=_stream(device, "record"), capture_error_mode=mode):
        yield


class Recorded:
    """`run(x)` for each shape and type of x, recorded the second time it is seen. Threads may share it."""

    def __init__(self, run: Callable[[Tensor], Tensor]):
        self.run = run
        self.seen: OrderedDict[object, _Recording | None] = OrderedDict()
        self.lock = threading.Lock()

    def __call__(self, x: Tensor) -> Tensor:
        if not x.numel():
            return self.run(x)
        key = (x.shape, x.dtype, x.device)
        with self.lock:
            if key in self.seen:
                self.seen.move_to_end(key)
                known = self.seen[key] or _Recording(self.run, x)
                self.seen[key] = known
                return known(x)
            self.seen[key] = None
            while len(self.seen) > MOST:
                self.seen.popitem(last=False)
        return self.run(x)


class _Recording:
    """One thread at a time may make or call it."""

    def __init__(self, run: Callable[[Tensor], Tensor], x: Tensor):
        with ONE_AT_A_TIME, torch.cuda.device_of(x):
            self.x = x.clone(memory_format=torch.contiguous_format)
            with aside(x.device):
                for _ in range(WARM_UP):
                    run(self.x)
            self.graph, self.done = torch.cuda.CUDAGraph(), torch.cuda.Event()
            with recording(x.device, self.graph, threads=True):
                self.y = run(self.x)

    def __call__(self, x: Tensor) -> Tensor:
        with torch.cuda.device_of(x):
            torch.cuda.current_stream().wait_event(self.done)  # the call before may have come on another stream
            self.x.copy_(x)
            self.graph.replay()
            y = self.y.clone()  # the next call writes over it
            self.done.record()
        return y
