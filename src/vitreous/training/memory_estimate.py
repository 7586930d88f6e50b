"""Estimate of the memory of a training step."""

from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.training.optim.parameters import TrainablePart


def estimate_training_memory(
    config: ViTConfig | BiTConfig, micro_batch: int, precision: str, copies: int, part: TrainablePart
) -> int:
    """Estimate the bytes of a training step: weights and the activations that are kept for the backward pass.

    `copies`: fp32 tensors per trained parameter (weight, gradient, optimiser state, EMA). `part`: what is trained.
    """
    model = cost(config)
    activation_factor = 0.6 if precision == "bf16" else 1.0  # norms, residuals and masks stay in fp32
    weights = model.parameters + part.parameters * (copies - 1)
    activations = micro_batch * model.activation_bytes * part.layer_fraction * activation_factor
    return round(4 * weights + activations * 1.1)  # 1.1: temporary tensors
