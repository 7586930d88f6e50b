"""Decorators for fused functions: run on the GPU of the tensors, and refuse second derivatives."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from vitreous.errors import VitreousError

P = ParamSpec("P")
R = TypeVar("R")


def on_tensor_device(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function on the GPU of its first tensor argument.

    Triton and cuBLASLt launch kernels on torch's current device, whichever device the tensors are on.
    """

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        first = next(argument for argument in arguments if isinstance(argument, Tensor))
        with torch.cuda.device_of(first):
            return function(*arguments, **options)

    return call


def first_derivative_only(backward: Callable[..., R]) -> Callable[..., R]:
    """Refuse `create_graph=True` in the backward pass of an autograd function that cannot be differentiated twice.

    torch's `once_differentiable` does not raise if the incoming gradient is a constant: terms of the second derivative
    would be missing without an error. This decorator raises in that case too.
    """

    @wraps(backward)
    def call(ctx: Any, *outputs: Any) -> R:
        if torch.is_grad_enabled():  # true in a backward pass only with create_graph=True
            raise VitreousError(
                "the fused training path has first derivatives only, and create_graph=True requests second derivatives:"
                " call the model itself"
            )
        return backward(ctx, *outputs)

    return call
