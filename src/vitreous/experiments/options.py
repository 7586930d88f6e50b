"""Options of `vitreous reproduce`. This module does not import torch, so that the command line starts fast."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ReproduceOptions:
    """Data, scale, output and hardware of experiments."""

    data: str | None = None
    """Pre-training data, as in `vitreous train`. Default at scale tiny: the handwritten digits of scikit-learn."""
    transfer: tuple[str, ...] = ()
    """Data sets that are not pre-trained on, for few-shot classification and for fine-tuning."""
    scale: Literal["tiny", "small", "paper"] = "tiny"
    """tiny: digits, seconds per experiment, to try it out. small: a small ViT, minutes on a GPU. paper: the settings
    of the paper."""
    seeds: int | None = None
    """Number of seeds, that is, training runs per setting. Default: as listed for small; 1 for tiny. Differences are
    tested only with 2 or more."""
    out: str = "reproduce"
    """Output folder of all experiments."""
    model: str | None = None
    """Checkpoint to inspect instead of a model that is trained for it (figure6 and figure7)."""
    jobs: int = 1
    """Number of cells that run side by side on each GPU, or on the CPU."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ..., mps (Macs); auto: all GPUs if there are any."""
    overwrite: bool = False
    """Replace an earlier result of the same experiment and scale."""
