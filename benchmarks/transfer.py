"""What the shipped checkpoint is worth as a beginning: `python benchmarks/transfer.py`.

Features: a linear classifier from 10 images of each class (evaluation/fewshot.py), on those of vitreous-mini and on
those of the same model with random weights (three of them). Fine-tuning: a folder of 500 images of Fashion-MNIST with
the recipe small_folder, begun with vitreous-mini; from scratch, with all else the same; and from scratch with one
learning rate for all layers, since the lower ones that the recipe has in lower layers are meant for layers that know
something. Everything is measured on test images, with three seeds: after a few epochs, one seed is easily ten points
from another.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import vitreous
from harness import RESULTS, environment, write
from vitreous.data.dataset import Source, Subset
from vitreous.data.loading import EvalLoader
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import EvalTransform
from vitreous.evaluation.features import features
from vitreous.evaluation.fewshot import fewshot

NAME = "vitreous-mini"
SHOTS, TO_DRAW_FROM, TO_TEST = 10, 400, 2000  # images of a class, and in all, for few-shot
TRAINED, TESTED = 500, 1000  # images, for fine-tuning


def models() -> dict[str, list[vitreous.VisionTransformer]]:
    """The checkpoint, and its model with random weights: three of those, since they differ by points."""
    trained, fresh = vitreous.load(NAME), []
    for seed in range(3):
        torch.manual_seed(seed)
        fresh.append(vitreous.create(NAME))
        fresh[-1].preprocessing = trained.preprocessing
    return {NAME: [trained], "random weights": fresh}


def few_shot(data: str) -> list[dict[str, Any]]:
    opened = vitreous.open_data(data)
    assert opened.test is not None
    rows = []
    for name, alike in models().items():
        parts, shares = [first(opened.train, TO_DRAW_FROM), first(opened.test, TO_TEST)], []
        for model in alike:
            found = [features(model, loader(part, model)) for part in parts]
            shares += fewshot(*found[0], *found[1], shots=SHOTS).each
        rows.append(row(f"{data}, {SHOTS}-shot", name, shares, len(parts[1])))
    return rows


def first(source: Source, images: int) -> Source:
    return Subset(source, torch.arange(min(images, len(source))))


def loader(source: Source, model: vitreous.VisionTransformer) -> EvalLoader:
    return EvalLoader(source, ScanResult({}), EvalTransform(model.preprocessing), 100, 0, torch.device("cpu"))


def percent(share: float) -> float:
    return round(100 * share, 2)


def write_folder(root: Path) -> None:
    """As many images of each class, in train/CLASS and test/CLASS: in colour, as photographs are."""
    data = vitreous.open_data("fashion-mnist")
    assert data.test is not None
    for split, source, images in (("train", data.train, TRAINED), ("test", data.test, TESTED)):
        for number, name in enumerate(data.classes):
            folder = root / split / name.replace("/", " or ")
            folder.mkdir(parents=True)
            members = (source.labels == number).nonzero()[: images // len(data.classes), 0]
            for index in members.tolist():
                source.image(index).convert("RGB").save(folder / f"{index:05d}.png")


SCRATCH: dict[str, Any] = {"start": None, "model": NAME}
STARTS: dict[str, dict[str, Any]] = {
    NAME: {},
    "from scratch": SCRATCH,
    "from scratch, one rate": {**SCRATCH, "layer_decay": 1.0},
}


def fine_tune(seeds: int, **fields: Any) -> list[dict[str, Any]]:
    """`fields` of TrainConfig change the recipe, for all alike."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        write_folder(images)
        for number, (start, changes) in enumerate(STARTS.items()):
            shares, seconds = [], 0.0
            for seed in range(seeds):
                config = vitreous.recipe("small_folder").with_(**fields, **changes)
                outcome = vitreous.train(images, config, seed=seed, out=f"{folder}/{number}-{seed}", quiet=True)
                assert outcome.result is not None
                assert outcome.result.top1 is not None
                shares.append(outcome.result.top1)
                seconds += outcome.seconds
            task = f"fashion-mnist, {TRAINED} images, fine-tuned"
            rows.append({**row(task, start, shares, TESTED), "seconds_each": round(seconds / seeds), "changed": fields})
    return rows


def row(task: str, start: str, shares: Sequence[float], tested: int) -> dict[str, Any]:
    spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
    accuracy = {"mean": percent(statistics.fmean(shares)), "spread": percent(spread), "each": [*map(percent, shares)]}
    made = {"task": task, "start": start, **accuracy, "tested": tested}
    print(f"{task:40} {start:24} {made['mean']:5.1f}% ± {made['spread']:.1f}", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", help="of fine-tuning; the recipe's own if not given")
    parser.add_argument("--image-size", type=int, help="of fine-tuning, in pixels; the model's own if not given")
    parser.add_argument("--seeds", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--only", choices=("few-shot", "fine-tuning"))
    parser.add_argument("--out", type=Path, default=RESULTS / "transfer-cpu.json")
    options = parser.parse_args()
    rows = []
    if options.only != "fine-tuning":
        rows += [found for data in ("digits", "fashion-mnist") for found in few_shot(data)]
    if options.only != "few-shot":
        asked = {"duration": options.duration, "image_size": options.image_size}
        rows += fine_tune(options.seeds, **{name: value for name, value in asked.items() if value is not None})
    write(options.out, {**environment("vitreous"), "rows": rows})


if __name__ == "__main__":
    main()
