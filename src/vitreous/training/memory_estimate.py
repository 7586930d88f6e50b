"""How much memory a training step takes, by formula."""

from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.training.optim.parameters import TrainablePart


def estimate_training_memory(
    config: ViTConfig | BiTConfig, micro_batch: int, precision: str, copies: int, part: TrainablePart
) -> int:
    """Bytes that a training step takes, about: `copies` of the weights in fp32 (themselves, gradients, moments, their
    mean), what the forward of a micro-batch keeps, and the largest thing made on the way. `part`: what is trained."""
    found = cost(config)
    share = 0.6 if precision == "bf16" else 1.0  # norms, residuals and masks stay in fp32
    weights = found.parameters + part.parameters * (copies - 1)
    return round(4 * weights + micro_batch * found.activation_bytes * part.share * share * 1.1)
