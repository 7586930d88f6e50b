"""The implementations that peers.py compares: Vitreous, timm, Hugging Face transformers and torchvision.

Every implementation has the same shape and GELU, random weights, and gets the same images. Vitreous runs as a user runs
it: `vitreous.accelerate` for inference, the training engine of `vitreous train` for training.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitreous
from vitreous.benchmark.synthetic import randomise_head_, step_path, synthetic_batch, synthetic_engine
from vitreous.models import zoo
from vitreous.training.distributed import World
from vitreous.utils.torch_settings import run_settings

CUDNN_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


@dataclass(frozen=True)
class Measurement:
    """What to measure: an implementation (`who`), a model, a task and the settings it runs with (`variant`)."""

    who: str
    model: str
    task: str  # infer, train, latency
    variant: str  # words such as "compiled cudnn bf16"
    batch: int
    height: int = 224  # of the images
    width_px: int = 224  # of the images
    width: int | None = None  # embedding dimension, where it differs from the named model's
    axis: str = ""  # with --growth: the quantity that varies
    gelu: str = "erf"

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width_px

    @property
    def words(self) -> list[str]:
        return self.variant.split()

    def __str__(self) -> str:
        shape = "" if not self.axis else f" {self.axis}: {self.height} x {self.width_px} px, width {self.width}"
        return f"{self.who}, {self.model}, {self.task}, {self.variant}, batch {self.batch}{shape}"


@dataclass
class Implementation:
    """A model that is built, with its images on the device.

    `start` returns a function that runs one step. Start-up time is measured from the call of `start` to the end of the
    first step.
    """

    start: Callable[[], Callable[[], object]]
    uses_cuda_graph: bool = False  # the memory of a CUDA graph is allocated once, before any step is timed
    contexts: ExitStack = field(default_factory=ExitStack)
    details: Callable[[], dict[str, Any]] = dict  # called after the first step: code path, error against fp32


# ---------------------------------------------------------------- models


def model_config(measurement: Measurement) -> Any:
    changes: dict[str, Any] = {"gelu": measurement.gelu}
    if measurement.axis:
        changes["image_size"] = measurement.size
    if measurement.width is not None:
        width = measurement.width
        changes |= {"width": width, "heads": width // 64, "mlp_dim": 4 * width}
    return vitreous.create(measurement.model, device="meta", **changes).config


def vitreous_model(measurement: Measurement, device: torch.device) -> nn.Module:
    with device:
        model = zoo.build_model(model_config(measurement))
    randomise_head_(model)
    return model


def timm_model(measurement: Measurement) -> nn.Module:
    import timm

    names = {"Ti/16": "vit_tiny_patch16_224", "B/16": "vit_base_patch16_224", "L/16": "vit_large_patch16_224"}
    return timm.create_model(names[measurement.model])


def huggingface_model(measurement: Measurement) -> nn.Module:
    import transformers

    size = model_config(measurement)
    config = transformers.ViTConfig(
        hidden_size=size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        intermediate_size=size.mlp_dim,
        num_labels=1000,
        layer_norm_eps=1e-6,
        hidden_act="gelu" if measurement.gelu == "erf" else "gelu_pytorch_tanh",
    )

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.ViTForImageClassification(config)

        def forward(self, x: Tensor) -> Tensor:
            return self.model(pixel_values=x).logits

    return Logits()


def torchvision_model(measurement: Measurement) -> nn.Module:
    from torchvision.models import VisionTransformer

    size = model_config(measurement)
    model = VisionTransformer(224, 16, size.depth, size.heads, size.width, size.mlp_dim)
    nn.init.normal_(model.heads.head.weight, std=0.02)  # torchvision initialises its head with zeros, as Vitreous does
    return model


PEERS: dict[str, Callable[[Measurement], nn.Module]] = {
    "timm": timm_model,
    "huggingface": huggingface_model,
    "torchvision": torchvision_model,
}
PACKAGES = {"ours": "vitreous", "timm": "timm", "huggingface": "transformers", "torchvision": "torchvision"}


# ---------------------------------------------------------------- steps


def build(measurement: Measurement, device: torch.device) -> Implementation:
    torch.compiler.reset()
    torch.manual_seed(0)
    training = measurement.task == "train"
    if measurement.who == "ours":
        return (vitreous_training if training else vitreous_inference)(measurement, device)
    torch.backends.cudnn.benchmark = True  # for the peers' patch convolution
    with device:  # drawing random weights is faster on a GPU
        model = PEERS[measurement.who](measurement)
    for module in model.modules():
        if isinstance(module, nn.GELU) and measurement.gelu == "tanh":
            module.approximate = "tanh"
    if "channels-last" in measurement.words:
        model = model.to(memory_format=torch.channels_last)
    implementation = (peer_training if training else peer_inference)(measurement, model, device)
    if "cudnn" in measurement.words:
        implementation.contexts.enter_context(sdpa_kernel(CUDNN_FIRST, set_priority=True))
    return implementation


def compiled(model: nn.Module, measurement: Measurement) -> Any:
    if "reduce-overhead" in measurement.words:
        return torch.compile(model, mode="reduce-overhead")
    return torch.compile(model) if "compiled" in measurement.words else model


def random_images(measurement: Measurement, device: torch.device, dtype: torch.dtype) -> Tensor:
    x = torch.randn(measurement.batch, 3, *measurement.size, device=device).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if "channels-last" in measurement.words else x


def peer_inference(measurement: Measurement, model: nn.Module, device: torch.device) -> Implementation:
    """Inference of a peer: weights and images in bf16 on a GPU, in fp32 on a CPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = model.eval().to(dtype)
    x = random_images(measurement, device, dtype)

    def start() -> Callable[[], object]:
        run = compiled(model, measurement)

        def step() -> Tensor:
            with torch.inference_mode():
                return run(x)

        return step

    return Implementation(start, uses_cuda_graph="reduce-overhead" in measurement.words)


def peer_training(measurement: Measurement, model: nn.Module, device: torch.device) -> Implementation:
    """Training step of a peer: forward, cross-entropy, backward, fused AdamW.

    Weights are fp32, with autocast to bf16 on a GPU. With "bf16" in the variant, weights and optimiser state are bf16.
    """
    dtype = torch.bfloat16 if "bf16" in measurement.words else torch.float32
    model = model.train().to(dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    x = random_images(measurement, device, dtype)
    y = torch.randint(1000, (measurement.batch,), device=device)

    def start() -> Callable[[], object]:
        run = compiled(model, measurement)

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled="autocast" in measurement.words):
                loss = nn.functional.cross_entropy(run(x).float(), y)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        return step

    return Implementation(start)


def vitreous_inference(measurement: Measurement, device: torch.device) -> Implementation:
    """Inference with `accelerate` in the variant's precision, on the same images as the peers, or on uint8 images."""
    from vitreous.fast import accelerate
    from vitreous.preprocessing import default_preprocessing

    precision = measurement.words[0]
    model: Any = vitreous_model(measurement, device).eval()
    model.preprocessing = default_preprocessing(model.config.image_size, 3)
    x = random_images(measurement, device, torch.float32 if precision == "fp32" else torch.bfloat16)
    if "uint8" in measurement.words:
        x = torch.randint(256, x.shape, device=device, dtype=torch.uint8)
    accelerated: list[Any] = []

    def start() -> Callable[[], object]:
        accelerated.append(accelerate(model, precision))
        return step

    def step() -> Tensor:
        return accelerated[0](x)

    def details() -> dict[str, Any]:
        few = x[:8]
        with torch.inference_mode():
            expected = model(model.preprocessing.normalise(few) if "uint8" in measurement.words else few.float())
            difference = (step()[:8].float() - expected).abs().max() / expected.abs().max()
        return {"path": accelerated[0].path, "difference": round(difference.item(), 5)}

    return Implementation(start, uses_cuda_graph=device.type == "cuda", details=details)


def vitreous_training(measurement: Measurement, device: torch.device) -> Implementation:
    """A step of `vitreous train` on the same images as the peers: already normalised, not augmented."""
    model: Any = vitreous_model(measurement, device)
    precision = "bf16" if device.type == "cuda" else "fp32"
    engine = synthetic_engine(model, measurement.batch, measurement.size, precision)
    x = random_images(measurement, device, torch.float32)
    batch = replace(synthetic_batch(model, measurement.batch, measurement.size), rows=x)

    def start() -> Callable[[], object]:
        if "compiled" in measurement.words:
            engine.compile()
        engine.prepare = lambda rows, labels, keys, size=None: (rows, labels)
        return lambda: engine.step(batch, 0, measurement.batch, World())

    def details() -> dict[str, Any]:
        return {"path": step_path(engine), "notes": engine.notes}

    implementation = Implementation(start, uses_cuda_graph=device.type == "cuda", details=details)
    implementation.contexts.enter_context(run_settings(str(device)))
    return implementation
