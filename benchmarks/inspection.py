"""What looking costs: `python benchmarks/inspection.py`.

The forward pass of a B/16 alone, and with the attention weights of one of its layers (vitreous.inspection), one after
the other in one run. Then the whole command on one photograph with a Ti/16: every layer, every figure, and the page.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import vitreous
from harness import RESULTS, environment, write
from vitreous import inspection


def seconds(function) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = vitreous.create("B/16").to(device).eval()
    x = torch.randn(options.batch, 3, 224, 224, device=device)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    looks = {layer: lambda layer=layer: inspection.attention(model, x, [layer]) for layer in (0, 5, 11)}
    times: dict[str, list[float]] = {"forward": [], **{f"layer {layer}": [] for layer in looks}}
    for number in range(options.repeats + 2):  # in turn, so that a busy machine is busy for all of them
        found = {"forward": seconds(forward), **{f"layer {layer}": seconds(look) for layer, look in looks.items()}}
        if number >= 2:
            for name, value in found.items():
                times[name].append(value)
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {
        "model": "B/16, 224 px",
        "batch": options.batch,
        "milliseconds": {name: round(1e3 * value, 2) for name, value in medians.items()},
        "over_forward_percent": {
            name: round(100 * (value / medians["forward"] - 1), 1) for name, value in medians.items()
        },
        "inspect_seconds": round(command(), 1),
    }
    print(result)
    write(options.out or RESULTS / f"inspection-{device}.json", {**environment(), "result": result})


def command() -> float:
    """`vitreous inspect` of a Ti/16 with one photograph, from the start of Python to the page."""
    from sklearn.datasets import load_sample_image

    with tempfile.TemporaryDirectory() as folder:
        from PIL import Image

        Image.fromarray(load_sample_image("flower.jpg")).save(f"{folder}/flower.png")
        model = vitreous.create("Ti/16")
        torch.nn.init.normal_(model.head.weight, std=0.02)  # or there would be no relevance to draw
        vitreous.save(model, f"{folder}/model.safetensors")
        line = ["inspect", f"{folder}/model.safetensors", f"{folder}/flower.png", "--out", f"{folder}/seen"]
        line.append("--overwrite")  # it is timed more than once
        return seconds(lambda: subprocess.run([sys.executable, "-m", "vitreous", *line], check=True))


if __name__ == "__main__":
    main()
