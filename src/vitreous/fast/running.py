"""The fastest way to run a model on the device it is on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.fast.recording import Recorded
from vitreous.models.base import Model
from vitreous.models.cost import cost
from vitreous.models.vit import VisionTransformer, ViTConfig

Precision = Literal["fp32", "bf16", "fp8"]
SMALL = 2.5e11  # FLOPs of a block for a batch: with fewer, launching its kernels takes longer than running them
FP8_FROM = (8, 9)  # compute capability: Ada and Hopper


@dataclass(frozen=True)
class Accelerated:
    """`run(images)` gives logits: of normalised images (B, C, H, W), or of 8-bit pixels, which are normalised as
    `model.preprocessing` says. The weights are those the model had when this was made."""

    run: Callable[[Tensor], Tensor]
    precision: Precision
    path: str  # which way was chosen, in words

    def __call__(self, images: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.run(images)


def accelerate(model: Model, precision: Precision = "fp32") -> Accelerated:
    """A model for inference, by the fastest way there is for it on its device.

    `precision` is the only thing that changes results: fp32 gives the plain model's to rounding; bf16 those of bf16
    weights; fp8 takes e4m3 numbers in the large products of all but the first blocks, on GPUs that have them.
    """
    if precision not in get_args(Precision):
        raise VitreousError(f"precision = {precision!r}: expected {', '.join(get_args(Precision))}")
    device = next(model.parameters()).device
    if device.type == "cuda":
        return _on_gpu(model, precision, device)
    if precision == "fp8":
        raise VitreousError(f"precision = 'fp8': needs a GPU, and the model is on {device}; use fp32 or bf16")
    return _on_cpu(model, precision)


def at_work(model: Model, precision: Precision = "fp32") -> Callable[[Tensor], Tensor]:
    """The same for as long as nobody changes the model: itself, in evaluation mode, where nothing is faster."""
    if precision == "fp32" and next(model.parameters()).dtype != torch.float32:
        return model.eval()  # it brings a precision of its own
    if precision == "fp32" and next(model.parameters()).device.type == "cuda":
        return model.eval()
    return accelerate(model, precision)


def no_kernels(device: torch.device) -> str | None:
    """Why a device cannot run the fused kernels; None: it can."""
    if device.type != "cuda":
        return f"they are for GPUs, not for {device.type}"
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
    from vitreous.fast.inference import why_not

    return why_not(model, precision)


def _on_gpu(model: Model, precision: Precision, device: torch.device) -> Accelerated:
    if precision == "fp32":
        return Accelerated(_plain(model, torch.float32), precision, "plain")
    if (reason := _why_not(model, precision, device)) is not None:
        if precision == "fp8":
            raise VitreousError(f"precision = 'fp8': not for this model here, since {reason}; use bf16")
        return Accelerated(_plain(model, torch.bfloat16), precision, f"plain, bf16 weights; no fused kernels: {reason}")
    from vitreous.fast.inference import FastViT, in_bf16

    assert isinstance(model, VisionTransformer)
    fast = FastViT(model, precision)
    recorded = Recorded(fast)

    def run(images: Tensor) -> Tensor:
        small = images.ndim == 4 and len(images) * _block(model.config, images.shape[2], images.shape[3]) < SMALL
        return (recorded if small else fast)(images)

    path = "fused kernels"
    if precision == "fp8":
        path += f", fp8 from block {in_bf16(model.config)} on"
    return Accelerated(run, precision, path)


@lru_cache(maxsize=64)
def _block(config: ViTConfig, height: int, width: int) -> float:
    """FLOPs of a block for an image, about."""
    return cost(config, (height, width)).flops.total / config.depth


def _on_cpu(model: Model, precision: Precision) -> Accelerated:
    if precision == "bf16":
        return Accelerated(_plain(model, torch.bfloat16), precision, "plain, bf16 weights")
    from vitreous.fast.cpu import CpuViT, why_not

    if (reason := why_not(model)) is not None:
        return Accelerated(_plain(model, torch.float32), precision, f"plain; no packed weights: {reason}")
    assert isinstance(model, VisionTransformer)
    return Accelerated(_from_pixels(CpuViT(model), model, torch.float32), precision, "packed weights")


def _plain(model: Model, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    from copy import deepcopy

    own = deepcopy(model).eval().to(dtype)
    return _from_pixels(own, model, dtype)


def _from_pixels(run: Callable[[Tensor], Tensor], model: Model, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The same, but it takes 8-bit pixels too."""
    preprocessing = model.preprocessing

    def call(images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            if preprocessing is None:
                raise VitreousError(NO_PREPROCESSING)
            images = preprocessing.normalise(images)
        return run(images.to(dtype)).float()

    return call


NO_PREPROCESSING = "8-bit pixels: the model does not say how they are normalised (model.preprocessing)"
