"""Numbers of the paper that are shown beside our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Images of the paper's pre-training data sets.
PRETRAINING_IMAGES = {"ImageNet": 1.28e6, "ImageNet-21k": 14e6, "JFT-300M": 303e6}
# Accuracy (%) on ImageNet after fine-tuning, by pre-training data: Table 5 of the second version of the paper.
TABLE_5: Mapping[str, Mapping[str, float]] = {
    "B/32": {"ImageNet": 73.38, "ImageNet-21k": 81.28, "JFT-300M": 80.73},
    "B/16": {"ImageNet": 77.91, "ImageNet-21k": 83.97, "JFT-300M": 84.15},
    "L/32": {"ImageNet": 71.16, "ImageNet-21k": 80.99, "JFT-300M": 84.37},
    "L/16": {"ImageNet": 76.53, "ImageNet-21k": 85.15, "JFT-300M": 87.12},
    "H/14": {"ImageNet-21k": 85.13, "JFT-300M": 88.04},
}


@dataclass(frozen=True)
class PaperPoint:
    """A model of the paper's Table 6: family, pre-training exaFLOPs, and accuracy (%) on ImageNet."""

    family: str
    model: str
    exaflops: float
    accuracy: float


TABLE_6 = (
    PaperPoint("ViT", "B/32", 55, 80.73),
    PaperPoint("ViT", "B/16", 224, 84.15),
    PaperPoint("ViT", "L/32", 196, 84.37),
    PaperPoint("ViT", "L/16", 783, 86.30),
    PaperPoint("ViT", "H/14", 4262, 88.08),
    PaperPoint("hybrid", "R50+B/32", 106, 84.90),
    PaperPoint("hybrid", "R50+B/16", 274, 85.58),
    PaperPoint("hybrid", "R50+L/16", 859, 86.60),
    PaperPoint("BiT", "R50x1", 50, 77.54),
    PaperPoint("BiT", "R152x2", 563, 84.97),
)
