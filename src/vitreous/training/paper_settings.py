"""Settings of the paper: Table 4 (steps and learning rates of fine-tuning, by data set), masked-patch pre-training."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Table4Row:
    """A row of Table 4 of the paper, with the size of the paper's development split for this data."""

    images: float  # maximum number of training images
    like: str  # the data sets of the row
    steps: int
    rates: tuple[float, ...]
    held_out: float  # fraction of the training images in the development split

    @property
    def range(self) -> str:
        return f"up to {self.images:,} images" if self.images < math.inf else "more than 200,000 images"


TABLE_4 = (
    Table4Row(1_000, "VTAB", 2_500, (0.01,), 0.2),
    Table4Row(20_000, "Pets and Flowers", 500, (0.001, 0.003, 0.01, 0.03), 0.1),
    Table4Row(200_000, "CIFAR", 10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    Table4Row(math.inf, "ImageNet", 20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
)
PAPER_MASKED_LR = 2e-4  # of Adam, appendix B.1.2
PAPER_MASKED_WIDTH = 768  # of the model that it is for, B/16; smaller models learn faster with larger rates
PAPER_WARMUP = 500  # steps, as in the official code; a tenth of shorter runs
