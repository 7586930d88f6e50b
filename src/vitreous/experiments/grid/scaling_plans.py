"""The models, subsets and budgets of `figure3`, `figure4`, `figure5` and `table5` at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitreous.experiments.grid.experiment import Scale
from vitreous.experiments.grid.settings import VIT_FIELDS

VIT, HYBRID, BIT = "ViT", "hybrid", "BiT"
FAMILIES = (VIT, HYBRID, BIT)


@dataclass(frozen=True)
class ScaledModel:
    """A model that is pre-trained: its architecture, and its budgets in epochs of all pre-training images."""

    family: str
    name: str
    fields: Mapping[str, Any]  # of TrainConfig
    epochs: tuple[float, ...]


@dataclass(frozen=True)
class ScalingPlan:
    """What is trained at one scale. The learning rate is selected with the first model of each family."""

    models: tuple[ScaledModel, ...]  # of figure5
    shares: tuple[float, ...]  # of the pre-training images: the subsets of figure3 and figure4
    subset_models: tuple[str, ...]  # that are pre-trained on all subsets
    seeded: tuple[str, str]  # those of them with several seeds, a ViT and a BiT: the smallest of their families
    epochs: float  # of all pre-training images: with this many images in total, models are trained on every subset
    pretraining: Mapping[str, Any]  # settings of all models
    finetuning: Mapping[str, Any]
    finetuning_size: int  # image size in fine-tuning
    lr_candidates: tuple[float, ...] = ()  # for pre-training; (): the models have their own learning rate
    dev_fraction: float = 0.05  # of the pre-training images, to select the learning rate
    finetuning_lr: tuple[float, ...] = ()  # candidates for fine-tuning; (): one learning rate is given
    finetuning_dev: float = 0.02
    search_each: bool = False  # every fine-tuning run selects its own learning rate; otherwise one run of each family
    by_name: Mapping[str, ScaledModel] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {model.name: model for model in self.models})

    def first(self, family: str) -> ScaledModel:
        """Return the model of a family with which its learning rate is selected."""
        return next(model for model in self.models if model.family == family)


NO_VIT = dict.fromkeys(VIT_FIELDS)  # settings that a BiT does not have


def _vit(width: int, depth: int, epochs: tuple[float, ...], **fields: Any) -> ScaledModel:
    return ScaledModel(VIT, f"ViT {depth}x{width}", {**_encoder(width, depth), **fields}, epochs)


def _encoder(width: int, depth: int) -> dict[str, Any]:
    return {"model": "Ti/16", "width": width, "depth": depth, "heads": width // 64 or 2, "mlp_dim": 4 * width}


def _hybrid(name: str, width: int, depth: int, epochs: tuple[float, ...], **fields: Any) -> ScaledModel:
    backbone = {"model": name, "stem": "small", "width_factor": 0.5}
    title = f"{name.split('+', maxsplit=1)[0]}x0.5+ViT {depth}x{width}"
    return ScaledModel(HYBRID, title, {**_encoder(width, depth), **backbone, **fields}, epochs)


def _bit(layers: int, factor: float, epochs: tuple[float, ...]) -> ScaledModel:
    own = {"model": f"BiT-R{layers}x1", "width_factor": factor, "stem": "small"}
    return ScaledModel(BIT, f"BiT-R{layers}x{factor:g}", {**NO_VIT, **own}, epochs)


TINY_BUDGETS = (0.06, 0.12)
# No search of learning rates: it would take longer than all runs.
TINY = ScalingPlan(
    models=(
        _vit(32, 2, TINY_BUDGETS),
        _hybrid("R+Ti/16", 32, 2, TINY_BUDGETS, patch_size=2),
        _bit(26, 0.5, TINY_BUDGETS),
    ),
    shares=(0.1, 1.0),
    subset_models=("ViT 2x32", "Rx0.5+ViT 2x32", "BiT-R26x0.5"),
    seeded=("ViT 2x32", "BiT-R26x0.5"),
    epochs=0.12,
    pretraining={"batch_size": 16, "evaluate_every": "50%"},
    finetuning={"duration": "4 steps", "batch_size": 16},
    finetuning_size=8,
)

# 32 px, so that the BiT with the small-image stem takes about as many FLOPs as the ViT: 0.365 and 0.366 GFLOPs.
SMALL_BUDGETS = (2.0, 4.0, 8.0)
SMALL = ScalingPlan(
    models=(
        _vit(192, 6, SMALL_BUDGETS),
        _vit(128, 6, SMALL_BUDGETS),
        _vit(256, 8, SMALL_BUDGETS),
        _hybrid("R26+S/32", 192, 6, SMALL_BUDGETS, patch_size=1),
        _hybrid("R26+S/32", 128, 4, SMALL_BUDGETS, patch_size=1),
        _hybrid("R26+S/32", 384, 8, SMALL_BUDGETS, patch_size=1),
        _bit(26, 0.5, SMALL_BUDGETS),
        _bit(50, 0.5, SMALL_BUDGETS),
        _bit(26, 1.0, SMALL_BUDGETS),
    ),
    shares=(0.02, 0.05, 0.125, 0.375, 1.0),
    subset_models=("ViT 6x192", "R26x0.5+ViT 6x192", "BiT-R26x0.5"),
    seeded=("ViT 6x192", "BiT-R26x0.5"),
    epochs=4.0,
    pretraining={"image_size": 32, "patch_size": 4, "batch_size": 256, "evaluate_every": "20%"},
    finetuning={"duration": "500 steps", "batch_size": 128},
    finetuning_size=32,
    lr_candidates=(3e-4, 1e-3, 3e-3, 1e-2),
    finetuning_lr=(0.01, 0.03, 0.1),
)


def _paper(family: str, name: str, lr: float, *epochs: float, title: str = "", **fields: Any) -> ScaledModel:
    """A model of the paper's Table 6 and its learning rate on JFT-300M (Table 3). `title`: if the zoo has no such name,
    and `fields` change that of another model."""
    own = NO_VIT if family == BIT else {}
    return ScaledModel(family, title or name, {"model": name, "lr": lr, **own, **fields}, epochs)


BASE = {"width": 768, "depth": 12, "heads": 12, "mlp_dim": 3072}
LARGE = {"width": 1024, "depth": 24, "heads": 16, "mlp_dim": 4096}
PAPER = ScalingPlan(
    models=(
        _paper(VIT, "B/32", 8e-4, 7),
        _paper(VIT, "B/16", 8e-4, 7),
        _paper(VIT, "L/32", 6e-4, 7),
        _paper(VIT, "L/16", 4e-4, 7, 14),
        _paper(VIT, "H/14", 3e-4, 14),
        _paper(HYBRID, "R50+L/32", 8e-4, 7, title="R50+B/32", **BASE),
        _paper(HYBRID, "R50+B/16", 8e-4, 7),
        _paper(HYBRID, "R50+L/32", 2e-4, 7),
        _paper(HYBRID, "R50+B/16", 4e-4, 7, 14, title="R50+L/16", **LARGE),
        _paper(BIT, "BiT-R50x1", 1e-3, 7),
        _paper(BIT, "BiT-R50x2", 1e-3, 7),
        _paper(BIT, "BiT-R101x1", 8e-4, 7),
        _paper(BIT, "BiT-R152x1", 6e-4, 7),
        _paper(BIT, "BiT-R152x2", 6e-4, 7, 14),
        _paper(BIT, "BiT-R200x3", 6e-4, 14),  # not in Table 3: the rate of R152
    ),
    shares=(0.01, 0.03, 0.1, 0.3, 1.0),
    subset_models=("B/32", "L/16", "R50+B/16", "BiT-R50x1", "BiT-R152x2"),
    seeded=("B/32", "BiT-R50x1"),
    epochs=7,
    pretraining={"evaluate_every": "5%"},
    finetuning={},
    finetuning_size=384,
    finetuning_lr=(0.003, 0.01, 0.03, 0.06),
    finetuning_dev=0.01,
    search_each=True,
)
PLANS: Mapping[Scale, ScalingPlan] = {"tiny": TINY, "small": SMALL, "paper": PAPER}
