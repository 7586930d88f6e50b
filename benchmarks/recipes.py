"""Train a recipe with several seeds, one after the other: `python benchmarks/recipes.py NAME DATA --seeds 0 1 2`

Records for each seed: accuracy, seconds of training including compilation (`loop_s`), seconds of the whole run
including reading, evaluation and the report (`run_s`), the time of the first step, and images/s. All seeds run in one
process: only the first one includes the time for imports and compilation.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Any

import vitreous
from harness import argument_parser, environment, parse_fields, write_result


def run_recipe(data: str, config: vitreous.TrainConfig, run: Path) -> dict[str, Any]:
    began = time.perf_counter()
    outcome = vitreous.train(data, config.with_(out=str(run)))
    seconds = time.perf_counter() - began
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [record for record in records if record["kind"] == "train"]
    assert outcome.result is not None
    return {
        "seed": config.run.seed,
        "split": outcome.split,
        "images": outcome.result.images,
        "top1": outcome.result.top1,
        "loss": outcome.result.loss,
        "loop_s": round(outcome.seconds, 1),
        "run_s": round(seconds, 1),
        "first_steps_s": lines[0]["seconds"],
        "steps": outcome.steps,
        "images_per_second": throughput(lines),
        "data_wait": statistics.median(line["data_wait"] for line in lines),
        "memory_gib": round(lines[-1]["memory_bytes"] / 2**30, 2),
        "training_accuracy": lines[-1]["accuracy"],
        "events": [record["text"] for record in records if record["kind"] == "event"],
    }


def throughput(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return the least, median and highest images/s of the ten tenths of the run: the image size may change."""
    tenths = [lines[len(lines) * i // 10 : len(lines) * (i + 1) // 10] for i in range(10)]
    medians = [statistics.median(line["images_per_second"] for line in tenth) for tenth in tenths if tenth]
    return {"least": round(min(medians)), "median": round(statistics.median(medians)), "most": round(max(medians))}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("recipe", help="name of the recipe")
    parser.add_argument("data", help="data set to train on")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE", help="changed fields of TrainConfig")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: 0")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="folder for the run directories (default: runs)"
    )
    parser.add_argument("--out", type=Path, help="JSON file, written after each seed")
    options = parser.parse_intermixed_args()
    results: list[dict[str, Any]] = []
    for seed in options.seeds:
        config = vitreous.recipe(options.recipe).with_(seed=seed, **parse_fields(options.fields))
        results.append(run_recipe(options.data, config, options.runs / f"{options.recipe}-{seed}"))
        print(json.dumps(results[-1]), flush=True)
        accuracies = [result["top1"] for result in results]
        summary = {
            "mean": statistics.fmean(accuracies),
            "spread": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            "seeds": results,
        }
        if options.out:  # after each seed, so that an interrupted benchmark keeps its results
            write_result(options.out, {**environment(), "recipe": options.recipe, "config": config.flat(), **summary})


if __name__ == "__main__":
    main()
