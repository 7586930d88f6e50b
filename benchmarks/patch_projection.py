"""Time the patch projection as a convolution and as a matrix product: `python benchmarks/patch_projection.py`

Runs on the GPU if there is one, otherwise on the CPU, and writes results/patches-cuda.json or results/patches-cpu.json.
"""

from functools import partial
from typing import Any

import torch

from harness import RESULTS, argument_parser, environment, median_seconds, write_result
from vitreous.models.embed import project_by_convolution, project_by_linear

SHAPES = {  # patch, width, images, size
    "cuda": [
        (16, 768, 256, 224),
        (16, 1024, 128, 224),
        (32, 768, 256, 224),
        (14, 1280, 64, 224),
        (8, 768, 64, 224),
        (4, 384, 1024, 32),
    ],
    "cpu": [
        (16, 768, 1, 224),
        (16, 768, 16, 224),
        (16, 192, 16, 224),
        (32, 768, 16, 224),
        (14, 1024, 4, 224),
        (4, 192, 128, 32),
    ],
}


def compare(patch: int, width: int, batch: int, size: int, device: str, dtype: torch.dtype) -> dict[str, Any]:
    x = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
    weight = (torch.randn(width, 3, patch, patch, device=device, dtype=dtype) / 30).requires_grad_()
    bias = torch.randn(width, device=device, dtype=dtype, requires_grad=True)
    gradient = torch.randn(batch, (size // patch) ** 2, width, device=device, dtype=dtype)
    row: dict[str, Any] = {"patch": patch, "width": width, "batch": batch, "size": size}
    for label, project in (("convolution", project_by_convolution), ("linear", project_by_linear)):
        run = partial(project, x, weight, bias)
        with torch.no_grad():
            row[f"{label}_forward_ms"] = round(1e3 * median_seconds(run, device), 3)
        both = median_seconds(lambda run=run: run().backward(gradient), device)
        row[f"{label}_both_ms"] = round(1e3 * both, 3)
    return row


def main() -> None:
    argument_parser(__doc__).parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rows = []
    for shape in SHAPES[device]:
        rows.append(compare(*shape, device, dtype))
        print(rows[-1], flush=True)
    write_result(RESULTS / f"patches-{device}.json", {**environment(), "dtype": str(dtype), "rows": rows})


if __name__ == "__main__":
    main()
