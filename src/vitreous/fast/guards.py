"""What every fused function needs around it: the right GPU, and first derivatives only."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from vitreous.errors import VitreousError

P = ParamSpec("P")
R = TypeVar("R")


def on_its_device(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function on the GPU of its first tensor. Triton launches kernels on torch's current device, and cuBLASLt
    runs there too, whichever device the tensors are on."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        first = next(argument for argument in arguments if isinstance(argument, Tensor))
        with torch.cuda.device_of(first):
            return function(*arguments, **named)

    return call


def first_derivative_only(backward: Callable[..., R]) -> Callable[..., R]:
    """For the backward of an autograd function that cannot be differentiated again.

    torch's `once_differentiable` raises when that is tried, but not where the incoming gradient is a constant: second
    derivatives would then lack terms without a word. So it is refused as soon as `create_graph` asks for it.
    """

    @wraps(backward)
    def call(ctx: Any, *outputs: Any) -> R:
        if torch.is_grad_enabled():  # which it is in a backward with create_graph=True alone
            raise VitreousError(
                "the fused training path has first derivatives only, and create_graph=True asks for the graph of second"
                " ones: call the model itself"
            )
        return backward(ctx, *outputs)

    return call
