"""Time attention maps and the `inspect` command: `python benchmarks/inspection.py`

Times the forward pass of a B/16 alone, and with the attention weights of one layer (vitreous.inspection), in turns.
Then times the whole command on one photograph with a Ti/16: every layer, every figure, and the page.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import vitreous
from harness import RESULTS, argument_parser, environment, write_result
from vitreous import inspection


def seconds(function) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--batch", type=int, default=8, help="batch size (default: 8)")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls of each kind (default: 15)")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = vitreous.create("B/16").to(device).eval()
    x = torch.randn(options.batch, 3, 224, 224, device=device)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    calls = {layer: lambda layer=layer: inspection.attention(model, x, [layer]) for layer in (0, 5, 11)}
    times: dict[str, list[float]] = {"forward": [], **{f"layer {layer}": [] for layer in calls}}
    for number in range(options.repeats + 2):  # in turns, so that other load affects all of them alike
        row = {"forward": seconds(forward), **{f"layer {layer}": seconds(call) for layer, call in calls.items()}}
        if number >= 2:
            for name, value in row.items():
                times[name].append(value)
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {
        "model": "B/16, 224 px",
        "batch": options.batch,
        "milliseconds": {name: round(1e3 * value, 2) for name, value in medians.items()},
        "over_forward_percent": {
            name: round(100 * (value / medians["forward"] - 1), 1) for name, value in medians.items()
        },
        "inspect_seconds": round(inspect_seconds(), 1),
    }
    print(result)
    write_result(options.out or RESULTS / f"inspection-{device}.json", {**environment(), "result": result})


def inspect_seconds() -> float:
    """Return the time of `vitreous inspect` for a Ti/16 and one photograph, from the start of Python to the page."""
    from sklearn.datasets import load_sample_image

    with tempfile.TemporaryDirectory() as folder:
        from PIL import Image

        Image.fromarray(load_sample_image("flower.jpg")).save(f"{folder}/flower.png")
        model = vitreous.create("Ti/16")
        torch.nn.init.normal_(model.head.weight, std=0.02)  # a head of zeros would give no relevance map
        vitreous.save(model, f"{folder}/model.safetensors")
        line = ["inspect", f"{folder}/model.safetensors", f"{folder}/flower.png", "--out", f"{folder}/seen"]
        line.append("--overwrite")  # the folder may exist
        return seconds(lambda: subprocess.run([sys.executable, "-m", "vitreous", *line], check=True))


if __name__ == "__main__":
    main()
