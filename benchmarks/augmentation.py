"""Batched augmentation beside kornia, or beside torchvision's v2 transforms where kornia is not installed.

kornia draws parameters for each sample too, except in its RandAugment, which does the same operations to a whole batch;
torchvision's v2 draws once for a batch everywhere. "randaugment_each" is theirs called for one image after the other,
which is what it takes for every image to have operations of its own. A peer that cannot be imported is left out.

python benchmarks/augmentation.py --out benchmarks/results/augmentation-cpu.json
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchvision_operators
from harness import RESULTS, environment, median_seconds, write
from vitreous.data.augmentation import colour_jitter, random_erasing, three_augment
from vitreous.data.colour import apply_tables, equalise_tables, to_levels
from vitreous.data.geometry import affine, affine_matrices
from vitreous.data.randaugment import randaugment
from vitreous.utils import random_keys

SHAPES = {"cpu": [(128, 32), (64, 160)], "cuda": [(128, 32), (1024, 32), (64, 160), (256, 224)]}
Operation = Callable[[Tensor], Tensor]


def ours(batch: int, size: int, device: str) -> dict[str, Operation]:
    keys = random_keys.keys(0, torch.arange(batch, device=device))

    def turn(images: Tensor) -> Tensor:
        drawn = 2 * random_keys.uniform(keys, "benchmark", 5) - 1
        matrices = affine_matrices(30 * drawn[:, 0], 0.3 * drawn[:, 1:3], 0.1 * size * drawn[:, 3:], (size, size))
        return affine(images, matrices[:, :2])

    def equalise(images: Tensor) -> Tensor:
        whole = to_levels(images)
        return apply_tables(equalise_tables(whole), whole)

    return {
        "affine": turn,
        "jitter": lambda images: colour_jitter(images, keys, 0.3),
        "equalise": equalise,
        "erase": lambda images: random_erasing(images, keys, 1.0),
        "randaugment": lambda images: randaugment(images, keys, 2, 9.0),
        "three_augment": lambda images: three_augment(images, keys),
    }


def kornias() -> dict[str, Operation]:
    """On images in 0..1, which is what it expects."""
    import kornia.augmentation as K
    import kornia.enhance
    from kornia.augmentation.auto import RandAugment

    return {
        "affine": K.RandomAffine(30, (0.1, 0.1), shear=17.0, p=1.0),
        "jitter": K.ColorJitter(0.3, 0.3, 0.3, p=1.0),
        "equalise": kornia.enhance.equalize,
        "erase": K.RandomErasing((0.02, 0.33), (0.3, 3.3), p=1.0),
        "randaugment": RandAugment(n=2, m=9),
    }


def torchvisions() -> dict[str, Operation]:
    """On uint8, without which its RandAugment and equalise do not go."""
    torchvision_operators.define_missing()
    from torchvision.transforms import InterpolationMode, v2

    bilinear = InterpolationMode.BILINEAR
    return {
        "affine": v2.RandomAffine(30, (0.1, 0.1), shear=17.0, interpolation=bilinear),
        "jitter": v2.ColorJitter(0.3, 0.3, 0.3),
        "equalise": v2.RandomEqualize(1.0),
        "erase": v2.RandomErasing(1.0, (0.02, 0.33), (0.3, 3.3)),
        "randaugment": v2.RandAugment(2, 9, interpolation=bilinear),
    }


def peer() -> tuple[str, dict[str, Operation], Operation]:
    """Whoever can be imported: its name, its operations, and what to make of images in 0..255."""
    try:
        return "kornia", kornias(), lambda images: images / 255
    except ImportError:
        pass
    try:
        return "torchvision", torchvisions(), lambda images: images.byte()
    except (ImportError, RuntimeError):  # a torchvision that does not go with this torch raises the latter
        return "nobody", {}, lambda images: images


def compare(batch: int, size: int, device: str, compiled: bool) -> dict[str, Any]:
    images = torch.randint(0, 256, (batch, 3, size, size), device=device).float()
    name, theirs, convert = peer()
    converted = convert(images)
    row: dict[str, Any] = {"batch": batch, "size": size, "peer": name}
    for operation, function in ours(batch, size, device).items():
        row[f"{operation}_ms"] = _milliseconds(function, images, device)
        if compiled:
            fast = torch.compile(function, dynamic=False)
            row[f"{operation}_compiled_ms"] = _milliseconds(fast, images, device)
        if operation in theirs:
            row[f"{operation}_{name}_ms"] = _milliseconds(theirs[operation], converted, device)
    if "randaugment" in theirs:
        each = theirs["randaugment"]
        one_by_one = _milliseconds(lambda x: torch.cat([each(image) for image in x.split(1)]), converted, device)
        row[f"randaugment_each_{name}_ms"] = one_by_one
    return row


def _milliseconds(function: Operation, images: Tensor, device: str) -> float:
    with torch.no_grad():
        # Many repeats, since peers draw another operation each time.
        return round(1e3 * median_seconds(lambda: function(images), device, repeats=31), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=SHAPES)
    parser.add_argument("--compile", action="store_true", help="ours under torch.compile as well (minutes, on CPU)")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for batch, size in SHAPES[args.device]:
        rows.append(compare(batch, size, args.device, args.compile))
        print(rows[-1], flush=True)
    out = args.out or RESULTS / f"augmentation-{args.device}.json"
    write(out, {**environment("kornia", "torchvision"), "dtype": "torch.float32", "rows": rows})


if __name__ == "__main__":
    main()
