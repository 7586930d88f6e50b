"""A pass through the model, recorded on the GPU once and replayed: small models wait for the host no longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vitreous.fast.cuda_graphs import ONE_AT_A_TIME, aside, recording

Pass = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
WARM_UP = 2  # passes that compile and choose algorithms, which cannot be recorded


class RecordedPass:
    """`run(rows, labels, keys)` with the gradients that it leaves in `parameters`, for one size of batch.

    Every call writes to the same memory: what it gives, gradients included, holds until the next one. Nothing in a pass
    draws from a generator (what is random comes from the keys), so a replay is a pass like any other.
    """

    def __init__(self, run: Pass, inputs: Sequence[Tensor], parameters: Sequence[nn.Parameter]):
        self.inputs = [tensor.clone() for tensor in inputs]
        self.parameters = parameters
        device = inputs[0].device
        with ONE_AT_A_TIME, torch.cuda.device(device):
            with aside(device):
                for _ in range(WARM_UP):
                    self._forget()
                    run(*self.inputs)
            self._forget()
            self.graph = torch.cuda.CUDAGraph()
            with recording(device, self.graph):
                self.outputs = run(*self.inputs)
        self.gradients = [p.grad for p in parameters]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        for p, gradient in zip(self.parameters, self.gradients, strict=True):
            p.grad = gradient
        return self.outputs

    def _forget(self) -> None:
        for p in self.parameters:
            p.grad = None
