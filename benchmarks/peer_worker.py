"""The process that measures one implementation for peers.py. It reads requests from stdin and answers on stdout.

Each request and each answer is one line of JSON. peer_processes.py starts this file; it is not meant to be run by hand.
"""

import gc
import importlib
import importlib.metadata
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

import torchvision_operators
import vitreous
from peer_models import PACKAGES, PEERS, Implementation, Measurement, build
from vitreous.benchmark.machine import PeakMemory, copy_bandwidth, matmul_peak, synchronise, time_steps

REPEATS = {"cuda": {"infer": 20, "train": 15, "latency": 100}, "cpu": {"infer": 7, "train": 5, "latency": 15}}


class PeerWorker:
    """Measure one implementation at a time. Every public method answers one kind of request."""

    def __init__(self, device: torch.device):
        self.device, self.memory = device, PeakMemory(device)
        self.measurement: Measurement | None = None
        self.implementation: Implementation | None = None
        self.step: Callable[[], object] | None = None
        self.details: dict[str, Any] = {}
        self.first_peak = self.base = 0

    def machine(self) -> dict[str, Any]:
        """Return the peak matmul FLOP/s of each precision and the memory bandwidth in bytes per second."""
        precisions = ("bf16", "fp8", "fp32") if self.device.type == "cuda" else ("fp32",)
        peaks = {name: matmul_peak(self.device, name) for name in precisions}
        return {"matmul_flops": peaks, "copy_bytes": copy_bandwidth(self.device)}

    def hello(self, who: str) -> dict[str, Any]:
        """Import the library and create the GPU context, so that neither is measured later."""
        torchvision_operators.define_missing()
        importlib.import_module(PACKAGES.get(who, "vitreous"))
        ones = torch.ones(64, 64, device=self.device)
        (ones @ ones).sum().item()
        if self.device.type == "cpu":  # subtract the memory of Python and its libraries; on a GPU only tensors count
            self.memory.reset()
            self.base = self.memory.read()
        return {"version": importlib.metadata.version(PACKAGES[who]) if who in PEERS else vitreous.__version__}

    def prepare(self, **measurement: Any) -> dict[str, Any]:
        """Build the implementation and run its first step."""
        self.close()
        self.measurement = Measurement(**measurement)
        self.implementation = build(self.measurement, self.device)
        synchronise(self.device)
        self.memory.reset()
        began = time.perf_counter()
        self.step = self.implementation.start()
        self.step()
        synchronise(self.device)
        first = time.perf_counter() - began
        if self.implementation.uses_cuda_graph:  # the graph may be recorded in the second call
            self.step()
        self.first_peak = self.memory.read()
        self.details = {"first_seconds": round(first, 2), **self.implementation.details()}
        self._free_memory()
        return self.details

    def time(self, repeats: int | None = None) -> dict[str, Any]:
        """Time the prepared step and measure its peak memory."""
        assert self.measurement is not None
        assert self.implementation is not None
        assert self.step is not None
        back_to_back = self.measurement.task != "latency"
        repeats = repeats or REPEATS[self.device.type][self.measurement.task]
        self.memory.reset()
        warm_up = 3 if self.device.type == "cuda" else 1
        times = time_steps(self.step, self.device, repeats=repeats, warm_up=warm_up, back_to_back=back_to_back)
        peak = max(self.memory.read(), self.first_peak if self.implementation.uses_cuda_graph else 0)
        row = {
            "images_per_second": round(self.measurement.batch / times.median, 2),
            "ms": round(1e3 * times.median, 4),
            "ms_10": round(1e3 * times.quantile(0.1), 4),
            "ms_90": round(1e3 * times.quantile(0.9), 4),
            "repeats": repeats,
            "peak_gib": round((peak - self.base) / 2**30, 3),
        }
        if self.device.type == "cuda":
            row["reserved_gib"] = round(torch.cuda.max_memory_reserved(self.device) / 2**30, 3)
        return {**row, **self.details}

    def close(self) -> dict[str, Any]:
        if self.implementation is not None:
            self.implementation.contexts.close()
        self.implementation = self.step = None
        self._free_memory()
        return {}

    def _free_memory(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def answer_requests(device: torch.device) -> None:
    """Answer requests until stdin is closed. An exception becomes an answer with the key "failed"."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep the output of libraries out of the answers
    worker = PeerWorker(device)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("request"))(**request)
        except Exception as error:
            traceback.print_exc()
            text = (str(error).strip().splitlines() or [""])[0][:300]
            memory = isinstance(error, torch.OutOfMemoryError)
            answer = {"failed": f"{type(error).__name__}: {text}", "out_of_memory": memory}
        if "failed" in answer:  # after the except block: the exception's frames keep tensors alive
            worker.close()
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    answer_requests(torch.device(sys.argv[1]))
