"""Time batched augmentation against kornia, or against torchvision's v2 transforms if kornia is not installed.

kornia draws parameters for each image, except in its RandAugment, which applies the same operations to a whole batch.
torchvision's v2 transforms draw once for a batch. "randaugment_each" calls the peer's RandAugment on one image at a
time, so that every image gets its own operations. If neither peer can be imported, only ours is timed.

    python benchmarks/augmentation.py --out benchmarks/results/augmentation-cpu.json
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchvision_operators
from harness import RESULTS, argument_parser, environment, median_seconds, write_result
from vitreous.data.augmentation import colour_jitter, random_erasing, three_augment
from vitreous.data.colour import apply_tables, equalise_tables, to_levels
from vitreous.data.geometry import affine, affine_matrices
from vitreous.data.randaugment import randaugment
from vitreous.utils import random_keys

SHAPES = {"cpu": [(128, 32), (64, 160)], "cuda": [(128, 32), (1024, 32), (64, 160), (256, 224)]}
Operation = Callable[[Tensor], Tensor]


def our_operations(batch: int, size: int, device: str) -> dict[str, Operation]:
    keys = random_keys.keys(0, torch.arange(batch, device=device))

    def random_affine(images: Tensor) -> Tensor:
        drawn = 2 * random_keys.uniform(keys, "benchmark", 5) - 1
        matrices = affine_matrices(30 * drawn[:, 0], 0.3 * drawn[:, 1:3], 0.1 * size * drawn[:, 3:], (size, size))
        return affine(images, matrices[:, :2])

    def equalise(images: Tensor) -> Tensor:
        whole = to_levels(images)
        return apply_tables(equalise_tables(whole), whole)

    return {
        "affine": random_affine,
        "jitter": lambda images: colour_jitter(images, keys, 0.3),
        "equalise": equalise,
        "erase": lambda images: random_erasing(images, keys, 1.0),
        "randaugment": lambda images: randaugment(images, keys, 2, 9.0),
        "three_augment": lambda images: three_augment(images, keys),
    }


def kornia_operations() -> dict[str, Operation]:
    """Return kornia's operations. They expect images in 0..1."""
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


def torchvision_operations() -> dict[str, Operation]:
    """Return torchvision's operations. Its RandAugment and equalise need uint8 images."""
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


def find_peer() -> tuple[str, dict[str, Operation], Operation]:
    """Return the first peer that can be imported: its name, its operations, and the conversion of images in 0..255."""
    try:
        return "kornia", kornia_operations(), lambda images: images / 255
    except ImportError:
        pass
    try:
        return "torchvision", torchvision_operations(), lambda images: images.byte()
    except (ImportError, RuntimeError):  # RuntimeError: a torchvision built for another torch
        return "none", {}, lambda images: images


def compare(batch: int, size: int, device: str, compiled: bool) -> dict[str, Any]:
    images = torch.randint(0, 256, (batch, 3, size, size), device=device).float()
    name, theirs, convert = find_peer()
    converted = convert(images)
    row: dict[str, Any] = {"batch": batch, "size": size, "peer": name}
    for operation, function in our_operations(batch, size, device).items():
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
        # Many repeats, since RandAugment of the peers draws other operations in each call.
        return round(1e3 * median_seconds(lambda: function(images), device, repeats=31), 3)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        choices=SHAPES,
        help="default: the GPU if there is one",
    )
    parser.add_argument(
        "--compile", action="store_true", help="also time ours under torch.compile (takes minutes on a CPU)"
    )
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    rows = []
    for batch, size in SHAPES[args.device]:
        rows.append(compare(batch, size, args.device, args.compile))
        print(rows[-1], flush=True)
    out = args.out or RESULTS / f"augmentation-{args.device}.json"
    write_result(out, {**environment("kornia", "torchvision"), "dtype": "torch.float32", "rows": rows})


if __name__ == "__main__":
    main()
