"""The model beside timm, Hugging Face and torchvision, in one run, on whatever machine this is.

    python benchmarks/models.py                     # the GPU if there is one, else the CPU
    python benchmarks/models.py --models B/16 --peers timm --modes eager

Images are synthetic and already on the device. Inference: weights and images in bf16 on a GPU, fp32 on a CPU. Training:
fp32 weights, bf16 autocast on a GPU; forward, cross-entropy, backward, fused AdamW. Every implementation has the same
shape, erf GELU and random weights.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vitreous
from harness import RESULTS, environment, median_seconds, write

BATCH = {"cuda": {"B/16": 256, "L/16": 128}, "cpu": {"Ti/16": 8, "B/16": 8}}
TIMM = {"Ti/16": "vit_tiny_patch16_224", "B/16": "vit_base_patch16_224", "L/16": "vit_large_patch16_224"}
TORCHVISION = {"B/16": "vit_b_16", "L/16": "vit_l_16"}


def ours(name: str) -> nn.Module:
    return vitreous.create(name, gelu="erf")


def timm(name: str) -> nn.Module:
    import timm as library

    return library.create_model(TIMM[name])


def huggingface(name: str) -> nn.Module:
    import transformers

    shape = vitreous.create(name, device="meta").config
    config = transformers.ViTConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        intermediate_size=shape.mlp_dim,
        num_labels=1000,
        layer_norm_eps=1e-6,
    )
    model = transformers.ViTForImageClassification(config)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(pixel_values=x).logits

    return Logits()


def torchvision(name: str) -> nn.Module:
    import torchvision.models as library

    return getattr(library, TORCHVISION[name])()


def let_torchvision_import() -> None:
    """On a CPU build of torch its wheel imports once two of its operators are known. timm imports it too."""
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for operator in ("nms", "qnms"):
        if not torch.cuda.is_available() and not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", schema)


PEERS: dict[str, Callable[[str], nn.Module]] = {
    "vitreous": ours,
    "timm": timm,
    "huggingface": huggingface,
    "torchvision": torchvision,
}


def inference(model: nn.Module, batch: int, device: str, compiled: bool) -> float:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = model.eval().to(dtype)
    x = torch.randn(batch, 3, 224, 224, device=device, dtype=dtype)
    run = torch.compile(model) if compiled else model
    with torch.inference_mode():
        return batch / median_seconds(lambda: run(x), device, repeats=30 if device == "cuda" else 7)


def training(model: nn.Module, batch: int, device: str, compiled: bool) -> float:
    model = model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(batch, 3, 224, 224, device=device)
    y = torch.randint(1000, (batch,), device=device)
    run = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.cross_entropy(run(x), y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return batch / median_seconds(step, device, repeats=20 if device == "cuda" else 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--models", nargs="+", default=list(BATCH[device]), choices=BATCH[device])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS)
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--tasks", nargs="+", default=["inference", "training"], choices=["inference", "training"])
    parser.add_argument("--out", type=Path, default=RESULTS / f"models-{device}.json")
    arguments = parser.parse_args()
    let_torchvision_import()

    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        for task in arguments.tasks:
            for mode in arguments.modes:
                for peer in arguments.peers:
                    if peer == "torchvision" and name not in TORCHVISION:
                        continue
                    torch._dynamo.reset()
                    torch.manual_seed(0)
                    measure = inference if task == "inference" else training
                    model = PEERS[peer](name).to(device)
                    if device == "cuda":
                        torch.cuda.reset_peak_memory_stats()
                    rate = measure(model, BATCH[device][name], device, mode == "compiled")
                    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
                    del model
                    row = {"model": name, "task": task, "mode": mode, "who": peer, "images_per_second": round(rate, 2)}
                    if memory is not None:
                        row["peak_gib"] = round(memory, 2)
                        torch.cuda.empty_cache()
                    rows.append(row)
                    print(" ".join(str(value) for value in row.values()), flush=True)
    packages = ("vitreous", "timm", "transformers", "torchvision")
    write(arguments.out, {**environment(*packages), "batch": BATCH[device], "rows": rows})


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
