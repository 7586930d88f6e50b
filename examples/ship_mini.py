"""Write the checkpoint that comes with the package from the best weights of a training run.

    python examples/mini_data.py cifar10.npz imagenette/ mini.npz
    vitreous train mini.npz --recipe vitreous_mini --out runs/mini
    python examples/ship_mini.py runs/mini mini.npz

The features of a classifier's last blocks are specific to its classes and transfer worse than those of earlier blocks.
So the run trains more blocks than are shipped. This script keeps the blocks of the zoo's vitreous-mini and fits a
linear head on the training images without augmentation. Weights are rounded to float16. The new file replaces the old
one when it is complete. Afterwards, measure the numbers of the model card next to the file again.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import vitreous
from mini_data import CLASSES
from vitreous.data.dataset import Source, Subset
from vitreous.data.loading import EvalLoader
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import EvalTransform
from vitreous.errors import VitreousError
from vitreous.evaluation.features import extract_features
from vitreous.models import zoo
from vitreous.weights import shipped
from vitreous.weights.compatibility import TRAINING_FIELDS
from vitreous.weights.load_report import LoadReport

NAME = "vitreous-mini"
MAX_BYTES = 8_000_000
ORIGIN = {"trained_on": "CIFAR-10 and Imagenette (training images)", "made_by": "examples/ship_mini.py"}
EXAMPLES = 20_000  # training images for the head
DECAY = 1e-3  # weight decay of the head, for standardised features


def truncated_model(run: Path) -> vitreous.VisionTransformer:
    """Return the run's best model without its last blocks, with a new final norm and a new head."""
    whole = vitreous.load(run)  # best.safetensors of the run directory
    if not isinstance(whole, vitreous.VisionTransformer):
        raise VitreousError(f"{run}: not a ViT")
    wanted = zoo.config(NAME)
    config = replace(whole.config, depth=wanted.depth, **dict.fromkeys(TRAINING_FIELDS, 0.0))
    differences = [
        f"{k} is {v!r}, not {asdict(wanted)[k]!r}" for k, v in asdict(config).items() if v != asdict(wanted)[k]
    ]
    if whole.config.depth < wanted.depth:
        differences.append(f"depth is {whole.config.depth}, less than {wanted.depth}")
    if differences:
        raise VitreousError(f"{run}: not the zoo's {NAME}: {'; '.join(differences)}")
    if whole.labels != CLASSES:
        raise VitreousError(f"{run}: its classes are {', '.join(whole.labels or ())}; expected {', '.join(CLASSES)}")
    model = vitreous.create(NAME)
    kept = {name: tensor for name, tensor in whole.state_dict().items() if name in model.state_dict()}
    model.load_state_dict({k: v for k, v in kept.items() if k.startswith(("patch_embed.", "blocks."))}, strict=False)
    model.preprocessing, model.labels = whole.preprocessing, whole.labels
    return model


def fit_head(model: vitreous.VisionTransformer, data: str) -> float:
    """Fit the head by softmax regression on features. Return its accuracy on the validation images."""
    opened = vitreous.open_data(data)
    if opened.classes != CLASSES or opened.val is None:
        raise VitreousError(f"{data}: not a file of mini_data.py")
    order = torch.randperm(len(opened.train), generator=torch.Generator().manual_seed(0))
    x, y = extract_features(model, loader(Subset(opened.train, order[:EXAMPLES]), model))
    mean, std = x.mean(0), x.std(0) + 1e-6
    weight, bias = softmax_regression((x - mean) / std, y)
    with torch.no_grad():
        model.head.weight.copy_((weight / std[:, None]).T)
        model.head.bias.copy_(bias - (mean / std) @ weight)
        x, y = extract_features(model, loader(opened.val, model))
        return (model.head(x).argmax(1) == y).double().mean().item()


def loader(source: Source, model: vitreous.VisionTransformer) -> EvalLoader:
    return EvalLoader(source, ScanResult({}), EvalTransform(model.preprocessing), 100, 0, torch.device("cpu"))


def softmax_regression(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    weight, bias = torch.zeros(x.shape[1], len(CLASSES)), torch.zeros(len(CLASSES))
    optimiser = torch.optim.LBFGS(
        [weight.requires_grad_(), bias.requires_grad_()], max_iter=200, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(x @ weight + bias, y) + DECAY * weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return weight.detach(), bias.detach()


def to_half(model: vitreous.VisionTransformer) -> vitreous.VisionTransformer:
    model.half()
    if too_large := [name for name, p in model.named_parameters() if not torch.isfinite(p).all()]:
        raise VitreousError(f"weights too large for float16: {', '.join(too_large)}")
    model.report = LoadReport(NAME, "memory", "native", model.config, origin=ORIGIN)
    size = sum(p.nbytes for p in model.parameters())
    if size > MAX_BYTES:
        raise VitreousError(f"{size:,} bytes of weights, and the limit is {MAX_BYTES:,}")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory of the recipe vitreous_mini")
    parser.add_argument("data", help="the .npz that mini_data.py wrote")
    parser.add_argument(
        "--out",
        type=Path,
        default=shipped.FOLDER / f"{NAME}.safetensors",
        help="file to write (default: the shipped file)",
    )
    options = parser.parse_args()
    try:
        model = truncated_model(options.run)
        print(f"accuracy on the validation images: {fit_head(model, options.data):.1%}")
        vitreous.save(to_half(model), options.out)
    except VitreousError as error:
        raise SystemExit(str(error)) from error
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
