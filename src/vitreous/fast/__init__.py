"""Models at the speed of the machine: the same numbers as the plain model's, to the precision that was asked for."""

from vitreous.fast.accelerate import Accelerated, Precision, accelerate, at_work

__all__ = ["Accelerated", "Precision", "accelerate", "at_work"]
