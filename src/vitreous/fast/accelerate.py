"""`accelerate`: run a model for inference by the fastest path for its device."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, brief
from vitreous.fast.cuda_graphs import GraphedFunction
from vitreous.fast.eligibility import BF16, CPU, FP8, ineligibility_reason
from vitreous.models.base import Model
from vitreous.models.checks import check_images
from vitreous.models.cost import cost
from vitreous.models.standard import HOOKS, unwrapped_model
from vitreous.models.vit import VisionTransformer, ViTConfig

Precision = Literal["fp32", "bf16", "fp8"]
GRAPH_BELOW_FLOPS = 2.5e11  # per block and batch: below this, launching the kernels takes longer than running them
FP8_CAPABILITY = (8, 9)  # CUDA compute capability of Ada; Hopper is 9.0
NO_PREPROCESSING = "8-bit pixels: the model has no normalisation (model.preprocessing is None)"


@dataclass(frozen=True)
class Accelerated:
    """A copy of a model for inference. Call it with images to get logits; `features(images)` returns the input of the
    head by the same path.

    Images are (B, C, H, W): normalised floating-point images of any dtype, or 8-bit pixels, which are normalised with
    `model.preprocessing`. Other dtypes raise the same error as the model.
    """

    run: Callable[[Tensor], Tensor] = field(repr=False)  # function from images to logits
    run_features: Callable[[Tensor], Tensor] = field(repr=False)  # function from images to the input of the head
    precision: Precision  # fp32, bf16 or fp8
    path: str  # the chosen path, and for the plain path the reason

    def __call__(self, images: Tensor) -> Tensor:
        return _without_autocast(self.run, images)

    def features(self, images: Tensor) -> Tensor:
        """Return what `model.features(images)` returns: the input of the head, in float32."""
        return _without_autocast(self.run_features, images)


def _without_autocast(run: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    device = images.device.type if isinstance(images, Tensor) else "cpu"
    with torch.inference_mode(), torch.autocast(device, enabled=False):  # `precision` applies, not autocast
        return run(images)


def accelerate(model: nn.Module, precision: Precision = "fp32") -> Accelerated:
    """Copy a model for inference, and return a function that runs the copy by the fastest path for its device.

    - `model`: a `VisionTransformer` or `BiT`, on the CPU or a GPU. If it was modified after it was built (hooks,
      replaced or wrapped modules, adapters, parametrizations), the copy is run by its own code, and `path` gives the
      reason. Later changes of the model do not affect the copy
    - `precision`: fp32: the results of the model, to rounding. bf16: weights and activations in bf16. fp8: the large
      matmuls of all but the first blocks in e4m3, on GPUs that support it

    Returns an `Accelerated`: call it with images to get logits. A precision that the device or the model does not
    support raises a `VitreousError`.

    >>> from sklearn.datasets import load_sample_image
    >>> model = vitreous.load("vitreous-mini")
    >>> fast = vitreous.accelerate(model)
    >>> images = model.preprocessing([load_sample_image("china.jpg")])
    >>> bool((fast(images) - model(images)).abs().max() < 1e-3)
    True
    """
    if precision not in get_args(Precision):
        raise VitreousError(f"precision = {brief(precision)}: expected {', '.join(get_args(Precision))}")
    model = unwrapped_model(model, "accelerate")
    device = next(model.parameters()).device
    if device.type == "cuda":
        return _accelerate_on_gpu(model, precision, device)
    if precision == "fp8":
        raise VitreousError(f"precision = 'fp8': needs a GPU, and the model is on {device}; use fp32 or bf16")
    if device.type != "cpu":
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        return Accelerated(*_plain_copy(model, dtype), precision, f"plain; no fast path for {device.type}")
    return _accelerate_on_cpu(model, precision)


def accelerate_if_faster(model: Model, precision: Precision = "fp32") -> Callable[[Tensor], Tensor]:
    """Return `accelerate(model, precision)`, or the model itself in eval mode when no faster path exists.

    The model must not be changed while the function is in use.
    """
    if precision == "fp32" and ineligibility_reason(model, CPU) is not None:
        return model.eval()
    return accelerate(model, precision)


def kernels_unavailable_reason(device: torch.device) -> str | None:
    """Return why a device cannot run the fused kernels, or None if it can."""
    if device.type != "cuda":
        return f"they need a CUDA GPU, not {device.type}"
    if torch.version.hip is not None:  # torch calls AMD GPUs "cuda" too
        return "they need an NVIDIA GPU, and this torch is built for AMD GPUs (ROCm)"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU does not support bf16"
    return None


def _fused_unavailable_reason(model: nn.Module, precision: str, device: torch.device) -> str | None:
    if (reason := kernels_unavailable_reason(device)) is not None:
        return reason
    if precision == "fp8" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        return "the GPU does not support fp8"
    return ineligibility_reason(model, FP8 if precision == "fp8" else BF16)


def _accelerate_on_gpu(model: Model, precision: Precision, device: torch.device) -> Accelerated:
    if precision == "fp32":
        return Accelerated(*_plain_copy(model, torch.float32), precision, "plain")
    if (reason := _fused_unavailable_reason(model, precision, device)) is not None:
        if precision == "fp8":
            raise VitreousError(f"precision = 'fp8': not available for this model on this device: {reason}; use bf16")
        path = f"plain, bf16 weights; no fused kernels: {reason}"
        return Accelerated(*_plain_copy(model, torch.bfloat16), precision, path)
    from vitreous.fast.fused_inference import FusedViT, bf16_block_count

    assert isinstance(model, VisionTransformer)
    fused, config = FusedViT(model, precision), model.config

    def graphed_if_small(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        graphed = GraphedFunction(function)

        def run(images: Tensor) -> Tensor:
            small = images.ndim == 4 and len(images) * _block_flops(config, *images.shape[2:]) < GRAPH_BELOW_FLOPS
            return (graphed if small else function)(images)

        return run

    path = "fused kernels"
    if precision == "fp8":
        path += f", fp8 from block {bf16_block_count(config)} on"
    return Accelerated(graphed_if_small(fused), graphed_if_small(fused.features), precision, path)


@lru_cache(maxsize=64)
def _block_flops(config: ViTConfig, height: int, width: int) -> float:
    """Approximate FLOPs of one block for one image."""
    return cost(config, (height, width)).flops.total / config.depth


def _accelerate_on_cpu(model: Model, precision: Precision) -> Accelerated:
    if precision == "bf16":
        return Accelerated(*_plain_copy(model, torch.bfloat16), precision, "plain, bf16 weights")
    from vitreous.fast.cpu_inference import CpuViT

    if (reason := ineligibility_reason(model, CPU)) is not None:
        return Accelerated(*_plain_copy(model, torch.float32), precision, f"plain; no packed weights: {reason}")
    assert isinstance(model, VisionTransformer)
    packed = CpuViT(model)
    logits, features = (_accept_pixels(run, model, torch.float32) for run in (packed, packed.features))
    return Accelerated(logits, features, precision, "packed weights")


def _plain_copy(model: Model, dtype: torch.dtype) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return functions that run a copy of the model, with its hooks, by its own code: for logits and for features."""
    try:
        copied = deepcopy(model).eval().to(dtype)
    except Exception as error:  # a modified model may contain anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise VitreousError(f"accelerate: the model cannot be copied ({reason}); call the model itself") from error
    if (name := _module_with_reference(copied, model)) is not None:
        raise VitreousError(
            f"accelerate: a function in {name} refers to parts of the original model, which a copy would share; call"
            " the model itself, or use the arguments of the function instead"
        )
    features: Callable[[Tensor], Tensor] = cast(Any, copied).features
    return _accept_pixels(copied, model, dtype), _accept_pixels(features, model, dtype)


def _module_with_reference(copied: nn.Module, model: nn.Module) -> str | None:
    """Return the name of the first module of a copy with a hook or another function that refers to the original model.
    `deepcopy` copies neither functions nor the objects they refer to."""
    originals = {id(part) for part in (*model.modules(), *model.parameters(), *model.buffers())}
    for name, module in copied.named_modules():
        values = [*vars(module).values(), *(hook for hooks in HOOKS for hook in getattr(module, hooks).values())]
        if any(_refers_to(function, originals, set()) for function in values if callable(function)):
            return name or "the model"
    return None


def _refers_to(function: Any, originals: set[int], seen: set[int]) -> bool:
    """Return whether a function refers to one of some objects: in its globals, closure, defaults or bound arguments."""
    if id(function) in originals:
        return True
    is_container = isinstance(function, list | tuple | set | dict)
    if id(function) in seen or isinstance(function, type) or not (is_container or callable(function)):
        return False
    seen.add(id(function))
    parts = list(function.values() if isinstance(function, dict) else function) if is_container else []
    if isinstance(function, FunctionType):
        try:
            variables = inspect.getclosurevars(function)
        except ValueError:  # a closure variable has no value yet: it may become any object
            return True
        if any(id(value) in originals for value in variables.globals.values()):
            return True
        parts += [*variables.nonlocals.values(), *(function.__defaults__ or ())]
        parts += (function.__kwdefaults__ or {}).values()
    parts += [getattr(function, name, None) for name in ("__self__", "__func__", "__wrapped__", "func", "args")]
    return any(_refers_to(part, originals, seen) for part in parts)


def _accept_pixels(run: Callable[[Tensor], Tensor], model: Model, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Make `run` accept 8-bit pixels, and cast floating-point images to `dtype`."""
    preprocessing, config = model.preprocessing, cast(ViTConfig, model.config)  # a BiTConfig has `channels` too

    def call(images: Tensor) -> Tensor:
        check_images(images, config.channels, integer=torch.uint8)
        if images.dtype == torch.uint8:
            if preprocessing is None:
                raise VitreousError(NO_PREPROCESSING)
            images = preprocessing.normalise(images)
        return run(images.to(dtype)).float()

    return call
