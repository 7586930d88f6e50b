"""Those who are measured in peers.py, each in a process of its own that answers its orders, a line of JSON for each.

Every implementation has the same shape and GELU, random weights, and is shown the same images. Ours is what a user
gets: `accelerate` for inference, the engine of `vitreous train` for training.
"""

import gc
import importlib.metadata
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchvision_operators
import vitreous
from vitreous.benchmark.machine import PeakMemory, copy_bandwidth, matmul_peak, timed, wait
from vitreous.benchmark.synthetic import synthetic_batch, synthetic_engine, wake_head_, way
from vitreous.models import zoo
from vitreous.training.distributed import World
from vitreous.utils.torch_settings import run_settings

CUDNN_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
REPEATS = {"cuda": {"infer": 20, "train": 15, "latency": 100}, "cpu": {"infer": 7, "train": 5, "latency": 15}}


@dataclass(frozen=True)
class Cell:
    """One measurement. `variant` is words: how the implementation is run."""

    who: str
    model: str
    task: str  # infer, train, latency
    variant: str
    batch: int
    height: int = 224
    width_px: int = 224
    width: int | None = None  # of the model, where it is not the name's own
    axis: str = ""  # of --growth: what varies
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
class Contestant:
    """Built, with its images on the device. `start` gives one step; from its call to the end of that is start-up."""

    start: Callable[[], Callable[[], object]]
    recorded: bool = False  # into a CUDA graph, whose memory is taken once, before anything is timed
    held: ExitStack = field(default_factory=ExitStack)
    tell: Callable[[], dict[str, Any]] = dict  # after the first step: what there is to say of it


# ---------------------------------------------------------------- who there is


def shape(cell: Cell) -> Any:
    changes: dict[str, Any] = {"gelu": cell.gelu}
    if cell.axis:
        changes["image_size"] = cell.size
    if cell.width is not None:
        changes |= {"width": cell.width, "heads": cell.width // 64, "mlp_dim": 4 * cell.width}
    return vitreous.create(cell.model, device="meta", **changes).config


def ours(cell: Cell, device: torch.device) -> nn.Module:
    with device:
        model = zoo.build(shape(cell))
    wake_head_(model)
    return model


def timm(cell: Cell) -> nn.Module:
    import timm as library

    names = {"Ti/16": "vit_tiny_patch16_224", "B/16": "vit_base_patch16_224", "L/16": "vit_large_patch16_224"}
    return library.create_model(names[cell.model])


def huggingface(cell: Cell) -> nn.Module:
    import transformers

    size = shape(cell)
    config = transformers.ViTConfig(
        hidden_size=size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        intermediate_size=size.mlp_dim,
        num_labels=1000,
        layer_norm_eps=1e-6,
        hidden_act="gelu" if cell.gelu == "erf" else "gelu_pytorch_tanh",
    )

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.ViTForImageClassification(config)

        def forward(self, x: Tensor) -> Tensor:
            return self.model(pixel_values=x).logits

    return Logits()


def torchvision(cell: Cell) -> nn.Module:
    from torchvision.models import VisionTransformer

    size = shape(cell)
    model = VisionTransformer(224, 16, size.depth, size.heads, size.width, size.mlp_dim)
    nn.init.normal_(model.heads.head.weight, std=0.02)  # it starts at zero, as ours does
    return model


PEERS: dict[str, Callable[[Cell], nn.Module]] = {"timm": timm, "huggingface": huggingface, "torchvision": torchvision}
PACKAGES = {"ours": "vitreous", "timm": "timm", "huggingface": "transformers", "torchvision": "torchvision"}


# ---------------------------------------------------------------- what they do


def build(cell: Cell, device: torch.device) -> Contestant:
    torch.compiler.reset()
    torch.manual_seed(0)
    if cell.who == "ours":
        return our_training(cell, device) if cell.task == "train" else our_inference(cell, device)
    torch.backends.cudnn.benchmark = True  # for the convolution that makes their patches
    with device:  # random weights are drawn there, which is faster
        model = PEERS[cell.who](cell)
    for part in model.modules():
        if isinstance(part, nn.GELU) and cell.gelu == "tanh":
            part.approximate = "tanh"
    if "channels-last" in cell.words:
        model = model.to(memory_format=torch.channels_last)
    found = (peer_training if cell.task == "train" else peer_inference)(cell, model, device)
    if "cudnn" in cell.words:
        found.held.enter_context(sdpa_kernel(CUDNN_FIRST, set_priority=True))
    return found


def compiled(model: nn.Module, cell: Cell) -> Any:
    if "reduce-overhead" in cell.words:
        return torch.compile(model, mode="reduce-overhead")
    return torch.compile(model) if "compiled" in cell.words else model


def images(cell: Cell, device: torch.device, dtype: torch.dtype) -> Tensor:
    x = torch.randn(cell.batch, 3, *cell.size, device=device).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if "channels-last" in cell.words else x


def peer_inference(cell: Cell, model: nn.Module, device: torch.device) -> Contestant:
    """Weights and images in bf16 on a GPU, in fp32 on a CPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = model.eval().to(dtype)
    x = images(cell, device, dtype)

    def start() -> Callable[[], object]:
        run = compiled(model, cell)

        def step() -> Tensor:
            with torch.inference_mode():
                return run(x)

        return step

    return Contestant(start, recorded="reduce-overhead" in cell.words)


def peer_training(cell: Cell, model: nn.Module, device: torch.device) -> Contestant:
    """Forward, cross-entropy, backward, fused AdamW: fp32 weights, under autocast on a GPU; or everything in bf16."""
    dtype = torch.bfloat16 if "bf16" in cell.words else torch.float32
    model = model.train().to(dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    x, y = images(cell, device, dtype), torch.randint(1000, (cell.batch,), device=device)

    def start() -> Callable[[], object]:
        run = compiled(model, cell)

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled="autocast" in cell.words):
                loss = nn.functional.cross_entropy(run(x).float(), y)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        return step

    return Contestant(start)


def our_inference(cell: Cell, device: torch.device) -> Contestant:
    """`accelerate` in the variant's precision; images as the peers have them, or in uint8."""
    from vitreous.fast import accelerate
    from vitreous.preprocessing import default_preprocessing

    precision = cell.words[0]
    model: Any = ours(cell, device).eval()
    model.preprocessing = default_preprocessing(model.config.image_size, 3)
    x = images(cell, device, torch.float32 if precision == "fp32" else torch.bfloat16)
    if "uint8" in cell.words:
        x = torch.randint(256, x.shape, device=device, dtype=torch.uint8)
    runs: list[Any] = []

    def start() -> Callable[[], object]:
        runs.append(accelerate(model, precision))
        return step

    def step() -> Tensor:
        return runs[0](x)

    def tell() -> dict[str, Any]:
        few = x[:8]
        with torch.inference_mode():
            truth = model(model.preprocessing.normalise(few) if "uint8" in cell.words else few.float())
            difference = (step()[:8].float() - truth).abs().max() / truth.abs().max()
        return {"path": runs[0].path, "difference": round(difference.item(), 5)}

    return Contestant(start, recorded=device.type == "cuda", tell=tell)


def our_training(cell: Cell, device: torch.device) -> Contestant:
    """A step of `vitreous train` on images as the peers have them: nothing is left to do to them."""
    model: Any = ours(cell, device)
    engine = synthetic_engine(model, cell.batch, cell.size, "bf16" if device.type == "cuda" else "fp32")
    x = images(cell, device, torch.float32)
    batch = replace(synthetic_batch(model, cell.batch, cell.size), rows=x)

    def start() -> Callable[[], object]:
        if "compiled" in cell.words:
            engine.compile()
        engine.prepare = lambda rows, labels, keys, size=None: (rows, labels)
        return lambda: engine.step(batch, 0, cell.batch, World())

    def tell() -> dict[str, Any]:
        return {"path": way(engine), "notes": engine.notes}

    contestant = Contestant(start, recorded=device.type == "cuda", tell=tell)
    contestant.held.enter_context(run_settings(str(device)))
    return contestant


# ---------------------------------------------------------------- orders and answers


class Process:
    """The one contestant that this process holds at a time."""

    def __init__(self, device: torch.device):
        self.device, self.memory = device, PeakMemory(device)
        self.cell: Cell | None = None
        self.contestant: Contestant | None = None
        self.step: Callable[[], object] | None = None
        self.told: dict[str, Any] = {}
        self.first_peak = self.base = 0

    def machine(self) -> dict[str, Any]:
        """The ceilings: FLOP/s by precision, bytes a second."""
        precisions = ("bf16", "fp8", "fp32") if self.device.type == "cuda" else ("fp32",)
        peaks = {name: matmul_peak(self.device, name) for name in precisions}
        return {"matmul_flops": peaks, "copy_bytes": copy_bandwidth(self.device)}

    def hello(self, who: str) -> dict[str, Any]:
        """Everything that has to be there once: the library, the GPU's context."""
        torchvision_operators.define_missing()
        importlib.import_module(PACKAGES.get(who, "vitreous"))
        ones = torch.ones(64, 64, device=self.device)
        (ones @ ones).sum().item()
        if self.device.type == "cpu":  # the process has memory of its own; on a GPU only tensors are counted
            self.memory.reset()
            self.base = self.memory.read()
        return {"version": importlib.metadata.version(PACKAGES[who]) if who in PEERS else vitreous.__version__}

    def prepare(self, **cell: Any) -> dict[str, Any]:
        self.close()
        self.cell = Cell(**cell)
        self.contestant = build(self.cell, self.device)
        wait(self.device)
        self.memory.reset()
        began = time.perf_counter()
        self.step = self.contestant.start()
        self.step()
        wait(self.device)
        first = time.perf_counter() - began
        if self.contestant.recorded:  # the second call is the one that records, where the first does not
            self.step()
        self.first_peak = self.memory.read()
        self.told = {"first_seconds": round(first, 2), **self.contestant.tell()}
        self._tidy()
        return self.told

    def time(self, repeats: int | None = None) -> dict[str, Any]:
        assert self.cell is not None
        assert self.contestant is not None
        assert self.step is not None
        alone = self.cell.task == "latency"
        repeats = repeats or REPEATS[self.device.type][self.cell.task]
        self.memory.reset()
        warm_up = 3 if self.device.type == "cuda" else 1
        times = timed(self.step, self.device, repeats=repeats, warm_up=warm_up, together=not alone)
        peak = max(self.memory.read(), self.first_peak if self.contestant.recorded else 0)
        found = {
            "images_per_second": round(self.cell.batch / times.median, 2),
            "ms": round(1e3 * times.median, 4),
            "ms_10": round(1e3 * times.at(0.1), 4),
            "ms_90": round(1e3 * times.at(0.9), 4),
            "repeats": repeats,
            "peak_gib": round((peak - self.base) / 2**30, 3),
        }
        if self.device.type == "cuda":
            found["reserved_gib"] = round(torch.cuda.max_memory_reserved(self.device) / 2**30, 3)
        return {**found, **self.told}

    def close(self) -> dict[str, Any]:
        if self.contestant is not None:
            self.contestant.held.close()
        self.contestant = self.step = None
        self._tidy()
        return {}

    def _tidy(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def serve(device: torch.device) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    process = Process(device)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(process, order.pop("do"))(**order)
        except Exception as error:
            traceback.print_exc()
            text = (str(error).strip().splitlines() or [""])[0][:300]
            memory = isinstance(error, torch.OutOfMemoryError)
            answer = {"failed": f"{type(error).__name__}: {text}", "out_of_memory": memory}
        if "failed" in answer:  # not above, where the error holds the frames, and they hold the tensors
            process.close()
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    serve(torch.device(sys.argv[1]))
