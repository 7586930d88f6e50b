"""The best weights of a training run as the checkpoint that comes with the package.

    python examples/mini_data.py cifar10.npz imagenette/ mini.npz
    vitreous train mini.npz --model vitreous-mini --out runs/mini ...
    python examples/ship_mini.py runs/mini

The model has to be the zoo's vitreous-mini with the classes of mini_data.py. What only matters in training (dropout,
stochastic depth) stays behind. Weights are rounded to 16 bits, and the file takes the place of the old one when all of
it is written. The numbers of the model card, which lies beside the file, are to be measured anew then.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import torch

import vitreous
from mini_data import CLASSES
from vitreous.errors import VitreousError
from vitreous.models import zoo
from vitreous.weights import shipped
from vitreous.weights.express import TRAINING
from vitreous.weights.report import LoadReport

NAME = "vitreous-mini"
MOST_BYTES = 8_000_000
ORIGIN = {"trained_on": "CIFAR-10 and Imagenette (training images)", "made_by": "examples/ship_mini.py"}


def checked(run: Path) -> vitreous.VisionTransformer:
    """The run's best model, as it is shipped."""
    model = vitreous.load(run)  # of a run directory, best.safetensors
    if not isinstance(model, vitreous.VisionTransformer):
        raise VitreousError(f"{run}: not a ViT")
    config, wanted = replace(model.config, **dict.fromkeys(TRAINING, 0.0)), asdict(zoo.config(NAME))
    differences = [f"{k} is {v!r}, not {wanted[k]!r}" for k, v in asdict(config).items() if v != wanted[k]]
    if differences:
        raise VitreousError(f"{run}: not the zoo's {NAME}: {'; '.join(differences)}")
    if model.labels != CLASSES:
        raise VitreousError(f"{run}: its classes are {', '.join(model.labels or ())}; expected {', '.join(CLASSES)}")
    model.half().config = config
    if lost := [name for name, p in model.named_parameters() if not torch.isfinite(p).all()]:
        raise VitreousError(f"{run}: too large for 16 bits: {', '.join(lost)}")
    model.report = LoadReport(NAME, "memory", "native", config, origin=ORIGIN)
    size = sum(p.nbytes for p in model.parameters())
    if size > MOST_BYTES:
        raise VitreousError(f"{run}: {size:,} bytes of weights, and no more than {MOST_BYTES:,} are shipped")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=shipped.FOLDER / f"{NAME}.safetensors")
    options = parser.parse_args()
    try:
        vitreous.save(checked(options.run), options.out)
    except VitreousError as error:
        raise SystemExit(str(error)) from error
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
