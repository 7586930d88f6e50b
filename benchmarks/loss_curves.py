"""Compare the loss curves of fused and plain training: `python benchmarks/loss_curves.py DATA [FIELD=VALUE ...]`

Needs a CUDA GPU. Trains the first 200 steps of a recipe with the fused kernels ("fast") and with the plain model under
bf16 autocast ("plain"), for several seeds. One seed gives both the same weights, images and augmentation, so that the
difference between the two curves comes from the arithmetic. The difference between seeds is the noise to compare it
with.
"""

import json
import math
import statistics
import tempfile
from itertools import combinations
from pathlib import Path

import vitreous
from harness import RESULTS, argument_parser, environment, parse_fields, require_gpu, write_result

COMPILE = {"fast": "yes", "plain": "no"}


def loss_curve(data: str, config: vitreous.TrainConfig, run: Path) -> list[float]:
    vitreous.train(data, config.with_(out=str(run)), quiet=True)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    events = [record["text"] for record in records if record["kind"] == "event"]
    if events:
        print(run.name, events)
    return [record["loss"] for record in records if record["kind"] == "train"]


def distance(a: list[float], b: list[float]) -> float:
    """Return the root mean square difference of two curves."""
    return math.sqrt(statistics.fmean((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", help="data set to train on")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE", help="changed fields of TrainConfig")
    parser.add_argument("--recipe", default="cifar10", help="default: cifar10")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--out", type=Path, default=RESULTS / "curves-cuda.json", help="JSON file")
    options = parser.parse_intermixed_args()
    require_gpu()
    fields = {"duration": "200 steps", **parse_fields(options.fields)}
    curves: dict[str, list[list[float]]] = {path: [] for path in COMPILE}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            for path, compiled in COMPILE.items():
                config = vitreous.recipe(options.recipe).with_(seed=seed, compile=compiled, **fields)
                curves[path].append(loss_curve(options.data, config, Path(folder) / f"{path}-{seed}"))
                print(path, seed, f"first {curves[path][-1][0]:.4f}, last {curves[path][-1][-1]:.4f}", flush=True)
    between_paths = [distance(*pair) for pair in zip(*curves.values(), strict=True)]
    between_seeds = [distance(a, b) for a, b in combinations(curves["plain"], 2)]
    summary = {
        "recipe": options.recipe,
        "fields": {name: str(value) for name, value in fields.items()},
        "between_ways": [round(d, 5) for d in between_paths],
        "between_seeds": [round(d, 5) for d in between_seeds],
        "last": {path: [round(c[-1], 4) for c in found] for path, found in curves.items()},
    }
    print(json.dumps(summary))
    write_result(options.out, {**environment(), **summary, "curves": curves})


if __name__ == "__main__":
    main()
