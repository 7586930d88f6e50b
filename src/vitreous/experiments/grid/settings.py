"""The data and the pre-training settings of each scale."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.data.dataset import DataSet
from vitreous.data.options import Reading
from vitreous.errors import VitreousError
from vitreous.experiments.grid.cell_measures import CellMeasure, FewShotAccuracy, ValidationAccuracy
from vitreous.experiments.grid.experiment import Scale
from vitreous.training.config import TrainConfig

UNSEEN_SHARE = 0.2  # of the classes: held out from pre-training, for few-shot classification
CLASS_SEED = 0  # of the random choice of these classes
SHOTS = 5  # as in the paper's few-shot results
DRAWS = 10  # random draws of the shots; their mean is one value

# What all scales share: AdamW with a linear decay of the learning rate and gradient clipping; crops and flips are the
# only augmentation. Only the weights of the last step are measured, so no weights are selected.
COMMON: dict[str, Any] = {
    "start": "none",
    "pool": "token",
    "position": "learned-1d",
    "optimiser": "adamw",
    "schedule": "linear",
    "warmup": "10%",
    "weight_decay": 0.1,
    "dropout": 0.0,
    "stochastic_depth": 0.0,
    "label_smoothing": 0.0,
    "class_weights": "none",
    "ema": 0.0,
    "evaluate_every": "100%",
    "randaugment": 0,
    "magnitude": 0.0,
    "three_augment": False,
    "jitter": 0.0,
    "erase": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "shift": 0.0,
}
PRETRAINING: dict[Scale, dict[str, Any]] = {
    # The handwritten digits of scikit-learn, 8 x 8 px.
    "tiny": {
        "model": "Ti/16",
        **{"width": 32, "depth": 2, "heads": 2, "mlp_dim": 64, "image_size": 8, "patch_size": 2},
        **{"duration": "30 steps", "batch_size": 64, "lr": 3e-3, "compile": "no"},
        **{"crop": 1.0, "aspect": 1.0, "flip": False},
    },
    # A ViT with the width of Ti and half of its depth, for images of 84 px (mini-ImageNet).
    "small": {
        "model": "Ti/16",
        **{"width": 192, "depth": 6, "heads": 3, "mlp_dim": 768, "image_size": 80, "patch_size": 10},
        **{"duration": "10 epochs", "batch_size": 512, "lr": 1e-3},
        **{"crop": 0.25, "aspect": 4 / 3, "flip": True},
    },
    # B/16 on JFT-300M in the paper (Table 3), or on ImageNet-21k.
    "paper": {
        "model": "B/16",
        **{"image_size": 224, "duration": "7 epochs", "batch_size": 4096, "lr": 8e-4, "warmup": "10000 steps"},
        **{"crop": 0.05, "aspect": 4 / 3, "flip": True},
    },
}
FINETUNING: dict[Scale, dict[str, Any]] = {
    "tiny": {"duration": "30 steps", "batch_size": 64, "lr": 0.1, "compile": "no"},
    "small": {"duration": "10 epochs", "batch_size": 128, "lr": 0.03},
    "paper": {"duration": "20000 steps", "batch_size": 512, "lr": 0.03, "warmup": "500 steps"},
}
# The CNN baseline: half of the width of a ResNet-26, with the stem for small images.
RESNET: dict[Scale, dict[str, Any]] = {
    "tiny": {"model": "BiT-R26x1", "width_factor": 0.5, "stem": "small", "duration": "8 steps", "batch_size": 16},
    "small": {"model": "BiT-R26x1", "width_factor": 0.5, "stem": "small", "image_size": 40, "duration": "5 epochs"},
    "paper": {"model": "BiT-R50x1", "image_size": 224, "duration": "7 epochs"},
}
VIT_FIELDS = ("width", "depth", "heads", "mlp_dim", "patch_size", "pool", "position", "dropout", "stochastic_depth")


@dataclass(frozen=True)
class Setting:
    """The data of one call of `reproduce`, and what the cells of all experiments have in common."""

    scale: Scale
    data: str  # the pre-training data; "" if the experiment needs none
    transfer: tuple[str, ...] = ()  # other data sets
    seeds: int = 1
    classes: tuple[str, ...] = ()  # of the pre-training data that are trained on; (): all
    unseen: tuple[str, ...] = ()  # the others, for few-shot classification
    model: str | None = None  # a checkpoint to inspect instead of a pre-trained model
    reading: Reading = Reading()  # noqa: RUF009 (it is frozen)

    def pretraining(self, seed: int = 0, **changes: Any) -> TrainConfig:
        """Return the settings of pre-training, with some fields of TrainConfig changed."""
        own = {"seed": seed, "only_classes": self.classes}
        reading = {name: value for name, value in vars(self.reading).items() if value != getattr(Reading(), name)}
        return TrainConfig().with_(**{**COMMON, **PRETRAINING[self.scale], **reading, **own, **changes})

    def resnet(self, seed: int = 0, **changes: Any) -> TrainConfig:
        """Return the settings of pre-training for the CNN baseline."""
        return self.pretraining(seed, **{**dict.fromkeys(VIT_FIELDS), **RESNET[self.scale], **changes})

    @property
    def image_size(self) -> int:
        """The image size of pre-training."""
        return int(PRETRAINING[self.scale]["image_size"])

    def finetuning(self, seed: int, image_size: int) -> TrainConfig:
        """Return settings for fine-tuning as in the paper (Table 4): SGD with momentum, a cosine schedule, no weight
        decay. The initial weights are those of the cell that the run starts from."""
        own = {"seed": seed, "image_size": image_size, "optimiser": "sgd", "weight_decay": 0.0, "schedule": "cosine"}
        architecture = ("model", "start", *VIT_FIELDS)
        common = {name: value for name, value in COMMON.items() if name not in architecture}
        scale = {name: PRETRAINING[self.scale][name] for name in ("crop", "aspect", "flip")}
        return TrainConfig().with_(**{**common, **scale, **FINETUNING[self.scale], **own})

    def measures(self) -> tuple[CellMeasure, ...]:
        """Return what is measured on every pre-trained model: accuracy on validation images, and few-shot linear
        accuracy on the unseen classes and on the transfer data."""
        fewshot = [FewShotAccuracy(source, source_title(source)) for source in self.transfer]
        if self.unseen:
            fewshot.insert(0, FewShotAccuracy(self.data, "unseen", classes=self.unseen))
        return (ValidationAccuracy(), *fewshot)

    @property
    def fewshot(self) -> str:
        """The name of the main measure: few-shot accuracy on unseen classes, else on the first transfer data."""
        return next(one.value for one in self.measures() if isinstance(one, FewShotAccuracy))


def source_title(source: str) -> str:
    """Return a short name for a data set: the name of its file or folder without suffixes."""
    parts = [part.split(".")[0] for part in source.rstrip("/").split("/")]
    return next((part for part in reversed(parts) if re.search(r"\w", part)), "data")


def split_classes(classes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the classes to pre-train on, and those held out: a fifth of them, at least 2, drawn with a fixed seed."""
    held_out = max(2, round(UNSEEN_SHARE * len(classes)))
    if len(classes) - held_out < 2:
        raise VitreousError(
            f"{len(classes)} classes are too few: {held_out} are held out for few-shot classification, and pre-training"
            " needs at least two"
        )
    drawn = set(np.random.default_rng(CLASS_SEED).permutation(len(classes))[:held_out].tolist())
    seen = tuple(name for number, name in enumerate(classes) if number not in drawn)
    return seen, tuple(name for number, name in enumerate(classes) if number in drawn)


def make_setting(
    scale: Scale, data: str, opened: DataSet | None, transfer: tuple[str, ...], seeds: int, model: str | None
) -> Setting:
    """`opened`: the pre-training data. In the `paper` scale all of its classes are trained on, as in the paper. A given
    model is shown images of all classes."""
    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    if opened is not None and scale != "paper" and model is None:
        seen, unseen = split_classes(opened.classes)
    return Setting(scale, data, transfer, seeds, seen, unseen, model)
