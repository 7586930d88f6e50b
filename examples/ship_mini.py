"""The best weights of a training run as the checkpoint that comes with the package.

    python examples/mini_data.py cifar10.npz imagenette/ mini.npz
    vitreous train mini.npz --recipe vitreous_mini --out runs/mini
    python examples/ship_mini.py runs/mini mini.npz

The last blocks of a classifier know little more than its classes: what they make of an image is worth less for other
tasks than what the blocks below them do. So the run trains more blocks than are shipped. Those that the zoo's
vitreous-mini has are kept, and a linear head is fitted to them, with the training images as they are. Weights are
rounded to 16 bits, and the file takes the place of the old one when all of it is written. The numbers of the model
card, which lies beside the file, are to be measured anew then.
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
MOST_BYTES = 8_000_000
ORIGIN = {"trained_on": "CIFAR-10 and Imagenette (training images)", "made_by": "examples/ship_mini.py"}
EXAMPLES = 20_000  # training images that the head is fitted to
DECAY = 1e-3  # of its weights, for standardised features


def cut(run: Path) -> vitreous.VisionTransformer:
    """The run's best model without its last blocks. Its head and final norm went with them: a new norm is plain."""
    whole = vitreous.load(run)  # of a run directory, best.safetensors
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
    """Softmax regression on features; how many of the images that were held out from training it gets right."""
    opened = vitreous.open_data(data)
    if opened.classes != CLASSES or opened.val is None:
        raise VitreousError(f"{data}: not what mini_data.py makes")
    order = torch.randperm(len(opened.train), generator=torch.Generator().manual_seed(0))
    x, y = extract_features(model, loader(Subset(opened.train, order[:EXAMPLES]), model))
    mean, std = x.mean(0), x.std(0) + 1e-6
    weight, bias = regression((x - mean) / std, y)
    with torch.no_grad():
        model.head.weight.copy_((weight / std[:, None]).T)
        model.head.bias.copy_(bias - (mean / std) @ weight)
        x, y = extract_features(model, loader(opened.val, model))
        return (model.head(x).argmax(1) == y).double().mean().item()


def loader(source: Source, model: vitreous.VisionTransformer) -> EvalLoader:
    return EvalLoader(source, ScanResult({}), EvalTransform(model.preprocessing), 100, 0, torch.device("cpu"))


def regression(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    weight, bias = torch.zeros(x.shape[1], len(CLASSES)), torch.zeros(len(CLASSES))
    search = torch.optim.LBFGS(
        [weight.requires_grad_(), bias.requires_grad_()], max_iter=200, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        value = F.cross_entropy(x @ weight + bias, y) + DECAY * weight.square().sum()
        value.backward()
        return value

    search.step(loss)
    return weight.detach(), bias.detach()


def rounded(model: vitreous.VisionTransformer) -> vitreous.VisionTransformer:
    model.half()
    if lost := [name for name, p in model.named_parameters() if not torch.isfinite(p).all()]:
        raise VitreousError(f"too large for 16 bits: {', '.join(lost)}")
    model.report = LoadReport(NAME, "memory", "native", model.config, origin=ORIGIN)
    size = sum(p.nbytes for p in model.parameters())
    if size > MOST_BYTES:
        raise VitreousError(f"{size:,} bytes of weights, and no more than {MOST_BYTES:,} are shipped")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", help="what mini_data.py made")
    parser.add_argument("--out", type=Path, default=shipped.FOLDER / f"{NAME}.safetensors")
    options = parser.parse_args()
    try:
        model = cut(options.run)
        print(f"of the images held out from training {fit_head(model, options.data):.1%} are right")
        vitreous.save(rounded(model), options.out)
    except VitreousError as error:
        raise SystemExit(str(error)) from error
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
