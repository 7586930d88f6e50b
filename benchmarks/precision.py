"""What a precision costs in answers: `python benchmarks/precision.py MODEL DATA [--preprocessing NAME]`

Accuracy of a checkpoint on a data set in fp32, bf16 and fp8, how many answers stay the same as in fp32, and how far the
logits are from those; for fp8 also with other numbers of blocks left in bf16.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness import RESULTS, environment, write
from vitreous.data.open_data import open_data
from vitreous.evaluation.matching import match
from vitreous.evaluation.subject import Loading, measured_split, open_subject
from vitreous.fast import accelerate
from vitreous.fast.fused_inference import FastViT, in_bf16
from vitreous.weights.model_info import labels_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--preprocessing")
    parser.add_argument("--out", type=Path, default=RESULTS / "fp8-cuda.json")
    options = parser.parse_args()
    device = torch.device("cuda")
    subject = open_subject(options.model, device, preprocessing=options.preprocessing)
    model: Any = subject.model.eval()
    data = open_data(options.data)
    _, source = measured_split(data)
    matched = match(data.classes, labels_of(model), model.config.num_classes)
    loader = Loading(device, 250).loader(matched.relabelled(source, model.config.num_classes), subject.shown(), {})
    pixels, labels = (torch.cat(parts) for parts in zip(*((p, t) for p, t, _ in loader), strict=True))
    truth = answers(accelerate(model), pixels)
    rows = [described("fp32", truth, truth, labels)]
    for precision in ("bf16", "fp8"):
        run = accelerate(model, precision)  # type: ignore[arg-type]
        rows.append(described(f"{precision}: {run.path}", answers(run, pixels), truth, labels))
    for first in sorted({0, model.config.depth // 4, model.config.depth // 2, in_bf16(model.config)}):
        fast = FastViT(model, "fp8", first)
        rows.append(described(f"fp8 from block {first} on", answers(fast, pixels), truth, labels))
    write(options.out, {**environment("vitreous"), "model": subject.name, "images": len(labels), "rows": rows})


def answers(run: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    return torch.cat([run(part).float() for part in pixels.split(250)])


def described(what: str, logits: Tensor, truth: Tensor, labels: Tensor) -> dict[str, Any]:
    right, same = logits.argmax(1) == labels, logits.argmax(1) == truth.argmax(1)
    distance = (logits - truth).norm() / truth.norm()
    row = {"what": what, "top1": right, "same": same, "distance": distance}
    row = {k: v if isinstance(v, str) else round(v.float().mean().item(), 4) for k, v in row.items()}
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
