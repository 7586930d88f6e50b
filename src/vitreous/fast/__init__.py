"""Fast paths for training and inference. They compute the same results as the model's own code, to rounding."""

from vitreous.fast.accelerate import Accelerated, Precision, accelerate, accelerate_if_faster

__all__ = ["Accelerated", "Precision", "accelerate", "accelerate_if_faster"]
