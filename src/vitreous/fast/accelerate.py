"""`accelerate`: the fastest way to run a model on the device it is on."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, brief
from vitreous.fast.cuda_graphs import Recorded
from vitreous.fast.eligibility import BF16, CPU, FP8, why_not
from vitreous.models.base import Model
from vitreous.models.checks import check_images
from vitreous.models.cost import cost
from vitreous.models.standard import HOOKS, vitreous_model
from vitreous.models.vit import VisionTransformer, ViTConfig

Precision = Literal["fp32", "bf16", "fp8"]
SMALL = 2.5e11  # FLOPs of a block for a batch: with fewer, launching its kernels takes longer than running them
FP8_FROM = (8, 9)  # compute capability: Ada and Hopper


@dataclass(frozen=True)
class Accelerated:
    """`run(images)` gives logits: of normalised images (B, C, H, W), or of 8-bit pixels, which are normalised as
    `model.preprocessing` says. Images in any floating-point type are cast to that of the path; other types are refused,
    as the model refuses them. All weights are copies of those the model had when this was made."""

    run: Callable[[Tensor], Tensor]
    precision: Precision
    path: str  # which way was chosen; where it is the plain one, why

    def __call__(self, images: Tensor) -> Tensor:
        device = images.device.type if isinstance(images, Tensor) else "cpu"
        with torch.inference_mode(), torch.autocast(device, enabled=False):  # `precision` decides
            return self.run(images)


def accelerate(model: nn.Module, precision: Precision = "fp32") -> Accelerated:
    """A copy of a model for inference, run by the fastest path that computes exactly this model on its device.

    `precision` is the only thing that changes results: fp32 gives the plain model's to rounding; bf16 those of bf16
    weights; fp8 takes e4m3 numbers in the large products of all but the first blocks, on GPUs that have them.

    A model that was changed since it was built (hooks, replaced or wrapped modules, adapters, parametrizations) is
    copied and run as it is, and `path` says why. Later changes of the model do not show.
    """
    if precision not in get_args(Precision):
        raise VitreousError(f"precision = {brief(precision)}: expected {', '.join(get_args(Precision))}")
    model = vitreous_model(model, "accelerate")
    device = next(model.parameters()).device
    if device.type == "cuda":
        return _on_gpu(model, precision, device)
    if precision == "fp8":
        raise VitreousError(f"precision = 'fp8': needs a GPU, and the model is on {device}; use fp32 or bf16")
    return _on_cpu(model, precision)


def at_work(model: Model, precision: Precision = "fp32") -> Callable[[Tensor], Tensor]:
    """A function from images to logits, valid for as long as nobody changes the model. Where nothing is faster than
    the model itself, it is the model, in evaluation mode and not copied."""
    if precision == "fp32" and why_not(model, CPU) is not None:
        return model.eval()
    return accelerate(model, precision)


def no_kernels(device: torch.device) -> str | None:
    """Why a device cannot run the fused kernels; None: it can."""
    if device.type != "cuda":
        return f"they are for GPUs, not for {device.type}"
    if torch.version.hip is not None:  # torch calls AMD's GPUs "cuda" too
        return "they are for NVIDIA's GPUs, and this torch is for AMD's (ROCm)"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU has no bf16"
    return None


def _why_not(model: nn.Module, precision: str, device: torch.device) -> str | None:
    if (reason := no_kernels(device)) is not None:
        return reason
    if precision == "fp8" and torch.cuda.get_device_capability(device) < FP8_FROM:
        return "the GPU has no fp8"
    return why_not(model, FP8 if precision == "fp8" else BF16)


def _on_gpu(model: Model, precision: Precision, device: torch.device) -> Accelerated:
    if precision == "fp32":
        return Accelerated(_plain(model, torch.float32), precision, "plain")
    if (reason := _why_not(model, precision, device)) is not None:
        if precision == "fp8":
            raise VitreousError(f"precision = 'fp8': not for this model here, since {reason}; use bf16")
        return Accelerated(_plain(model, torch.bfloat16), precision, f"plain, bf16 weights; no fused kernels: {reason}")
    from vitreous.fast.fused_inference import FastViT, in_bf16

    assert isinstance(model, VisionTransformer)
    fast, config = FastViT(model, precision), model.config
    recorded = Recorded(fast)

    def run(images: Tensor) -> Tensor:
        small = images.ndim == 4 and len(images) * _block(config, images.shape[2], images.shape[3]) < SMALL
        return (recorded if small else fast)(images)

    path = "fused kernels"
    if precision == "fp8":
        path += f", fp8 from block {in_bf16(config)} on"
    return Accelerated(run, precision, path)


@lru_cache(maxsize=64)
def _block(config: ViTConfig, height: int, width: int) -> float:
    """FLOPs of a block for an image, about."""
    return cost(config, (height, width)).flops.total / config.depth


def _on_cpu(model: Model, precision: Precision) -> Accelerated:
    if precision == "bf16":
        return Accelerated(_plain(model, torch.bfloat16), precision, "plain, bf16 weights")
    from vitreous.fast.cpu_inference import CpuViT

    if (reason := why_not(model, CPU)) is not None:
        return Accelerated(_plain(model, torch.float32), precision, f"plain; no packed weights: {reason}")
    assert isinstance(model, VisionTransformer)
    return Accelerated(_from_pixels(CpuViT(model), model, torch.float32), precision, "packed weights")


def _plain(model: Model, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The model itself, copied with its hooks."""
    try:
        own = deepcopy(model).eval().to(dtype)
    except Exception as error:  # anything may be in a model that was changed
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise VitreousError(f"accelerate: the model cannot be copied ({reason}); call the model itself") from error
    if (name := _borrows(own, model)) is not None:
        raise VitreousError(
            f"accelerate: a function in {name} refers to parts of the model, which a copy would share with it; call the"
            " model itself, or refer to what the function is given"
        )
    return _from_pixels(own, model, dtype)


def _borrows(copied: nn.Module, model: nn.Module) -> str | None:
    """The first module of a copy with a hook or another function that refers to the original: functions are not
    copied, nor is what they refer to."""
    originals = {id(part) for part in (*model.modules(), *model.parameters(), *model.buffers())}
    for name, module in copied.named_modules():
        held = [*vars(module).values(), *(hook for hooks in HOOKS for hook in getattr(module, hooks).values())]
        if any(_refers(function, originals, set()) for function in held if callable(function)):
            return name or "the model"
    return None


def _refers(function: Any, originals: set[int], seen: set[int]) -> bool:
    """Whether a function refers to one of some objects: by its globals, by its closure, or as one of its arguments."""
    if id(function) in originals:
        return True
    held = isinstance(function, list | tuple | set | dict)
    if id(function) in seen or isinstance(function, type) or not (held or callable(function)):
        return False
    seen.add(id(function))
    parts = list(function.values() if isinstance(function, dict) else function) if held else []
    if isinstance(function, FunctionType):
        try:
            named = inspect.getclosurevars(function)
        except ValueError:  # it has a variable without a value, and nobody knows which it will get
            return True
        if any(id(value) in originals for value in named.globals.values()):
            return True
        parts += [*named.nonlocals.values(), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    parts += [getattr(function, name, None) for name in ("__self__", "__func__", "__wrapped__", "func", "args")]
    return any(_refers(part, originals, seen) for part in parts)


def _from_pixels(run: Callable[[Tensor], Tensor], model: Model, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The same, but it takes 8-bit pixels too, and casts floating-point images to `dtype`."""
    preprocessing, config = model.preprocessing, cast(ViTConfig, model.config)  # or a BiT's, which has channels too

    def call(images: Tensor) -> Tensor:
        check_images(images, config.channels, whole=torch.uint8)
        if images.dtype == torch.uint8:
            if preprocessing is None:
                raise VitreousError(NO_PREPROCESSING)
            images = preprocessing.normalise(images)
        return run(images.to(dtype)).float()

    return call


NO_PREPROCESSING = "8-bit pixels: the model does not say how they are normalised (model.preprocessing)"
