"""Train on small folders of photographs with all defaults, from the shipped checkpoint and from random weights.

    python benchmarks/small_folder.py mini-imagenet --tasks 3 [--weights deit-tiny.safetensors]

Each task draws 5 classes with 60 photographs each from a folder of class folders, and up to 100 other photographs of
each class to test. `vitreous train` then holds out 30% of the 300 for validation and test, as for any folder. The
accuracy is that of best.safetensors on the other photographs. "random weights" is what `vitreous train` did by default
in version 0.1: 100 epochs from scratch.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import vitreous
from harness import RESULTS, argument_parser, environment, write_result

CLASSES, TRAINED, TESTED = 5, 60, 100


def draw_task(source: Path, root: Path, task: int) -> list[str]:
    """Copy photographs of some classes to root/train and root/test."""
    generator = random.Random(task)
    classes = sorted(folder.name for folder in source.iterdir() if folder.is_dir())
    drawn = sorted(generator.sample(classes, CLASSES))
    for name in drawn:
        files = sorted(file for file in (source / name).iterdir() if file.is_file())
        generator.shuffle(files)
        for split, part in (("train", files[:TRAINED]), ("test", files[TRAINED : TRAINED + TESTED])):
            (root / split / name).mkdir(parents=True)
            for file in part:
                shutil.copy(file, root / split / name)
    return drawn


def measure(root: Path, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    run = vitreous.train(root / "train", out=root / name.replace(" ", "-"), quiet=True, **fields).run
    seconds = time.perf_counter() - began
    arguments = ("evaluate", root / "test", "--model", run, "--json")
    done = subprocess.run([sys.executable, "-m", "vitreous", *arguments], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)["scores"][0]
    row = {"start": name, "top1": round(100 * result["top1"], 2), "tested": result["images"], "seconds": round(seconds)}
    print(f"{name:20} {row['top1']:5.1f}% of {row['tested']}  {row['seconds']} s", flush=True)
    return row


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("photos", type=Path, help="folder of class folders")
    parser.add_argument("--tasks", type=int, default=3, help="number of draws (default: 3)")
    parser.add_argument("--weights", help="a checkpoint to start from, in addition")
    parser.add_argument("--out", type=Path, default=RESULTS / "small-folder-cpu.json", help="JSON file")
    options = parser.parse_args()
    starts: dict[str, dict[str, Any]] = {"random weights": {"start": "none", "duration": "100 epochs"}, "default": {}}
    if options.weights:
        starts[Path(options.weights).stem] = {"start": options.weights}
    rows = []
    for task in range(options.tasks):
        with tempfile.TemporaryDirectory() as folder:
            drawn = draw_task(options.photos, Path(folder), task)
            rows += [{"task": task, "classes": drawn, **measure(Path(folder), *start)} for start in starts.items()]
    write_result(options.out, {**environment("vitreous"), "data": options.photos.name, "rows": rows})


if __name__ == "__main__":
    main()
