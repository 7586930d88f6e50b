"""Measure how the precision changes accuracy: `python benchmarks/precision.py MODEL DATA [--preprocessing NAME]`

Needs a CUDA GPU. Accuracy of a checkpoint on a data set in fp32, bf16 and fp8, the share of predictions that equal
those of fp32, and the relative distance of the logits; for fp8 also with other numbers of blocks in bf16.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness import RESULTS, argument_parser, environment, require_gpu, write_result
from vitreous.data.open_data import open_data
from vitreous.evaluation.evaluated_model import open_model
from vitreous.evaluation.evaluation_images import evaluation_split
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.matching import match_classes
from vitreous.fast import accelerate
from vitreous.fast.fused_inference import FusedViT, bf16_block_count
from vitreous.weights.model_info import labels_of


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model", help="checkpoint or name")
    parser.add_argument("data", help="data set with labels that match the model's")
    parser.add_argument("--preprocessing", help="preset, if the checkpoint does not state its preprocessing")
    parser.add_argument("--out", type=Path, default=RESULTS / "fp8-cuda.json", help="JSON file")
    options = parser.parse_args()
    require_gpu()
    device = torch.device("cuda")
    subject = open_model(options.model, device, preprocessing=options.preprocessing)
    model: Any = subject.model.eval()
    data = open_data(options.data)
    _, source = evaluation_split(data)
    matched = match_classes(data.classes, labels_of(model), model.config.num_classes)
    loader = InferenceOptions(device, 250).loader(
        matched.relabelled(source, model.config.num_classes), subject.preprocessing(), {}
    )
    pixels, labels = (torch.cat(parts) for parts in zip(*((p, t) for p, t, _ in loader), strict=True))
    reference = logits(accelerate(model), pixels)
    rows = [compare("fp32", reference, reference, labels)]
    for precision in ("bf16", "fp8"):
        run = accelerate(model, precision)  # type: ignore[arg-type]
        rows.append(compare(f"{precision}: {run.path}", logits(run, pixels), reference, labels))
    for first in sorted({0, model.config.depth // 4, model.config.depth // 2, bf16_block_count(model.config)}):
        fast = FusedViT(model, "fp8", first)
        rows.append(compare(f"fp8 from block {first} on", logits(fast, pixels), reference, labels))
    write_result(options.out, {**environment("vitreous"), "model": subject.name, "images": len(labels), "rows": rows})


def logits(run: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    return torch.cat([run(part).float() for part in pixels.split(250)])


def compare(what: str, found: Tensor, reference: Tensor, labels: Tensor) -> dict[str, Any]:
    correct, same = found.argmax(1) == labels, found.argmax(1) == reference.argmax(1)
    distance = (found - reference).norm() / reference.norm()
    row = {"what": what, "top1": correct, "same": same, "distance": distance}
    row = {k: v if isinstance(v, str) else round(v.float().mean().item(), 4) for k, v in row.items()}
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
