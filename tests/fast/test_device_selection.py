"""Kernels, cuBLASLt and CUDA graphs use the GPU of their tensors, also if it is not the first GPU.

Runs without a GPU: torch's device switch, cuBLASLt and CUDA graphs are faked, and the tests check which device was
current at each launch.
"""

import ctypes
import gc
import importlib.util
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helpers import images

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

from vitreous.benchmark.machine import time_steps
from vitreous.fast import cublaslt, cuda_graphs, kernels, short_attention
from vitreous.fast.cuda_graphs import GraphedFunction
from vitreous.training.captured_pass import CapturedPass


class OnFirst(torch.Tensor):
    """A tensor in host memory that reports to be on GPU 0."""

    is_cuda = True

    def get_device(self) -> int:
        return 0


class OnSecond(OnFirst):
    def get_device(self) -> int:
        return 1


def on_second(*shape: int, kind: Any = OnSecond) -> Any:
    return images(*shape).as_subclass(kind)


class Current(threading.local):
    device = 0


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Current:
    """Fake torch's current device, and nothing else of CUDA."""
    state = Current()

    def exchange(device: int) -> int:
        before = state.device
        if device >= 0:
            state.device = device
        return before

    monkeypatch.setattr(torch.cuda, "_exchange_device", exchange)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", exchange)
    return state


# ---------------------------------------------------------------- Triton


def host_functions() -> dict[str, Callable[..., Any]]:
    """Return all functions that launch a kernel."""
    found = {}
    for module in (kernels, short_attention):
        for name, function in vars(module).items():
            own = inspect.isfunction(function) and function.__module__ == module.__name__
            if own and "_kernel[" in inspect.getsource(function):
                found[name] = function
    return found


CALLS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "add_norm": lambda f: f(on_second(4, 8), None, None, images(8), images(8), 1e-6),
    "norm_backward": lambda f: f(on_second(4, 8), *(images(n) for n in ((4, 8), (4,), (4,), (8,), (8,), (4, 8)))),
    "gelu": lambda f: f(on_second(4, 8), True),
    "gelu_backward_": lambda f: f(None, on_second(4, 8), True),
    "merge_qkv_gradients": lambda f: f(*(on_second(1, 2, 4, 8) for _ in range(3))),
    "extract_patches": lambda f: f(on_second(1, 3, 8, 8), (4, 4), torch.float32),
    "assemble_tokens": lambda f: f(on_second(4, 8), images(1, 8), None, 2),
    "short_attention": lambda f: f(on_second(4, 3 * 64), 1, 2),
    "short_attention_backward": lambda f: f(on_second(4, 3 * 64), images(4, 64), images(4, 64), images(1, 2, 4), 1, 2),
}


def test_every_function_that_launches_a_kernel_is_listed() -> None:
    assert host_functions().keys() == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_is_launched_on_the_device_of_its_tensors(
    name: str, current: Current, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []

    class Kernel:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *arguments, **options: launched.append(current.device)

    function = host_functions()[name]
    for module in (kernels, short_attention):
        for kernel in [kernel for kernel in vars(module) if kernel.endswith("_kernel")]:
            monkeypatch.setattr(module, kernel, Kernel())
    CALLS[name](function)
    assert launched
    assert set(launched) == {1}
    assert current.device == 0


# ---------------------------------------------------------------- cuBLASLt


@dataclass
class Library:
    """A fake of the functions of cuBLASLt that are called. Created objects are numbers; functions in `refuses` fail."""

    current: Current
    states: list[int] = field(default_factory=lambda: [0])  # of the algorithms that the heuristic returns
    refuses: set[str] = field(default_factory=set)
    calls: list[tuple[str, int]] = field(default_factory=list)  # function names, and the current device
    alive: Counter[str] = field(default_factory=Counter)
    algorithms: list[int] = field(default_factory=list)  # that matmuls were run with

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append((name, self.current.device))
            if name in self.refuses:
                return 15
            kind = name.removeprefix("cublasLt").removesuffix("Create").removesuffix("Destroy")
            if name.endswith("Create"):
                arguments[0]._obj.value = len(self.calls)
                self.alive[kind] += 1
            elif name.endswith("Destroy"):
                self.alive[kind] -= 1
            elif name == "cublasLtMatmulAlgoGetHeuristic":
                choices, found = arguments[-2]._obj, arguments[-1]._obj
                found.value = len(self.states)
                for number, state in enumerate(self.states):
                    choices[number].state, choices[number].algorithm[0] = state, number
            elif name == "cublasLtMatmul":
                self.algorithms.append(arguments[12]._obj[0])
            return 0

        return call

    def count(self, name: str, device: int | None = None) -> int:
        return sum(called == name and device in (None, where) for called, where in self.calls)


@pytest.fixture
def library(current: Current, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    fake = Library(current)
    stream = type("Stream", (), {"cuda_stream": 7})()
    monkeypatch.setattr(cublaslt, "_library", lambda: fake)
    monkeypatch.setattr(cublaslt, "_may_autotune", lambda key: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(cublaslt, "_state", cublaslt._ThreadState())
    monkeypatch.setattr(cublaslt, "_workspaces", {})
    yield fake
    gc.collect()


def run_matmul(rows: int = 4, kind: Any = OnSecond) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of a matmul by cuBLASLt, and the expected one. The fake library does not write its output."""
    x, weight, bias, add = (on_second(*shape, kind=kind) for shape in ((rows, 8), (6, 8), (6,), (rows, 6)))
    return cublaslt.linear(x, weight, bias, add), F.linear(x, weight, bias) + add


def test_a_handle_for_each_device_and_thread(library: Library, current: Current) -> None:
    for kind in (OnFirst, OnSecond, OnFirst, OnSecond):
        run_matmul(kind=kind)
    assert library.count("cublasLtCreate") == 2
    for name in ("cublasLtCreate", "cublasLtMatmulAlgoGetHeuristic"):
        assert library.count(name, device=0) == library.count(name, device=1) == 1
    assert library.count("cublasLtMatmul", device=0) == library.count("cublasLtMatmul", device=1) == 2
    assert current.device == 0
    thread = threading.Thread(target=run_matmul)
    thread.start()
    thread.join()
    assert library.count("cublasLtCreate") == 3


def test_a_workspace_outlives_the_thread_that_allocated_it(library: Library) -> None:
    """A CUDA graph that the thread captured still uses it."""
    thread = threading.Thread(target=run_matmul)
    thread.start()
    thread.join()
    gc.collect()
    assert len(cublaslt._workspaces) == 1


def test_unusable_algorithms_are_skipped(library: Library) -> None:
    library.states = [15, 7, 0, 0]
    run_matmul()
    assert library.algorithms == [2]


@pytest.mark.parametrize("states", [[], [15, 15]])
def test_without_a_usable_algorithm_torch_computes_the_matmul(library: Library, states: list[int]) -> None:
    library.states = states
    for _ in range(2):
        ours, expected = run_matmul()
        assert torch.equal(ours, expected)
    assert library.count("cublasLtMatmul") == 0
    assert library.count("cublasLtMatmulAlgoGetHeuristic") == 1


def test_a_plan_that_fails_when_it_runs(library: Library) -> None:
    run_matmul()
    library.refuses = {"cublasLtMatmul"}
    for _ in range(2):
        ours, expected = run_matmul()
        assert torch.equal(ours, expected)
    library.refuses = set()  # it may support tensors with another alignment
    run_matmul()
    assert len(library.algorithms) == 2


def test_objects_of_the_library_are_freed(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "MAX_PLANS", 2)
    for rows in range(1, 6):
        run_matmul(rows)
    gc.collect()
    assert library.alive["MatmulDesc"] == library.alive["MatmulPreference"] == 2
    assert library.alive["MatrixLayout"] == 8
    cublaslt._state.plans.clear()
    library.states = []  # a plan without an algorithm is freed too
    run_matmul(9)
    gc.collect()
    alive = [library.alive[kind] for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference")]
    assert alive == [0, 0, 0]


def test_recently_used_plans_stay_cached(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "MAX_PLANS", 2)
    for rows in (1, 2, 1, 3, 1):
        run_matmul(rows)
    assert library.count("cublasLtMatmulAlgoGetHeuristic") == 3


def test_the_size_of_a_heuristic_result() -> None:
    assert ctypes.sizeof(cublaslt._HeuristicResult) == 8 * 8 + 8 + 4 + 4 + 4 * 4  # cublasLtMatmulHeuristicResult_t


# ---------------------------------------------------------------- CUDA graphs


@dataclass
class Graph:
    """A fake graph: the calls during the capture, to be repeated."""

    steps: list[Callable[[], None]] = field(default_factory=list)

    def replay(self) -> None:
        for step in self.steps:
            step()


class Cuda:
    """A fake of the parts of torch.cuda that a capture uses."""

    def __init__(self, current: Current, monkeypatch: pytest.MonkeyPatch):
        self.current, self.capturing, self.thread = current, None, 0
        self.where: list[tuple[int, int]] = []  # for each capture: the current device, and the device of the stream
        self.captures = 0
        for name in ("Stream", "stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.Stream(device))
        event = type("Event", (), {"record": lambda self, stream=None: None})
        monkeypatch.setattr(torch.cuda, "Event", event)
        cuda_graphs._stream.cache_clear()

    def Stream(self, device: Any = None) -> Any:  # noqa: N802
        stream = type("S", (), {"wait_stream": lambda self, other: None, "wait_event": lambda self, event: None})()
        stream.number = self.current.device if device is None else device.index
        return stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    @contextmanager
    def graph(self, graph: Graph, stream: Any = None, **options: Any) -> Iterator[None]:
        self.captures += 1
        assert self.captures == 1, "torch captures one graph at a time"
        self.where.append((self.current.device, stream.number))
        self.capturing, self.thread = graph, threading.get_ident()
        time.sleep(0.001)
        yield
        self.capturing = None
        self.captures -= 1

    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        """A function that can be captured. Its replay is slow, so that threads interleave."""
        y = 2 * x
        if self.capturing is not None and threading.get_ident() == self.thread:

            def replay() -> None:
                time.sleep(0.0005)
                y.copy_(2 * x)

            self.capturing.steps.append(replay)
        return y


class At(torch.Tensor):
    """A tensor in host memory that reports to be on GPU 1."""

    number = 1
    is_cuda = True

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.number)

    def get_device(self) -> int:
        return self.number


class AtFirst(At):
    number = 0


@pytest.fixture
def cuda(current: Current, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    yield Cuda(current, monkeypatch)
    cuda_graphs._stream.cache_clear()


def test_a_graph_is_captured_on_the_device_of_its_input(cuda: Cuda) -> None:
    """Also if another device was first: torch's default capture stream stays on that device."""
    for kind in (AtFirst, At):
        graphed, x = GraphedFunction(cuda.doubled), images(2, 3).as_subclass(kind)
        for _ in range(3):
            assert torch.equal(graphed(x), 2 * x)
    assert cuda.where == [(0, 0), (1, 1)]
    assert cuda.current.device == 0


def test_a_training_pass_is_captured_on_the_device_of_its_input(cuda: Cuda) -> None:
    for kind in (AtFirst, At):
        inputs = [images(2).as_subclass(kind) for _ in range(3)]
        captured = CapturedPass(lambda rows, labels, keys: (cuda.doubled(rows), keys), inputs, [])
        assert torch.equal(captured(*inputs)[0], 2 * inputs[0])
    assert cuda.where == [(0, 0), (1, 1)]


def test_an_empty_batch_is_not_captured(cuda: Cuda) -> None:
    graphed = GraphedFunction(cuda.doubled)
    for _ in range(3):
        assert graphed(images(0, 3).as_subclass(At)).shape == (0, 3)
    assert cuda.where == []


def test_threads_may_share_a_graphed_function(cuda: Cuda) -> None:
    """Two functions, six threads, inputs of two shapes: every thread gets its own result."""
    shared, wrong, errors = [GraphedFunction(cuda.doubled), GraphedFunction(cuda.doubled)], [], []

    def work(number: int) -> None:
        try:
            for turn in range(8):
                x = torch.full((1 + turn % 2, 3), float(10 * number + turn)).as_subclass(At)
                if not torch.equal(shared[number % 2](x), 2 * x):
                    wrong.append((number, turn))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert wrong == []
    assert len(cuda.where) == 4


def test_times_are_taken_on_the_device_that_works(current: Current, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event is recorded on the current device, whatever device the step runs on."""
    recorded: list[int] = []
    waited: list[int] = []
    methods = {"record": lambda self: recorded.append(current.device), "elapsed_time": lambda self, other: 1.0}
    monkeypatch.setattr(torch.cuda, "Event", type("Event", (), {"__init__": lambda self, **options: None, **methods}))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(current.device))
    time_steps(lambda: None, torch.device("cuda:1"), repeats=2)
    assert recorded == [1, 1, 1]
    assert waited[-1] == 1
