"""Time a model at an image size other than its own: `python benchmarks/position_resampling.py`

Compares a B/16 that resamples its position embedding in every call with a B/16 that was created for that size. Runs on
the GPU if there is one, otherwise on the CPU, and writes results/sizes-cuda.json or results/sizes-cpu.json.
"""

import torch

import vitreous
from harness import RESULTS, argument_parser, environment, median_seconds, write_result


def main() -> None:
    argument_parser(__doc__).parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rows = []
    for batch in (1, 64) if device == "cuda" else (1, 4):
        for size in (288, 384):
            x = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
            milliseconds = []
            for native in (size, 224):
                model = vitreous.create("B/16", image_size=native, device=device, dtype=dtype).eval()
                with torch.inference_mode():
                    milliseconds.append(1e3 * median_seconds(lambda model=model, x=x: model(x), device))
            row = {"batch": batch, "size": size, "laid_out_ms": milliseconds[0], "resampled_ms": milliseconds[1]}
            rows.append({key: round(value, 3) for key, value in row.items()})
            print(rows[-1], flush=True)
    write_result(
        RESULTS / f"sizes-{device}.json",
        {**environment("vitreous"), "model": "B/16", "dtype": str(dtype), "rows": rows},
    )


if __name__ == "__main__":
    main()
