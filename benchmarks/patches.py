"""The patch projection as a convolution and as a matrix product: which is faster where.

python benchmarks/patches.py
"""

from typing import Any

import torch
from harness import RESULTS, environment, median_seconds, write

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


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rows: list[dict[str, Any]] = []
    for patch, width, batch, size in SHAPES[device]:
        x = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
        weight = (torch.randn(width, 3, patch, patch, device=device, dtype=dtype) / 30).requires_grad_()
        bias = torch.randn(width, device=device, dtype=dtype, requires_grad=True)
        row: dict[str, Any] = {"patch": patch, "width": width, "batch": batch, "size": size}
        for label, project in (("convolution", project_by_convolution), ("linear", project_by_linear)):

            def forward(project: Any = project) -> torch.Tensor:
                with torch.no_grad():
                    return project(x, weight, bias)

            gradient = torch.randn_like(forward())

            def both(project: Any = project, gradient: torch.Tensor = gradient) -> None:
                project(x, weight, bias).backward(gradient)

            row[f"{label}_forward_ms"] = round(1e3 * median_seconds(forward, device), 3)
            row[f"{label}_both_ms"] = round(1e3 * median_seconds(both, device), 3)
        rows.append(row)
        print(row, flush=True)
    write(RESULTS / f"patches-{device}.json", {**environment(), "dtype": str(dtype), "rows": rows})


if __name__ == "__main__":
    main()
