"""Measure the accuracy of a checkpoint, and again after converting it to each dialect and back.

    python benchmarks/dialects.py deit_tiny_patch16_224.safetensors imagenet_val_1k.tar --preprocessing deit

The images are a tar file of JPEGs slightly larger than the model's input; the centre is cropped. The folder of an image
is its class index. Each converted model is loaded by `vitreous.load` without hints. A dialect that cannot represent the
model is written with force=True, and the result lists what that changes. `--logits` names an .npz with the reference
`logits` of the first images; they must agree to 1e-5.
"""

import tarfile
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitreous
from harness import RESULTS, argument_parser, environment, write_result
from vitreous.utils.images import decode

TARGETS = {
    "native": "x.safetensors",
    "timm": "timm",
    "huggingface": "huggingface",
    "torchvision": "x.pth",
    "google": "google.npz",
    "big-vision": "big-vision.npz",
}


def read_images(path: Path, preprocessing: vitreous.Preprocessing) -> tuple[Tensor, Tensor]:
    """Return the centre crop of each image at its stored size, and its class, in the order of the file names."""
    pictures, classes = [], []
    with tarfile.open(path) as archive:
        for member in sorted((m for m in archive.getmembers() if m.isfile()), key=lambda m: m.name):
            file = archive.extractfile(member)
            assert file is not None
            image = decode(file.read()).convert("RGB")
            without_resize = replace(preprocessing, resize=(image.height, image.width), crop="down")
            pictures.append(without_resize.pixels(image))
            classes.append(int(Path(member.name).parent.name))
    return torch.stack(pictures), torch.tensor(classes)


@torch.inference_mode()
def logits(model: vitreous.VisionTransformer, pixels: Tensor) -> Tensor:
    return torch.cat([model(model.preprocessing.normalise(batch)) for batch in pixels.split(50)])


def accuracy(scores: Tensor, classes: Tensor) -> dict[str, float]:
    right = scores.topk(5).indices == classes[:, None]
    shares = {"top1": right[:, 0], "top5": right.any(1)}
    return {name: round(100 * share.double().mean().item(), 2) for name, share in shares.items()}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("weights", type=Path, help="checkpoint file")
    parser.add_argument("images", type=Path, help="tar file of JPEGs in folders named by the class index")
    parser.add_argument(
        "--preprocessing", default=None, help="preset, if the checkpoint does not state its preprocessing"
    )
    parser.add_argument("--dialects", nargs="*", default=list(TARGETS), choices=TARGETS, help="default: all")
    parser.add_argument("--logits", type=Path, help=".npz with reference `logits` of the first images")
    parser.add_argument("--out", type=Path, default=RESULTS / "dialects-cpu.json", help="JSON file")
    options = parser.parse_args()

    model = vitreous.load(options.weights, preprocessing=options.preprocessing)
    pixels, classes = read_images(options.images, model.preprocessing)
    own = logits(model, pixels)
    first = f"{model.report.dialect}, the file"
    rows: list[dict[str, Any]] = [{"dialect": first, "changed": [], **accuracy(own, classes)}]
    if options.logits:
        expected = torch.from_numpy(np.load(options.logits)["logits"])
        error = ((own[: len(expected)] - expected).abs().max() / expected.abs().max()).item()
        print(f"relative error of the first {len(expected)} images against the reference: {error:.1e}")
        assert error <= 1e-5, error
        rows[0]["reference_error"] = float(f"{error:.2g}")
    with tempfile.TemporaryDirectory() as folder:
        for dialect in options.dialects:
            path = Path(folder) / TARGETS[dialect]
            try:
                vitreous.convert(options.weights, path, dialect, preprocessing=model.preprocessing)
                changed = []
            except vitreous.VitreousError as error:
                changed = [line.strip() for line in str(error).splitlines()[1:]]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", vitreous.VitreousWarning)
                    vitreous.convert(options.weights, path, dialect, force=True, preprocessing=model.preprocessing)
            back = vitreous.load(path, preprocessing=model.preprocessing)
            scores = logits(back, pixels)
            difference = ((scores - own).abs().max() / own.abs().max()).item()
            row = {
                "dialect": dialect,
                "changed": changed,
                **accuracy(scores, classes),
                "apart": float(f"{difference:.2g}"),
            }
            rows.append(row)
    for row in rows:
        print(f"{row['dialect']:22} top-1 {row['top1']:5.2f}  top-5 {row['top5']:5.2f}  {'; '.join(row['changed'])}")
    result = {"images": len(classes), "weights": options.weights.name, "rows": rows}
    command = f"python benchmarks/dialects.py {options.weights.name} {options.images.name}"
    command += f" --preprocessing {options.preprocessing}" if options.preprocessing else ""
    command += "" if options.dialects == list(TARGETS) else " ".join([" --dialects", *options.dialects])
    write_result(options.out, environment() | {"command": command} | result)


if __name__ == "__main__":
    main()
