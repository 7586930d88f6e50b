"""Models at the speed of the machine: the same numbers as the plain model's, to the precision that was asked for."""

from vitreous.fast.running import Accelerated, accelerate

__all__ = ["Accelerated", "accelerate"]
