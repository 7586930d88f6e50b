"""Compare transfer from the shipped checkpoint with training from scratch: `python benchmarks/transfer.py`

Features: a linear classifier on 10 images of each class (evaluation/fewshot.py), with features of vitreous-mini and of
three models of the same shape with random weights. Fine-tuning: a folder of 500 Fashion-MNIST images with the recipe
small_folder, starting from vitreous-mini; from scratch with the same settings; and from scratch with one learning rate
for all layers, since the recipe's lower rates for lower layers are meant for pretrained weights. Accuracy is measured
on test images with three seeds: after a few epochs, two seeds can differ by ten points.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import vitreous
from harness import RESULTS, argument_parser, environment, write_result
from vitreous.data.dataset import Source, Subset
from vitreous.data.loading import EvalLoader
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import EvalTransform
from vitreous.evaluation.features import extract_features
from vitreous.evaluation.fewshot import fewshot

NAME = "vitreous-mini"
SHOTS, TO_DRAW_FROM, TO_TEST = 10, 400, 2000  # images of a class, and in all, for few-shot
TRAINED, TESTED = 500, 1000  # images, for fine-tuning


def models() -> dict[str, list[vitreous.VisionTransformer]]:
    """Return the checkpoint, and three models with random weights, whose results differ by several points."""
    trained, random = vitreous.load(NAME), []
    for seed in range(3):
        torch.manual_seed(seed)
        random.append(vitreous.create(NAME))
        random[-1].preprocessing = trained.preprocessing
    return {NAME: [trained], "random weights": random}


def few_shot(data: str) -> list[dict[str, Any]]:
    opened = vitreous.open_data(data)
    assert opened.test is not None
    rows = []
    for name, variants in models().items():
        parts, shares = [first(opened.train, TO_DRAW_FROM), first(opened.test, TO_TEST)], []
        for model in variants:
            found = [extract_features(model, loader(part, model)) for part in parts]
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
    """Write RGB images to train/CLASS and test/CLASS, the same number for each class."""
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
    """Fine-tune from each start. `fields` of TrainConfig change the recipe for all of them."""
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
    parser = argument_parser(__doc__)
    parser.add_argument("--duration", help="of fine-tuning (default: the recipe's)")
    parser.add_argument("--image-size", type=int, help="of fine-tuning, in pixels (default: the model's)")
    parser.add_argument("--seeds", type=int, default=3, help="number of fine-tuning runs of each kind (default: 3)")
    parser.add_argument("--only", choices=("few-shot", "fine-tuning"), help="default: both")
    parser.add_argument("--out", type=Path, default=RESULTS / "transfer-cpu.json", help="JSON file")
    options = parser.parse_args()
    rows = []
    if options.only != "fine-tuning":
        rows += [found for data in ("digits", "fashion-mnist") for found in few_shot(data)]
    if options.only != "few-shot":
        fields = {"duration": options.duration, "image_size": options.image_size}
        rows += fine_tune(options.seeds, **{name: value for name, value in fields.items() if value is not None})
    write_result(options.out, {**environment("vitreous"), "rows": rows})


if __name__ == "__main__":
    main()
