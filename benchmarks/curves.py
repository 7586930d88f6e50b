"""Does the fast path learn as the plain one does? `python benchmarks/curves.py DATA [FIELD=VALUE ...]`

The same run of a recipe's first 200 steps, by the fused kernels and by the plain model under bf16 autocast, for several
seeds. A seed draws the same weights, images and augmentation for both, so that what is between the two curves is the
arithmetic; what is between seeds is the noise it has to be held against.
"""

import argparse
import json
import math
import statistics
import tempfile
from itertools import combinations
from pathlib import Path

import vitreous
from harness import RESULTS, environment, write
from training import fields_of

WAYS = {"fast": "yes", "plain": "no"}


def curve(data: str, config: vitreous.TrainConfig, run: Path) -> list[float]:
    vitreous.train(data, config.with_(out=str(run)), quiet=True)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    events = [record["text"] for record in records if record["kind"] == "event"]
    if events:
        print(run.name, events)
    return [record["loss"] for record in records if record["kind"] == "train"]


def distance(a: list[float], b: list[float]) -> float:
    """Root of the mean squared difference over the curve."""
    return math.sqrt(statistics.fmean((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--recipe", default="cifar10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "curves-cuda.json")
    options = parser.parse_intermixed_args()
    fields = {"duration": "200 steps", **fields_of(options.fields)}
    curves: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            for way, compiled in WAYS.items():
                config = vitreous.recipe(options.recipe).with_(seed=seed, compile=compiled, **fields)
                curves[way].append(curve(options.data, config, Path(folder) / f"{way}-{seed}"))
                print(way, seed, f"first {curves[way][-1][0]:.4f}, last {curves[way][-1][-1]:.4f}", flush=True)
    between_ways = [distance(*pair) for pair in zip(*curves.values(), strict=True)]
    between_seeds = [distance(a, b) for a, b in combinations(curves["plain"], 2)]
    summary = {
        "recipe": options.recipe,
        "fields": {name: str(value) for name, value in fields.items()},
        "between_ways": [round(d, 5) for d in between_ways],
        "between_seeds": [round(d, 5) for d in between_seeds],
        "last": {way: [round(c[-1], 4) for c in found] for way, found in curves.items()},
    }
    print(json.dumps(summary))
    write(options.out, {**environment(), **summary, "curves": curves})


if __name__ == "__main__":
    main()
