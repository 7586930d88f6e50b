"""Forward and backward of a training batch as one CUDA graph: small models are not limited by kernel launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from vitreous.fast.cuda_graphs import CapturedGraph

Pass = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class CapturedPass:
    """`run(rows, labels, keys)` captured for one batch size, with the gradients that it leaves in `parameters`.

    Every call writes to the same memory: its outputs and the gradients are valid until the next call. Random numbers
    depend on the keys, not on a generator, so a replay draws new numbers for new keys.
    """

    def __init__(self, run: Pass, inputs: Sequence[Tensor], parameters: Sequence[nn.Parameter]):
        self.parameters = parameters
        self.graph = CapturedGraph(run, inputs, before=self._clear_gradients)
        self.gradients = [p.grad for p in parameters]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.graph(*inputs)
        for p, gradient in zip(self.parameters, self.gradients, strict=True):
            p.grad = gradient
        return outputs

    def _clear_gradients(self) -> None:
        for p in self.parameters:
            p.grad = None
